// Runs the steps of a plan: one issuing thread per rank of this process. Every rank issues the same order.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/comm/process/ProcessGroup.h"
#include "runtime/device/Device.h"
#include "runtime/exec/Gradients.h"
#include "runtime/exec/RunThreads.h"
#include "runtime/exec/StepLedger.h"
#include "runtime/exec/Trace.h"
#include "runtime/io/Checkpoint.h"
#include "runtime/io/DataSource.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::exec {

struct TrainerOptions {
  plan::Training training;               // the plan's, with the changes of the command line
  int64_t step = 0;                      // number of the first step
  int64_t updates = 0;                   // applied before it
  uint64_t samples = 0;                  // read before it
  GradientCapture* gradients = nullptr;  // captures the first step's gradients; may be null
  Trace* trace = nullptr;                // records every instruction's times; may be null
  const std::atomic<bool>* interrupted = nullptr;
  std::optional<uint64_t> fileRun;           // see Committed; set: files outlive the run
  std::optional<int64_t> shuffleSeed;        // for those who go on from them
  std::optional<io::TrainingLength> length;  // also for those
  int64_t firstRank = 0;                     // of this process
  comm::ProcessGroup* processes = nullptr;   // if there are others
};

class Trainer {
 public:
  Trainer(const plan::Plan& plan, const std::vector<std::unique_ptr<RankContext>>& ranks, const RunThreads& threads,
          const io::DataSource& data, TrainerOptions options);

  // Runs the prologue, up to `steps` bodies and the epilogue, then synchronizes the ranks. `report` receives the
  // results in order on the calling thread. Ends early, after the same step on all processes, when one is interrupted,
  // or two steps after a bad one that is not skipped (StepLedger.h). Where rows of data do not come, the steps that
  // have begun are completed, and then the error says why.
  Status run(int64_t steps, const std::function<void(const StepResult&)>& report);

  int64_t step() const { return step_; }
  int64_t updates() const { return updates_; }
  uint64_t samples() const { return samplesAt(step_); }
  // The bad step that the run ended at, or -1.
  int64_t badStep() const { return badStep_; }
  // Whether the last run's error is that rows of data did not come: step() and the state are those after its last step.
  bool inputEnded() const { return inputEnded_; }
  // Whether the last run ended early because a process was interrupted.
  bool interrupted() const { return interrupted_; }

 private:
  Status runRank(StepLedger& ledger, size_t rank, int64_t firstStep) const;
  std::shared_ptr<StepValues> makeValues(int64_t step, int64_t update, double& learningRate) const;
  // The state after a step, for its files.
  Expected<std::optional<Committed>> stateAfter(StepLedger& ledger, int64_t step, std::span<const std::byte> lossScale,
                                                const StepValues::Poll& poll) const;
  // The values of a step with the rows of one of its micro-batches.
  std::shared_ptr<const StepValues> ofMicroBatch(const StepValues& step, int64_t microBatch) const;
  uint64_t samplesAt(int64_t step) const;

  const plan::Plan& plan_;
  const std::vector<std::unique_ptr<RankContext>>& ranks_;
  const RunThreads& threads_;
  const io::DataSource& data_;
  const TrainerOptions options_;
  bool hasNorm_ = false;
  int64_t step_, updates_, badStep_ = -1;
  bool interrupted_ = false, inputEnded_ = false;
};

// Whether a verified plan can be trained: its body must write a loss.
Status checkTrainable(const plan::Plan& plan);

}  // namespace sheaf::exec
