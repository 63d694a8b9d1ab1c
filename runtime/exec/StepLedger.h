// What the ranks' issuing threads agree on: which steps there are, their values, their results, and when to end.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>

#include "runtime/base/Status.h"
#include "runtime/device/Device.h"

namespace sheaf::exec {

struct StepResult {
  int64_t step = -1;
  double loss = 0, gradientNorm = 0, learningRate = 0;
  double seconds = 0;    // since the previous step's result
  bool hasNorm = false;  // whether the plan computes the gradient norm
  bool skipped = false;  // the update was left out because the norm is not finite
};

class StepLedger {
 public:
  struct Config {
    int64_t firstStep = 0, steps = 0;
    int64_t updates = 0;  // applied before firstStep
    int64_t ranks = 1;
    int64_t reporter = 0;    // the rank whose outputs count: they are the same on every rank
    bool hasNorm = false;    // the body writes a gradient norm besides the loss
    bool skipOnNan = false;  // a step whose norm is not finite is no update; else it ends the run
    const std::atomic<bool>* interrupted = nullptr;
    // If set: asks the other processes whether to begin a step, without waiting; the answer comes to voted(). Called in
    // the order of the steps, for each one once.
    std::function<void(int64_t step, bool stop)> vote;
    // Everything of a step's values but writeOutput, and the learning rate they use.
    std::function<std::shared_ptr<StepValues>(int64_t step, int64_t update, double& learningRate)> makeValues;
  };
  explicit StepLedger(Config config);

  // The values of a step, the same for every rank; each rank takes the steps in order. Waits so that at most two steps
  // are in flight, and asks `poll` now and then whether what it waits for can still come. Null when there is no such
  // step or after a failure. All ranks, in whichever process, end after the same step: what ends a run is a vote, or a
  // loss or norm that is not finite, two steps after it, when every process has seen it.
  std::shared_ptr<const StepValues> take(int64_t step, const std::function<Status()>& poll = {});
  // The answer to a vote: whether all processes end before this step.
  void voted(int64_t step, bool stop);
  // Some rank cannot go on. The first error is kept.
  void fail(Status why);
  // A rank has issued and finished everything.
  void rankDone();

  // The next step's result, in order; false when every rank is done and none is left.
  bool nextResult(StepResult& result);

  // After the ranks are done:
  Status status() const;
  int64_t nextStep() const { return firstStep_ + taken_; }
  int64_t updates() const { return updates_; }
  // The step whose loss or norm was not finite and ended the run, or -1.
  int64_t badStep() const { return badStep_; }
  // Whether the run ended because somebody asked for it.
  bool interrupted() const { return interrupted_; }

 private:
  struct Step {
    std::shared_ptr<StepValues> values;
    int64_t takers = 0;
    bool lossKnown = false, normKnown = false;
    StepResult result;
  };
  bool mayStart() const;
  int64_t limit() const { return std::min(config_.steps, stopAt_); }
  void requestVote(int64_t index);
  void output(int64_t step, plan::OutputKind kind, double value);
  void complete(Step& step);

  const Config config_;
  const int64_t firstStep_;
  mutable std::mutex mutex_;
  std::condition_variable changed_, results_;
  std::deque<Step> steps_;  // from step firstStep_ + dropped_ on
  int64_t dropped_ = 0;     // steps that every rank took and whose results are out
  int64_t taken_ = 0;       // steps handed out
  int64_t completed_ = 0;   // steps with all outputs known
  int64_t norms_ = 0;       // steps whose norm is known
  int64_t updates_ = 0;
  int64_t badStep_ = -1;
  int64_t stopAt_ = std::numeric_limits<int64_t>::max();  // steps that there are, if fewer than planned
  int64_t requested_ = 0, votes_ = 0;                     // votes asked for and answered
  int64_t ranksDone_ = 0;
  bool interrupted_ = false;
  Status error_;
  std::deque<StepResult> ready_;
  std::chrono::steady_clock::time_point lastResult_;
};

}  // namespace sheaf::exec
