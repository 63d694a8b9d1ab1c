// The emulated NCCL: what its communicators do on streams.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <thread>

#include "runtime/base/Text.h"
#include "test/emulation/Collectives.h"
#include "test/emulation/Devices.h"
#include "test/emulation/Memory.h"
#include "test/emulation/NcclComm.h"

namespace sheaf::emulation {
namespace {

struct Message {
  ncclComm* comm;
  cudaStream_t stream;
  bool send;
  int peer;
  char* address;
  size_t bytes;
  // Of a send or receive that would use the buffers of both sides directly, if they are registered.
  bool direct = false, registered = false;
  bool stuck = false;  // for ever
};

thread_local int groupDepth = 0;
thread_local std::vector<Message> group;

constexpr size_t kTypeBytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
// Between two GPUs of an H100's node, and of its ring.
constexpr size_t kChannels = 32;

size_t fromEnvironment(const char* name, size_t otherwise) {
  const char* value = std::getenv(name);
  return value ? std::strtoull(value, nullptr, 10) : otherwise;
}

// Sends of at most so many bytes are copied through NCCL's own buffers (protocol LL).
size_t bufferedBytes() {
  return kChannels * fromEnvironment("NCCL_P2P_LL_THRESHOLD", 16384);
}

// In graphs NCCL registers by itself what other GPUs can map.
bool isRegistered(const Message& m) {
  return inWindow(*m.comm, m.address, m.bytes, false) ||
         (m.stream->capture && fromEnvironment("NCCL_GRAPH_REGISTER", 1) && shareableAllocation(m.address, m.bytes));
}

// NCCL's kernels that run, by the rank whose GPU they run on.
struct Kernels {
  std::mutex mutex;
  std::condition_variable ended;
  std::map<int, int> running;
};
Kernels& kernels() {
  static Kernels& kernels = *new Kernels;
  return kernels;
}

class Running {
 public:
  explicit Running(int rank) : rank_(rank) { count(1); }
  ~Running() { count(-1); }

