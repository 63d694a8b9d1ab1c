// The least that this machine could take for a plan's step, and what it is made of. A matrix product (attention's and
// convolutions' included) takes at least its flops at the best rate that any oneDNN call of its type reaches on all
// cores together, or its bytes at the best bandwidth, whichever is longer; everything else takes its bytes. Bytes are
// those that the last-level cache cannot hold (Traffic.h).
//
// usage: sheaf-floor PLAN CORES
//
// Prints one JSON object: "rates" (flops a second of f32 and bf16, bytes a second) and "demand", of each instruction of
// the body and all ranks together: its part of the step, flops, their type, bytes. bench.py takes the best of many
// calls' rates.
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/Json.h"
#include "runtime/plan/PlanFile.h"
#include "runtime/plan/Types.h"
#include "runtime/profile/Work.h"
#include "test/bench/Traffic.h"

namespace {

using namespace sheaf;
using Clock = std::chrono::steady_clock;

// Where the processor does not say.
constexpr uint64_t kUsualCache = 32 << 20;

// The part of a step that an instruction counts to.
std::string partOf(const plan::Instruction& instruction) {
  if (instruction.updates_bucket() > 0) return "optimizer";
  if (instruction.has_collective()) return "collectives";
  return plan::instructionKind(instruction);
}

json::Array demandOf(const plan::Plan& plan, uint64_t cacheBytes) {
  const std::vector<double> traffic = bench::memoryTraffic(plan, cacheBytes);
  const double ranks = static_cast<double>(plan.ranks());
  json::Array demand;
  for (int i = 0; i < plan.body_size(); ++i) {
    const plan::Instruction& instruction = plan.body(i);
    const profile::Work work = profile::workOf(instruction, plan);
    const bool product = work.kind == profile::Work::Kind::kGemm || work.kind == profile::Work::Kind::kAttention ||
                         work.kind == profile::Work::Kind::kConvolution;
    double bytes = traffic[static_cast<size_t>(i)];
    // Of padded rows less is read than the operand has.
    if (work.bytes > 0) bytes = std::min(bytes, work.bytes);
    demand.push_back(json::Array{partOf(instruction), ranks * (product ? work.flops : 0),
                                 work.type == plan::BF16 ? "bf16" : "f32", ranks * bytes});
  }
  return demand;
}

// How often a second `body` runs on all cores together: the best of some rounds of at least kRoundSeconds. Every thread
// takes its own times, since a thread that only watches would wait for a core and see less than the whole.
double runsPerSecond(int cores, const std::function<void(int core)>& body) {
  constexpr int kRounds = 3;
  constexpr double kRoundSeconds = 0.01;
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    std::barrier start(cores);
    std::vector<Clock::time_point> begin(cores), end(cores);
    std::vector<int> repeats(cores);
    std::vector<std::thread> threads;
    for (int core = 0; core < cores; ++core)
      threads.emplace_back([&, core] {
        omp_set_num_threads(1);  // oneDNN is to stay on this thread
        body(core);
        const auto warm = Clock::now();
        body(core);
        const double once = std::chrono::duration<double>(Clock::now() - warm).count();
        repeats[core] = std::max(1, static_cast<int>(kRoundSeconds / std::max(once, 1e-6)));
        start.arrive_and_wait();
        const int count = *std::min_element(repeats.begin(), repeats.end());
        begin[core] = Clock::now();
        for (int repeat = 0; repeat < count; ++repeat) body(core);
        end[core] = Clock::now();
      });
    for (std::thread& thread : threads) thread.join();
    const auto taken = *std::max_element(end.begin(), end.end()) - *std::min_element(begin.begin(), begin.end());
    const int count = *std::min_element(repeats.begin(), repeats.end());
    best = std::max(best, count / std::chrono::duration<double>(taken).count());
  }
  return best;
}

dnnl_engine_t engine() {
  static dnnl_engine_t made = [] {
    dnnl_engine_t fresh = nullptr;
    return dnnl_engine_create(&fresh, dnnl_cpu, 0) == dnnl_success ? fresh : nullptr;
  }();
  return made;
}

