#include "runtime/device/cuda/nccl/NcclCommunicators.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>

#include "runtime/base/Text.h"
#include "runtime/comm/process/ProcessGroup.h"
#include "runtime/device/cuda/Gpu.h"
#include "runtime/device/cuda/Resources.h"
#include "runtime/device/cuda/SumTypes.h"
#include "runtime/device/cuda/nccl/Communicator.h"
#include "runtime/device/cuda/nccl/Environment.h"
#include "runtime/device/cuda/nccl/ExchangedSums.h"
#include "runtime/device/cuda/nccl/LaunchOrder.h"
#include "runtime/device/cuda/nccl/NcclApi.h"
#include "runtime/device/cuda/nccl/Watchdog.h"
#include "runtime/plan/Generations.h"
#include "runtime/plan/MicroBatches.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/Words.h"

namespace sheaf::nccl {
namespace {

constexpr int kCopyEngineVersion = 22800;
constexpr int kCopyEnginesBySize = 22900;  // on Blackwell, without being asked
// NCCL's aborts, once nothing waits on the GPU, take far less.
constexpr std::chrono::milliseconds kAbortGrace{5'000};

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

// What the warm-up registers: little, so that it leaves no large hole in NCCL's symmetric address space.
constexpr uint64_t kWindowWarmUp = 2 << 20;
class NcclCommunicators : public cuda::Communicators {
 public:
  NcclCommunicators(const Api& api, const plan::Plan& plan, const DeviceOptions& options, comm::AbortSignal& abort,
                    int gpu)
      : api_(api), plan_(plan), options_(options), abort_(abort), gpu_(gpu) {
    for (uint32_t i = 0; i < plan.communicators(); ++i) {
      const plan::Axis axis = plan::axisOf(plan, static_cast<int>(i));
      groups_.push_back({static_cast<uint64_t>(axis == plan::WORLD ? options.ranks : plan::ranksOn(plan, axis)),
                         static_cast<uint64_t>(plan::placeOn(plan, axis, options.firstRank))});
    }
    windows_ = api.commWindowRegister && api.memAlloc && windowsWanted();
    const bool oneHost = !std::getenv("NCCL_HOSTID");
    oneNode_ = options.processesPerNode == options.ranks && oneHost;
    oneNodeEach_ = options.processesPerNode % plan::ranksPerNode(plan) == 0 && oneHost;
  }

  ~NcclCommunicators() override {
    if (link_) {
      std::lock_guard lock(link_->mutex);
      link_->lost = nullptr;
    }
    if (abort_.raised()) abortAll();
    for (auto& each : communicators_) each->close();
    joinAborts();
    watchdog_.reset();
    joinAborts();  // of those that the watchdog has begun since
  }

  // After an error communicators are aborted: to close them would wait for ranks that do not come.
  Status open(cuda::Progress& progress) {
    Status status = prepare(progress);
    if (!status.ok()) abort_.raise(status);
    return status;
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
    return setWindows(arenas[0].get());
  }

  void releaseArenas() override {
    if (!abort_.raised())
      if (Status status = setWindows(nullptr); !status.ok()) abort_.raise(std::move(status));
    if (!abort_.raised()) return;
    // Aborted communicators let go of the arena when they have ended.
    abortAll();
    joinAborts();
  }

  uint64_t scratchBytes() const override {
    uint64_t sum = 0;
    for (const auto& [key, bytes] : scratchBytes_) sum += bytes;
    return sum;
  }

  void beginOrder() override { order_.begin(); }

  bool capturable() const override { return true; }

  void describe(const std::function<void(const std::string&, const std::string&)>& note) const override {
    note("nccl", versionText());
    note("reduce_order", plan::word(options_.reduceOrder));
    note("windows", windows_ ? "on" : "off");
    note("copy_engine_gathers", copyEngines_ ? "where NCCL can" : "off");
    note("exchange_bytes", cat(scratchBytes()));
    note("order_of_collectives", order_.text());
  }

  Status enqueue(int64_t, uint32_t communicator, const comm::CollectiveBuffers& buffers, cudaStream_t stream,
                 uint32_t streamIndex) override {
    if (communicator >= communicators_.size())
      return Status::error(cat("communicator ", communicator, " is not in the plan"));
    Communicator& each = *communicators_[communicator];
    const uint64_t width = plan::elementBytes(buffers.type);
    const std::optional<cuda::SumType> type = cuda::sumType(buffers.type);
    if (buffers.op == plan::ALL_GATHER)
      return launch(each, "gather", stream, [&](ncclComm_t comm) {
        return api_.allGather(buffers.source, buffers.destination, buffers.count * width, ncclUint8, comm, stream);
      });
    if (!type) return Status::error(cat("a collective cannot sum elements of type ", plan::word(buffers.type)));
    // Votes are few whole numbers, whose sum is the same in any order. NCCL does not add to what there is.
    if ((options_.reduceOrder == plan::Training::RING && !buffers.continues) || hasVotesOnly(communicator))
      return launch(each, "sum", stream, [&](ncclComm_t comm) {
        auto function = buffers.op == plan::REDUCE_SCATTER ? api_.reduceScatter : api_.allReduce;
        return function(buffers.source, buffers.destination, buffers.count, dataType(*type), ncclSum, comm, stream);
      });
    const auto& scratch = scratch_[{communicator, streamIndex}];
    if (!scratch) return Status::error("the sum is not in the plan");
    const Group& group = groups_[communicator];
    return ExchangedSums(group.ranks, group.self)
        .enqueue(buffers, *type, scratch->data(), stream, [&](const std::function<Transfer(uint64_t)>& transfer) {
          return exchange(each, group, stream, transfer);
        });
  }

 private:
  // The ranks that this one meets in a communicator, and its place among them.
  struct Group {
    uint64_t ranks, self;
  };

  // One call or one group of calls that work on the stream, in the order of all launches.
  template <typename Function>
  Status launch(Communicator& each, const char* what, cudaStream_t stream, Function function) {
    return order_.add(stream, [&] { return each.call(what, function); });
  }

  Status prepare(cuda::Progress& progress) {
    watchProcesses(progress);
    communicators_.resize(plan_.communicators());
    uses_.resize(plan_.communicators());
    for (auto& each : communicators_) each = std::make_unique<Communicator>(api_, abort_, options_.processes->limit());
    forEachCollective([&](const plan::Instruction& instruction, const plan::Collective& collective) {
      if (collective.communicator() >= communicators_.size()) return;
      Uses& uses = uses_[collective.communicator()];
      (instruction.has_persist() ? uses.votes : collective.op() == plan::ALL_GATHER ? uses.gathers : uses.sums) = true;
    });
    forEachCollective([&](const plan::Instruction& instruction, const plan::Collective& collective) {
      if (collective.communicator() >= communicators_.size() || hasVotesOnly(collective.communicator())) return;
      if (collective.op() == plan::ALL_GATHER) return;
      if (options_.reduceOrder == plan::Training::RING && !plan::continues(instruction)) return;
      uint64_t& bytes = scratchBytes_[{collective.communicator(), instruction.stream()}];
      bytes = std::max(bytes, plan::collectedBytes(collective, groups_[collective.communicator()].ranks));
    });
    bool any = false;
    for (size_t i = 0; i < uses_.size(); ++i) any |= hasWindows(i);
    windows_ = any;
    std::set<uint32_t> streams;
    forEachCollective(
        [&](const plan::Instruction& instruction, const plan::Collective&) { streams.insert(instruction.stream()); });
    // NCCL's order of launches fails in captures where it chooses between copy engines and kernels by the size of a
    // gather (docs/cuda-runtime.md, "NCCL's own order of launches").
    bool mixed = false;
    for (size_t i = 0; i < communicators_.size(); ++i) mixed |= hasWindows(i) && !isOneNode(i);
    SHEAF_RETURN_IF_ERROR(order_.open(api_.version, streams.size(), !mixed || api_.version < kCopyEnginesBySize));
    Expected<std::unique_ptr<WorkerThreads>> aborts = WorkerThreads::create("aborts of NCCL", communicators_.size());
    if (!aborts.ok()) return aborts.status();
    aborts_ = std::move(*aborts);
    watchdog_.emplace(options_.firstRank, progress, abort_,
                      WatchdogOptions{.begin = [gpu = gpu_] { (void)cuda::useGpu(gpu); },
                                      .timeLimit = options_.processes->limit(),
                                      .errors = [this] { return asyncError(); },
                                      .end =
                                          [this](const std::string& why) {
                                            options_.processes->fail(why);
                                            abortAll();
                                          },
                                      .grace = std::min(kAbortGrace, options_.processes->limit()),
                                      .abandon = options_.abandon});
    SHEAF_RETURN_IF_ERROR(watchdog_->status());
    Expected<std::vector<ncclUniqueId>> ids = shareIds();
    if (!ids.ok()) return ids.status();
    for (size_t i = 0; i < communicators_.size(); ++i) {
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      // Gathers by copy engines leave the GPU's processors to the computation.
      const bool copyEngines = isOneNode(i) && hasWindows(i) && api_.version >= kCopyEngineVersion;
      copyEngines_ |= copyEngines;
      if (copyEngines) config.CTAPolicy = NCCL_CTA_POLICY_ZERO;
      // A channel's buffers take 12 MiB, and there may be 32.
      if (hasVotesOnly(i)) config.minCTAs = config.maxCTAs = 1;
      SHEAF_RETURN_IF_ERROR(communicators_[i]->open(static_cast<int>(groups_[i].ranks), (*ids)[i],
                                                    static_cast<int>(groups_[i].self), config));
    }
    for (auto& [key, bytes] : scratchBytes_) {
      auto scratch = cuda::Arena::create(memory(), bytes, false);
      if (!scratch.ok()) return Status::error(cat("to exchange sums: ", scratch.status().message()));
      scratch_[key] = std::move(*scratch);
    }
    progress.setBusy(true);
    Status status = warmUp();
    progress.setBusy(false);
    if (!status.ok()) return status;
    order_.begin();
    // The memory of the warm-up's window is free when no process has it mapped any more.
    return options_.processes->barrier("that NCCL is prepared");
  }

  // Is called when a process is lost. The process group keeps it, perhaps longer than the communicators exist.
  struct Link {
    std::mutex mutex;
    std::function<void(const Status&)> lost;
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

  // With the instruction that it is, or that it is the vote of.
  template <typename Visit>
  void forEachCollective(Visit visit) const {
    plan::forEachInstruction(plan_, [&](const plan::Instruction& instruction) {
      if (instruction.has_collective()) visit(instruction, instruction.collective());
      if (instruction.has_persist() && plan_.ranks() > 1) visit(instruction, plan::voteOf(instruction).collective());
    });
  }

  std::string versionText() const {
    return cat(api_.version / 10000, ".", api_.version / 100 % 100, ".", api_.version % 100);
  }

  // How many groups of ranks meet in a communicator, each in one of NCCL's of its own.
  size_t groupsOf(size_t communicator) const {
    return static_cast<size_t>(options_.ranks) / groups_[communicator].ranks;
  }

  // Process 0's ids of this rank's communicators, if all processes have the same NCCL and use it in the same way.
  Expected<std::vector<ncclUniqueId>> shareIds() {
    size_t count = 0;
    for (size_t i = 0; i < communicators_.size(); ++i) count += groupsOf(i);
    std::vector<ncclUniqueId> ids(count);
    std::string kind = cat("NCCL ", versionText(), windows_ ? " with" : " without", " windows, ",
                           oneNode_ ? "one node" : "several nodes");
    for (const char* name : kAgreed)
      if (const char* value = std::getenv(name)) kind += cat(", ", name, "=", value);
    std::string mine = kind + "\n";
    if (options_.firstRank == 0) {
      for (ncclUniqueId& id : ids)
        if (ncclResult_t result = api_.getUniqueId(&id); result != ncclSuccess)
          return Status::error(cat("NCCL cannot start: ", api_.getErrorString(result)));
      mine.append(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(ncclUniqueId));
    }
    Expected<std::vector<std::string>> all = options_.processes->allGather(mine, "NCCL's ids");
    if (!all.ok()) return all.status();
    auto kindOf = [](const std::string& message) { return message.substr(0, message.find('\n')); };
    const std::string& first = all->front();
    for (size_t process = 1; process < all->size(); ++process)
      if (kindOf((*all)[process]) != kindOf(first))
        return Status::error(cat("the processes do not run the same: ", options_.processes->describe(0), " has ",
                                 kindOf(first), ", ", options_.processes->describe(static_cast<int64_t>(process)),
                                 " has ", kindOf((*all)[process]).substr(0, 300), " (SHEAF_NCCL_WINDOWS)"));
    const size_t bytes = ids.size() * sizeof(ncclUniqueId);
    if (first.size() != kind.size() + 1 + bytes)
      return Status::error("process 0 sent no ids for NCCL; the plan is not the same in all processes");
    std::memcpy(ids.data(), first.data() + kind.size() + 1, bytes);
    std::vector<ncclUniqueId> own;
    size_t begin = 0;
    for (size_t i = 0; i < communicators_.size(); ++i) {
      const plan::Axis axis = plan::axisOf(plan_, static_cast<int>(i));
      own.push_back(ids[begin + static_cast<size_t>(plan::groupOn(plan_, axis, options_.firstRank))]);
      begin += groupsOf(i);
    }
    return own;
  }

  // Windows let copy engines gather. NCCL sums what lies in windows in an order of its own, whatever algorithm is asked
  // for, and its sends between GPUs of a node hang when only one side's buffer is registered: a communicator that sums
  // has none. Nor has one between nodes: so the arena is a window of one communicator only.
  bool hasWindows(size_t communicator) const {
    if (plan::axisOf(plan_, static_cast<int>(communicator)) == plan::NETWORK) return false;
    return windows_ && communicator < uses_.size() && uses_[communicator].gathers && !uses_[communicator].sums &&
           !uses_[communicator].votes;
  }

  bool hasVotesOnly(size_t communicator) const {
    const Uses& uses = uses_[communicator];
    return uses.votes && !uses.gathers && !uses.sums;
  }

  Status setWindows(const cuda::Arena* memory) {
    for (size_t i = 0; i < communicators_.size(); ++i)
      if (hasWindows(i))
        SHEAF_RETURN_IF_ERROR(
            communicators_[i]->setWindow(memory ? memory->data() : nullptr, memory ? memory->allocated() : 0));
    return {};
  }

  // A kind of message of the plan.
  struct Message {
    uint32_t communicator, stream;
    plan::CollectiveOp op;
    plan::ElementType type;
    uint64_t count;
    bool continues;
    auto operator<=>(const Message&) const = default;
  };

  // Exchanges every message of the plan once, so that NCCL has allocated what it needs for them. For a gather in a
  // window within a node that does not depend on its size (docs/cuda-runtime.md). Between nodes it does, because NCCL
  // chooses its algorithm by the size.
  Status warmUp() {
    std::set<Message> inWindows, messages;
    forEachCollective([&](const plan::Instruction& instruction, const plan::Collective& c) {
      Message message{c.communicator(), instruction.stream(),        c.op(), c.type(),
                      c.count(),        plan::continues(instruction)};
      const bool window = hasWindows(message.communicator);
      if (!window || !isOneNode(message.communicator)) messages.insert(message);
      message.count = std::min(message.count,
                               kWindowWarmUp / groups_[message.communicator].ranks / plan::elementBytes(message.type));
      if (window) inWindows.insert(message);
    });
    cudaStream_t made = nullptr;
    SHEAF_RETURN_IF_ERROR(
        cuda::check(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "cannot create a stream"));
    const cuda::Stream stream(made);
    SHEAF_RETURN_IF_ERROR(exchangeAll(inWindows, true, made));
    return exchangeAll(messages, false, made);
  }

  Status exchangeAll(const std::set<Message>& messages, bool window, cudaStream_t stream) {
    if (messages.empty()) return {};
    uint64_t bytes = window ? kWindowWarmUp : 0;
    for (const Message& m : messages)
      bytes = std::max(
          bytes, m.count * plan::elementBytes(m.type) * (m.op == plan::ALL_REDUCE ? 1 : groups_[m.communicator].ranks));
    auto buffer = cuda::Arena::create(memory(), bytes, false);
    if (!buffer.ok()) return Status::error(cat("to prepare NCCL: ", buffer.status().message()));
    Status status = window ? setWindows(buffer->get()) : Status();
    for (const Message& message : messages)
      if (status.ok()) status = send(message, (*buffer)->data(), stream);
    if (status.ok()) status = await(stream);
    if (status.ok() && window) status = setWindows(nullptr);
    if (status.ok()) return {};
    // Buffer and stream cannot go while something waits or runs on the GPU: what an abort ends is followed by kernels.
    abort_.raise(Status::error(cat("NCCL could not be prepared: ", status.message())));
    abortAll();
    joinAborts();
    (void)cudaStreamSynchronize(stream);
    return abort_.status();
  }

  Status send(const Message& message, std::byte* memory, cudaStream_t stream) {
    const bool gather = message.op == plan::ALL_GATHER;
    // In place: a rank's part is where a gather puts it and where a reduce-scatter leaves its sum.
    std::byte* own = memory;
    if (message.op != plan::ALL_REDUCE)
      own += groups_[message.communicator].self * message.count * plan::elementBytes(message.type);
    return enqueue(
        0, message.communicator,
        {message.op, message.type, message.count, gather ? own : memory, gather ? memory : own, message.continues},
        stream, message.stream);
  }

  // The watchdog aborts if another rank does not come.
  Status await(cudaStream_t stream) {
    cudaError_t state;
    while ((state = cudaStreamQuery(stream)) == cudaErrorNotReady && !abort_.raised())
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    SHEAF_RETURN_IF_ERROR(abort_.status());
    return cuda::check(state, "the GPU failed");
  }

  Status exchange(Communicator& each, const Group& group, cudaStream_t stream,
                  const std::function<Transfer(uint64_t)>& transferWith) {
    return launch(each, "exchange the terms of a sum", stream, [&](ncclComm_t comm) {
      ncclResult_t result = api_.groupStart();
      for (uint64_t i = 0; i < group.ranks; ++i) {
        // Every rank begins with another peer.
        const uint64_t peer = (group.self + i) % group.ranks;
        const Transfer transfer = transferWith(peer);
        if (transfer.sendBytes > 0 && usable(result))
          result = api_.send(transfer.send, transfer.sendBytes, ncclUint8, static_cast<int>(peer), comm, stream);
        if (transfer.receiveBytes > 0 && usable(result))
          result = api_.recv(transfer.receive, transfer.receiveBytes, ncclUint8, static_cast<int>(peer), comm, stream);
      }
      const ncclResult_t ended = api_.groupEnd();
      return usable(result) ? ended : result;
    });
  }

  // Whether all ranks that meet in a communicator are in one machine.
  bool isOneNode(size_t communicator) const {
    const plan::Axis axis = plan::axisOf(plan_, static_cast<int>(communicator));
    return oneNode_ || (axis == plan::NODE && oneNodeEach_);
  }

  Status asyncError() {
    for (auto& each : communicators_) SHEAF_RETURN_IF_ERROR(each->error());
    return {};
  }

  // Ends what waits on the GPU for other processes. All communicators at once: one's abort waits for its graphs, which
  // wait for kernels of the others. NCCL goes back to its thread's GPU at the end, which must not be the first one by
  // default: that would open a context there.
  void abortAll() {
    std::lock_guard lock(abortsMutex_);
    if (aborting_) return;
    aborting_ = true;
    if (!aborts_) return;  // nothing has been opened
    aborts_->start([this](size_t communicator) {
      (void)cuda::useGpu(gpu_);
      communicators_[communicator]->abort();
    });
  }
  void joinAborts() {
    if (aborts_) aborts_->wait();
  }

  const Api& api_;
  const plan::Plan& plan_;
  const DeviceOptions options_;
  comm::AbortSignal& abort_;
  const int gpu_;
  LaunchOrder order_;
  bool windows_ = false, copyEngines_ = false;
  bool oneNode_ = false, oneNodeEach_ = false;  // all ranks, or those of each of the plan's nodes, are in one machine
  std::vector<Group> groups_;                   // of this rank, by communicator
  std::vector<std::unique_ptr<Communicator>> communicators_;
  struct Uses {
    bool gathers = false, sums = false, votes = false;
  };
  std::vector<Uses> uses_;  // what the plan does with each communicator
  // By communicator and stream: sums that may run at the same time do not share memory.
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> scratchBytes_;
  // In the same kind of memory as the arena: in graphs NCCL registers buffers by itself if other GPUs can map their
  // memory, and of a send both sides must be registered or neither.
  std::map<std::pair<uint32_t, uint32_t>, std::unique_ptr<cuda::Arena>> scratch_;
  std::mutex abortsMutex_;
  std::unique_ptr<WorkerThreads> aborts_;  // a thread for each communicator
  bool aborting_ = false;
  std::shared_ptr<Link> link_;
  std::optional<Watchdog> watchdog_;
};

}  // namespace

Expected<std::unique_ptr<cuda::Communicators>> makeCommunicators(const plan::Plan& plan, const DeviceOptions& options,
                                                                 comm::AbortSignal& abort, cuda::Progress& progress,
                                                                 int gpu) {
  Expected<const Api*> api = loadNccl();
  if (!api.ok()) return api.status();
  if (options.reduceOrder == plan::Training::RING) SHEAF_RETURN_IF_ERROR(chooseRing());
  auto communicators = std::make_unique<NcclCommunicators>(**api, plan, options, abort, gpu);
  SHEAF_RETURN_IF_ERROR(communicators->open(progress));
  return std::unique_ptr<cuda::Communicators>(std::move(communicators));
}

}  // namespace sheaf::nccl