 private:
  void count(int change) {
    std::lock_guard lock(kernels().mutex);
    kernels().running[rank_] += change;
    kernels().ended.notify_all();
  }
  const int rank_;
};

// Moves the message's next piece if that is possible now.
bool progress(Message& m) {
  Mailbox& mailbox = m.send ? m.comm->mailbox(m.comm->rank, m.peer) : m.comm->mailbox(m.peer, m.comm->rank);
  const uint64_t filled = mailbox.filled.load(std::memory_order_acquire);
  if (m.send == (filled > 0)) return false;
  if (!m.send && m.direct && mailbox.registered != m.registered && !m.stuck) {
    auto kind = [](bool registered) { return registered ? "a registered" : "an unregistered"; };
    report(cat("rank ", m.comm->rank, " receives ", m.bytes, " bytes into ", kind(m.registered), " buffer, rank ",
               m.peer, " sends them from ", kind(mailbox.registered), " one: NCCL hangs"));
    m.stuck = true;
  }
  if (m.stuck) return false;
  const size_t bytes = m.send ? std::min(m.bytes, Mailbox::kPiece) : filled;
  if (m.send) {
    std::memcpy(mailbox.piece, m.address, bytes);
    mailbox.registered = m.registered;
  } else {
    std::memcpy(m.address, mailbox.piece, std::min(bytes, m.bytes));
  }
  mailbox.filled.store(m.send ? bytes : 0, std::memory_order_release);
  m.address += bytes;
  m.bytes -= std::min(bytes, m.bytes);
  return true;
}

// `abortable`: kernels look whether the communicator is aborted, copy engines wait for memory whatever happens.
void exchange(std::vector<Message>& messages, bool abortable) {
  while (!(abortable && messages[0].comm->aborted)) {
    bool moved = false, done = true;
    for (Message& m : messages) {
      if (m.bytes > 0) moved |= progress(m);
      done &= m.bytes == 0;
    }
    if (done) return;
    if (!moved) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

void perform(std::vector<Message> messages) {
  ncclComm& comm = *messages[0].comm;
  std::lock_guard lock(comm.exchanging);
  Running running(comm.rank);
  exchange(messages, true);
}

// The flags that copy engines write before a gather and after it.
enum Flags { kReady, kComplete };

// Writes `value` to this rank's flag on every other GPU, and waits until the others' flags here equal it. A flag that
// has the value already was left by an earlier synchronization: a rank that waits for it does not wait.
void synchronize(ncclComm& comm, Flags flags, uint32_t value, bool inGraph) {
  auto stale = [&](int writer, int waiter) {
    violated(cat("a gather by copy engines finds the flag of rank ", writer, " on rank ", waiter, " at ", value,
                 " from before: it does not wait for rank ", writer));
  };
  const uint32_t writes = ++comm.writes[flags];
  for (int peer = 0; peer < comm.ranks; ++peer) {
    if (peer == comm.rank) continue;
    Mailbox& theirs = comm.mailbox(comm.rank, peer);
    ++theirs.writes[flags];
    if (theirs.flags[flags].exchange(value) == value) stale(comm.rank, peer);
  }
  for (int peer = 0; peer < comm.ranks; ++peer) {
    if (peer == comm.rank) continue;
    Mailbox& mine = comm.mailbox(peer, comm.rank);
    while (mine.flags[flags] != value) std::this_thread::sleep_for(std::chrono::microseconds(50));
    if (mine.writes[flags] < writes) stale(peer, comm.rank);
    if (inGraph) mine.flags[flags] = 0;
  }
}

// In graphs the flags' value is always 1, else the number of the synchronization.
void gatherByCopyEngines(std::vector<Message> messages, uint32_t ready, bool inGraph) {
  ncclComm& comm = *messages[0].comm;
  std::lock_guard lock(comm.exchanging);
  Running running(comm.rank);
  synchronize(comm, kReady, inGraph ? 1 : ready, inGraph);
  exchange(messages, false);
  synchronize(comm, kComplete, inGraph ? 1 : ready + 1, inGraph);
}

// Whether copy engines do a gather of so many elements of each rank in symmetric windows.
bool areForCopyEngines(const ncclComm& comm, size_t count) {
  if (comm.ctaPolicy == NCCL_CTA_POLICY_ZERO) return true;
  return emulatedVersion() >= NCCL_VERSION(2, 29, 0) && deviceArchitecture() >= 100 &&
         count > fromEnvironment("NCCL_SYM_CE_THRESHOLD", 8 << 20);
}

// True if NCCL orders launches of different communicators itself. The first launch reads the variable (NCCL_PARAM).
bool ordersLaunches() {
  static const bool asked = fromEnvironment("NCCL_LAUNCH_ORDER_IMPLICIT", 0) != 0;
  return asked && emulatedVersion() >= NCCL_VERSION(2, 26, 0);
}

// NCCL's order of launches waits for the start of the communicator's last kernel. Copy engines record none: a capture
// then waits for an event from outside, or a stream for one of a graph (enqueue.cc, ncclLaunchFinish: launchEvent;
// ce_coll.cc, ncclLaunchCeColl).
bool findsStart(ncclComm& comm, cudaStream_t stream, bool byCopyEngines) {
  if (!byCopyEngines) {
    comm.started = true;
    comm.startedIn = stream->capture;
    return true;
  }
  if (!ordersLaunches() || !comm.started || comm.startedIn.lock() == stream->capture) return true;
  report(cat("rank ", comm.rank, " gathers by copy engines ", stream->capture ? "in" : "after",
             " a capture, and its order of launches waits for the start of a kernel on the other side"));
  if (stream->capture) stream->capture->invalid = true;
  return false;
}

// Begins a launch: the task comes to the stream when NCCL is asked whether the call is done.
ncclResult_t launch(ncclComm_t comm, const char* function, cudaStream_t stream, std::vector<int> connections,
                    Task task) {
  if (stream->device != comm->device)
    brokeRule(cat(function, " is given a stream of device ", stream->device, " and a communicator of ", comm->device));
  const Collective collective{&comm->launches, ordersLaunches(),
                              [comm] {
                                while (!comm->aborted) std::this_thread::sleep_for(std::chrono::microseconds(50));
                              },
                              cat(function, " of rank ", comm->rank)};
  if (stream->capture) {
    ++comm->graphs;
    stream->capture->held.push_back(std::shared_ptr<void>(comm, [](ncclComm_t each) { --each->graphs; }));
  }
  return begin(comm, [=]() -> ncclResult_t {
    for (int rank : connections)
      if (ncclResult_t result = connect(*comm, rank); result != ncclSuccess) return result;
    // Kernels have connections.
    if (!findsStart(*comm, stream, connections.empty())) return ncclUnhandledCudaError;
    return enqueueCollective(stream, collective, task) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
  });
}

ncclResult_t add(const void* address, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream,
                 bool sends) {
  Use use(comm, sends ? "ncclSend" : "ncclRecv");
  if (ncclResult_t state = ready(*comm); state != ncclSuccess) return state;
  if (peer < 0 || peer >= comm->ranks || groupDepth == 0) return ncclInvalidArgument;
  if (!group.empty() && group[0].comm != comm) return ncclInvalidUsage;
  Message message{comm, stream, sends, peer, static_cast<char*>(const_cast<void*>(address)), count * kTypeBytes[type]};
  message.direct = peer != comm->rank && message.bytes > bufferedBytes();
  message.registered = message.direct && isRegistered(message);
  group.push_back(message);
  return ncclSuccess;
}

// Element i's terms are added as a ring would: each part begins at another rank. If all lies in symmetric windows, the
// switch adds them, in an unspecified order: here without rounding between. Only f32, which the tests need.
ncclResult_t sum(const char* function, const void* source, void* destination, size_t first, size_t count, size_t all,
                 ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
  Use use(comm, function);
  if (ncclResult_t state = ready(*comm); state != ncclSuccess) return state;
  if (type != ncclFloat32) return ncclInvalidArgument;
  const bool bySwitch =
      inWindow(*comm, source, all * sizeof(float), true) && inWindow(*comm, destination, count * sizeof(float), true);
  return launch(comm, function, stream, {-1}, [=] {
    std::vector<std::vector<float>> terms(static_cast<size_t>(comm->ranks), std::vector<float>(all));
    std::vector<Message> messages;
    for (int peer = 0; peer < comm->ranks; ++peer) {
      messages.push_back(
          {comm, stream, true, peer, static_cast<char*>(const_cast<void*>(source)), all * sizeof(float)});
      char* place = reinterpret_cast<char*>(terms[static_cast<size_t>(peer)].data());
      messages.push_back({comm, stream, false, peer, place, all * sizeof(float)});
    }
    perform(messages);
    const size_t ranks = terms.size(), part = (all + ranks - 1) / ranks;
    for (size_t i = first; i < first + count; ++i) {
      const size_t begin = i / part + 1;
      double exact = 0;
      for (size_t k = 0; k < ranks; ++k) exact += double{terms[k][i]};
      float sum = terms[begin % ranks][i];
      for (size_t k = 1; k < ranks; ++k) sum += terms[(begin + k) % ranks][i];
      static_cast<float*>(destination)[i - first] = bySwitch ? static_cast<float>(exact) : sum;
    }
  });
}

}  // namespace

void awaitKernels(int rank) {
  std::unique_lock lock(kernels().mutex);
  kernels().ended.wait(lock, [&] { return kernels().running[rank] == 0; });
}

ncclResult_t connect(ncclComm& comm, int rank) {
  constexpr size_t kConnectionBytes = 12 << 20;
  if (rank == comm.rank || !comm.connected.insert(rank).second) return ncclSuccess;
  if (!takeDeviceMemory(kChannels * kConnectionBytes)) return ncclUnhandledCudaError;
  comm.deviceBytes += kChannels * kConnectionBytes;
  return ncclSuccess;
}

ncclResult_t groupStart() {
  ++groupDepth;
  return ncclSuccess;
}

ncclResult_t groupEnd() {
  if (groupDepth == 0) return ncclInvalidUsage;
  if (--groupDepth > 0 || group.empty()) return ncclSuccess;
  std::vector<Message> messages;
  messages.swap(group);
  Use use(messages[0].comm, "ncclGroupEnd");
  std::vector<int> peers;
  for (const Message& message : messages) peers.push_back(message.peer);
  return launch(messages[0].comm, "ncclGroupEnd", messages[0].stream, peers, [messages] { perform(messages); });
}

ncclResult_t send(const void* address, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                  cudaStream_t stream) {
  return add(address, count, type, peer, comm, stream, true);
}

ncclResult_t recv(void* address, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return add(address, count, type, peer, comm, stream, false);
}

ncclResult_t allGather(const void* source, void* destination, size_t count, ncclDataType_t type, ncclComm_t comm,
                       cudaStream_t stream) {
  Use use(comm, "ncclAllGather");
  if (ncclResult_t state = ready(*comm); state != ncclSuccess) return state;
  const size_t bytes = count * kTypeBytes[type], ranks = static_cast<size_t>(comm->ranks);
  const bool byCopyEngines = areForCopyEngines(*comm, count) && inWindow(*comm, source, bytes, true) &&
                             inWindow(*comm, destination, ranks * bytes, true);
  size_t flags = 0;
  if (byCopyEngines && !comm->hasFlags && !takeSpace(*comm, 1, &flags)) return ncclInternalError;
  comm->hasFlags |= byCopyEngines;
  std::vector<Message> messages;
  for (int peer = 0; peer < comm->ranks; ++peer) {
    messages.push_back({comm, stream, true, peer, static_cast<char*>(const_cast<void*>(source)), bytes});
    char* place = static_cast<char*>(destination) + static_cast<size_t>(peer) * bytes;
    messages.push_back({comm, stream, false, peer, place, bytes});
  }
  if (!byCopyEngines) return launch(comm, "ncclAllGather", stream, {-1}, [=] { perform(messages); });
  const uint32_t ready = comm->synchronizations + 1;
  comm->synchronizations += 2;
  const bool inGraph = stream->capture != nullptr;
  return launch(comm, "ncclAllGather", stream, {}, [=] { gatherByCopyEngines(messages, ready, inGraph); });
}

ncclResult_t reduceScatter(const void* source, void* destination, size_t count, ncclDataType_t type, ncclRedOp_t,
                           ncclComm_t comm, cudaStream_t stream) {
  const size_t ranks = static_cast<size_t>(comm->ranks);
  return sum("ncclReduceScatter", source, destination, static_cast<size_t>(comm->rank) * count, count, count * ranks,
             type, comm, stream);
}

ncclResult_t allReduce(const void* source, void* destination, size_t count, ncclDataType_t type, ncclRedOp_t,
                       ncclComm_t comm, cudaStream_t stream) {
  return sum("ncclAllReduce", source, destination, 0, count, count, type, comm, stream);
}

}  // namespace sheaf::emulation