// oneDNN's matmul primitive with everything that can be made beforehand made beforehand, for one thread.
class Matmul {
 public:
  Matmul(dnnl_data_type_t type, int64_t m, int64_t n, int64_t k, bool transposeB) {
    omp_set_num_threads(1);  // it is fixed when the primitive is made
    const int64_t shapes[3][2] = {{m, k}, {k, n}, {m, n}};
    dnnl_memory_desc_t descriptions[3];
    bool ok = engine() && dnnl_stream_create(&stream_, engine(), dnnl_stream_default_flags) == dnnl_success;
    for (int i = 0; ok && i < 3; ++i) {
      const dnnl_dims_t sizes = {shapes[i][0], shapes[i][1]};
      dnnl_dims_t strides = {shapes[i][1], 1};
      if (i == 1 && transposeB) strides[0] = 1, strides[1] = k;
      ok = dnnl_memory_desc_init_by_strides(&descriptions[i], 2, sizes, type, strides) == dnnl_success &&
           dnnl_memory_create(&memory_[i], &descriptions[i], engine(), DNNL_MEMORY_ALLOCATE) == dnnl_success;
      void* data = nullptr;
      if (ok && dnnl_memory_get_data_handle(memory_[i], &data) == dnnl_success)
        std::memset(data, 0, dnnl_memory_desc_get_size(&descriptions[i]));
    }
    dnnl_matmul_desc_t operation;
    dnnl_primitive_desc_t chosen = nullptr;
    ok = ok &&
         dnnl_matmul_desc_init(&operation, &descriptions[0], &descriptions[1], nullptr, &descriptions[2]) ==
             dnnl_success &&
         dnnl_primitive_desc_create(&chosen, &operation, nullptr, engine(), nullptr) == dnnl_success;
    ok_ = ok && dnnl_primitive_create(&primitive_, chosen) == dnnl_success;
    if (chosen) dnnl_primitive_desc_destroy(chosen);
  }
  Matmul(const Matmul&) = delete;
  Matmul& operator=(const Matmul&) = delete;
  ~Matmul() {
    if (primitive_) dnnl_primitive_destroy(primitive_);
    for (dnnl_memory_t memory : memory_)
      if (memory) dnnl_memory_destroy(memory);
    if (stream_) dnnl_stream_destroy(stream_);
  }
  bool ok() const { return ok_; }
  void run() {
    const dnnl_exec_arg_t arguments[] = {
        {DNNL_ARG_SRC, memory_[0]}, {DNNL_ARG_WEIGHTS, memory_[1]}, {DNNL_ARG_DST, memory_[2]}};
    dnnl_primitive_execute(primitive_, stream_, 3, arguments);
  }

 private:
  dnnl_stream_t stream_ = nullptr;
  dnnl_memory_t memory_[3] = {};
  dnnl_primitive_t primitive_ = nullptr;
  bool ok_ = false;
};

// From tiles of attention to whole layers.
constexpr int64_t kShapes[][3] = {{64, 256, 64},    {256, 256, 256},   {512, 768, 768}, {384, 512, 1536},
                                  {1024, 768, 768}, {1024, 3072, 768}, {768, 768, 3072}};

double productRate(dnnl_data_type_t type, int cores) {
  double best = 0;
  for (const auto& [m, n, k] : kShapes)
    for (bool transposeB : {false, true}) {
      const double flops = 2.0 * cores * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
      std::vector<std::unique_ptr<Matmul>> products;
      for (int core = 0; core < cores; ++core) products.push_back(std::make_unique<Matmul>(type, m, n, k, transposeB));
      if (std::all_of(products.begin(), products.end(), [](auto& product) { return product->ok(); }))
        best = std::max(best, flops * runsPerSecond(cores, [&](int core) { products[core]->run(); }));
      if (type != dnnl_f32) continue;
      std::vector<std::vector<float>> a(cores, std::vector<float>(m * k)), b(cores, std::vector<float>(k * n)),
          c(cores, std::vector<float>(m * n));
      best = std::max(best, flops * runsPerSecond(cores, [&](int core) {
                              dnnl_sgemm('N', transposeB ? 'T' : 'N', m, n, k, 1.f, a[core].data(), k, b[core].data(),
                                         transposeB ? k : n, 0.f, c[core].data(), n);
                            }));
    }
  return best;
}

// The best of reading, copying and writing.
double bandwidth(int cores) {
  constexpr size_t kBytes = size_t{64} << 20;
  std::vector<std::vector<uint64_t>> from(cores, std::vector<uint64_t>(kBytes / 8, 1)), to = from;
  std::vector<uint64_t> sums(cores);
  const double copies =
      runsPerSecond(cores, [&](int core) { std::memcpy(to[core].data(), from[core].data(), kBytes); });
  const double writes = runsPerSecond(cores, [&](int core) { std::memset(to[core].data(), core, kBytes); });
  const double reads = runsPerSecond(cores, [&](int core) {
    uint64_t sum = 0;
    for (uint64_t word : from[core]) sum += word;
    sums[core] += sum;
  });
  return static_cast<double>(kBytes) * cores * std::max({2 * copies, writes, reads + (sums[0] == 1 ? 1 : 0)});
}

// Of all last-level caches of this machine together. sysconf() may tell those of a processor of which a virtual machine
// has a part.
uint64_t lastCacheBytes() {
  uint64_t bytes = 0;
  std::set<std::string> known;  // by the processors that share it
  for (int cpu = 0;; ++cpu) {
    const std::string folder = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/cache/index3/";
    std::ifstream size(folder + "size"), sharing(folder + "shared_cpu_list");
    uint64_t kibibytes = 0;
    std::string processors;
    if (!(size >> kibibytes) || !(sharing >> processors)) return bytes > 0 ? bytes : kUsualCache;
    if (known.insert(processors).second) bytes += kibibytes << 10;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int cores = argc == 3 ? std::atoi(argv[2]) : 0;
  if (cores < 1) {
    std::fprintf(stderr, "usage: sheaf-floor PLAN CORES\n");
    return 2;
  }
  auto plan = plan::readPlan(argv[1]);
  if (!plan.ok()) {
    std::fprintf(stderr, "sheaf-floor: %s\n", plan.status().message().c_str());
    return 1;
  }
  const uint64_t cache = lastCacheBytes();
  json::Object rates{
      {"f32", productRate(dnnl_f32, cores)}, {"bf16", productRate(dnnl_bf16, cores)}, {"bytes", bandwidth(cores)}};
  json::Object report{{"rates", rates}, {"demand", demandOf(**plan, cache)}};
  std::printf("%s\n", json::write(report).c_str());
  return 0;
}
