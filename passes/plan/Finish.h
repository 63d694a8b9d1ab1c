// The steps that make a plan of a module, in the order in which makePlan() in passes/Pipeline.cpp takes them. Steps.h
// has them as `sheaf-opt` runs them.
#pragma once

#include <cstdint>
#include <string>

#include "ir/Plan/Draft.h"
#include "mlir/IR/BuiltinOps.h"
#include "runtime/base/Status.h"

namespace sheaf::plan_ir {

struct LowerOptions {
  int64_t maxThreads = 8;        // that scratch is reserved for, of a rank
  bool cpu = true, gpu = false;  // devices that scratch is reserved for
};

// Turns the module's step and evaluation into instructions on buffers. Values become buffers; reshapes and parameters
// become views. A gradient is written straight into its place in the bucket, a piece of a concatenation into its place
// there, and a fusion's result over an operand that is not read after it. Distinct fusions become kernels. Only they
// are left in the module. An error has been reported where this fails.
mlir::FailureOr<Draft> lowerToPlan(mlir::ModuleOp module, const LowerOptions& options);

// Writes digests of what outputs and state are computed from into the plan: see runtime/plan/Dataflow.h. Schedule,
// events and memory leave them as they are, and the proof of the finished plan checks that they did.
Status digestDataflow(Draft& draft);

struct OffloadOptions {
  // The space of each kind of buffer: "device", "host" or "file".
  std::string optimizer = "device", parameters = "device", gradients = "device", activations = "device";
  int64_t within = -1;              // most bytes on the device; negative: each kind as its space says
  int64_t hostBytes = -1;           // most bytes to host memory, then to files; negative: all to host memory
  std::string updateOn = "device";  // or "host": where buckets whose optimizer state has been moved are updated
  std::string profileName = "cpu";  // the hardware: a name or a file
};

// Moves optimizer state, parameters, gradients and activations to host memory or files (docs/offload.md). A persistent
// buffer is relocated to another space, its home. An instruction that uses it on the device uses a copy there, its
// image: a buffer of the same size that is filled by a transfer before the use and, if it is written, stored by a
// transfer after it. Neighbouring uses share an image unless moving it away and back takes less than half of the
// computation between them. A buffer that lives within a step is moved away between such uses, if it has been written
// as a whole. No value is changed: the digests of the data flow stay as they are.
//
// With `within`, buffers of any kind are moved, and between which of their uses, by what their transfers cost for the
// bytes that they free, until no more are alive: see passes/schedule/Placement.h. The lists are first put into an
// order that keeps few bytes alive. With `updateOn` "host", an update whose state has been moved is launched on the
// host, unless something else uses the state: it works on it in the host's memory, where it is or into which it is read
// from files. Its other operands are still on the device.
Status offload(Draft& draft, const OffloadOptions& options);

// Gives each device buffer that a launch on the host uses an image in host memory. The bytes that the launch reads are
// copied there as soon as they have been written, once for all launches that only read them; the bytes that it writes
// are copied back after it.
Status copyHostOperands(Draft& draft);

struct ScheduleOptions {
  std::string profileName = "cpu";  // the hardware: a name or a file
  uint64_t memoryLimit = 0;         // most bytes of a rank's arena; 0: no limit
  int64_t prefetch = -1;            // gathers under way beyond those in use; negative: the best number
};

// Orders the step's instructions, computation, gathers, reductions and updates, in one loop: the order that takes the
// least time in the steady state, by the costs of a hardware profile, and among those the one that keeps the fewest
// bytes alive. The evaluation is ordered in the same way, as a loop of batches. The order respects every dependence of
// the bytes accessed, so it changes no bit. Gathers that the next step needs first may stand at the end of the body;
// then they stand in the prologue as well.
Status scheduleInstructions(Draft& draft, const ScheduleOptions& options);

// Gives state in files two places that take turns. A step reads the current generation of what it stores and writes the
// next one; at its end a Persist makes that durable, and the two change roles. So the files are a state to go on from
// after every step. Only if files hold all state: otherwise, and with one generation, nothing is changed, and the
// plan's decisions say why. Runs after the schedule, which is the same for one place and for two.
Status addGenerations(Draft& draft, int64_t generations);

// Orders every two conflicting accesses of different streams by an event, over the unrolled loop, so that dependences
// into the next step and on the host count. Before memory is laid out, accesses conflict in their buffer, and a gather
// into a buffer that shares its bytes also waits for the computation issued before it: it must not run further ahead
// than it was scheduled. With `placed`, buffers have their offsets; accesses conflict in the bytes of the arena, and
// only they do. Collectives of one communicator are ordered, too. Events that were there before are removed.
Status insertEvents(Draft& draft, bool placed);

// Removes waits that stream order and the other waits imply, and records that nothing waits for. What is left is the
// transitive reduction of the order: without any one wait some two accesses that conflict would not be ordered.
Status elideEvents(Draft& draft);

// Gives every buffer its offset in the arena of its space. Two buffers share bytes only if every access to one happens
// before every access to the other, in this step and into the next. Largest first, at the lowest offset that is free.
// The evaluation's buffers are laid out by themselves, over the step's: the two never run together.
Status allocateArena(Draft& draft);

}  // namespace sheaf::plan_ir
