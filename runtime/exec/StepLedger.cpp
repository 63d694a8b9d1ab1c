#include "runtime/exec/StepLedger.h"

#include <cmath>
#include <utility>

#include "runtime/base/Text.h"
#include "runtime/plan/LossScale.h"

namespace sheaf::exec {
namespace {
// Two steps in flight keep the ranks busy while a result is processed, and still report results soon.
constexpr int64_t kInFlight = 2;
constexpr std::chrono::milliseconds kPollInterval(50);
// Ranks ask for that of a step before they end it, and those of one process are at most as far apart as steps are in
// flight.
constexpr size_t kOutcomes = 4 * kInFlight;
}  // namespace

bool StepResult::isBad() const {
  return !std::isfinite(loss) || (hasNorm && !std::isfinite(gradientNorm));
}

std::string StepResult::whatIsBad() const {
  if (std::isfinite(loss)) return "the gradient norm is not finite";
  if (!hasNorm) return "the loss is not finite";
  return std::isfinite(gradientNorm) ? "the loss is not finite, though the gradients are"
                                     : "the loss and the gradient norm are not finite";
}

Status badStepError(const StepResult& bad, const plan::Training& training, const std::string& lastSaved) {
  const plan::LossScale& scale = training.loss_scale();
  const bool lossAlone = bad.hasNorm && std::isfinite(bad.gradientNorm);
  // A bad step that --on-nan skip did not skip is that of a plan of an older version (Config::lossJudged).
  std::string advice = "the plan skips updates by the gradient norm alone: compile it again";
  if (training.on_nan() != plan::Training::SKIP) {
    advice = lossAlone ? "it may have no label that counts: " : "a lower learning rate (--lr), or ";
    if (bad.step == 0 && !lossAlone)
      advice =
          "the data or the initial weights may hold a NaN or very large values; else a lower learning rate "
          "(--lr), or ";
    advice += cat("a plan compiled with ", lossAlone ? "" : "--clip-norm or ", "--on-nan skip, may help");
  }
  return Status::error(cat("step ", bad.step, ": ", bad.whatIsBad(), "; the run stops and saves nothing. ",
                           lastSaved.empty() ? "There is no saved state (--save-state, --save-every)"
                                             : cat("The newest saved state is ", lastSaved, " (--resume)"),
                           !bad.lossScale || *bad.lossScale > plan::leastOf(scale) ? ""
                           : plan::isDynamic(scale) ? "; the loss scale cannot be reduced further"
                                                    : "; the loss scale is fixed",
                           "; ", advice));
}

StepLedger::StepLedger(Config config)
    : config_(std::move(config)),
      firstStep_(config_.firstStep),
      updates_(config_.updates),
      lastResult_(std::chrono::steady_clock::now()) {}

bool StepLedger::mayStart() const {
  if (taken_ - completed_ >= kInFlight) return false;
  if (config_.vote && votes_ <= taken_) return false;
  // This step's scalars depend on whether the previous step was an update, unless the device knows.
  return !config_.skipOnNan || !config_.hasNorm || config_.leastLossScale || completed_ == taken_;
}

// The votes depend on the step numbers only, so that all processes hold the same ones.
void StepLedger::requestVote(int64_t index) {
  if (!config_.vote || index != requested_ || index >= config_.steps) return;
  ++requested_;
  config_.vote(firstStep_ + index, config_.interrupted && *config_.interrupted);
}

void StepLedger::voted(int64_t step, bool stop) {
  std::lock_guard lock(mutex_);
  ++votes_;
  if (stop) stopAt_ = std::min(stopAt_, step - firstStep_);
  interrupted_ |= stop;
  changed_.notify_all();
}

std::shared_ptr<const StepValues> StepLedger::take(int64_t step, const std::function<Status()>& poll) {
  std::unique_lock lock(mutex_);
  int64_t index = step - firstStep_;
  requestVote(index);
  auto decided = [&] { return !error_.ok() || index < taken_ || taken_ == limit() || mayStart(); };
  while (!changed_.wait_for(lock, kPollInterval, decided))
    if (Status status = poll ? poll() : Status(); !status.ok()) error_ = std::move(status);
  Status input;
  if (error_.ok() && index == taken_ && taken_ < limit() && config_.awaitInput) {
    lock.unlock();
    input = config_.awaitInput(step);
    lock.lock();
  }
  if (!error_.ok()) return nullptr;
  if (index == taken_) {
    if (!config_.vote && taken_ < limit() && config_.interrupted && *config_.interrupted) {
      stopAt_ = taken_;
      interrupted_ = true;
    } else if (!input.ok() && taken_ < limit()) {
      stopAt_ = taken_;
      inputError_ = std::move(input);
    }
    if (taken_ == limit()) {
      changed_.notify_all();
      return nullptr;
    }
    Step& next = steps_.emplace_back();
    next.result.step = step;
    next.result.hasNorm = config_.hasNorm;
    next.update = updates_ + 1;
    next.values = config_.makeValues(step, updates_ + 1, next.result.learningRate);
    next.values->writeOutput = [this, step](int64_t rank, plan::OutputKind kind, double value) {
      if (rank == config_.reporter) output(step, kind, value);
    };
    ++taken_;
    ++updates_;
    requestVote(taken_);
  }
  Step& handed = steps_[static_cast<size_t>(index - dropped_)];
  std::shared_ptr<const StepValues> values = handed.values;
  if (++handed.takers == config_.ranks) handed.values.reset();
  changed_.notify_all();
  return values;
}

Expected<StepLedger::Outcome> StepLedger::outcome(int64_t step, const std::function<Status()>& poll) {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kPollInterval, [&] { return !error_.ok() || outcomes_.contains(step); }))
    SHEAF_RETURN_IF_ERROR(poll());
  if (auto known = outcomes_.find(step); known != outcomes_.end()) return known->second;
  return error_;
}

