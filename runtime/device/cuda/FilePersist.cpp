#include "runtime/device/cuda/FilePersist.h"

#include <chrono>
#include <thread>
#include <utility>

#include "runtime/plan/Types.h"

namespace sheaf::cuda {
namespace {

// A vote is another one each time: after an error a rank's stream goes on, and what it sums for the next persists is
// the vote before. The sums of these are exact in f32.
float voteAt(int64_t number) {
  constexpr int64_t kVotes = 256;
  static_assert(kVotes * plan::kMaxRanks <= int64_t{1} << 24);
  return static_cast<float>(1 + number % kVotes);
}

}  // namespace

// In pinned memory. What a thread writes before it reports is there for the stream, and the other way round.
struct FilePersist::Words {
  float own;  // this rank's vote
  float all;  // the sum
};

Expected<std::unique_ptr<FilePersist>> FilePersist::create(cpu::DurableState& state, FileStream& stream,
                                                           comm::AbortSignal& abort, int64_t rank, int64_t ranks) {
  std::unique_ptr<FilePersist> persist(new FilePersist(state, stream, abort, rank, ranks));
  Expected<PinnedMemory> words = makePinned(sizeof(Words));
  if (!words.ok()) return words.status();
  persist->words_ = std::move(*words);
  return persist;
}

FilePersist::Words& FilePersist::words() const {
  return *reinterpret_cast<Words*>(words_.get());
}

void FilePersist::request(Request request) {
  const plan::Instruction& instruction = *request.instruction;
  stream_.thread().request(instruction, [this, request = std::move(request)] { return perform(request); });
}

// The other side of enqueue().
Status FilePersist::perform(const Request& request) {
  HostThread& thread = stream_.thread();
  if (!thread.await()) return {};
  SHEAF_RETURN_IF_ERROR(
      state_.persist(rank_, request.odd, request.step.get(), request.lossScale, [this] { return abort_.status(); }));
  words().own = voteAt(++persists_);
  thread.report();
  if (ranks_ == 1) return {};
  if (!thread.await()) return {};
  SHEAF_RETURN_IF_ERROR(checkVotes());
  thread.report();
  return {};
}

// A rank that has not voted has failed, and is about to say why.
Status FilePersist::checkVotes() const {
  constexpr auto kPatience = std::chrono::seconds(5);
  const Status status = state_.checkVotes(words().all, words().own);
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!status.ok() && !abort_.raised() && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return status;
}

Status FilePersist::enqueue(std::byte* votes, const std::function<Status()>& sum, cudaStream_t stream) {
  HostThread& thread = stream_.thread();
  SHEAF_RETURN_IF_ERROR(thread.turn(1, 1, stream));
  if (ranks_ == 1) return {};
  SHEAF_RETURN_IF_ERROR(check(cudaMemcpyAsync(votes, &words().own, sizeof(float), cudaMemcpyHostToDevice, stream),
                              "cannot copy to the GPU"));
  SHEAF_RETURN_IF_ERROR(sum());
  SHEAF_RETURN_IF_ERROR(check(cudaMemcpyAsync(&words().all, votes, sizeof(float), cudaMemcpyDeviceToHost, stream),
                              "cannot copy from the GPU"));
  return thread.turn(1, 1, stream);
}

}  // namespace sheaf::cuda
