#include "runtime/device/cuda/nccl/NcclCommunicators.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include "runtime/base/Text.h"
#include "runtime/comm/process/ProcessGroup.h"
#include "runtime/device/cuda/Resources.h"
#include "runtime/device/cuda/SumTypes.h"
#include "runtime/device/cuda/nccl/ExchangedSums.h"
#include "runtime/device/cuda/nccl/NcclApi.h"
#include "runtime/device/cuda/nccl/Watchdog.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/Words.h"

namespace sheaf::nccl {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kCopyEngineVersion = 22800;

ncclDataType_t dataType(cuda::SumType type) {
  switch (type) {
    case cuda::SumType::kF32:
      return ncclFloat32;
    case cuda::SumType::kF64:
      return ncclFloat64;
    case cuda::SumType::kBf16:
      return ncclBfloat16;
    case cuda::SumType::kF16:
      return ncclFloat16;
    case cuda::SumType::kI32:
      return ncclInt32;
    case cuda::SumType::kI64:
      break;
  }
  return ncclInt64;
}

bool windowsWanted() {
  const char* value = std::getenv("SHEAF_NCCL_WINDOWS");
  return !value || std::string_view(value) != "0";
}

class NcclCommunicators : public cuda::Communicators {
 public:
  NcclCommunicators(const Api& api, const plan::Plan& plan, const DeviceOptions& options, comm::AbortSignal& abort)
      : api_(api),
        plan_(plan),
        options_(options),
        ranks_(static_cast<uint64_t>(options.ranks)),
        sums_(ranks_, self()),
        abort_(abort) {
    windows_ = api.commWindowRegister && api.memAlloc && windowsWanted();
  }

  ~NcclCommunicators() override {
    watchdog_.reset();
    if (link_) {
      std::lock_guard lock(link_->mutex);
      link_->lost = nullptr;
    }
    for (Communicator& each : communicators_) {
      if (!each.comm) continue;
      if (abort_.raised() || !finish(api_.commFinalize(each.comm), each, "close a communicator").ok())
        (void)api_.commAbort(each.comm);
      else
        (void)api_.commDestroy(each.comm);
    }
  }

  Status open(const cuda::Progress& progress) {
    watchProcesses(progress);
    communicators_ = std::vector<Communicator>(plan_.communicators());
    Expected<std::vector<ncclUniqueId>> ids = shareIds();
    if (!ids.ok()) return ids.status();
    std::vector<bool> gathersOnly(plan_.communicators(), true);
    forEachCollective([&](const plan::Instruction& instruction) {
      const plan::Collective& collective = instruction.collective();
      if (collective.communicator() >= gathersOnly.size() || collective.op() == plan::ALL_GATHER) return;
      gathersOnly[collective.communicator()] = false;
      if (options_.reduceOrder == plan::Training::RING) return;
      uint64_t& bytes = scratchBytes_[{collective.communicator(), instruction.stream()}];
      bytes = std::max(bytes, sums_.scratchBytes(collective));
    });
    for (size_t i = 0; i < communicators_.size(); ++i) {
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;
      // Gathers by copy engines leave the GPU's processors to the computation.
      copyEngines_ |= windows_ && gathersOnly[i] && api_.version >= kCopyEngineVersion;
      if (windows_ && gathersOnly[i] && api_.version >= kCopyEngineVersion) config.CTAPolicy = NCCL_CTA_POLICY_ZERO;
      Communicator& each = communicators_[i];
      SHEAF_RETURN_IF_ERROR(finish(api_.commInitRankConfig(&each.comm, static_cast<int>(ranks_), (*ids)[i],
                                                           static_cast<int>(options_.firstRank), &config),
                                   each, "join the other processes"));
    }
    watchdog_.emplace(options_.firstRank, progress, abort_,
                      WatchdogOptions{.timeLimit = options_.processes->limit(),
                                      .errors = [this] { return asyncError(); },
                                      .end =
                                          [this](const std::string& why) {
                                            options_.processes->fail(why);
                                            abortAll();
                                          }});
    return {};
  }

  cuda::Memory memory() const override {
    if (!windows_) return cuda::ordinaryMemory();
    return {[this](uint64_t bytes) -> Expected<std::byte*> {
              void* memory = nullptr;
              if (ncclResult_t result = api_.memAlloc(&memory, bytes); result != ncclSuccess)
                return Status::error(cat("NCCL cannot allocate device memory: ", api_.getErrorString(result)));
              return static_cast<std::byte*>(memory);
            },
            [this](std::byte* memory) { (void)api_.memFree(memory); }};
  }

