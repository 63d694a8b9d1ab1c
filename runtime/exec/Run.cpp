#include "runtime/exec/Run.h"

#include <atomic>
#include <memory>

#include "runtime/base/AtomicFile.h"
#include "runtime/base/PhaseProgress.h"
#include "runtime/base/ResourceErrors.h"
#include "runtime/base/SuspendDetector.h"
#include "runtime/base/Text.h"
#include "runtime/base/WrittenPath.h"
#include "runtime/exec/CopiedWeights.h"
#include "runtime/exec/DeviceLibrary.h"
#include "runtime/exec/EvaluationRunner.h"
#include "runtime/exec/FileResume.h"
#include "runtime/exec/Gradients.h"
#include "runtime/exec/Job.h"
#include "runtime/exec/MixedHosts.h"
#include "runtime/exec/NetworkUse.h"
#include "runtime/exec/OutputFiles.h"
#include "runtime/exec/Progress.h"
#include "runtime/exec/RunInputs.h"
#include "runtime/exec/RunLog.h"
#include "runtime/exec/RunResources.h"
#include "runtime/exec/RunSaves.h"
#include "runtime/exec/RunThreads.h"
#include "runtime/exec/RunUsage.h"
#include "runtime/exec/SavedState.h"
#include "runtime/exec/Trainer.h"
#include "runtime/exec/TransportLibrary.h"
#include "runtime/exec/WeightShards.h"
#include "runtime/exec/Weights.h"
#include "runtime/io/SafetensorsShards.h"
#include "runtime/plan/Generations.h"
#include "runtime/plan/PlanFile.h"
#include "runtime/plan/Types.h"

namespace sheaf::exec {
namespace {

Status checkWritable(const char* option, const std::string& path) {
  if (path.empty()) return {};
  Expected<AtomicFile> probe = AtomicFile::create(path);
  return probe.ok() ? Status() : Status::error(cat(option, ": ", probe.status().message()));
}

class Run {
 public:
  Run(const RunOptions& options, RunControl& control, Job& job) : options_(options), control_(control), job_(job) {}

  Status execute() {
    std::optional<PhaseProgress> phases;
    if (job_.first() && !options_.quiet && !options_.silent) phases.emplace("sheaf-run");
    control_.note = [this](const std::string& text) {
      if (progress_) progress_->note(text);
    };
    PhaseProgress::phase("reading and proving the plan");
    SHEAF_RETURN_IF_ERROR(catchOutOfMemory("what the run reads", [&] {
      Expected<RunInputs> inputs = readInputs(options_, control_, job_);
      if (inputs.ok()) in_ = std::move(*inputs);
      return inputs.status();
    }));
    SHEAF_RETURN_IF_ERROR(openOutputs());
    SHEAF_RETURN_IF_ERROR(settle());
    PhaseProgress::phase("opening the device");
    SHEAF_RETURN_IF_ERROR(openDevice());
    PhaseProgress::phase("reading the initial weights");
    StateAccess state(*in_.plan, ranks_, job_.firstRank(), job_.group());
    SHEAF_RETURN_IF_ERROR(catchOutOfMemory("the weights", [&] { return initialise(state); }));
    SHEAF_RETURN_IF_ERROR(commitFirstState());
    if (!options_.saveState.empty())
      SHEAF_RETURN_IF_ERROR(saves_.start(state, options_.saveState, options_.saveStaging,
                                         [this](const CompleteSave& save) { noteSave(save); }));
    phases.reset();
    Status status = trainAndSave(state);
    // What was copied before the run failed is whole, if no other process is needed for it.
    if (!status.ok() && !job_.group()) (void)saves_.finish();
    saves_.stop();
    return status;
  }

  // Once: a run that is abandoned may have logged its error before.
  void logError(const Status& status) {
    if (!errorLogged_.exchange(true)) log_.event("error", {{"message", status.message()}});
  }

