#include "runtime/exec/Run.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <filesystem>
#include <memory>
#include <span>
#include <sstream>

#include "runtime/base/AtomicFile.h"
#include "runtime/base/Hash.h"
#include "runtime/base/MappedFile.h"
#include "runtime/base/Text.h"
#include "runtime/comm/transport/ProcessCommunicator.h"
#include "runtime/exec/ChoosePlan.h"
#include "runtime/exec/DeviceLibrary.h"
#include "runtime/exec/EvaluationRunner.h"
#include "runtime/exec/FileResume.h"
#include "runtime/exec/Gradients.h"
#include "runtime/exec/Job.h"
#include "runtime/exec/Machine.h"
#include "runtime/exec/NetworkUse.h"
#include "runtime/exec/OutputFiles.h"
#include "runtime/exec/Progress.h"
#include "runtime/exec/RunLog.h"
#include "runtime/exec/SavedState.h"
#include "runtime/exec/StateSaver.h"
#include "runtime/exec/Trainer.h"
#include "runtime/exec/TransportLibrary.h"
#include "runtime/exec/WeightShards.h"
#include "runtime/exec/Weights.h"
#include "runtime/io/KeptStates.h"
#include "runtime/io/SafetensorsShards.h"
#include "runtime/plan/Digests.h"
#include "runtime/plan/Generations.h"
#include "runtime/plan/PlanFile.h"
#include "runtime/plan/Proof.h"
#include "runtime/plan/RankMemory.h"
#include "runtime/plan/SavedParts.h"
#include "runtime/plan/Schedules.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/Words.h"

namespace sheaf::exec {
namespace {

// Better to know before the training than after it.
Status checkWritable(const char* option, const std::string& path) {
  if (path.empty()) return {};
  Expected<AtomicFile> probe = AtomicFile::create(path);
  return probe.ok() ? Status() : Status::error(cat(option, ": ", probe.status().message()));
}

// The head of a file of weights holds names and shapes, its end values.
std::string weightsText(const io::Safetensors& weights) {
  uint64_t bytes = 0;
  Xxh64 heads, ends;
  for (const MappedFile& mapped : weights.files()) {
    const std::span<const std::byte> file = mapped.bytes();
    const uint64_t head = fileHash(file), end = xxh64(file.last(std::min(file.size(), kFileHashBytes)));
    heads.update(std::as_bytes(std::span(&head, 1)));
    ends.update(std::as_bytes(std::span(&end, 1)));
    bytes += file.size();
  }
  return cat("of ", bytes, " bytes with hashes ", hexText(heads.digest()), " and ", hexText(ends.digest()));
}

// What a process takes for collectives with other nodes; GPUs count theirs themselves.
uint64_t exchangeBytes(const plan::Plan& plan, const Job& job, const std::string& target) {
  if (job.nodes() == 1 || target != "cpu") return 0;
  return comm::exchangeBytes(plan, job.nodes()) * static_cast<uint64_t>(job.localRanks());
}

// Of all processes on this machine, each with as many ranks. `staging`: bytes of a rank's saves.
Status checkMemory(const plan::Plan& plan, const Job& job, uint64_t staging) {
  uint64_t ranks = static_cast<uint64_t>(job.localRanks() * job.processesOnMachine()), machine = machineMemory();
  const uint64_t exchange = exchangeBytes(plan, job, "cpu") / static_cast<uint64_t>(job.localRanks());
  const uint64_t rank = plan::cpuRankMemory(plan, exchange).total() + staging;
  if (rank <= machine / ranks) return {};
  return Status::error(cat("the run needs ", ranks, " x ", bytesText(rank), ", this machine has ", bytesText(machine),
                           "; compile for more ranks on more machines, a higher ZeRO stage or a smaller batch"));
}

// Of what ranks on GPUs keep in host memory, which is pinned: beyond what there is the system would end some process.
Status checkPinnedMemory(const plan::Plan& plan, const Job& job) {
  const uint64_t ranks = static_cast<uint64_t>(job.localRanks() * job.processesOnMachine()), machine = machineMemory();
  const uint64_t rank = plan::pinnedBytes(plan);
  if (rank <= machine / ranks) return {};
  return Status::error(cat("the run needs ", ranks, " x ", bytesText(rank),
                           " of pinned host memory for --offload, this ", "machine has ", bytesText(machine),
                           "; compile for more ranks on more machines, or move ", "less to the host (--host-memory)"));
}

class Run {
 public:
  Run(const RunOptions& options, RunControl& control, Job& job) : options_(options), control_(control), job_(job) {}

