// Local collectives: milliseconds and bus bandwidth, bytes * (ranks - 1) / ranks / seconds.
// usage: collectives_bench [RANKS]...
#include <atomic>
#include <thread>

#include "runtime/comm/local/LocalCommunicator.h"
#include "test/bench/CallBench.h"

namespace {

using sheaf::comm::AbortSignal;
using sheaf::comm::LocalCommunicator;

double seconds(sheaf::plan::CollectiveOp op, int64_t ranks, uint64_t bytes) {
  AbortSignal abort;
  LocalCommunicator communicator(ranks, abort, 50);
  const uint64_t part = bytes / sizeof(float) / ranks, whole = part * ranks;
  std::vector<double> times;
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      std::vector<float> buffer(whole, float(rank)), sum(part);
      std::byte* all = reinterpret_cast<std::byte*>(buffer.data());
      std::byte* mine = all + rank * part * sizeof(float);
      const bool gather = op == sheaf::plan::ALL_GATHER, reduce = op == sheaf::plan::ALL_REDUCE;
      for (int i = 0; i < 9; ++i) {
        auto start = std::chrono::steady_clock::now();
        sheaf::Status status = communicator.run(
            rank, {op, sheaf::plan::F32, reduce ? whole : part, gather ? mine : all,
                   op == sheaf::plan::REDUCE_SCATTER ? reinterpret_cast<std::byte*>(sum.data()) : all});
        double time = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        if (status.ok() && rank == 0) times.push_back(time);
      }
    });
  for (std::thread& thread : threads) thread.join();
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<int64_t> ranks;
  for (int i = 1; i < argc; ++i) ranks.push_back(std::max(std::atoi(argv[i]), 1));
  if (ranks.empty()) ranks = {2, 4};
  for (int64_t count : ranks)
    for (uint64_t bytes :
         {uint64_t(4) << 10, uint64_t(1) << 20, uint64_t(16) << 20, uint64_t(64) << 20, uint64_t(256) << 20})
      for (auto [op, name] :
           {std::pair{sheaf::plan::ALL_GATHER, "all_gather"}, std::pair{sheaf::plan::REDUCE_SCATTER, "reduce_scatter"},
            std::pair{sheaf::plan::ALL_REDUCE, "all_reduce"}}) {
        double time = seconds(op, count, bytes);
        double moved = double(bytes) * (count - 1) / count * (op == sheaf::plan::ALL_REDUCE ? 2 : 1);
        std::printf("%-14s %ld ranks, %9.3f MiB: %9.3f ms, %6.2f GB/s\n", name, long(count), bytes / 1048576.0,
                    time * 1e3, moved / time / 1e9);
        std::fflush(stdout);
      }
}
