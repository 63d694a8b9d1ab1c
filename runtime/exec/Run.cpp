#include "runtime/exec/Run.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "runtime/base/Text.h"
#include "runtime/exec/DeviceLibrary.h"
#include "runtime/exec/Gradients.h"
#include "runtime/exec/Machine.h"
#include "runtime/exec/Progress.h"
#include "runtime/exec/RunLog.h"
#include "runtime/exec/SavedState.h"
#include "runtime/exec/Trainer.h"
#include "runtime/exec/Weights.h"
#include "runtime/io/AtomicFile.h"
#include "runtime/plan/Proof.h"
#include "runtime/plan/Types.h"

namespace sheaf::exec {
namespace {

// Better to know before the training than after it.
Status checkWritable(const char* option, const std::string& path) {
  if (path.empty()) return {};
  Expected<io::AtomicFile> probe = io::AtomicFile::create(path);
  return probe.ok() ? Status() : Status::error(cat(option, ": ", probe.status().message()));
}

Status checkMemory(const plan::Plan& plan) {
  uint64_t rank = plan.memory().peak_bytes() + plan.memory().library_bytes(), machine = machineMemory();
  if (rank <= machine / static_cast<uint64_t>(plan.ranks())) return {};
  return Status::error(cat("the run needs ", plan.ranks(), " x ", bytesText(rank), ", this machine has ",
                           bytesText(machine),
                           "; compile for more ranks on more machines, a higher ZeRO stage or a smaller batch"));
}

class Run {
 public:
  Run(const RunOptions& options, const std::atomic<bool>& interrupted) : options_(options), interrupted_(interrupted) {}

  Status execute() {
    SHEAF_RETURN_IF_ERROR(readFiles());
    SHEAF_RETURN_IF_ERROR(openDevice());
    StateAccess state(*plan_, ranks_);
    SHEAF_RETURN_IF_ERROR(initialise(state));
    noteMemory();
    Status status = train(state);
    if (status.ok()) status = saveOutputs(state);
    if (!status.ok())
      log_.event("error", {{"message", status.message()}});
    else
      logEnd();
    return status.ok() ? log_.status() : status;
  }

 private:
  // Everything that can be wrong with files and options is found before memory is taken.
  Status readFiles() {
    Expected<std::unique_ptr<plan::Plan>> plan = plan::readProvedPlan(options_.plan);
    if (!plan.ok()) return plan.status();
    plan_ = std::move(*plan);
    SHEAF_RETURN_IF_ERROR(checkTrainable(*plan_));
    training_ = plan_->training();
    if (options_.learningRate) training_.set_learning_rate(*options_.learningRate);
    if (options_.schedule) *training_.mutable_schedule() = *options_.schedule;

    if (!options_.resume.empty()) {
      Expected<io::Checkpoint> checkpoint =
          io::Checkpoint::openNewest(options_.resume, [&](const std::string& text) { warnings_.push_back(text); });
      if (!checkpoint.ok()) return Status::error(cat("--resume: ", checkpoint.status().message()));
      SHEAF_RETURN_IF_ERROR(checkState(*plan_, *checkpoint));
      const io::Manifest& manifest = checkpoint->manifest();
      position_ = {manifest.step, manifest.updates, static_cast<uint64_t>(manifest.samples), manifest.shuffleSeed};
      if (manifest.seed != training_.seed())
        warnings_.push_back(cat("the state was saved by a run with seed ", manifest.seed, ", the plan has ",
                                training_.seed(), ": random numbers go on differently"));
      lastSaved_ = checkpoint->folder();
      checkpoint_ = std::move(*checkpoint);
    }
    if (options_.shuffleSeed) position_.shuffleSeed = options_.shuffleSeed;
    Expected<io::DataSource> data = io::DataSource::open(*plan_, options_.data, position_.shuffleSeed);
    if (!data.ok()) return data.status();
    data_ = std::move(*data);
    if (!options_.weights.empty()) {
      Expected<io::Safetensors> weights = io::Safetensors::open(options_.weights);
      if (!weights.ok()) return Status::error(cat("--weights: ", weights.status().message()));
      weights_ = std::move(*weights);
    }
    SHEAF_RETURN_IF_ERROR(checkWritable("--save", options_.save));
    SHEAF_RETURN_IF_ERROR(checkWritable("--dump-gradients", options_.gradients));
    SHEAF_RETURN_IF_ERROR(checkWritable("--trace", options_.trace));
    Expected<RunLog> log = RunLog::open(options_.log, !options_.resume.empty());
    if (!log.ok()) return log.status();
    log_ = std::move(*log);
    return {};
  }

