// What a device library offers the executor. The CPU's is libsheaf_cpu.so, loaded when a plan is to run on it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/comm/transport/ConnectTransport.h"
#include "runtime/comm/transport/Traffic.h"
#include "runtime/plan/CpuIdentity.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf {

class FileLayer;

// What a rank's files hold: the state after so many steps of a run, and what the host wrote with it.
struct Committed {
  int64_t step = 0;
  uint64_t run = 0;  // a number that all ranks of a run and of those that resume it have
  std::string position;
};

// What changes from step to step, and in a step from one micro-batch to the next; shared by the ranks of one process
// and immutable while the step is in flight.
struct StepValues {
  int64_t step = 0;  // 0-based number of the step since the first
  // The rows that a rank has are piece firstPiece + rank * pieceStride of the global batch: see plan::PiecesOfRanks.
  int64_t firstPiece = 0, pieceStride = 1;
  std::vector<float> scalars;  // Plan.scalars
  // Writes this micro-batch's rows of an input for a rank; called from a stream's thread.
  std::function<Status(int64_t rank, uint32_t input, std::span<std::byte> destination)> readInput;
  // Receives a scalar output of a rank; called from a stream's thread.
  std::function<void(int64_t rank, plan::OutputKind output, double value)> writeOutput;
  // Receives a tensor output of the evaluation, an entry of Plan.outputs, of a rank; called from a stream's thread.
  std::function<Status(int64_t rank, uint32_t output, std::span<const std::byte> tensor)> writeTensor;
  // If set: called after each instruction, on its stream's thread.
  std::function<void(int64_t rank, const plan::Instruction&, std::chrono::steady_clock::time_point begin,
                     std::chrono::steady_clock::time_point end)>
      onInstruction;
  // If set: called before each kernel that updates a bucket, with the reduced gradient that it reads.
  std::function<void(int64_t rank, uint32_t bucket, std::span<const std::byte> gradient)> onGradient;

  // If set: called by Persist on its stream's thread, when what files hold of the state after this step is durable,
  // with the loss scale's state, if there is one. What it returns is written with the files. Nothing: the step is not
  // to be gone on from, and files stay as they are from then on, whatever is written. It may wait for other
  // instructions of the step and then asks `poll` from time to time, whose error it returns.
  using Poll = std::function<Status()>;
  std::function<Expected<std::optional<Committed>>(int64_t rank, std::span<const std::byte> lossScale,
                                                   const Poll& poll)>
      commit;

  int64_t pieceOf(int64_t rank) const { return firstPiece + rank * pieceStride; }
};

// Instructions of a plan, made ready to be run as a whole again and again: see RankContext::prepare.
class Burst {
 public:
  virtual ~Burst() = default;
  // Runs them and waits for their end. Returns seconds by the device's own clock.
  virtual Expected<double> run() = 0;
};

// One rank: an arena, streams and events. issue() may be called by one thread at a time.
class RankContext {
 public:
  virtual ~RankContext() = default;
  // Appends the instruction to its stream. Instructions of a stream run in order; streams run concurrently. Blocks only
  // to bound the queue. An error of an earlier instruction (with its label and the rank) may be returned. The
  // instruction must stay alive until synchronize() returns.
  virtual Status issue(const plan::Instruction& instruction, std::shared_ptr<const StepValues> step) = 0;
  // The first error so far of any rank, without waiting. For threads that wait for a rank that may have failed.
  virtual Status poll() { return {}; }
  // Waits until all issued instructions are done; returns the first error.
  virtual Status synchronize() = 0;
  // Copies between host memory and the arena, at an offset in bytes. Only after synchronize().
  virtual Status read(uint64_t offset, std::span<std::byte> host) = 0;
  virtual Status write(uint64_t offset, std::span<const std::byte> host) = 0;
  // The same with the arena of any space.
  virtual Status readSpace(plan::Buffer::Space space, uint64_t offset, std::span<std::byte> host) {
    return space == plan::Buffer::DEVICE ? read(offset, host) : noSuchSpace(space);
  }
  virtual Status writeSpace(plan::Buffer::Space space, uint64_t offset, std::span<const std::byte> host) {
    return space == plan::Buffer::DEVICE ? write(offset, host) : noSuchSpace(space);
  }
  // Which of the places of two generations has the current one: that of the plan's buffer of the next one, if an odd
  // number of steps has been persisted.
  virtual bool oddGeneration() const { return false; }
  // Makes what files hold durable as a state to go on from. Only after synchronize(), and where files outlive the run.
  virtual Status commit(const Committed& state) { return Status::error("the device has no files"); }
  // Reads the state in files once and records its XXH64 with it, or compares it with the recorded one: then an error
  // names the files. No error without files that outlive the run, or without a record. Only after synchronize().
  virtual Status writeChecksum() { return {}; }
  virtual Status verifyChecksum() { return {}; }
  // Highest byte of the arena touched since it was poisoned, plus 1; for tests, and only after synchronize().
  virtual uint64_t highestTouchedByte() = 0;
  // For measurements: the instructions, which are run once, ready to be run as a step runs its body. Null if that is
  // one by one: then issue() and the host's clock give the same time. Destroy a burst before its context.
  virtual Expected<std::unique_ptr<Burst>> prepare(std::span<const plan::Instruction* const> instructions) {
    return std::unique_ptr<Burst>();
  }
  // Makes every rank's waits and rendezvous fail with `why`, because this rank cannot go on.
  virtual void abort(const std::string& why) = 0;

