#include "runtime/exec/RunResources.h"

#include <algorithm>

#include "runtime/base/ResourceErrors.h"
#include "runtime/base/Text.h"
#include "runtime/comm/transport/ExchangeBytes.h"
#include "runtime/exec/Machine.h"
#include "runtime/plan/RankMemory.h"
#include "runtime/plan/Verify.h"

namespace sheaf::exec {
namespace {

// The limit for the threads of a GPU's rank, for updates on the host.
constexpr int64_t kMostThreadsOnHost = 1024;

// Upper limit for code that oneDNN generates at run time, in bytes.
constexpr uint64_t kLibraryCode = uint64_t{64} << 20;

}  // namespace

Expected<int64_t> threadsOfRanks(const plan::Plan& plan, const Job& job, const std::string& target, int64_t wanted) {
  // A plan has scratch for the threads of CPU ranks. Updates on the host, which ranks of GPUs share, need none.
  const bool onCpu = target == "cpu";
  const int64_t limit = onCpu ? plan.max_threads() : kMostThreadsOnHost;
  if (onCpu && wanted > plan::kMaxThreads)
    return Status::error(cat("--threads-per-rank ", wanted, ": a rank has at most ", plan::kMaxThreads, " threads"));
  if (wanted > limit)
    return Status::error(onCpu ? cat("--threads-per-rank ", wanted, ": the plan has scratch for ", limit,
                                     "; compile with --max-threads-per-rank ", wanted)
                               : cat("--threads-per-rank ", wanted, ": at most ", limit, " share updates on the host"));
  if (wanted > 0) return wanted;
  return std::clamp<int64_t>(availableCores() / (job.localRanks() * job.processesOnCores()), 1, limit);
}

uint64_t exchangeBytes(const plan::Plan& plan, const Job& job, const std::string& target) {
  if (job.nodes() == 1 || target != "cpu") return 0;
  return comm::exchangeBytes(plan, job.nodes()) * static_cast<uint64_t>(job.localRanks());
}

Status checkMemory(const plan::Plan& plan, const Job& job, const std::string& target, uint64_t staging) {
  const bool onCpu = target == "cpu";
  const uint64_t ranks = static_cast<uint64_t>(job.localRanks() * job.processesOnMachine()), machine = machineMemory();
  const uint64_t exchange = exchangeBytes(plan, job, target) / static_cast<uint64_t>(job.localRanks());
  const uint64_t rank = onCpu ? plan::cpuRankMemory(plan, exchange).total() + staging : plan::pinnedBytes(plan);
  if (rank <= machine / ranks) return {};
  return Status::error(
      cat("the run needs ", ranks, " x ", bytesText(rank), onCpu ? "" : " of pinned host memory for --offload",
          ", this machine has ", bytesText(machine), "; compile for more ranks on more machines, ",
          onCpu ? "a higher ZeRO stage or a smaller batch" : "or move less to the host (--host-memory)"));
}

Status checkLibraryMemory(const plan::Plan& plan, const Job& job) {
  return checkAddressSpace(
      "libraries", kLibraryCode + plan::cpuRankMemory(plan).libraries * static_cast<uint64_t>(job.localRanks()));
}

}  // namespace sheaf::exec