 private:
  Status trainAndSave(const StateAccess& state) {
    usage_.noteMemory();
    Status status = options_.evaluate ? evaluate() : train(state);
    if (status.ok()) status = saveOutputs(state);
    // Without a step the checksum is the one that was there before, if there was one.
    if (status.ok() && in_.fileState && in_.position.step > firstStep_ && !options_.evaluate)
      status = onEachRank(&RankContext::writeChecksum);
    if (status.ok()) noteWritten();
    if (!options_.evaluate && (status.ok() ? !trained_ || !saveError_.ok() : !bad_)) noteHowToResume(status.ok());
    // After everything is saved: what an evaluation cannot do must not cost what was trained.
    if (status.ok() && trained_ && options_.evaluateEvery > 0) status = evaluate();
    if (!saveError_.ok())
      status = status.ok() ? saveError_ : Status::error(cat(saveError_.message(), "; ", status.message()));
    if (status.ok()) status = logEnd();
    log_.end();
    if (status.ok()) status = log_.status();
    return status;
  }

  // Better to know before the training than after it that something cannot be written.
  Status openOutputs() {
    SHEAF_RETURN_IF_ERROR(checkWritable("--trace", in_.tracePath));
    if (!job_.first()) return {};
    if (!options_.saveState.empty()) SHEAF_RETURN_IF_ERROR(saves_.open(options_, in_.position, in_.warnings));
    SHEAF_RETURN_IF_ERROR(checkWritable("--save", options_.save));
    SHEAF_RETURN_IF_ERROR(checkWritable("--dump-gradients", options_.gradients));
    SHEAF_RETURN_IF_ERROR(checkWritable("--metrics-file", options_.metrics));
    Expected<RunLog> log = RunLog::open({options_.log, options_.logFolder, options_.metrics}, !options_.resume.empty());
    if (!log.ok()) return log.status();
    log_ = std::move(*log);
    return {};
  }

  // Compares with the other processes what must be the same in all, and takes the ranks of this one.
  Status settle() {
    if (job_.processes() > 1) {
      Expected<std::vector<std::string>> facts = factsOf(in_, options_);
      if (!facts.ok()) return facts.status();
      SHEAF_RETURN_IF_ERROR(job_.agree(*facts));
    }
    if (in_.position.cpu) SHEAF_RETURN_IF_ERROR(compareCpus(*in_.position.cpu));
    return job_.share(in_.plan->ranks());
  }

  // With the other processes', and with that of the state that a training goes on from.
  Status compareCpus(plan::CpuIdentity& mine) {
    const bool bf16 = computesInBf16(*in_.plan);
    Expected<std::string> mixed = checkMixedHosts(job_.group(), mine, bf16, options_.allowMixedHosts);
    if (!mixed.ok()) return mixed.status();
    const bool goesOn = in_.checkpoint && !options_.evaluate;
    for (const std::string& warning :
         {*mixed, goesOn ? warnOfOtherCpu(in_.checkpoint->manifest().cpu, mine, bf16) : std::string()})
      if (!warning.empty()) in_.warnings.push_back(warning);
    return {};
  }

  // Gives the run a number, which its saved states have, and begins the state in files of a new training, if the plan
  // has one. A run that goes on from files keeps their number.
  Status numberRun() {
    const bool beginsFiles = in_.plan->generations_size() > 0 && !in_.fileState;
    if (options_.evaluate || (!beginsFiles && (options_.saveState.empty() || in_.fileState))) return {};
    Expected<uint64_t> number = newRun(job_);
    if (!number.ok()) return number.status();
    in_.position.run.number = *number;
    if (beginsFiles) in_.fileState = FileState{.plan = in_.planHash, .run = *number, .step = {}};
    return {};
  }