 private:
  static Status noSuchSpace(plan::Buffer::Space space) {
    return Status::error("the device has no arena in space " + std::to_string(static_cast<int>(space)));
  }
};

// Files that a run can go on from after its end or a crash.
struct FileState {
  uint64_t plan = 0;            // the plan's hash
  uint64_t run = 0;             // see Committed
  std::optional<int64_t> step;  // what the files hold: the state after so many steps; nothing: the run begins
  bool evaluates = false;       // of a run that only evaluates the state: neither it nor its record is written
};

struct DeviceOptions {
  int64_t ranks = 1;                        // of the job
  int64_t firstRank = 0;                    // of those that are in this process
  int64_t localRanks = 0;                   // how many are in this process; 0: all
  comm::ProcessGroup* processes = nullptr;  // if not all of them are; outlives the contexts
  int64_t processesPerNode = 1;             // processes in a row that are on one node (comm/shared)
  // What carries bytes between nodes of CPUs; null: sockets.
  comm::ConnectTransport connectTransport = nullptr;
  double sendRate = 0;                               // as in comm::TransportOptions
  std::shared_ptr<comm::Traffic> traffic = nullptr;  // the same
  int threadsPerRank = 1;  // on CPUs at most Plan.max_threads; on GPUs of launches on the host
  bool poison = false;     // fill arenas with a pattern before use
  // Where files of ranks lie, if the plan has buffers in files: their bytes are divided among the folders.
  std::vector<std::string> offloadFolders;
  // If set, the files outlive the run, and the plan has two generations of its state in them.
  std::optional<FileState> fileState;
  FileLayer* files = nullptr;  // null: the system's own
  // On GPUs:
  bool graphs = true;  // run steps as CUDA graphs where that is possible
  plan::Training::ReduceOrder reduceOrder = plan::Training::TREE;
  // The file of a table of matrix products: the process of rank 0 reads it, or, where there is none, measures the
  // plan's products and writes it; all ranks choose algorithms by that table. Empty: cuBLASLt's own choice.
  std::string products;
  // If set: called once, from any thread, when the run is aborted: it ends, and nothing more can be saved.
  std::function<void()> aborted;
  // If set: called at most once, from any thread, some seconds later if the device cannot be made to end what it does.
  // Contexts may then never close: the process must report `why` and end without them.
  std::function<void(const std::string& why)> abandon;
  // If set: receives warnings.
  std::function<void(const std::string& text)> warn;
  // If set: receives what was chosen (a name and its value), for the log.
  std::function<void(const std::string& name, const std::string& value)> note;
};

// What a process computes on, where that is not the machine itself.
struct DeviceFacts {
  std::string name;
  uint64_t memoryBytes = 0;  // that are left for arenas
};

class Device {
 public:
  virtual ~Device() = default;
  // The states that a rank's files hold, at most two, of which a run with this plan can go on from any that all ranks
  // have. Errors say why the folders hold none of this plan and rank. `files`: as in DeviceOptions.
  virtual Expected<std::vector<Committed>> committed(const plan::Plan& plan, uint64_t planHash,
                                                     const std::vector<std::string>& folders, int64_t rank,
                                                     FileLayer* files) {
    return Status::error("the device has no files");
  }
  // For profiles. `processes`: as in DeviceOptions. `severalNodes`: they are not all on one machine.
  virtual Expected<DeviceFacts> facts(comm::ProcessGroup* processes, bool severalNodes) { return DeviceFacts(); }
  // Returns what a run of the plan computes with, without the processor's name. Only CPU devices have it.
  virtual std::optional<plan::CpuIdentity> cpuIdentity(const plan::Plan& plan) const { return std::nullopt; }
  // One context for each rank of this process, arenas zeroed (or poisoned) and kernels loaded. The plan must outlive
  // them and be verified.
  virtual Expected<std::vector<std::unique_ptr<RankContext>>> open(const plan::Plan& plan,
                                                                   const DeviceOptions& options) = 0;
};

// The symbol that a device library exports (extern "C"): sheaf_open_device, of this type. Never null.
using OpenDevice = Device* (*)();

}  // namespace sheaf
