// What this machine allows for a plan's step: the flops of its matrix products at the rate that single-threaded
// dnnl_sgemm reaches on every core at once, plus the bytes of everything else at the bandwidth of a copy.
//
// usage: sheaf-bound PLAN CORES        prints one JSON object; times are for all ranks together on CORES cores
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/Json.h"
#include "runtime/plan/PlanFile.h"
#include "runtime/plan/Types.h"
#include "runtime/profile/Work.h"

namespace {

using namespace sheaf;
using Clock = std::chrono::steady_clock;

struct Demand {
  double flops = 0;  // of matrix products, attention's included
  double bytes = 0;  // of kernels, other calls and collectives
};

// Of one rank, by kind of instruction.
std::map<std::string, Demand> demandOf(const plan::Plan& plan) {
  std::map<std::string, Demand> parts;
  for (const plan::Instruction& instruction : plan.body()) {
    if (instruction.has_record() || instruction.has_wait()) continue;
    Demand& demand = parts[plan::instructionKind(instruction)];
    const profile::Work work = profile::workOf(instruction, plan);
    const bool product = work.kind == profile::Work::Kind::kGemm || work.kind == profile::Work::Kind::kAttention ||
                         work.kind == profile::Work::Kind::kConvolution;
    (product ? demand.flops : demand.bytes) += product ? work.flops : work.bytes;
    if (instruction.has_collective())
      demand.bytes += static_cast<double>(instruction.collective().source().bytes() +
                                          instruction.collective().destination().bytes());
  }
  return parts;
}

// How often a second `body` runs on all cores together: the best of some rounds. Every thread takes its own times,
// since a thread that only watches would wait for a core and see less than the whole.
double roundsPerSecond(int cores, const std::function<void(int core)>& body) {
  constexpr int kRounds = 12, kRepeats = 16;
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    std::barrier start(cores);
    std::vector<Clock::time_point> begin(cores), end(cores);
    std::vector<std::thread> threads;
    for (int core = 0; core < cores; ++core)
      threads.emplace_back([&, core] {
        omp_set_num_threads(1);  // oneDNN is to stay on this thread
        body(core);
        start.arrive_and_wait();
        begin[core] = Clock::now();
        for (int repeat = 0; repeat < kRepeats; ++repeat) body(core);
        end[core] = Clock::now();
      });
    for (std::thread& thread : threads) thread.join();
    auto taken = *std::max_element(end.begin(), end.end()) - *std::min_element(begin.begin(), begin.end());
    best = std::max(best, kRepeats / std::chrono::duration<double>(taken).count());
  }
  return best;
}

double measureFlops(int cores) {
  constexpr dnnl_dim_t m = 512, n = 768, k = 768;
  std::vector<std::vector<float>> a(cores, std::vector<float>(m * k, 1.f)), b(cores, std::vector<float>(k * n, 1.f)),
      c(cores, std::vector<float>(m * n));
  double rounds = roundsPerSecond(cores, [&](int core) {
    dnnl_sgemm('N', 'N', m, n, k, 1.f, a[core].data(), k, b[core].data(), n, 0.f, c[core].data(), n);
  });
  return rounds * cores * 2 * m * n * k;
}

double measureBandwidth(int cores) {
  constexpr size_t kBytes = size_t{64} << 20;
  std::vector<std::vector<char>> from(cores, std::vector<char>(kBytes, 1)), to(cores, std::vector<char>(kBytes));
  double rounds = roundsPerSecond(cores, [&](int core) { std::memcpy(to[core].data(), from[core].data(), kBytes); });
  return rounds * cores * 2 * kBytes;
}

}  // namespace

int main(int argc, char** argv) {
  int cores = argc == 3 ? std::atoi(argv[2]) : 0;
  if (cores < 1) {
    std::fprintf(stderr, "usage: sheaf-bound PLAN CORES\n");
    return 2;
  }
  auto plan = plan::readPlan(argv[1]);
  if (!plan.ok()) {
    std::fprintf(stderr, "sheaf-bound: %s\n", plan.status().message().c_str());
    return 1;
  }
  double flopRate = measureFlops(cores), byteRate = measureBandwidth(cores);
  double ranks = static_cast<double>((*plan)->ranks()), flops = 0, bytes = 0;
  json::Object parts;
  for (const auto& [kind, demand] : demandOf(**plan)) {
    flops += ranks * demand.flops, bytes += ranks * demand.bytes;
    parts.set(kind, ranks * (demand.flops / flopRate + demand.bytes / byteRate));
  }
  json::Object told{{"seconds", flops / flopRate + bytes / byteRate},
                    {"gemm_flops", flops},
                    {"flops_per_second", flopRate},
                    {"bytes", bytes},
                    {"bytes_per_second", byteRate},
                    {"parts", parts}};
  std::printf("%s\n", json::write(told).c_str());
  return 0;
}
