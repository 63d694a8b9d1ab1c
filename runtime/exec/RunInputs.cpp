#include "runtime/exec/RunInputs.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <system_error>
#include <utility>

#include "runtime/base/Decisions.h"
#include "runtime/base/Hash.h"
#include "runtime/base/MappedFile.h"
#include "runtime/base/Text.h"
#include "runtime/exec/Agreement.h"
#include "runtime/exec/ChoosePlan.h"
#include "runtime/exec/DeviceLibrary.h"
#include "runtime/exec/EvaluationRunner.h"
#include "runtime/exec/FileResume.h"
#include "runtime/exec/Machine.h"
#include "runtime/exec/NetworkUse.h"
#include "runtime/exec/OutputConflicts.h"
#include "runtime/exec/RunResources.h"
#include "runtime/exec/Trainer.h"
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

// Limits the check of the evaluation's labels before a training: other processes wait meanwhile.
std::chrono::milliseconds labelCheckTime(const Job& job) {
  constexpr std::chrono::milliseconds kMost(10'000);
  return job.group() ? std::min(kMost, job.group()->limit() / 4) : kMost;
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

// The lineage of a run that resumes a state of `saved`; it has no number yet.
io::RunLineage runAfter(const io::RunLineage& saved) {
  io::RunLineage run{.earlier = saved.earlier};
  if (saved.number != 0) run.earlier.push_back(saved.number);
  if (run.earlier.size() > io::kMostEarlierRuns) run.earlier.erase(run.earlier.begin());
  return run;
}

class Reader {
 public:
  Reader(const RunOptions& options, RunControl& control, Job& job) : options_(options), control_(control), job_(job) {
    in_.planPath = options.plan;
    if (!options.trace.empty())
      in_.tracePath = job.first() ? options.trace : cat(options.trace, ".process-", job.process());
  }

  // Everything that can be wrong with files and options is found before memory is taken.
  Expected<RunInputs> read() {
    for (const std::string& path : options_.plans.empty() ? std::vector{options_.plan} : options_.plans)
      if (std::error_code error; path.find('=') < path.find('/') && !std::filesystem::exists(path, error))
        return Status::error(cat("there is no plan ", path, "; did you mean --data ", path, "?"));
    if (options_.plans.size() > 1 || options_.ranks > 0) {
      std::vector<std::string> plans = options_.plans;
      if (plans.empty()) plans.push_back(options_.plan);
      Expected<ChosenPlan> chosen =
          choosePlan(plans, options_.ranks > 0 ? options_.ranks : job_.processes(), undigested(options_));
      if (!chosen.ok()) return chosen.status();
      in_.planPath = std::move(chosen->path);
      // What concerns evaluations matters to a run that has some.
      if (evaluates()) in_.warnings = std::move(chosen->notes);
    }
    Expected<std::unique_ptr<plan::Plan>> plan = plan::readProvedPlan(in_.planPath, undigested(options_));
    if (!plan.ok()) return plan.status();
    in_.plan = std::move(*plan);
    Expected<uint64_t> hash = plan::planHash(in_.planPath);
    if (!hash.ok()) return hash.status();
    in_.planHash = *hash;
    if (Status complete = plan::requireDigests(*in_.plan); !complete.ok()) in_.warnings.push_back(complete.message());
    if (!options_.evaluate) SHEAF_RETURN_IF_ERROR(checkTrainable(*in_.plan));
    for (const std::string& decision : in_.plan->decisions())
      if (!options_.evaluate && decision.starts_with(kPossibleBuffers))
        in_.warnings.push_back(decision.substr(kPossibleBuffers.size()));
    if (evaluates()) SHEAF_RETURN_IF_ERROR(checkEvaluable(*in_.plan));
    in_.target = options_.device;
    if (in_.target.empty()) in_.target = in_.plan->images_size() > 0 ? plan::deviceOf(in_.plan->images(0)) : "cpu";
    SHEAF_RETURN_IF_ERROR(checkDeviceOptions(options_, in_.target));
    std::optional<plan::CpuIdentity> cpu;
    if (in_.target == "cpu") {
      Expected<Device*> device = loadDevice(in_.target);
      if (!device.ok()) return device.status();
      cpu = (*device)->cpuIdentity(*in_.plan);
      cpu->processor = processorName();
    }
    const uint64_t files = plan::peakBytes(*in_.plan, plan::Buffer::FILE);
    if (files > 0 && options_.offloadFolders.empty())
      return Status::error(cat("the plan keeps ", bytesText(files),
                               " of each rank in files: say in which folder with --offload-dir DIR"));
    // Of several plans another one may.
    if (files == 0 && !options_.offloadFolders.empty() && options_.plans.size() <= 1)
      return Status::error(
          "--offload-dir: the plan keeps nothing in files; for that it is compiled with --offload KIND=file, of a kind "
          "that the model's training has");
    if (!options_.saveState.empty() && isOneOf(options_.saveState, options_.offloadFolders))
      return Status::error(
          cat("--save-state ", options_.saveState,
              " is a folder of --offload-dir: give it another one, or --resume could not tell which of "
              "two states it is to take"));
    in_.training = in_.plan->training();
    in_.reduceOrder = options_.reduceOrder.value_or(in_.training.reduce_order());
    Expected<uint64_t> rate = networkRate(std::getenv("SHEAF_NETWORK_RATE"));
    if (!rate.ok()) return rate.status();
    in_.sendRate = *rate;
    if (options_.learningRate) in_.training.set_learning_rate(*options_.learningRate);
    if (options_.schedule) *in_.training.mutable_schedule() = *options_.schedule;

    if (!options_.resume.empty() && isOneOf(options_.resume, options_.offloadFolders)) {
      SHEAF_RETURN_IF_ERROR(resumeFiles());
    } else if (!options_.resume.empty()) {
      io::SharedReading shared{static_cast<size_t>(job_.process()), static_cast<size_t>(job_.processes()),
                               [&](const std::string& state, const Status& mine) {
                                 return agreeOnStatus(job_.group(), "the state to resume", mine, state);
                               }};
      Expected<io::Checkpoint> checkpoint = io::Checkpoint::openNewest(
          options_.resume, [&](const std::string& text) { in_.warnings.push_back(text); }, shared);
      if (!checkpoint.ok()) return Status::error(cat("--resume: ", checkpoint.status().message()));
      Expected<StateFit> fit = checkState(*in_.plan, *checkpoint, "--resume");
      if (!fit.ok()) return fit.status();
      if (!fit->initial.empty())
        in_.warnings.push_back(cat("the state has no ", listText(fit->initial, 5), ", which ",
                                   fit->initial.size() == 1 ? "is frozen and keeps its initial value"
                                                            : "are frozen and keep their initial values"));
      if (!fit->fresh.empty())
        in_.warnings.push_back(cat("trained now, and frozen in the state: ", listText(fit->fresh, 5),
                                   "; optimizer state begins at zero there, and its bias correction goes on from the "
                                   "state's number of updates"));
      if (!fit->settled.empty())
        in_.warnings.push_back(cat("frozen now, and trained in the state: ", listText(fit->settled, 5),
                                   "; optimizer state is left out there"));
      in_.initialValues = !fit->initial.empty();
      const io::Manifest& manifest = checkpoint->manifest();
      in_.position = {manifest.step,
                      manifest.updates,
                      static_cast<uint64_t>(manifest.samples),
                      manifest.shuffleSeed,
                      manifest.lossScale,
                      manifest.length,
                      {},
                      runAfter(manifest.run)};
      if (manifest.seed != in_.training.seed())
        in_.warnings.push_back(cat("the state was saved by a run with seed ", manifest.seed, ", the plan has ",
                                   in_.training.seed(), ": random numbers go on differently"));
      in_.lastSaved = checkpoint->folder();
      in_.checkpoint = std::move(*checkpoint);
    }
    if (!options_.evaluate) {
      settleOrder();
      Expected<io::DataSource> data = io::DataSource::open(
          *in_.plan, options_.data, in_.position.shuffleSeed, io::DataReader::kTraining,
          {.firstSample = in_.position.samples,
           .waiting = {.failed = &control_.aborting, .interrupted = &control_.interrupted, .report = control_.note}});
      if (!data.ok()) return data.status();
      in_.notes.insert(in_.notes.end(), data->notes().begin(), data->notes().end());
      in_.data = std::move(*data);
      if (in_.data->isPiped() && job_.processes() > 1)
        return Status::error(
            "--data: a pipe is read by one process, and there are several: give files, or run all ranks in one");
      noteFewRows();
      SHEAF_RETURN_IF_ERROR(settleLength());
    }
    if (evaluates()) {
      Expected<io::DataSource> data =
          io::DataSource::open(*in_.plan, options_.evaluationData, std::nullopt, io::DataReader::kEvaluation);
      if (!data.ok()) return data.status();
      in_.notes.insert(in_.notes.end(), data->notes().begin(), data->notes().end());
      in_.evaluationData = std::move(*data);
      SHEAF_RETURN_IF_ERROR(checkEvaluable(*in_.plan, in_.evaluationData->rows()));
      // A wrong label would end the training at its first evaluation, before it has saved a state.
      if (!options_.evaluate && job_.first())
        SHEAF_RETURN_IF_ERROR(
            in_.evaluationData->checkClasses([this, end = std::chrono::steady_clock::now() + labelCheckTime(job_)] {
              return control_.interrupted || std::chrono::steady_clock::now() >= end;
            }));
    }
    if (!options_.weights.empty()) {
      Expected<io::Safetensors> weights = io::Safetensors::openWeights(options_.weights);
      if (!weights.ok()) return Status::error(cat("--weights: ", weights.status().message()));
      in_.weights = std::move(*weights);
    }
    if (evaluates()) SHEAF_RETURN_IF_ERROR(checkOutputs());
    in_.position.cpu = std::move(cpu);
    SHEAF_RETURN_IF_ERROR(checkOutputConflicts(options_, in_));
    return std::move(in_);
  }

 private:
  // Where all ranks' files can go on: after the step that the slowest one had made durable.
  Status resumeFiles() {
    auto wrong = [&](const std::string& why) { return Status::error(cat("--resume ", options_.resume, ": ", why)); };
    if (const std::string why = plan::whyNotRestartable(*in_.plan); !why.empty())
      return wrong(cat("it is the plan's --offload-dir, which cannot be resumed: ", why));
    Expected<Device*> device = loadDevice(in_.target);
    if (!device.ok()) return device.status();
    Expected<FileResume> found =
        findFileState(**device, *in_.plan, in_.planHash, options_.offloadFolders, job_, control_.files);
    if (!found.ok()) return wrong(found.status().message());
    in_.position = found->position;
    in_.position.run.number = found->run;
    in_.fileState =
        FileState{.plan = in_.planHash, .run = found->run, .step = in_.position.step, .evaluates = options_.evaluate};
    in_.lastSaved = options_.resume;
    return {};
  }

  bool resumes() const { return !options_.resume.empty(); }

  void noteFewRows() {
    if (in_.data->isPiped() || in_.data->rows() >= static_cast<uint64_t>(in_.plan->batch())) return;
    in_.notes.push_back(cat("note: the data have ", in_.data->rows(), in_.data->rows() == 1 ? " row" : " rows",
                            ", fewer than the batch of ", in_.plan->batch(),
                            ": each step reads rows several times; compile with a smaller --batch"));
  }

  // The order of rows is that of the state, unless --shuffle gives another.
  void settleOrder() {
    if (!options_.shuffleSeed || options_.shuffleSeed == in_.position.shuffleSeed) return;
    if (resumes())
      in_.warnings.push_back(
          cat("--shuffle ", *options_.shuffleSeed, ": the run that saved the state had ",
              in_.position.shuffleSeed ? cat("--shuffle ", *in_.position.shuffleSeed) : "no --shuffle",
              "; from here on rows come in another order"));
    in_.position.shuffleSeed = options_.shuffleSeed;
  }

  // Settles the step at which the run ends, and the length of a schedule that states none.
  Status settleLength() {
    SHEAF_RETURN_IF_ERROR(settleSteps());
    const std::optional<io::TrainingLength> before = std::move(in_.position.length);
    if (before) noteOtherData(*before);
    SHEAF_RETURN_IF_ERROR(settleSchedule(before));
    in_.position.length = {.steps = in_.steps,
                           .schedule = plan::scheduleText(in_.training.schedule()),
                           .batch = in_.plan->batch(),
                           .rows = in_.data->isPiped() ? 0 : static_cast<int64_t>(in_.data->rows())};
    return {};
  }

  Status settleSteps() {
    const int64_t done = in_.position.step;
    in_.steps = options_.steps;
    if (options_.epochs > 0) return settleEpochs();
    // A launcher may start the same command once more after the training is complete. A state beyond
    // --steps comes from another command.
    if (done > in_.steps)
      return Status::error(cat("--steps ", in_.steps, " is the length of the whole training, and the state is of step ",
                               done, " already: --steps ", done + in_.steps, " trains ", in_.steps, " more"));
    if (resumes() && done == in_.steps)
      in_.warnings.push_back(cat("nothing is left to train: the state is of step ", done, ", and --steps ", in_.steps,
                                 " is the length of the whole training"));
    return {};
  }

  Status settleEpochs() {
    if (in_.data->isPiped()) return Status::error("--epochs: a pipe does not say how many rows it has; give --steps");
    const uint64_t batch = static_cast<uint64_t>(in_.plan->batch()), epochs = static_cast<uint64_t>(options_.epochs);
    uint64_t samples = 0;
    if (__builtin_mul_overflow(epochs, in_.data->rows(), &samples) || samples > uint64_t{INT64_MAX})
      return Status::error(cat("--epochs ", epochs, " of ", in_.data->rows(), " rows are too many samples"));
    const uint64_t left = samples - std::min(samples, in_.position.samples);
    if (left < batch && in_.position.step > 0 && in_.position.samples <= samples)
      in_.warnings.push_back(cat("nothing is left to train: of --epochs ", epochs, " of ", in_.data->rows(), " rows ",
                                 in_.position.samples, " samples have been read"));
    else if (left < batch)
      return Status::error(cat("--epochs ", epochs, " of ", in_.data->rows(), " rows are ", samples,
                               " samples, of which ", in_.position.samples,
                               " have been read: what is left is less than a batch of ", batch));
    in_.steps = in_.position.step + static_cast<int64_t>(left / batch);
    return {};
  }

  // Warns if a step, or a pass over the data, is not what it was before the state.
  void noteOtherData(const io::TrainingLength& before) {
    if (before.batch != in_.plan->batch())
      in_.warnings.push_back(cat("the run that saved the state had a batch of ", before.batch, ", the plan has ",
                                 in_.plan->batch(), ": from here on a step reads other rows"));
    if (before.rows > 0 && !in_.data->isPiped() && before.rows != static_cast<int64_t>(in_.data->rows()))
      in_.warnings.push_back(cat("the run that saved the state read ", before.rows, " rows of data, and there are ",
                                 in_.data->rows(), " now: from here on a pass reads other rows"));
  }

  // The schedule is that of the plan or the option, its length that of the state's, if there is one and it is not
  // stated. So a run that is longer or shorter than the state's does not change the rates of the steps that both have.
  Status settleSchedule(const std::optional<io::TrainingLength>& before) {
    plan::Schedule& schedule = *in_.training.mutable_schedule();
    const bool lacks = plan::lacksLength(schedule);
    int64_t length = in_.steps;
    if (before) {
      Expected<plan::Schedule> saved = plan::parseSchedule(before->schedule);
      if (!saved.ok())
        return Status::error(cat("--resume: the state in ", in_.lastSaved, ": ", saved.status().message()));
      if (saved->steps() > 0) length = saved->steps();
    } else if (resumes() && options_.steps > 0) {
      in_.warnings.push_back(cat("the state is of an older version and does not say how long its training is: --steps ",
                                 in_.steps, " is taken for the length of all of it",
                                 lacks ? ", and for that of the learning-rate schedule" : ""));
    }
    if (lacks) {
      Expected<plan::Schedule> whole = plan::withLength(schedule, length);
      if (!whole.ok()) return whole.status();
      schedule = std::move(*whole);
    }
    if (!before) return {};
    const std::string text = plan::scheduleText(schedule);
    if (text != before->schedule)
      in_.warnings.push_back(
          cat("the learning-rate schedule is '", text, "'; the run that saved the state had '", before->schedule, "'"));
    else if (in_.steps != before->steps && schedule.steps() > 0)
      in_.warnings.push_back(cat("the training of the state is ", before->steps, " steps long, this run ends at step ",
                                 in_.steps, ": the learning-rate schedule stays '", text, "'",
                                 in_.steps > schedule.steps()
                                     ? cat(", whose rate no longer changes after step ", schedule.steps())
                                     : std::string(),
                                 "; --lr-schedule replaces it"));
    return {};
  }

  // There is something to write.
  Status checkOutputs() const {
    if (options_.outputs.empty()) return {};
    if (in_.plan->outputs_size() == 0)
      return Status::error(
          "--outputs: the model has no outputs besides its loss; export it with its logits as an output, and compile "
          "it "
          "with --loss 'cross_entropy(LOGITS)' or another loss of them");
    return {};
  }

  bool evaluates() const { return options_.evaluate || options_.evaluateEvery > 0; }

  const RunOptions& options_;
  RunControl& control_;
  Job& job_;
  RunInputs in_;
};

}  // namespace

Expected<RunInputs> readInputs(const RunOptions& options, RunControl& control, Job& job) {
  return Reader(options, control, job).read();
}

Expected<std::vector<std::string>> factsOf(const RunInputs& in, const RunOptions& options) {
  auto given = [](const std::string& path) { return std::string(path.empty() ? "not given" : "given"); };
  std::vector<std::string> facts{
      cat("a plan for ", in.plan->ranks(), " ranks with hash ", hexText(in.planHash)), cat("--steps ", in.steps),
      cat("--lr ", in.training.learning_rate(), " (bits ",
          hexText(std::bit_cast<uint64_t>(in.training.learning_rate())), ")"),
      cat("--lr-schedule ", plan::scheduleText(in.training.schedule())),
      cat("--shuffle ", in.position.shuffleSeed ? std::to_string(*in.position.shuffleSeed) : "not given"),
      cat("a start at step ", in.position.step, ", update ", in.position.updates, ", sample ", in.position.samples,
          in.position.lossScale ? cat(", loss scale ", in.position.lossScale->scale) : ""),
      cat("--resume ", given(options.resume)), cat("--weights ", in.weights ? weightsText(*in.weights) : "not given"),
      cat("--weights-partial ", options.weightsPartial ? "given" : "not given"),
      cat("--save ", io::isShardIndex(options.save) ? cat("in files of ", options.shardBytes) : given(options.save)),
      cat("--save-state ", given(options.saveState)), cat("--save-every ", options.saveEvery),
      cat("--keep-saves ", options.keepSaves), cat("--save-staging ", options.saveStaging),
      cat("--dump-gradients ", given(options.gradients)),
      // A GPU that is traced issues instructions one by one, the others would launch steps as graphs.
      cat("--offload-dir ", options.offloadFolders.empty() ? "not given" : "given"),
      cat("--trace ", given(options.trace)), cat("--poison ", options.poison ? "given" : "not given"),
      cat("--device ", in.target), cat("--allow-mixed-hosts ", options.allowMixedHosts ? "given" : "not given"),
      cat("--transport ", options.transport), cat("SHEAF_NETWORK_RATE ", in.sendRate),
      cat("--reduce-order ", plan::word(in.reduceOrder)), cat("--tuned ", given(options.tuned)),
      cat(options.graphs ? "no " : "", "--no-graphs"), cat(options.evaluate ? "" : "no ", "--eval"),
      cat("--eval-every ", options.evaluateEvery), cat("--outputs ", given(options.outputs))};
  for (const auto* data : {&in.data, &in.evaluationData})
    if (*data) {
      Expected<std::vector<std::string>> lines = (*data)->describe();
      if (!lines.ok()) return lines.status();
      facts.insert(facts.end(), lines->begin(), lines->end());
    }
  return facts;
}

Status checkDeviceOptions(const RunOptions& options, std::string_view device) {
  if (device == "cpu" && !options.tuned.empty())
    return Status::error("--tuned is for runs on GPUs: on the CPU there is one algorithm for each matrix product");
  if (device == "cuda" && options.transport != "sockets")
    return Status::error(cat("--transport ", options.transport, " is for runs on CPUs: GPUs exchange by NCCL"));
  if (device == "cuda" && options.allowMixedHosts)
    return Status::error("--allow-mixed-hosts is for runs on CPUs: GPUs compare the algorithms of their products");
  return {};
}

uint64_t stagingOfARank(const plan::Plan& plan, const RunOptions& options) {
  return options.saveStaging > 0 ? plan::mostStagingBytes(plan, options.saveStaging) : 0;
}

const std::string& stateFolder(const RunInputs& inputs, const RunOptions& options) {
  return inputs.fileState ? options.offloadFolders.front() : options.saveState;
}

json::Object startEvent(const RunInputs& inputs, const RunOptions& options, const Job& job) {
  const plan::Plan& plan = *inputs.plan;
  const std::string& state = stateFolder(inputs, options);
  const io::DataSource& data = inputs.data ? *inputs.data : *inputs.evaluationData;
  const std::string transport = inputs.target != "cpu" ? "nccl" : job.nodes() == 1 ? "memory" : options.transport;
  return {{"plan", inputs.planPath},
          {"model", plan.model()},
          {"ranks", plan.ranks()},
          {"processes", job.processes()},
          {"nodes", job.nodes()},
          {"transport", transport},
          {"exchange_bytes", exchangeBytes(plan, job, inputs.target)},
          {"zero", static_cast<int64_t>(plan.zero_stage())},
          {"cpu", inputs.position.cpu ? plan::jsonOf(*inputs.position.cpu) : json::Value()},
          {"save_staging_bytes", stagingOfARank(plan, options)},
          {"batch", plan.batch()},
          {"micro_batches", plan::microBatches(plan)},
          {"rows", data.isPiped() ? json::Value() : json::Value(data.rows())},
          {"schedule", plan::scheduleText(inputs.training.schedule())},
          {"step", inputs.position.step},
          {"steps", inputs.steps},
          {"state", state.empty() ? json::Value() : json::Value(state)}};
}

}  // namespace sheaf::exec