  Status execute() {
    SHEAF_RETURN_IF_ERROR(readFiles());
    SHEAF_RETURN_IF_ERROR(settle());
    SHEAF_RETURN_IF_ERROR(openDevice());
    StateAccess state(*plan_, ranks_, job_.firstRank(), job_.group());
    SHEAF_RETURN_IF_ERROR(initialise(state));
    SHEAF_RETURN_IF_ERROR(commitFirstState());
    if (!options_.saveState.empty())
      saver_.emplace(state, StateSaver::Options{options_.saveState, options_.saveStaging, [this](int64_t step) {
                                                  return kept_ ? kept_->prune(step) : Status();
                                                }});
    Status status = trainAndSave(state);
    // What was copied before the run failed is whole, if no other process is needed for it.
    if (!status.ok() && saver_ && !job_.group()) (void)finishSaves();
    saver_.reset();
    return status;
  }

  // Once: a run that is abandoned may have logged its error before.
  void logError(const Status& status) {
    if (!errorLogged_.exchange(true)) log_.event("error", {{"message", status.message()}});
  }

 private:
  Status trainAndSave(const StateAccess& state) {
    noteMemory();
    Status status = options_.evaluate ? evaluate() : train(state);
    if (status.ok()) status = saveOutputs(state);
    // After everything is saved: what an evaluation cannot do must not cost what was trained.
    if (status.ok() && trained_ && options_.evaluateEvery > 0) status = evaluate();
    if (status.ok()) status = logEnd();
    log_.end();
    if (status.ok()) status = log_.status();
    return status;
  }

  // Everything that can be wrong with files and options is found before memory is taken.
  Status readFiles() {
    if (options_.plans.size() > 1 || options_.ranks > 0) {
      std::vector<std::string> plans = options_.plans;
      if (plans.empty()) plans.push_back(options_.plan);
      Expected<ChosenPlan> chosen =
          choosePlan(plans, options_.ranks > 0 ? options_.ranks : job_.processes(), undigested(options_));
      if (!chosen.ok()) return chosen.status();
      planPath_ = std::move(chosen->path);
      // What concerns evaluations matters to a run that has some.
      if (evaluates()) warnings_ = std::move(chosen->notes);
    }
    Expected<std::unique_ptr<plan::Plan>> plan = plan::readProvedPlan(planPath_, undigested(options_));
    if (!plan.ok()) return plan.status();
    plan_ = std::move(*plan);
    if (Status complete = plan::requireDigests(*plan_); !complete.ok()) warnings_.push_back(complete.message());
    if (!options_.evaluate) SHEAF_RETURN_IF_ERROR(checkTrainable(*plan_));
    if (evaluates()) SHEAF_RETURN_IF_ERROR(checkEvaluable(*plan_));
    target_ = options_.device;
    if (target_.empty()) target_ = plan_->images_size() > 0 ? plan::deviceOf(plan_->images(0)) : "cpu";
    SHEAF_RETURN_IF_ERROR(checkDeviceOptions(options_, target_));
    const uint64_t files = plan::peakBytes(*plan_, plan::Buffer::FILE);
    if (files > 0 && options_.offloadFolders.empty())
      return Status::error(cat("the plan keeps ", bytesText(files),
                               " of each rank in files: say in which folder with --offload-dir DIR"));
    // Of several plans another one may.
    if (files == 0 && !options_.offloadFolders.empty() && options_.plans.size() <= 1)
      return Status::error(
          "--offload-dir: the plan keeps nothing in files; for that it is compiled with --offload KIND=file, of a kind "
          "that the model's training has");
    training_ = plan_->training();
    if (options_.learningRate) training_.set_learning_rate(*options_.learningRate);
    if (options_.schedule) *training_.mutable_schedule() = *options_.schedule;

    if (!options_.resume.empty() && isOneOf(options_.resume, options_.offloadFolders)) {
      SHEAF_RETURN_IF_ERROR(resumeFiles());
    } else if (!options_.resume.empty()) {
      io::SharedReading shared{
          static_cast<size_t>(job_.process()), static_cast<size_t>(job_.processes()),
          [&](const std::string& state, const Status& mine) { return job_.together(state, mine); }};
      Expected<io::Checkpoint> checkpoint = io::Checkpoint::openNewest(
          options_.resume, [&](const std::string& text) { warnings_.push_back(text); }, shared);
      if (!checkpoint.ok()) return Status::error(cat("--resume: ", checkpoint.status().message()));
      Expected<std::vector<std::string>> initial = checkState(*plan_, *checkpoint);
      if (!initial.ok()) return initial.status();
      if (!initial->empty())
        warnings_.push_back(cat("the state has no ", listText(*initial, 5), ", which ",
                                initial->size() == 1 ? "is frozen and keeps its initial value"
                                                     : "are frozen and keep their initial values"));
      initialValues_ = !initial->empty();
      const io::Manifest& manifest = checkpoint->manifest();
      position_ = {manifest.step, manifest.updates, static_cast<uint64_t>(manifest.samples), manifest.shuffleSeed,
                   manifest.lossScale};
      if (manifest.seed != training_.seed())
        warnings_.push_back(cat("the state was saved by a run with seed ", manifest.seed, ", the plan has ",
                                training_.seed(), ": random numbers go on differently"));
      lastSaved_ = checkpoint->folder();
      checkpoint_ = std::move(*checkpoint);
    }
    if (options_.shuffleSeed) position_.shuffleSeed = options_.shuffleSeed;
    if (!options_.evaluate) {
      Expected<io::DataSource> data =
          io::DataSource::open(*plan_, options_.data, position_.shuffleSeed, io::DataReader::kTraining,
                               {.firstSample = position_.samples,
                                .ends = {.failed = &control_.aborting, .interrupted = &control_.interrupted}});
      if (!data.ok()) return data.status();
      data_ = std::move(*data);
      if (data_->isPiped() && job_.processes() > 1)
        return Status::error(
            "--data: a pipe is read by one process, and there are several: give files, or run all ranks in one");
      SHEAF_RETURN_IF_ERROR(settleLength());
    }
    if (evaluates()) {
      Expected<io::DataSource> data =
          io::DataSource::open(*plan_, options_.evaluationData, std::nullopt, io::DataReader::kEvaluation);
      if (!data.ok()) return data.status();
      evaluationData_ = std::move(*data);
      SHEAF_RETURN_IF_ERROR(checkEvaluable(*plan_, evaluationData_->rows()));
      SHEAF_RETURN_IF_ERROR(checkOutputs());
    }
    if (!options_.weights.empty()) {
      Expected<io::Safetensors> weights = io::Safetensors::openWeights(options_.weights);
      if (!weights.ok()) return Status::error(cat("--weights: ", weights.status().message()));
      weights_ = std::move(*weights);
    }
    if (!options_.trace.empty())
      tracePath_ = job_.first() ? options_.trace : cat(options_.trace, ".process-", job_.process());
    SHEAF_RETURN_IF_ERROR(checkWritable("--trace", tracePath_));
    if (!job_.first()) return {};
    SHEAF_RETURN_IF_ERROR(openStateFolder());
    SHEAF_RETURN_IF_ERROR(checkWritable("--save", options_.save));
    SHEAF_RETURN_IF_ERROR(checkWritable("--dump-gradients", options_.gradients));
    SHEAF_RETURN_IF_ERROR(checkMetricsFile());
    Expected<RunLog> log = RunLog::open({options_.log, options_.logFolder, options_.metrics}, !options_.resume.empty());
    if (!log.ok()) return log.status();
    log_ = std::move(*log);
    return {};
  }

