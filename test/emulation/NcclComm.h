// A communicator of the emulated NCCL, between threads or processes of one machine: messages go through mailboxes in
// memory that they share, a file that the unique id names and that loses its name when all have joined.
//
// All GPUs are in one node, connected by NVLink. The rules that this NCCL enforces, and where the real one has them,
// are in docs/cuda-emulation.md.
#pragma once

#include <nccl.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "test/emulation/Collectives.h"
#include "test/emulation/Stream.h"

namespace sheaf::emulation {

// From one rank to another, a piece of a message at a time.
struct Mailbox {
  static constexpr size_t kPiece = (64 << 10) - 32;
  std::atomic<uint64_t> filled;  // bytes; 0 when the receiver has taken them
  // By which copy engines wait for each other: what the sender has written last when it was ready for a gather and when
  // it was done with one, and how often it has written.
  std::atomic<uint32_t> flags[2], writes[2];
  bool registered;  // the buffer that the piece comes from
  char piece[kPiece];
};

// What the ranks share, zeroed in the beginning; the mailboxes follow.
struct Shared {
  std::atomic<int> joined;
  std::atomic<int> registrations;  // calls of ncclCommWindowRegister, of all ranks
  std::atomic<int> releases;       // of ncclCommWindowDeregister
  alignas(4096) Mailbox mailboxes[];
};

struct Window {
  const char* begin;
  size_t bytes;
  bool symmetric;
  size_t offset;  // in the symmetric address space
};

}  // namespace sheaf::emulation

struct ncclComm {
  std::string path;
  int rank = 0, ranks = 0, ctaPolicy = 0;
  int device = 0;  // that of the thread that made it
  sheaf::emulation::Launches launches;
  // The last kernel's start, as an event: whether there is one, and the capture that it lies in.
  bool started = false;
  std::weak_ptr<sheaf::emulation::Capture> startedIn;
  std::shared_ptr<sheaf::emulation::Shared> shared;
  size_t deviceBytes = 0;
  std::atomic<bool> aborted = false;
  std::atomic<bool> inside = false;  // whether a thread is in a function of this communicator
  // What a call has begun: it is called at every poll until its result is not ncclInProgress.
  std::function<ncclResult_t()> pending;
  bool asked = false;  // once since it began
  ncclResult_t error = ncclSuccess;
  std::set<int> connected;  // ranks
  std::vector<sheaf::emulation::Window> windows;
  int registrations = 0, releases = 0;  // of windows, by this rank
  std::map<size_t, size_t> space;       // what is taken of the symmetric address space: offsets and bytes
  bool hasFlags = false;                // of copy engines, from the first gather on
  uint32_t synchronizations = 0;        // of copy engines; two a gather
  uint32_t writes[2] = {};              // of this rank's copy engines to the flags of each other rank
  std::atomic<int> graphs = 0;          // captured launches whose graphs are alive
  std::mutex exchanging;                // one exchange at a time

  sheaf::emulation::Mailbox& mailbox(int from, int to) const { return shared->mailboxes[from * ranks + to]; }
};

namespace sheaf::emulation {

// A rule was broken that makes the real NCCL crash or corrupt memory.
[[noreturn]] void violated(const std::string& rule);
// A rule was broken that makes the real NCCL hang, or return an error.
void report(const std::string& rule);

// A call of a communicator, by the only thread that is in it.
class Use {
 public:
  Use(ncclComm* comm, const char* function);
  ~Use() { comm_->inside = false; }
  Use(const Use&) = delete;

 private:
  ncclComm* const comm_;
};

// ncclSuccess if the call before is done, and was seen to be.
ncclResult_t ready(const ncclComm& comm);
// Begins what `job` does and ends when it returns another result than ncclInProgress.
ncclResult_t begin(ncclComm* comm, std::function<ncclResult_t()> job);

// Whether the bytes lie in one window of the communicator.
bool inWindow(const ncclComm& comm, const void* address, size_t bytes, bool symmetric);

// A place in the communicator's symmetric address space.
bool takeSpace(ncclComm& comm, size_t bytes, size_t* offset);

// The version whose rules hold, as 22809: the header's, or that of SHEAF_EMULATED_NCCL (2.25, 2.27, 2.29).
int emulatedVersion();

// Memory of a connection to and from a rank, or of the ring (-1), at its first use.
ncclResult_t connect(ncclComm& comm, int rank);

// Waits until no kernel of NCCL runs on the GPU of this rank.
void awaitKernels(int rank);

ncclResult_t groupStart();
ncclResult_t groupEnd();
ncclResult_t send(const void* address, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                  cudaStream_t stream);
ncclResult_t recv(void* address, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream);
ncclResult_t allGather(const void* source, void* destination, size_t count, ncclDataType_t type, ncclComm_t comm,
                       cudaStream_t stream);
ncclResult_t reduceScatter(const void* source, void* destination, size_t count, ncclDataType_t type, ncclRedOp_t,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t allReduce(const void* source, void* destination, size_t count, ncclDataType_t type, ncclRedOp_t,
                       ncclComm_t comm, cudaStream_t stream);

}  // namespace sheaf::emulation