  Status openDevice() {
    SHEAF_RETURN_IF_ERROR(numberRun());
    SHEAF_RETURN_IF_ERROR(checkMemory(*in_.plan, job_, in_.target, stagingOfARank(*in_.plan, options_)));
    Expected<int64_t> threads = threadsOfRanks(*in_.plan, job_, in_.target, options_.threadsPerRank);
    if (!threads.ok()) return threads.status();
    comm::ConnectTransport connect = nullptr;
    if (options_.transport == "mpi") {
      Expected<comm::ConnectTransport> mpi = loadMpi();
      if (!mpi.ok()) return mpi.status();
      connect = *mpi;
    }
    Expected<Device*> device = loadDevice(in_.target);
    if (!device.ok()) return withTargets(device.status(), *in_.plan, in_.target);
    json::Object notes;
    auto ranks = (*device)->open(
        *in_.plan, {.ranks = in_.plan->ranks(),
                    .firstRank = job_.firstRank(),
                    .localRanks = job_.localRanks(),
                    .processes = job_.group(),
                    .processesPerNode = job_.processesPerNode(),
                    .connectTransport = connect,
                    .sendRate = static_cast<double>(in_.sendRate),
                    .traffic = traffic_,
                    .threadsPerRank = static_cast<int>(*threads),
                    .poison = options_.poison,
                    .offloadFolders = options_.offloadFolders,
                    .fileState = in_.fileState,
                    .files = control_.files,
                    .graphs = options_.graphs,
                    .reduceOrder = in_.reduceOrder,
                    .products = options_.tuned,
                    .aborted = [this] { control_.aborting = true; },
                    .abandon = [this](const std::string& why) { abandon(why); },
                    .warn = [&](const std::string& text) { in_.warnings.push_back(text); },
                    .note = [&](const std::string& name, const std::string& value) { notes.set(name, value); }});
    if (!ranks.ok()) return withTargets(ranks.status(), *in_.plan, in_.target);
    ranks_ = std::move(*ranks);
    Expected<RunThreads> started = RunThreads::start(ranks_.size(), job_.group() != nullptr);
    if (!started.ok()) return started.status();
    runThreads_ = std::move(*started);
    if (in_.target == "cpu") SHEAF_RETURN_IF_ERROR(checkLibraryMemory(*in_.plan, job_));
    if (job_.first()) log_.begin(in_.planPath, *in_.plan, in_.position.step);
    json::Object start = startEvent(in_, options_, job_);
    start.set("threads_per_rank", *threads);
    log_.event("start", std::move(start));
    if (!notes.members().empty()) log_.event("device", std::move(notes));
    using Level = Progress::Level;
    const Level level = options_.quiet ? Level::kWarnings : Level::kAll;
    progress_.emplace(*in_.plan, in_.steps, job_.first() && !options_.silent ? level : Level::kNothing);
    if (job_.lacksSecret()) warn(Job::kNoSecret);
    if (!job_.warning().empty()) warn(job_.warning());
    for (const std::string& warning : in_.warnings) warn(warning);
    for (const std::string& note : in_.notes) progress_->note(note);
    return {};
  }

  // From another thread, while this one waits for the device.
  void abandon(const std::string& why) {
    logError(Status::error(why));
    if (control_.abandon) control_.abandon(why);
  }

  void warn(const std::string& text) {
    progress_->warn(text);
    log_.event("warning", {{"message", text}});
  }

  Status initialise(const StateAccess& state) {
    SHEAF_RETURN_IF_ERROR(writeLossScale(state, in_.position));
    WeightFiles& files = weightFiles_.emplace(*in_.plan, folderOf(in_.planPath), options_.weightsFolder);
    if (!options_.save.empty()) {
      Expected<CopiedWeights> copied = CopiedWeights::find(*in_.plan, files, in_.weights ? &*in_.weights : nullptr,
                                                           job_.group(), [&](const std::string& text) { warn(text); });
      if (!copied.ok()) return copied.status();
      copied_ = std::move(*copied);
    }
    if (in_.fileState && in_.fileState->step) {
      if (Status status = onEachRank(&RankContext::verifyChecksum); !status.ok())
        return Status::error(cat("--resume: ", status.message()));
      if (in_.weights) warn("--weights has no effect: the weights are those of --resume");
      log_.event("resumed", {{"state", options_.resume}, {"step", in_.position.step}});
      return loadConstants(state, files);
    }
    if (!in_.checkpoint)
      return loadWeights(state, files,
                         in_.weights ? std::optional(Replacement{*in_.weights, options_.weightsPartial}) : std::nullopt,
                         [&](const std::string& text) { warn(text); });
    if (in_.weights) warn("--weights has no effect: the weights are those of --resume");
    if (in_.initialValues) {
      SHEAF_RETURN_IF_ERROR(loadWeights(state, files, std::nullopt, [&](const std::string& text) { warn(text); }));
    } else {
      SHEAF_RETURN_IF_ERROR(loadConstants(state, files));
    }
    SHEAF_RETURN_IF_ERROR(clearPadding(state, true));
    SHEAF_RETURN_IF_ERROR(loadState(state, *in_.checkpoint));
    log_.event("resumed", {{"state", in_.checkpoint->folder()}, {"step", in_.position.step}});
    progress_->note(cat("resumed from ", in_.checkpoint->folder(), ", step ", in_.position.step));
    in_.checkpoint.reset();
    return {};
  }

