// The instructions of a GPU's rank: the resolved ones, with what a GPU needs besides. Lists of them run as a whole.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "runtime/device/InstructionTable.h"
#include "runtime/device/cuda/Arena.h"
#include "runtime/device/cuda/HostArena.h"
#include "runtime/device/cuda/HostCompute.h"
#include "runtime/device/cuda/HostSlots.h"
#include "runtime/device/cuda/LibraryFunction.h"

namespace sheaf::cuda {

struct Entry : ResolvedInstruction {
  int list = -1;                 // of GpuInstructions::lists()
  bool marked = false;           // its beginning is noted where a watchdog sees it
  bool waitsOutside = false;     // a wait in a list for a record before the list
  std::vector<void*> arguments;  // a kernel's: pointers to the addresses of its operands
  std::unique_ptr<const LibraryFunction> function;
  std::optional<HostSlots> slots;  // of an input, of scalars, of an output, of the loss scale of a persist
  // A launch on the host. The thread that does it may have it longer than the context lives.
  std::shared_ptr<const HostCompute::Request> onHost;

  // True if a thread of the host has a part, which is asked for each time that the instruction runs.
  bool asksHost() const { return file || onHost || kind == plan::Instruction::kPersist; }
  // The offset in an output's slot of the first error that kernels have found.
  size_t findingOffset() const { return (bytes + sizeof(uint64_t) - 1) / sizeof(uint64_t) * sizeof(uint64_t); }
};

class GpuInstructions : public InstructionTable<Entry> {
 public:
  // `host`: the rank's arena in host memory; null if the plan has no buffers there. `hostKernels`: for launches on the
  // host; null if the plan has none.
  static Expected<std::unique_ptr<GpuInstructions>> create(const plan::Plan& plan, int64_t rank, const Arena& arena,
                                                           const HostArena* host, const cpu::KernelImages* hostKernels,
                                                           Blas& blas);
  // A step runs these lists as a whole: the body, and before it parts of several micro-batches. Entries from begin to
  // end. A part that draws random numbers for several micro-batches is none: a graph has the place of their rows in it.
  // The body ends before a persist, which waits for the step's loss and norm: a graph delivers them when it has ended.
  struct List {
    uint32_t begin, end;
  };
  const std::vector<List>& lists() const { return lists_; }

 private:
  void findLists(const plan::Plan& plan);

  std::vector<List> lists_;
};

}  // namespace sheaf::cuda
