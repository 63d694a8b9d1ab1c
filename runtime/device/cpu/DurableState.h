// A rank's files as a run opens them, and what makes the state in them one to go on from: of ranks on CPUs and on GPUs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/device/Device.h"
#include "runtime/device/cpu/FileArena.h"
#include "runtime/plan/Generations.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::cpu {

// The rank's bytes of space `file`, which the plan has, as the options have them. Errors are FileArena::create's.
Expected<std::unique_ptr<FileArena>> openFiles(const plan::Plan& plan, const DeviceOptions& options, int64_t rank);
// See Device::committed.
Expected<std::vector<Committed>> committedStates(const plan::Plan& plan, uint64_t planHash,
                                                 const std::vector<std::string>& folders, int64_t rank,
                                                 FileLayer* files);

// `odd`: see RankContext::oddGeneration. Plan and files outlive this.
class DurableState {
 public:
  DurableState(const plan::Plan& plan, FileArena& files) : plan_(plan), generations_(plan), files_(files) {}

  // Whether an odd number of steps had been persisted when the files were opened.
  bool wasOdd() const { return files_.generation() == 1; }
  // Of a Persist, what the rank does before the vote: its next generation, where `odd` was before, is durable and
  // recorded when this returns. The order is what a crash needs: what was written, then the record that says what it
  // is. `step` may be null; `lossScale`, `poll`: see StepValues::commit.
  Status persist(int64_t rank, bool odd, const StepValues* step, std::span<const std::byte> lossScale,
                 const StepValues::Poll& poll);
  // An error if the sum of plan::voteOf is not that of all ranks, of which each gives `each`.
  Status checkVotes(float sum, float each = 1) const;
  // See RankContext.
  Status commit(bool odd, const Committed& state);
  Status writeChecksum(bool odd);
  Status verifyChecksum(bool odd);

 private:
  // XXH64 of all state in files, of each persistent buffer the current generation. Reads all of it once.
  Expected<uint64_t> hash(bool odd);

  const plan::Plan& plan_;
  const plan::Generations generations_;
  FileArena& files_;
};

// Which operand of a persist the loss scale is; -1: it has none.
int lossScaleIn(const plan::Instruction& persist, const plan::Plan& plan);

}  // namespace sheaf::cpu