void StepLedger::output(int64_t step, plan::OutputKind kind, double value) {
  std::lock_guard lock(mutex_);
  Step& record = steps_[static_cast<size_t>(step - firstStep_ - dropped_)];
  if (kind == plan::GRADIENT_NORM) {
    record.normKnown = true;
    record.result.gradientNorm = value;
  } else if (kind == plan::LOSS_SCALE) {
    record.scaleKnown = true;
    record.result.lossScale = value;
  } else {
    record.lossKnown = true;
    record.result.loss = value;
  }
  if (record.lossKnown && (record.normKnown || !config_.hasNorm) && (record.scaleKnown || !config_.leastLossScale))
    complete(record);
  changed_.notify_all();
}

// Whether the update was skipped.
void StepLedger::judge(Step& step) {
  if (!step.result.isBad()) return;
  // Only what the device takes for bad was skipped.
  if (!step.result.hasNorm || (!config_.lossJudged && std::isfinite(step.result.gradientNorm))) return;
  const bool reduces = config_.leastLossScale && *step.result.lossScale > *config_.leastLossScale;
  if (!config_.skipOnNan && !reduces) return;
  step.result.skipped = true;
  --updates_;
}

void StepLedger::complete(Step& step) {
  auto now = std::chrono::steady_clock::now();
  step.result.seconds = std::chrono::duration<double>(now - lastResult_).count();
  lastResult_ = now;
  ++completed_;
  judge(step);
  if (step.result.isBad() && !step.result.skipped && badStep_ < 0) {
    badStep_ = step.result.step;
    stopAt_ = std::min(stopAt_, badStep_ - firstStep_ + kInFlight);
  }
  // Steps after a bad one are computed from its state, whatever comes out.
  const bool spoiled = badStep_ >= 0 && step.result.step >= badStep_;
  outcomes_[step.result.step] = {step.update - step.result.skipped, !spoiled};
  if (outcomes_.size() > kOutcomes) outcomes_.erase(outcomes_.begin());
  ready_.push_back(step.result);
  // Records are kept until every rank has taken the step; others may still ask for it.
  while (!steps_.empty() && !steps_.front().values && dropped_ < completed_) {
    steps_.pop_front();
    ++dropped_;
  }
  results_.notify_all();
}

void StepLedger::fail(Status why) {
  std::lock_guard lock(mutex_);
  if (error_.ok()) error_ = std::move(why);
  changed_.notify_all();
}

Status StepLedger::status() const {
  std::lock_guard lock(mutex_);
  return error_;
}

void StepLedger::rankDone() {
  std::lock_guard lock(mutex_);
  ++ranksDone_;
  results_.notify_all();
}

bool StepLedger::nextResult(StepResult& result) {
  std::unique_lock lock(mutex_);
  results_.wait(lock, [&] { return !ready_.empty() || ranksDone_ == config_.ranks; });
  if (ready_.empty()) return false;
  result = ready_.front();
  ready_.pop_front();
  return true;
}

}  // namespace sheaf::exec