  // Where all ranks' files can go on: after the step that the slowest one had made durable.
  Status resumeFiles() {
    auto wrong = [&](const std::string& why) { return Status::error(cat("--resume ", options_.resume, ": ", why)); };
    if (const std::string why = plan::whyNotRestartable(*plan_); !why.empty())
      return wrong(cat("it is the plan's --offload-dir, which cannot be resumed: ", why));
    Expected<Device*> device = loadDevice(target_);
    if (!device.ok()) return device.status();
    Expected<uint64_t> hash = plan::planHash(*plan_);
    if (!hash.ok()) return hash.status();
    Expected<FileResume> found = findFileState(**device, *plan_, *hash, options_.offloadFolders, job_, control_.files);
    if (!found.ok()) return wrong(found.status().message());
    position_ = found->position;
    fileState_ = FileState{.plan = *hash, .run = found->run, .step = position_.step};
    lastSaved_ = options_.resume;
    return {};
  }

  // Of a run that trains a plan whose files outlive it, from its beginning.
  Status newFileState() {
    if (plan_->generations_size() == 0 || options_.evaluate || fileState_) return {};
    Expected<uint64_t> hash = plan::planHash(*plan_);
    if (!hash.ok()) return hash.status();
    Expected<uint64_t> run = newRun(job_);
    if (!run.ok()) return run.status();
    fileState_ = FileState{.plan = *hash, .run = *run, .step = {}};
    return {};
  }

  // Better to know before the training than at its first save. Makes nothing that stays, unless it is locked.
  Status openStateFolder() {
    if (options_.saveState.empty()) return {};
    if (options_.keepSaves > 0) {
      Expected<io::KeptStates> kept = io::KeptStates::open(options_.saveState, options_.keepSaves);
      if (!kept.ok()) return ofSaves(kept.status());
      kept_ = std::move(*kept);
    }
    std::error_code ignored;
    const bool there = std::filesystem::exists(options_.saveState, ignored);
    if (Status probe = io::CheckpointWriter::create(options_.saveState, position_.step).status(); !probe.ok())
      return ofSaves(probe);
    if (!there) std::filesystem::remove(options_.saveState, ignored);
    return {};
  }