  Status openDevice() {
    std::string target = options_.device;
    if (target.empty()) target = plan_->images_size() > 0 ? plan::deviceOf(plan_->images(0)) : "cpu";
    if (target == "cpu" && !(options_.tune + options_.tuned).empty())
      return Status::error("--tune and --tuned are for runs on GPUs: the CPU's products have nothing to choose");
    if (target == "cpu") SHEAF_RETURN_IF_ERROR(checkMemory(*plan_));
    int64_t limit = plan_->max_threads();
    int64_t threads = options_.threadsPerRank;
    if (threads > limit)
      return Status::error(cat("--threads-per-rank ", threads, ": the plan has scratch for ", limit,
                               "; compile with --max-threads-per-rank ", threads));
    if (threads == 0) threads = std::clamp<int64_t>(availableCores() / plan_->ranks(), 1, limit);
    Expected<Device*> device = loadDevice(target);
    if (!device.ok()) return device.status();
    json::Object notes;
    auto ranks = (*device)->open(
        *plan_, {.ranks = plan_->ranks(),
                 .threadsPerRank = static_cast<int>(threads),
                 .poison = options_.poison,
                 .graphs = options_.graphs,
                 .ringReductions = options_.ringReductions,
                 .tunedProducts = options_.tuned,
                 .tuneProducts = options_.tune,
                 .warn = [&](const std::string& text) { warnings_.push_back(text); },
                 .note = [&](const std::string& name, const std::string& value) { notes.set(name, value); }});
    if (!ranks.ok()) return ranks.status();
    ranks_ = std::move(*ranks);
    log_.event("start", {{"plan", options_.plan},
                         {"model", plan_->model()},
                         {"ranks", plan_->ranks()},
                         {"zero", static_cast<int64_t>(plan_->zero_stage())},
                         {"threads_per_rank", threads},
                         {"batch", plan_->batch()},
                         {"step", position_.step}});
    if (!notes.members().empty()) log_.event("device", std::move(notes));
    progress_.emplace(*plan_, position_.step, options_.steps);
    for (const std::string& warning : warnings_) warn(warning);
    return {};
  }

  void warn(const std::string& text) {
    progress_->note("warning: " + text);
    log_.event("warning", {{"message", text}});
  }

  Status initialise(const StateAccess& state) {
    WeightFiles files(*plan_, io::folderOf(options_.plan), options_.weightsFolder);
    if (!checkpoint_)
      return loadWeights(state, files, weights_ ? &*weights_ : nullptr, [&](const std::string& text) { warn(text); });
    if (weights_) warn("--weights has no effect: the weights are those of --resume");
    SHEAF_RETURN_IF_ERROR(loadConstants(state, files));
    SHEAF_RETURN_IF_ERROR(clearPadding(state, true));
    SHEAF_RETURN_IF_ERROR(loadState(state, *checkpoint_));
    log_.event("resumed", {{"state", checkpoint_->folder()}, {"step", position_.step}});
    checkpoint_.reset();
    return {};
  }

  Status train(const StateAccess& state) {
    if (!options_.gradients.empty()) gradients_.emplace(*plan_);
    if (!options_.trace.empty()) trace_.emplace(*plan_, options_.trace);
    Trainer trainer(*plan_, ranks_, *data_,
                    {.training = training_,
                     .step = position_.step,
                     .updates = position_.updates,
                     .samples = position_.samples,
                     .gradients = gradients_ ? &*gradients_ : nullptr,
                     .trace = trace_ ? &*trace_ : nullptr,
                     .interrupted = &interrupted_});
    int64_t end = position_.step + options_.steps;
    while (trainer.step() < end && !interrupted_) {
      int64_t steps = end - trainer.step();
      if (options_.saveEvery > 0) steps = std::min(steps, options_.saveEvery - trainer.step() % options_.saveEvery);
      SHEAF_RETURN_IF_ERROR(trainer.run(steps, [&](const StepResult& result) { report(result); }));
      if (trainer.badStep() >= 0) return notFinite(trainer.badStep());
      position_.step = trainer.step();
      position_.updates = trainer.updates();
      position_.samples = trainer.samples();
      noteMemory();
      if (options_.saveEvery > 0 && position_.step < end && !interrupted_) SHEAF_RETURN_IF_ERROR(saveNow(state));
    }
    progress_->finish();
    if (trainer.step() < end) {
      log_.event("interrupted", {{"step", position_.step}});
      progress_->note(cat("interrupted: ", position_.step, " steps are done",
                          options_.saveState.empty() ? ", nothing is saved as a state" : "; saving the state"));
    }
    return {};
  }