  Status setArenas(const std::vector<std::unique_ptr<cuda::Arena>>& arenas) override {
    for (auto& [key, bytes] : scratchBytes_) {
      Expected<cuda::DeviceMemory> scratch = cuda::makeDeviceMemory(bytes, "cannot allocate memory to exchange sums");
      if (!scratch.ok()) return scratch.status();
      scratch_[key] = std::move(*scratch);
    }
    if (!windows_) return {};
    for (Communicator& each : communicators_)
      SHEAF_RETURN_IF_ERROR(finish(api_.commWindowRegister(each.comm, arenas[0]->data(), arenas[0]->allocated(),
                                                           &each.window, NCCL_WIN_COLL_SYMMETRIC),
                                   each, "register the arena (SHEAF_NCCL_WINDOWS=0 runs without)"));
    return {};
  }

  void releaseArenas() override {
    for (Communicator& each : communicators_)
      if (each.comm && each.window && !abort_.raised()) (void)api_.commWindowDeregister(each.comm, each.window);
  }

  uint64_t scratchBytes() const override {
    uint64_t sum = 0;
    for (const auto& [key, bytes] : scratchBytes_) sum += bytes;
    return sum;
  }

  bool capturable() const override { return true; }

  void describe(const std::function<void(const std::string&, const std::string&)>& note) const override {
    note("nccl", cat(api_.version / 10000, ".", api_.version / 100 % 100, ".", api_.version % 100));
    note("reduce_order", plan::word(options_.reduceOrder));
    note("windows", windows_ ? "on" : "off");
    note("copy_engine_gathers", copyEngines_ ? "where NCCL can" : "off");
    note("exchange_bytes", cat(scratchBytes()));
  }

  Status enqueue(int64_t, uint32_t communicator, const comm::CollectiveBuffers& buffers, cudaStream_t stream,
                 uint32_t streamIndex) override {
    if (communicator >= communicators_.size())
      return Status::error(cat("communicator ", communicator, " is not in the plan"));
    Communicator& each = communicators_[communicator];
    const uint64_t width = plan::elementBytes(buffers.type);
    const std::optional<cuda::SumType> type = cuda::sumType(buffers.type);
    if (buffers.op == plan::ALL_GATHER)
      return call(each, "gather", [&] {
        return api_.allGather(buffers.source, buffers.destination, buffers.count * width, ncclUint8, each.comm, stream);
      });
    if (!type) return Status::error(cat("a collective cannot sum elements of type ", plan::word(buffers.type)));
    if (options_.reduceOrder == plan::Training::RING)
      return call(each, "sum", [&] {
        auto function = buffers.op == plan::REDUCE_SCATTER ? api_.reduceScatter : api_.allReduce;
        return function(buffers.source, buffers.destination, buffers.count, dataType(*type), ncclSum, each.comm,
                        stream);
      });
    std::byte* scratch = scratch_[{communicator, streamIndex}].get();
    if (!scratch) return Status::error("the sum is not in the plan");
    return sums_.enqueue(buffers, *type, scratch, stream, [&](const std::function<Transfer(uint64_t)>& transfer) {
      return exchange(each, stream, transfer);
    });
  }

 private:
  // What hears of lost processes; it may outlive the communicators.
  struct Link {
    std::mutex mutex;
    std::function<void(const Status&)> lost;
  };
  struct Communicator {
    ncclComm_t comm = nullptr;
    ncclWindow_t window = nullptr;
    std::mutex mutex;  // between the thread that issues and the watchdog

    Communicator() = default;
    Communicator(const Communicator&) = delete;
  };

  // From the beginning: NCCL's own start waits for all processes.
  void watchProcesses(const cuda::Progress& progress) {
    link_ = std::make_shared<Link>();
    link_->lost = [this, &progress](const Status& why) {
      abort_.raise(Status::error(cat("rank ", options_.firstRank, ": ", why.message(),
                                     progress.busy() ? "; it was at " + progress.text() : "")));
    };
    options_.processes->watch([link = link_](const Status& why) {
      std::lock_guard lock(link->mutex);
      if (link->lost) link->lost(why);
    });
  }

  template <typename Visit>
  void forEachCollective(Visit visit) const {
    for (const auto* section : {&plan_.prologue(), &plan_.body(), &plan_.epilogue()})
      for (const plan::Instruction& instruction : *section)
        if (instruction.has_collective()) visit(instruction);
  }

  Expected<std::vector<ncclUniqueId>> shareIds() {
    std::vector<ncclUniqueId> ids(communicators_.size());
    std::string mine;
    if (options_.firstRank == 0) {
      for (ncclUniqueId& id : ids)
        if (ncclResult_t result = api_.getUniqueId(&id); result != ncclSuccess)
          return Status::error(cat("NCCL cannot start: ", api_.getErrorString(result)));
      mine.assign(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(ncclUniqueId));
    }
    Expected<std::vector<std::string>> all = options_.processes->allGather(mine, "NCCL's ids");
    if (!all.ok()) return all.status();
    if (all->empty() || all->front().size() != ids.size() * sizeof(ncclUniqueId))
      return Status::error("process 0 sent no ids for NCCL; the plan is not the same in all processes");
    std::memcpy(ids.data(), all->front().data(), all->front().size());
    return ids;
  }