  // The metrics replace their file every second: it must not be one that the run reads or writes.
  Status checkMetricsFile() const {
    if (options_.metrics.empty()) return {};
    std::vector<std::pair<std::string, std::string>> others{
        {"the plan", planPath_},   {"--log", options_.log},
        {"--save", options_.save}, {"--dump-gradients", options_.gradients},
        {"--trace", tracePath_},   {"--weights", options_.weights}};
    for (const auto* list : {&options_.data, &options_.evaluationData})
      for (const io::DataArgument& argument : *list) others.emplace_back("--data", argument.file);
    for (const auto& [what, path] : others) {
      std::error_code ignored;
      if (!path.empty() && std::filesystem::weakly_canonical(path, ignored) ==
                               std::filesystem::weakly_canonical(options_.metrics, ignored))
        return Status::error(cat("--metrics-file ", options_.metrics, " is the file of ", what, ": give another name"));
    }
    return checkWritable("--metrics-file", options_.metrics);
  }

  // How many steps the run has, and with that the length of a schedule that states none.
  Status settleLength() {
    steps_ = options_.steps;
    if (options_.epochs > 0 && data_->isPiped())
      return Status::error("--epochs: a pipe does not say how many rows it has; give --steps");
    if (options_.epochs > 0) {
      const uint64_t batch = static_cast<uint64_t>(plan_->batch()), epochs = static_cast<uint64_t>(options_.epochs);
      uint64_t samples = 0;
      if (__builtin_mul_overflow(epochs, data_->rows(), &samples) || samples > uint64_t{INT64_MAX})
        return Status::error(cat("--epochs ", epochs, " of ", data_->rows(), " rows are too many samples"));
      const uint64_t left = samples - std::min(samples, position_.samples);
      // A launcher may start the same command once more after the training is complete.
      if (left < batch && position_.step > 0 && position_.samples <= samples)
        warnings_.push_back(cat("nothing is left to train: of --epochs ", epochs, " of ", data_->rows(), " rows ",
                                position_.samples, " samples have been read"));
      else if (left < batch)
        return Status::error(cat("--epochs ", epochs, " of ", data_->rows(), " rows are ", samples,
                                 " samples, of which ", position_.samples,
                                 " have been read: what is left is less than a batch of ", batch));
      steps_ = static_cast<int64_t>(left / batch);
    }
    if (!plan::lacksLength(training_.schedule())) return {};
    // What the runs before this one were meant to be is not known, nor what follows it.
    if (position_.step > 0 && options_.epochs == 0)
      return Status::error(cat("the learning-rate schedule '", plan::scheduleText(training_.schedule()),
                               "' states no length, and a run that goes on from step ", position_.step,
                               " does not give it one; state it with --lr-schedule ...steps=STEPS, or use --epochs"));
    Expected<plan::Schedule> schedule = plan::withLength(training_.schedule(), position_.step + steps_);
    if (!schedule.ok()) return schedule.status();
    *training_.mutable_schedule() = std::move(*schedule);
    return {};
  }

  // What must be the same in all processes, and the ranks of this one.
  Status settle() {
    Expected<uint64_t> rate = networkRate(std::getenv("SHEAF_NETWORK_RATE"));
    if (!rate.ok()) return rate.status();
    sendRate_ = *rate;
    if (job_.processes() == 1) return job_.share(plan_->ranks());
    Expected<uint64_t> hash = plan::planHash(*plan_);
    if (!hash.ok()) return hash.status();
    auto given = [](const std::string& path) { return std::string(path.empty() ? "not given" : "given"); };
    std::vector<std::string> facts{
        cat("a plan for ", plan_->ranks(), " ranks with hash ", hexText(*hash)), cat("--steps ", steps_),
        cat("--lr ", training_.learning_rate(), " (bits ", hexText(std::bit_cast<uint64_t>(training_.learning_rate())),
            ")"),
        cat("--lr-schedule ", plan::scheduleText(training_.schedule())),
        cat("--shuffle ", position_.shuffleSeed ? std::to_string(*position_.shuffleSeed) : "not given"),
        cat("a start at step ", position_.step, ", update ", position_.updates, ", sample ", position_.samples,
            position_.lossScale ? cat(", loss scale ", position_.lossScale->scale) : ""),
        cat("--resume ", given(options_.resume)), cat("--weights ", weights_ ? weightsText(*weights_) : "not given"),
        cat("--save ",
            io::isShardIndex(options_.save) ? cat("in files of ", options_.shardBytes) : given(options_.save)),
        cat("--save-state ", given(options_.saveState)), cat("--save-every ", options_.saveEvery),
        cat("--keep-saves ", options_.keepSaves), cat("--dump-gradients ", given(options_.gradients)),
        // A GPU that is traced issues instructions one by one, the others would launch steps as graphs.
        cat("--offload-dir ", options_.offloadFolders.empty() ? "not given" : "given"),
        cat("--trace ", given(options_.trace)), cat("--poison ", options_.poison ? "given" : "not given"),
        cat("--device ", target_), cat("--transport ", options_.transport), cat("SHEAF_NETWORK_RATE ", sendRate_),
        cat("--reduce-order ", plan::word(reduceOrder())), cat("--tuned ", given(options_.tuned)),
        cat(options_.graphs ? "no " : "", "--no-graphs"), cat(options_.evaluate ? "" : "no ", "--eval"),
        cat("--eval-every ", options_.evaluateEvery), cat("--outputs ", given(options_.outputs))};
    for (const auto* data : {&data_, &evaluationData_})
      if (*data)
        for (const std::string& line : (*data)->describe()) facts.push_back(line);
    SHEAF_RETURN_IF_ERROR(job_.agree(facts));
    return job_.share(plan_->ranks());
  }