  // All ranks of this process together. Returns the first error.
  Status onEachRank(Status (RankContext::*call)()) {
    std::vector<Status> statuses(ranks_.size());
    runThreads_.ranks->runAll([&](size_t i) { statuses[i] = (ranks_[i].get()->*call)(); });
    for (const Status& status : statuses) SHEAF_RETURN_IF_ERROR(status);
    return {};
  }

  // From here on files hold a state at any time.
  Status commitFirstState() {
    if (!in_.fileState || in_.fileState->step) return {};
    for (const auto& rank : ranks_) SHEAF_RETURN_IF_ERROR(rank->commit(committedAt(in_.position, in_.fileState->run)));
    in_.lastSaved = options_.offloadFolders.front();
    return {};
  }

  // With the weights as they are now. Between steps the tensors go to a folder for that step. One that is interrupted
  // writes no files.
  Status evaluate() {
    std::unique_ptr<OutputFiles> outputs;
    if (!options_.outputs.empty()) {
      const std::string folder =
          options_.evaluate ? options_.outputs : cat(options_.outputs, "/", io::stepFolder(in_.position.step));
      auto files = OutputFiles::create(*in_.plan, folder, in_.evaluationData->rows(), job_);
      if (!files.ok()) return files.status();
      outputs = std::move(*files);
    }
    Expected<EvaluationResult> result = EvaluationRunner(*in_.plan, ranks_, runThreads_, *in_.evaluationData,
                                                         job_.firstRank(), control_.interrupted, job_.group())
                                            .run(outputs.get());
    if (!result.ok()) return result.status();
    if (result->interrupted) {
      log_.event("interrupted", {{"step", in_.position.step}});
      if (options_.evaluate) return Status::error("interrupted: the evaluation is not finished, nothing is written");
      progress_->note(cat("interrupted: the evaluation after ", in_.position.step, " steps is not finished"));
      return {};
    }
    if (outputs) {
      SHEAF_RETURN_IF_ERROR(outputs->commit());
      progress_->note(cat("wrote ", listText(outputs->paths())));
    }
    log_.evaluation(in_.position.step, *result);
    if (!options_.evaluate) progress_->finish();
    progress_->note(cat(options_.evaluate ? "evaluation: " : cat("evaluation after ", in_.position.step, " steps: "),
                        text(*result)));
    return {};
  }

  Status train(const StateAccess& state) {
    if (!options_.gradients.empty())
      gradients_.emplace(*in_.plan, job_.firstRank(), job_.localRanks(),
                         in_.position.lossScale ? in_.position.lossScale->scale : 1);
    if (!in_.tracePath.empty()) trace_.emplace(*in_.plan, in_.tracePath);
    Trainer trainer(*in_.plan, ranks_, runThreads_, *in_.data,
                    {.training = in_.training,
                     .step = in_.position.step,
                     .updates = in_.position.updates,
                     .samples = in_.position.samples,
                     .gradients = gradients_ ? &*gradients_ : nullptr,
                     .trace = trace_ ? &*trace_ : nullptr,
                     .interrupted = &control_.interrupted,
                     .fileRun = in_.fileState ? std::optional(in_.fileState->run) : std::nullopt,
                     .shuffleSeed = in_.position.shuffleSeed,
                     .length = in_.position.length,
                     .firstRank = job_.firstRank(),
                     .processes = job_.group()});
    firstStep_ = in_.position.step;
    const int64_t end = in_.steps;
    while (trainer.step() < end && !trainer.interrupted()) {
      int64_t steps = end - trainer.step();
      if (options_.saveEvery > 0) steps = std::min(steps, options_.saveEvery - trainer.step() % options_.saveEvery);
      if (options_.evaluateEvery > 0)
        steps = std::min(steps, options_.evaluateEvery - trainer.step() % options_.evaluateEvery);
      Status status = trainer.run(steps, [&](const StepResult& result) { report(result); });
      if (!status.ok() && trainer.inputEnded() && in_.fileState) status = withFileState(status, trainer.step());
      if (!status.ok()) return status;
      if (!saves_.poll()) stopAfterFailedSave();
      if (trainer.badStep() >= 0) return stoppedAtBadStep();
      in_.position.step = trainer.step();
      in_.position.updates = trainer.updates();
      in_.position.samples = trainer.samples();
      SHEAF_RETURN_IF_ERROR(readLossScale(state, in_.position));
      usage_.noteMemory();
      if (trainer.interrupted()) continue;
      if (options_.saveEvery > 0 && in_.position.step < end && in_.position.step % options_.saveEvery == 0)
        if (saveError_ = saves_.save(in_.position); !saveError_.ok()) break;
      if (options_.evaluateEvery > 0 && in_.position.step < end && in_.position.step % options_.evaluateEvery == 0)
        SHEAF_RETURN_IF_ERROR(evaluate());
    }
    progress_->finish();
    trained_ = trainer.step() == end;
    if (stoppedByFailedSave_) control_.interrupted = false;
    if (!trained_ && !stoppedByFailedSave_ && saveError_.ok()) {
      control_.endedEarly = true;
      log_.event("interrupted", {{"step", in_.position.step}});
      progress_->note(cat("interrupted: ", in_.position.step, " of ", end, " steps are done",
                          !options_.saveState.empty() ? "; saving the state"
                          : in_.fileState             ? ""
                                                      : "; no state is saved: --save-state DIR saves one"));
    }
    return {};
  }