  // Waits until NCCL has taken a call: it does not block, so it says so later.
  Status finish(ncclResult_t result, Communicator& each, const char* what) {
    const auto deadline = Clock::now() + options_.processes->limit();
    while (result == ncclInProgress) {
      if (abort_.raised()) return abort_.status();
      if (Clock::now() > deadline) return Status::error(cat("NCCL could not ", what, " in time"));
      std::this_thread::sleep_for(std::chrono::microseconds(20));
      if (api_.commGetAsyncError(each.comm, &result) != ncclSuccess) result = ncclInternalError;
    }
    if (result == ncclSuccess) return {};
    return Status::error(cat("NCCL cannot ", what, ": ", api_.getErrorString(result), " (",
                             each.comm ? api_.getLastError(each.comm) : "", ")"));
  }

  template <typename Function>
  Status call(Communicator& each, const char* what, Function function) {
    std::lock_guard lock(each.mutex);
    if (!each.comm) return abort_.status();
    return finish(function(), each, what);
  }

  Status exchange(Communicator& each, cudaStream_t stream, const std::function<Transfer(uint64_t)>& transferWith) {
    return call(each, "exchange the terms of a sum", [&] {
      ncclResult_t result = api_.groupStart();
      for (uint64_t i = 0; i < ranks_; ++i) {
        // Every rank begins with another peer.
        const uint64_t peer = (self() + i) % ranks_;
        const Transfer transfer = transferWith(peer);
        if (transfer.sendBytes > 0 && usable(result))
          result = api_.send(transfer.send, transfer.sendBytes, ncclUint8, static_cast<int>(peer), each.comm, stream);
        if (transfer.receiveBytes > 0 && usable(result))
          result =
              api_.recv(transfer.receive, transfer.receiveBytes, ncclUint8, static_cast<int>(peer), each.comm, stream);
      }
      const ncclResult_t ended = api_.groupEnd();
      return usable(result) ? ended : result;
    });
  }

  uint64_t self() const { return static_cast<uint64_t>(options_.firstRank); }
  static bool usable(ncclResult_t result) { return result == ncclSuccess || result == ncclInProgress; }

  Status asyncError() {
    for (Communicator& each : communicators_) {
      std::unique_lock lock(each.mutex, std::try_to_lock);
      if (!lock || !each.comm) continue;  // the holder of the lock checks its errors
      ncclResult_t result = ncclSuccess;
      if (api_.commGetAsyncError(each.comm, &result) == ncclSuccess && usable(result)) continue;
      return Status::error(cat("NCCL failed: ", api_.getErrorString(result), " (", api_.getLastError(each.comm), ")"));
    }
    return {};
  }

  // Ends what waits on the GPU for other processes.
  void abortAll() {
    for (Communicator& each : communicators_) {
      std::lock_guard lock(each.mutex);
      if (each.comm) (void)api_.commAbort(each.comm);
      each.comm = nullptr;
    }
  }

  const Api& api_;
  const plan::Plan& plan_;
  const DeviceOptions options_;
  const uint64_t ranks_;
  const ExchangedSums sums_;
  comm::AbortSignal& abort_;
  bool windows_ = false, copyEngines_ = false;
  std::vector<Communicator> communicators_;
  // Of each communicator on each stream, so that two never use the same at a time.
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> scratchBytes_;
  std::map<std::pair<uint32_t, uint32_t>, cuda::DeviceMemory> scratch_;
  std::shared_ptr<Link> link_;
  std::optional<Watchdog> watchdog_;
};

}  // namespace

Expected<std::unique_ptr<cuda::Communicators>> makeCommunicators(const plan::Plan& plan, const DeviceOptions& options,
                                                                 comm::AbortSignal& abort,
                                                                 const cuda::Progress& progress) {
  Expected<const Api*> api = loadNccl();
  if (!api.ok()) return api.status();
  // Bits that do not change from run to run.
  if (options.reduceOrder == plan::Training::RING) {
    setenv("NCCL_ALGO", "Ring", 0);
    setenv("NCCL_PROTO", "Simple", 0);
  }
  auto communicators = std::make_unique<NcclCommunicators>(**api, plan, options, abort);
  SHEAF_RETURN_IF_ERROR(communicators->open(progress));
  return std::unique_ptr<cuda::Communicators>(std::move(communicators));
}

}  // namespace sheaf::nccl