  plan::Training::ReduceOrder reduceOrder() const {
    return options_.reduceOrder.value_or(plan_->training().reduce_order());
  }

  // What carries values between ranks.
  std::string transport() const {
    if (target_ != "cpu") return "nccl";
    return job_.nodes() == 1 ? "memory" : options_.transport;
  }

  uint64_t stagingOfARank() const {
    return options_.saveStaging > 0 ? plan::mostStagingBytes(*plan_, options_.saveStaging) : 0;
  }

  Status openDevice() {
    SHEAF_RETURN_IF_ERROR(newFileState());
    SHEAF_RETURN_IF_ERROR(target_ == "cpu" ? checkMemory(*plan_, job_, stagingOfARank())
                                           : checkPinnedMemory(*plan_, job_));
    int64_t limit = plan_->max_threads();
    int64_t threads = options_.threadsPerRank;
    if (threads > limit)
      return Status::error(cat("--threads-per-rank ", threads, ": the plan has scratch for ", limit,
                               "; compile with --max-threads-per-rank ", threads));
    if (threads == 0)
      threads = std::clamp<int64_t>(availableCores() / (job_.localRanks() * job_.processesOnCores()), 1, limit);
    comm::ConnectTransport connect = nullptr;
    if (options_.transport == "mpi") {
      Expected<comm::ConnectTransport> mpi = loadMpi();
      if (!mpi.ok()) return mpi.status();
      connect = *mpi;
    }
    Expected<Device*> device = loadDevice(target_);
    if (!device.ok()) return device.status();
    json::Object notes;
    auto ranks = (*device)->open(
        *plan_, {.ranks = plan_->ranks(),
                 .firstRank = job_.firstRank(),
                 .localRanks = job_.localRanks(),
                 .processes = job_.group(),
                 .processesPerNode = job_.processesPerNode(),
                 .connectTransport = connect,
                 .sendRate = static_cast<double>(sendRate_),
                 .traffic = traffic_,
                 .threadsPerRank = static_cast<int>(threads),
                 .poison = options_.poison,
                 .offloadFolders = options_.offloadFolders,
                 .fileState = fileState_,
                 .files = control_.files,
                 .graphs = options_.graphs,
                 .reduceOrder = reduceOrder(),
                 .products = options_.tuned,
                 .aborted = [this] { control_.aborting = true; },
                 .abandon = [this](const std::string& why) { abandon(why); },
                 .warn = [&](const std::string& text) { warnings_.push_back(text); },
                 .note = [&](const std::string& name, const std::string& value) { notes.set(name, value); }});
    if (!ranks.ok()) return ranks.status();
    ranks_ = std::move(*ranks);
    if (job_.first()) log_.begin(planPath_, *plan_, position_.step);
    log_.event("start", {{"plan", planPath_},
                         {"model", plan_->model()},
                         {"ranks", plan_->ranks()},
                         {"processes", job_.processes()},
                         {"nodes", job_.nodes()},
                         {"transport", transport()},
                         {"exchange_bytes", exchangeBytes(*plan_, job_, target_)},
                         {"zero", static_cast<int64_t>(plan_->zero_stage())},
                         {"threads_per_rank", threads},
                         {"save_staging_bytes", stagingOfARank()},
                         {"batch", plan_->batch()},
                         {"micro_batches", plan::microBatches(*plan_)},
                         {"rows", rowsOfData()},
                         {"schedule", plan::scheduleText(training_.schedule())},
                         {"step", position_.step},
                         {"steps", steps_}});
    if (!notes.members().empty()) log_.event("device", std::move(notes));
    progress_.emplace(*plan_, position_.step, steps_, job_.first());
    for (const std::string& warning : warnings_) warn(warning);
    return {};
  }

  // Null where they come through a pipe.
  json::Value rowsOfData() const {
    const io::DataSource& data = data_ ? *data_ : *evaluationData_;
    return data.isPiped() ? json::Value() : json::Value(data.rows());
  }

  // From another thread, while this one waits for the device.
  void abandon(const std::string& why) {
    logError(Status::error(why));
    if (control_.abandon) control_.abandon(why);
  }

  void warn(const std::string& text) {
    progress_->note("warning: " + text);
    log_.event("warning", {{"message", text}});
  }