  // A state that cannot be written ends the run after the step under way, in all processes.
  void stopAfterFailedSave() {
    if (!control_.interrupted.exchange(true)) stoppedByFailedSave_ = true;
  }

  // Prints the command that goes on from the newest state that this run has left, if there is one.
  void noteHowToResume(bool inOrder) {
    if (!control_.commandToResume || !(in_.fileState || saves_.any())) return;
    const std::string rows = !in_.data->isPiped() ? ""
                             : inOrder ? cat(", with a pipe that begins after ", in_.position.samples, " rows")
                                       : ", with a pipe that begins after the state's rows";
    progress_->note(cat("to go on", job_.processes() > 1 ? ", by the same launcher" : "", rows, ": ",
                        control_.commandToResume(stateFolder(in_, options_))));
  }

  // Returns the error of a run whose state is in files: the steps that had begun are done.
  Status withFileState(const Status& why, int64_t steps) const {
    return Status::error(cat(why.message(), "; ", counted(steps, "step is", "steps are"), " done: go on with --resume ",
                             options_.offloadFolders.front()));
  }

  void report(const StepResult& result) {
    if (bad_) return;  // steps under way after a bad one are not worth telling
    usage_.noteStep(result.seconds);
    log_.step(result, usage_.noteMemory());
    progress_->step(result);
    if (!log_.status().ok() && !std::exchange(logFailed_, true)) progress_->warn(log_.status().message());
    if (!saves_.poll()) stopAfterFailedSave();
    if (result.skipped && result.lossScale)
      progress_->note(cat("step ", result.step, ": ", result.whatIsBad(), " at the loss scale ", *result.lossScale,
                          ", the update is skipped"));
    else if (result.skipped)
      warn(cat("step ", result.step, ": ", result.whatIsBad(), ", the update is skipped"));
    else if (result.isBad())
      bad_ = result;
  }

  Status stoppedAtBadStep() {
    progress_->finish();
    // A state under way is of a step before.
    if (Status status = saves_.finish(); !status.ok()) warn(status.message());
    return badStepError(*bad_, in_.training, in_.lastSaved);
  }

  void noteSave(const CompleteSave& save) {
    in_.lastSaved = save.folder;
    log_.event(
        "saved_state",
        {{"state", save.folder}, {"step", save.step}, {"stalled_seconds", save.stalled}, {"seconds", save.seconds}});
    // The new state is safe; that older ones cannot be removed does not end a training.
    if (!save.afterwards.ok()) warn(cat("--keep-saves: ", save.afterwards.message()));
  }

  Status saveOutputs(const StateAccess& state) {
    // The weights are written even if the state cannot be.
    if (saves_.started() && saveError_.ok()) saveError_ = saves_.saveLast(in_.position);
    if (!options_.save.empty())
      if (Status status = io::isShardIndex(options_.save)
                              ? saveWeightShards(state, *copied_, options_.save, options_.shardBytes)
                              : saveWeights(state, *copied_, options_.save);
          !status.ok())
        return Status::error(cat("--save: ", status.message()));
    const bool captured = gradients_ && in_.position.step > firstStep_;
    if (captured && job_.group()) SHEAF_RETURN_IF_ERROR(gradients_->gather(*job_.group()));
    if (captured && job_.first()) SHEAF_RETURN_IF_ERROR(gradients_->save(options_.gradients));
    if (trace_) SHEAF_RETURN_IF_ERROR(trace_->write());
    return {};
  }

