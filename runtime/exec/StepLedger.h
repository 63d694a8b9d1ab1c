// Coordinates the issuing threads of the ranks: the values of each step, its results, and the end of the run.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "runtime/base/Status.h"
#include "runtime/device/Device.h"

namespace sheaf::exec {

struct StepResult {
  int64_t step = -1;
  double loss = 0, gradientNorm = 0, learningRate = 0;
  double seconds = 0;               // since the previous step's result
  bool hasNorm = false;             // whether the plan computes the gradient norm
  std::optional<double> lossScale;  // what the loss was multiplied by, if it is scaled
  bool skipped = false;             // the update was skipped because the step is bad

  // A step is bad if its loss or its gradient norm is not finite. This alone decides whether its update is skipped, the
  // loss scale is reduced, the run ends, and what messages say.
  bool isBad() const;
  // Says of a bad step what is not finite: "the loss and the gradient norm are not finite".
  std::string whatIsBad() const;
};

// Returns the error of a run that a bad step ends. `lastSaved`: the newest saved state, empty if there is none.
Status badStepError(const StepResult& bad, const plan::Training& training, const std::string& lastSaved);

class StepLedger {
 public:
  struct Config {
    int64_t firstStep = 0, steps = 0;
    int64_t updates = 0;  // applied before firstStep
    int64_t ranks = 1;
    int64_t reporter = 0;    // the rank whose outputs are reported; they are the same on every rank
    bool hasNorm = false;    // the body writes a gradient norm besides the loss
    bool skipOnNan = false;  // skip the updates of bad steps; else end the run
    // True if the device, which skips updates, takes a step with a loss that is not finite for a bad one. In plans of
    // version 0.1.0 the gradient norm alone decides there, and a bad loss ends the run.
    bool lossJudged = true;
    // Set if the body also writes a loss scale: the device skips the updates of bad steps, and counts those that it
    // applies. Above this scale the run goes on after a skipped step.
    std::optional<double> leastLossScale;
    const std::atomic<bool>* interrupted = nullptr;
    // Optional. Asks the other processes, without waiting, whether to begin a step; voted() receives the answer. Called
    // once per step, in order.
    std::function<void(int64_t step, bool stop)> vote;
    // Optional, and not together with `vote`. Waits for a step's input before the step begins, without which nothing
    // can end it: until the input has come, or `interrupted` is set. An error ends the run before this step: the steps
    // that have begun are completed, and inputError() has the error.
    std::function<Status(int64_t step)> awaitInput;
    // Computes a step's values, except writeOutput, and its learning rate.
    std::function<std::shared_ptr<StepValues>(int64_t step, int64_t update, double& learningRate)> makeValues;
  };
  explicit StepLedger(Config config);

  // The values of a step, the same for every rank; each rank takes the steps in order. Blocks while two steps are in
  // flight and calls `poll` from time to time to detect failures. Null after the last step or after a failure. All
  // ranks of all processes end after the same step: by a vote, or two steps after a bad one, when every process has
  // seen it.
  std::shared_ptr<const StepValues> take(int64_t step, const std::function<Status()>& poll = {});
  // What became of a step, which a rank of this process has taken. Waits until its outputs are known, and calls `poll`
  // from time to time to detect failures. Only the latest steps are known.
  struct Outcome {
    int64_t updates = 0;  // applied up to and with it, as far as the host counts them
    bool finite = true;   // or skipped, and so were all steps before: the state is not spoiled
  };
  Expected<Outcome> outcome(int64_t step, const std::function<Status()>& poll);
  // Receives the result of a vote: whether all processes end before this step.
  void voted(int64_t step, bool stop);
  // Reports that a rank has failed. Keeps the first error.
  void fail(Status why);
  // Reports that a rank has finished.
  void rankDone();

  // Waits for the next step's result, in order. False when all ranks have finished and all results have been returned.
  bool nextResult(StepResult& result);

  // Valid after all ranks have finished:
  Status status() const;
  int64_t nextStep() const { return firstStep_ + taken_; }
  int64_t updates() const { return updates_; }
  // The bad step that ended the run, or -1.
  int64_t badStep() const { return badStep_; }
  // Why there was no input for nextStep(), if the run ended for that.
  const Status& inputError() const { return inputError_; }
  // Whether the run ended because of a signal or a vote.
  bool interrupted() const { return interrupted_; }

 private:
  struct Step {
    std::shared_ptr<StepValues> values;
    int64_t takers = 0;
    int64_t update = 0;  // its number, if it is one
    bool lossKnown = false, normKnown = false, scaleKnown = false;
    StepResult result;
  };
  bool mayStart() const;
  int64_t limit() const { return std::min(config_.steps, stopAt_); }
  void requestVote(int64_t index);
  void output(int64_t step, plan::OutputKind kind, double value);
  void judge(Step& step);
  void complete(Step& step);

  const Config config_;
  const int64_t firstStep_;
  mutable std::mutex mutex_;
  std::condition_variable changed_, results_;
  std::deque<Step> steps_;  // from step firstStep_ + dropped_ on
  int64_t dropped_ = 0;     // steps that every rank has taken and whose results have been returned
  int64_t taken_ = 0;       // steps that a rank has taken
  int64_t completed_ = 0;   // steps with all outputs known
  int64_t updates_ = 0;
  int64_t badStep_ = -1;
  int64_t stopAt_ = std::numeric_limits<int64_t>::max();  // first step that does not run
  int64_t requested_ = 0, votes_ = 0;                     // votes asked for and answered
  int64_t ranksDone_ = 0;
  bool interrupted_ = false;
  Status error_, inputError_;
  std::deque<StepResult> ready_;
  std::map<int64_t, Outcome> outcomes_;  // of the latest steps
  std::chrono::steady_clock::time_point lastResult_;
};

}  // namespace sheaf::exec