  Status initialise(const StateAccess& state) {
    SHEAF_RETURN_IF_ERROR(writeLossScale(state, position_));
    WeightFiles files(*plan_, folderOf(planPath_), options_.weightsFolder);
    if (fileState_ && fileState_->step) {
      if (weights_) warn("--weights has no effect: the weights are those of --resume");
      log_.event("resumed", {{"state", options_.resume}, {"step", position_.step}});
      return loadConstants(state, files);
    }
    if (!checkpoint_)
      return loadWeights(state, files, weights_ ? &*weights_ : nullptr, [&](const std::string& text) { warn(text); });
    if (weights_) warn("--weights has no effect: the weights are those of --resume");
    if (initialValues_) {
      SHEAF_RETURN_IF_ERROR(loadWeights(state, files, nullptr, [&](const std::string& text) { warn(text); }));
    } else {
      SHEAF_RETURN_IF_ERROR(loadConstants(state, files));
    }
    SHEAF_RETURN_IF_ERROR(clearPadding(state, true));
    SHEAF_RETURN_IF_ERROR(loadState(state, *checkpoint_));
    log_.event("resumed", {{"state", checkpoint_->folder()}, {"step", position_.step}});
    progress_->note(cat("resumed from ", checkpoint_->folder(), ", step ", position_.step));
    checkpoint_.reset();
    return {};
  }

  // From here on files hold a state at any time.
  Status commitFirstState() {
    if (!fileState_ || fileState_->step) return {};
    for (const auto& rank : ranks_) SHEAF_RETURN_IF_ERROR(rank->commit(committedAt(position_, fileState_->run)));
    lastSaved_ = options_.offloadFolders.front();
    return {};
  }

  bool evaluates() const { return options_.evaluate || options_.evaluateEvery > 0; }

  // There is something to write, and no evaluation may replace what the run reads.
  Status checkOutputs() const {
    if (options_.outputs.empty()) return {};
    if (plan_->outputs_size() == 0)
      return Status::error(
          "--outputs: the model has no outputs besides its loss; export it with its logits as an output, and compile "
          "it "
          "with --loss 'cross_entropy(LOGITS)' or another loss of them");
    std::vector<std::string> inputs{planPath_, options_.weights};
    for (const auto* data : {&data_, &evaluationData_})
      if (*data)
        for (const MappedFile& file : (*data)->files()) inputs.push_back(file.path());
    if (options_.evaluate) return OutputFiles::check(*plan_, options_.outputs, inputs);
    // The folders of steps to come, as far as they exist.
    SHEAF_RETURN_IF_ERROR(OutputFiles::check(*plan_, options_.outputs, {}));
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(options_.outputs, error))
      if (entry.path().filename().string().starts_with("step-"))
        SHEAF_RETURN_IF_ERROR(OutputFiles::check(*plan_, entry.path().string(), inputs));
    return {};
  }

  // With the weights as they are now. Between steps the tensors go to a folder for that step. One that is interrupted
  // writes no files.
  Status evaluate() {
    std::unique_ptr<OutputFiles> outputs;
    if (!options_.outputs.empty()) {
      const std::string folder =
          options_.evaluate ? options_.outputs : cat(options_.outputs, "/", io::stepFolder(position_.step));
      auto files = OutputFiles::create(*plan_, folder, evaluationData_->rows(), job_);
      if (!files.ok()) return files.status();
      outputs = std::move(*files);
    }
    Expected<EvaluationResult> result =
        EvaluationRunner(*plan_, ranks_, *evaluationData_, job_.firstRank(), control_.interrupted, job_.group())
            .run(outputs.get());
    if (!result.ok()) return result.status();
    if (result->interrupted) {
      log_.event("interrupted", {{"step", position_.step}});
      if (options_.evaluate) return Status::error("interrupted: the evaluation is not finished, nothing is written");
      progress_->note(cat("interrupted: the evaluation after ", position_.step, " steps is not finished"));
      return {};
    }
    if (outputs) SHEAF_RETURN_IF_ERROR(outputs->commit());
    log_.evaluation(position_.step, *result);
    if (!options_.evaluate) progress_->finish();
    progress_->note(
        cat(options_.evaluate ? "evaluation: " : cat("evaluation after ", position_.step, " steps: "), text(*result)));
    return {};
  }