  // Prints what this run has written. Other processes than the first need not look at the files.
  void noteWritten() {
    if (!job_.first() || options_.quiet || options_.silent) return;
    if (!options_.save.empty()) progress_->note(cat("wrote the weights: ", writtenPath(options_.save)));
    if (saves_.any())
      progress_->note(cat("wrote the state after step ", in_.position.step, ": ", writtenPath(in_.lastSaved)));
    std::vector<std::string> others;
    if (gradients_ && in_.position.step > firstStep_) others.push_back(options_.gradients);
    if (trace_) others.push_back(in_.tracePath);
    for (const std::string& path : {options_.log, options_.logFolder, options_.metrics})
      if (!path.empty()) others.push_back(path);
    if (!others.empty()) progress_->note(cat("wrote ", listText(others)));
    if (!options_.save.empty())
      progress_->note(cat("next: sheaf export ", shellPath(in_.planPath), " --weights ", shellPath(options_.save),
                          " --model MODEL.onnx -o TRAINED.onnx"));
    else if (saves_.any() && trained_)
      progress_->note(cat("next: --resume ", shellPath(options_.saveState), " with more --steps trains on"));
  }

  Status logEnd() {
    if (options_.poison) SHEAF_RETURN_IF_ERROR(logArenas());
    json::Object end{{"step", in_.position.step}, {"updates", in_.position.updates}, {"samples", in_.position.samples}};
    usage_.addTo(end);
    if (in_.target == "cpu" && job_.nodes() > 1) {
      Expected<json::Object> sent = networkUse(*traffic_, *job_.group(), in_.position.step - firstStep_);
      if (!sent.ok()) return sent.status();
      end.set("network", std::move(*sent));
    }
    log_.event("end", std::move(end));
    return {};
  }

  Status logArenas() {
    Expected<std::vector<uint64_t>> highest = highestTouchedBytes(ranks_, job_);
    if (!highest.ok()) return highest.status();
    for (int64_t rank = 0; uint64_t byte : *highest)
      log_.event("arena",
                 {{"rank", rank++}, {"highest_touched_byte", byte}, {"peak_bytes", in_.plan->memory().peak_bytes()}});
    return {};
  }

  const RunOptions& options_;
  RunControl& control_;
  Job& job_;
  RunInputs in_;
  bool trained_ = false;  // all steps
  // The error of a state of --save-state, which all processes have; and true if this process stops the training for it.
  Status saveError_;
  bool stoppedByFailedSave_ = false;
  RunLog log_;
  bool logFailed_ = false;  // and a warning says so
  std::atomic<bool> errorLogged_ = false;
  std::optional<Progress> progress_;
  std::vector<std::unique_ptr<RankContext>> ranks_;
  RunThreads runThreads_;
  std::optional<WeightFiles> weightFiles_;
  std::optional<CopiedWeights> copied_;  // for --save
  RunSaves saves_;
  std::optional<GradientCapture> gradients_;
  std::optional<Trace> trace_;
  std::optional<StepResult> bad_;  // the step that ends the run
  RunUsage usage_;
  std::shared_ptr<comm::Traffic> traffic_ = std::make_shared<comm::Traffic>();
  int64_t firstStep_ = 0;  // of this run
};

}  // namespace

// Adds a suspension of this process to an error: others may have given it up meanwhile, and are not to blame.
static std::string withSuspension(const std::string& why) {
  const std::chrono::milliseconds suspended = SuspendDetector::lastSuspension();
  if (suspended.count() == 0) return why;
  return cat("this process did not run for ", secondsText(static_cast<double>(suspended.count()) / 1000),
             " (it was stopped or frozen, or its machine was), and others wait for SHEAF_TIMEOUT at most; then: ", why);
}

Status run(const RunOptions& options, RunControl& control) {
  std::function<void(const std::string&)> lost;
  if (control.lost) lost = [&control](const std::string& why) { control.lost(withSuspension(why)); };
  Expected<std::unique_ptr<Job>> job = Job::join(control.interrupted, options.quiet || options.silent, lost);
  if (!job.ok()) return job.status();
  Run run(options, control, **job);
  Status status = (*job)->end(run.execute());
  if (!status.ok()) {
    status = Status::error(withSuspension(status.message()));
    run.logError(status);
  }
  return status;
}

}  // namespace sheaf::exec