  void report(const StepResult& result) {
    if (reportedBad_) return;  // steps under way after a bad one are not worth telling
    log_.step(result);
    progress_->step(result);
    bool finite = std::isfinite(result.loss) && (!result.hasNorm || std::isfinite(result.gradientNorm));
    if (result.skipped) warn(cat("step ", result.step, ": the gradient norm is not finite, the update is skipped"));
    reportedBad_ = !finite && !result.skipped;
    noteMemory();
  }

  Status notFinite(int64_t step) {
    progress_->finish();
    return Status::error(cat("step ", step,
                             ": the loss or the gradient norm is not finite; the run stops and saves nothing. ",
                             lastSaved_.empty() ? "There is no saved state (--save-state, --save-every)"
                                                : cat("The newest saved state is ", lastSaved_, " (--resume)"),
                             "; a lower learning rate, --clip-norm or --on-nan skip may help"));
  }

  Status saveNow(const StateAccess& state) {
    SHEAF_RETURN_IF_ERROR(saveState(state, options_.saveState, position_));
    lastSaved_ = options_.saveState + "/" + io::stepFolder(position_.step);
    log_.event("saved_state", {{"state", lastSaved_}, {"step", position_.step}});
    return {};
  }

  Status saveOutputs(const StateAccess& state) {
    if (!options_.saveState.empty())
      if (Status status = saveNow(state); !status.ok()) return Status::error(cat("--save-state: ", status.message()));
    if (!options_.save.empty())
      if (Status status = saveWeights(state, options_.save); !status.ok())
        return Status::error(cat("--save: ", status.message()));
    if (gradients_) SHEAF_RETURN_IF_ERROR(gradients_->save(options_.gradients));
    if (trace_) SHEAF_RETURN_IF_ERROR(trace_->write());
    return {};
  }

  void noteMemory() { privateBytes_ = std::max(privateBytes_, privateResidentBytes()); }

  void logEnd() {
    noteMemory();
    if (options_.poison)
      for (size_t rank = 0; rank < ranks_.size(); ++rank)
        log_.event("arena", {{"rank", static_cast<int64_t>(rank)},
                             {"highest_touched_byte", ranks_[rank]->highestTouchedByte()},
                             {"peak_bytes", plan_->memory().peak_bytes()}});
    log_.event("end", {{"step", position_.step},
                       {"updates", position_.updates},
                       {"samples", position_.samples},
                       {"peak_resident_bytes", peakResidentBytes()},
                       {"resident_bytes_without_files", privateBytes_}});
  }

  const RunOptions& options_;
  const std::atomic<bool>& interrupted_;
  std::unique_ptr<plan::Plan> plan_;
  plan::Training training_;
  RunPosition position_;
  std::optional<io::Checkpoint> checkpoint_;
  std::optional<io::DataSource> data_;
  std::optional<io::Safetensors> weights_;
  RunLog log_;
  std::optional<Progress> progress_;
  std::vector<std::string> warnings_;
  std::vector<std::unique_ptr<RankContext>> ranks_;
  std::optional<GradientCapture> gradients_;
  std::optional<Trace> trace_;
  std::string lastSaved_;
  bool reportedBad_ = false;
  uint64_t privateBytes_ = 0;  // largest seen
};

}  // namespace

Status run(const RunOptions& options, const std::atomic<bool>& interrupted) {
  return Run(options, interrupted).execute();
}

}  // namespace sheaf::exec