  Status train(const StateAccess& state) {
    if (!options_.gradients.empty())
      gradients_.emplace(*plan_, job_.firstRank(), job_.localRanks(),
                         position_.lossScale ? position_.lossScale->scale : 1);
    if (!tracePath_.empty()) trace_.emplace(*plan_, tracePath_);
    Trainer trainer(*plan_, ranks_, *data_,
                    {.training = training_,
                     .step = position_.step,
                     .updates = position_.updates,
                     .samples = position_.samples,
                     .gradients = gradients_ ? &*gradients_ : nullptr,
                     .trace = trace_ ? &*trace_ : nullptr,
                     .interrupted = &control_.interrupted,
                     .fileRun = fileState_ ? std::optional(fileState_->run) : std::nullopt,
                     .shuffleSeed = position_.shuffleSeed,
                     .firstRank = job_.firstRank(),
                     .processes = job_.group()});
    firstStep_ = position_.step;
    const int64_t end = position_.step + steps_;
    while (trainer.step() < end && !trainer.interrupted()) {
      int64_t steps = end - trainer.step();
      if (options_.saveEvery > 0) steps = std::min(steps, options_.saveEvery - trainer.step() % options_.saveEvery);
      if (options_.evaluateEvery > 0)
        steps = std::min(steps, options_.evaluateEvery - trainer.step() % options_.evaluateEvery);
      SHEAF_RETURN_IF_ERROR(trainer.run(steps, [&](const StepResult& result) { report(result); }));
      if (saver_ && !saver_->status().ok()) return ofSaves(saver_->status());
      if (trainer.badStep() >= 0) return notFinite(trainer.badStep());
      position_.step = trainer.step();
      position_.updates = trainer.updates();
      position_.samples = trainer.samples();
      SHEAF_RETURN_IF_ERROR(readLossScale(state, position_));
      noteMemory();
      if (trainer.interrupted()) continue;
      if (options_.saveEvery > 0 && position_.step < end && position_.step % options_.saveEvery == 0)
        SHEAF_RETURN_IF_ERROR(saveNow());
      if (options_.evaluateEvery > 0 && position_.step < end && position_.step % options_.evaluateEvery == 0)
        SHEAF_RETURN_IF_ERROR(evaluate());
    }
    progress_->finish();
    trained_ = trainer.step() == end;
    if (!trained_) {
      log_.event("interrupted", {{"step", position_.step}});
      progress_->note(cat("interrupted: ", position_.step, " steps are done",
                          !options_.saveState.empty() ? "; saving the state"
                          : fileState_                ? cat("; go on with --resume ", options_.offloadFolders.front())
                                                      : ", nothing is saved as a state"));
    }
    return {};
  }

  void report(const StepResult& result) {
    if (reportedBad_) return;  // steps under way after a bad one are not worth telling
    noteSeconds(result.seconds);
    log_.step(result, noteMemory());
    progress_->step(result);
    if (saver_) {
      noteSaves();
      // The error is the run's, after the step under way.
      if (!saver_->status().ok()) control_.interrupted = true;
    }
    bool finite = std::isfinite(result.loss) && (!result.hasNorm || std::isfinite(result.gradientNorm));
    if (result.skipped && result.lossScale)
      progress_->note(cat("step ", result.step + 1, ": the gradients are not finite at the loss scale ",
                          *result.lossScale, ", the update is skipped"));
    else if (result.skipped)
      warn(cat("step ", result.step, ": the gradient norm is not finite, the update is skipped"));
    reportedBad_ = !finite && !result.skipped;
  }

  Status notFinite(int64_t step) {
    progress_->finish();
    // A state under way is of a step before.
    if (Status status = finishSaves(); !status.ok()) warn(status.message());
    return Status::error(cat("step ", step,
                             ": the loss or the gradient norm is not finite; the run stops and saves nothing. ",
                             lastSaved_.empty() ? "There is no saved state (--save-state, --save-every)"
                                                : cat("The newest saved state is ", lastSaved_, " (--resume)"),
                             plan_->training().has_loss_scale() ? "; the loss scale cannot be reduced further" : "",
                             "; a lower learning rate, --clip-norm or --on-nan skip may help"));
  }

  static Status ofSaves(const Status& status) {
    return status.ok() ? status : Status::error(cat("--save-state: ", status.message()));
  }

  Status saveNow() {
    Status status = saver_->save(position_);
    noteSaves();
    return ofSaves(status);
  }

  Status finishSaves() {
    if (!saver_) return {};
    Status status = saver_->finish();
    noteSaves();
    return ofSaves(status);
  }

  void noteSaves() {
    while (std::optional<CompleteSave> save = saver_->takeComplete()) {
      lastSaved_ = save->folder;
      log_.event("saved_state", {{"state", lastSaved_},
                                 {"step", save->step},
                                 {"stalled_seconds", save->stalled},
                                 {"seconds", save->seconds}});
      // The new state is safe; that older ones cannot be removed does not end a training.
      if (!save->afterwards.ok()) warn(cat("--keep-saves: ", save->afterwards.message()));
    }
  }

  Status saveOutputs(const StateAccess& state) {
    if (saver_) {
      SHEAF_RETURN_IF_ERROR(saveNow());
      SHEAF_RETURN_IF_ERROR(finishSaves());
    }
    if (!options_.save.empty())
      if (Status status = io::isShardIndex(options_.save) ? saveWeightShards(state, options_.save, options_.shardBytes)
                                                          : saveWeights(state, options_.save);
          !status.ok())
        return Status::error(cat("--save: ", status.message()));
    if (gradients_ && job_.group()) SHEAF_RETURN_IF_ERROR(gradients_->gather(*job_.group()));
    if (gradients_ && job_.first()) SHEAF_RETURN_IF_ERROR(gradients_->save(options_.gradients));
    if (trace_) SHEAF_RETURN_IF_ERROR(trace_->write());
    return {};
  }

  // Of the latest steps.
  void noteSeconds(double seconds) {
    constexpr size_t kMost = 1000;
    if (stepSeconds_.size() < kMost)
      stepSeconds_.push_back(seconds);
    else
      stepSeconds_[nextSeconds_++ % kMost] = seconds;
  }

  double medianSeconds() {
    if (stepSeconds_.empty()) return 0;
    const auto middle = stepSeconds_.begin() + static_cast<ptrdiff_t>(stepSeconds_.size() / 2);
    std::nth_element(stepSeconds_.begin(), middle, stepSeconds_.end());
    return *middle;
  }

  // Returns what is resident now.
  uint64_t noteMemory() {
    const uint64_t resident = privateResidentBytes();
    privateBytes_ = std::max(privateBytes_, resident);
    return resident;
  }

  Status logEnd() {
    noteMemory();
    if (options_.poison) SHEAF_RETURN_IF_ERROR(logArenas());
    json::Object end{{"step", position_.step},
                     {"updates", position_.updates},
                     {"samples", position_.samples},
                     {"step_seconds", medianSeconds()},
                     {"peak_resident_bytes", peakResidentBytes()},
                     {"resident_bytes_without_files", privateBytes_}};
    if (target_ == "cpu" && job_.nodes() > 1) {
      Expected<json::Object> sent = networkUse(*traffic_, *job_.group(), position_.step - firstStep_);
      if (!sent.ok()) return sent.status();
      end.set("network", std::move(*sent));
    }
    log_.event("end", std::move(end));
    return {};
  }

  Status logArenas() {
    std::string touched;
    for (const auto& rank : ranks_) touched += cat(rank->highestTouchedByte(), " ");
    std::vector<std::string> all{touched};
    if (job_.group()) {
      Expected<std::vector<std::string>> gathered = job_.group()->gather(touched, "the arenas' highest bytes");
      if (!gathered.ok()) return gathered.status();
      all = std::move(*gathered);
    }
    int64_t rank = 0;
    for (const std::string& numbers : all) {
      std::istringstream in(numbers);
      for (uint64_t highest; in >> highest; ++rank)
        log_.event("arena",
                   {{"rank", rank}, {"highest_touched_byte", highest}, {"peak_bytes", plan_->memory().peak_bytes()}});
    }
    return {};
  }

  const RunOptions& options_;
  RunControl& control_;
  Job& job_;
  std::string planPath_ = options_.plan;
  std::unique_ptr<plan::Plan> plan_;
  plan::Training training_;
  int64_t steps_ = 0;     // of this run
  bool trained_ = false;  // all of them
  RunPosition position_;
  std::optional<FileState> fileState_;  // of files that outlive the run
  std::optional<io::Checkpoint> checkpoint_;
  std::optional<io::KeptStates> kept_;
  bool initialValues_ = false;  // of parameters that the checkpoint lacks
  std::optional<io::DataSource> data_, evaluationData_;
  std::optional<io::Safetensors> weights_;
  RunLog log_;
  std::atomic<bool> errorLogged_ = false;
  std::optional<Progress> progress_;
  std::vector<std::string> warnings_;
  std::vector<std::unique_ptr<RankContext>> ranks_;
  std::optional<StateSaver> saver_;
  std::optional<GradientCapture> gradients_;
  std::optional<Trace> trace_;
  std::string target_, lastSaved_, tracePath_;  // target: the device
  bool reportedBad_ = false;
  std::vector<double> stepSeconds_;
  size_t nextSeconds_ = 0;
  uint64_t privateBytes_ = 0;  // largest seen
  uint64_t sendRate_ = 0;      // see networkRate()
  std::shared_ptr<comm::Traffic> traffic_ = std::make_shared<comm::Traffic>();
  int64_t firstStep_ = 0;  // of this run
};

}  // namespace

Status checkDeviceOptions(const RunOptions& options, std::string_view device) {
  if (device == "cpu" && !options.tuned.empty())
    return Status::error("--tuned is for runs on GPUs: on the CPU there is one algorithm for each matrix product");
  if (device == "cuda" && options.transport != "sockets")
    return Status::error(cat("--transport ", options.transport, " is for runs on CPUs: GPUs exchange by NCCL"));
  return {};
}

Status run(const RunOptions& options, RunControl& control) {
  Expected<std::unique_ptr<Job>> job = Job::join(control.interrupted, control.lost);
  if (!job.ok()) return job.status();
  Run run(options, control, **job);
  Status status = (*job)->end(run.execute());
  if (!status.ok()) run.logError(status);
  return status;
}

}  // namespace sheaf::exec
