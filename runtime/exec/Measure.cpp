#include "runtime/exec/Measure.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <span>

#include "runtime/base/Print.h"
#include "runtime/base/Text.h"
#include "runtime/base/WrittenPath.h"
#include "runtime/exec/DeviceLibrary.h"
#include "runtime/exec/Job.h"
#include "runtime/exec/Machine.h"
#include "runtime/exec/OptionalLibraries.h"
#include "runtime/plan/PlanFile.h"
#include "runtime/plan/Probe.h"
#include "runtime/plan/Proof.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/Words.h"

namespace sheaf::exec {
namespace {

// "card" of "out/card.json".
std::string baseName(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  const std::string name = slash == std::string::npos ? path : path.substr(slash + 1);
  return name.substr(0, name.find('.'));
}

class Measurer {
 public:
  Measurer(const RunOptions& options, RunControl& control, Job& job)
      : options_(options), control_(control), job_(job) {}

  Status execute() {
    Expected<measure::MeasureProfile> measureProfile = loadMeasureProfile();
    if (!measureProfile.ok()) return measureProfile.status();
    SHEAF_RETURN_IF_ERROR(readProbe());
    SHEAF_RETURN_IF_ERROR(settle());
    Expected<Device*> device = loadDevice(target_);
    if (!device.ok()) return device.status();
    if (measured_.gpu) SHEAF_RETURN_IF_ERROR(describeGpus(**device));
    measured_.checkInterrupt = [this] {
      return control_.interrupted ? Status::error("interrupted: nothing is written") : Status();
    };
    measured_.aborted = [this] { control_.aborting = true; };
    measured_.abandon = control_.abandon;
    auto print = [](const std::string& what) { out::fprintf(stderr, "sheaf-run: %s\n", what.c_str()); };
    if (job_.first() && !options_.quiet) measured_.progress = print;
    if (job_.first() && job_.lacksSecret()) print(cat("warning: ", Job::kNoSecret));
    Expected<std::string> profile = (*measureProfile)(**device, measured_);
    if (!profile.ok()) return profile.status();
    if (!file_) return {};
    SHEAF_RETURN_IF_ERROR(writeProfile(*profile, *file_));
    if (!options_.quiet) print(cat("wrote ", writtenPath(options_.measure), ": a profile; give it to --profile"));
    return {};
  }

 private:
  Status readProbe() {
    Expected<std::unique_ptr<plan::Plan>> probe = plan::readProvedPlan(options_.plan, undigested(options_));
    if (!probe.ok()) return probe.status();
    if (!plan::isProbe(**probe))
      return Status::error(cat(options_.plan, " is a training plan, which --measure has no use for; `sheaf profile ",
                               "--target cuda:sm_90 -o PROBE.plan` makes what it measures with"));
    target_ = options_.device.empty() ? plan::deviceOf((*probe)->images(0)) : options_.device;
    if (!plan::imageFor(**probe, target_))
      return Status::error(cat("the probe has kernels for ", plan::targetsText(**probe), ", none for --device ",
                               target_, "; `sheaf profile --target` says what they are compiled for"));
    Expected<uint64_t> hash = plan::planHash(options_.plan);
    if (!hash.ok()) return hash.status();
    hash_ = *hash;
    measured_ = thisMachine(options_.measure);
    measured_.gpu = target_ != "cpu";
    measured_.samples = plan::samplesOf(**probe);
    measured_.threads = options_.threadsPerRank;
    measured_.graphs = options_.graphs;
    measured_.reduceOrder = options_.reduceOrder.value_or(plan::Training::TREE);
    measured_.products = options_.tuned;
    measured_.kernels = std::move(**probe);
    if (std::error_code ignored; !options_.tuned.empty() && !std::filesystem::exists(options_.tuned, ignored))
      return Status::error(cat("--tuned ", options_.tuned, ": there is no such file; --measure takes the table that a ",
                               "training run with --tuned has made"));
    if (options_.offloadFolders.size() > 1)
      return Status::error("--measure takes one --offload-dir: the disk that it measures");
    // One process measures it, since the profile wants to know what its ranks share.
    if (job_.first() && !options_.offloadFolders.empty()) measured_.disk = options_.offloadFolders.front();
    // Before a minute of measuring: an output that cannot be written is an error at once.
    if (!job_.first()) return {};
    Expected<AtomicFile> file = AtomicFile::create(options_.measure);
    if (!file.ok()) return Status::error(cat("--measure: ", file.status().message()));
    file_.emplace(std::move(*file));
    return {};
  }

  Status settle() {
    if (job_.processes() > 1 && !measured_.gpu)
      return Status::error("--measure on CPUs takes one process: a profile knows the cores of one machine");
    SHEAF_RETURN_IF_ERROR(job_.agree(
        {cat("--measure with a probe with hash ", hexText(hash_)), cat("--device ", target_),
         cat("--reduce-order ", plan::word(measured_.reduceOrder)), cat(options_.graphs ? "no " : "", "--no-graphs"),
         cat("--tuned ", options_.tuned.empty() ? "not given" : "given")}));
    const int64_t ranks = measured_.kernels.ranks();
    if (!measured_.gpu) {
      if (ranks > 1) measured_.ranks = ranks;
      return {};
    }
    if (job_.processes() > 1 && ranks > 1 && ranks != job_.processes())
      return Status::error(cat("the probe is for ", ranks, " ranks, the job has ", job_.processes(),
                               " processes; `sheaf profile` without --ranks makes one for any number"));
    measured_.ranks = job_.processes() > 1 ? job_.processes() : ranks;
    measured_.ranksPerNode = measured_.ranks;
    measured_.processes = job_.group();
    return job_.group() ? countNodes() : Status();
  }

  // How many processes share a node, which must be neighbours, and as many on each. As in a run, SHEAF_HOST replaces
  // the host's name.
  Status countNodes() {
    const char* host = std::getenv("SHEAF_HOST");
    Expected<std::vector<std::string>> nodes =
        job_.group()->allGather(host ? cat("SHEAF_HOST=", host) : machineId(), "the machines");
    if (!nodes.ok()) return nodes.status();
    const size_t count = static_cast<size_t>(std::count(nodes->begin(), nodes->end(), nodes->front()));
    bool even = nodes->size() % count == 0;
    for (size_t i = 0; i < nodes->size() && even; ++i) {
      const bool begins = i % count == 0;
      even = begins ? std::count(nodes->begin(), nodes->begin() + static_cast<ptrdiff_t>(i), (*nodes)[i]) == 0
                    : (*nodes)[i] == (*nodes)[i - 1];
    }
    if (!even)
      return Status::error(
          "--measure needs as many processes on each machine, and their ranks in a row; torchrun and "
          "srun start them so, mpirun with --map-by node does not");
    measured_.ranksPerNode = static_cast<int64_t>(count);
    return {};
  }

  Status describeGpus(Device& device) {
    Expected<DeviceFacts> facts = device.facts(job_.group(), measured_.ranksPerNode < measured_.ranks);
    if (!facts.ok()) return facts.status();
    const bool share = job_.processes() == 1 && measured_.ranks > 1;
    measured_.machine = share ? cat(facts->name, ", which ", measured_.ranks, " ranks share")
                              : cat(measured_.ranks, " x ", facts->name, ", ", measured_.ranksPerNode, " a node");
    measured_.memoryBytes = facts->memoryBytes / static_cast<uint64_t>(share ? measured_.ranks : 1);
    measured_.memorySource = "what was free, less what CUDA's libraries take";
    if (measured_.memoryBytes == 0) return Status::error(cat(facts->name, " has no memory left to measure with"));
    // Who has least says what all may use.
    if (!job_.group()) return {};
    Expected<std::vector<std::string>> all = job_.group()->allGather(cat(measured_.memoryBytes), "the memory of GPUs");
    if (!all.ok()) return all.status();
    for (const std::string& theirs : *all)
      if (int64_t bytes = 0; parseInteger(theirs, bytes) && bytes > 0)
        measured_.memoryBytes = std::min(measured_.memoryBytes, static_cast<uint64_t>(bytes));
    return {};
  }

  const RunOptions& options_;
  RunControl& control_;
  Job& job_;
  std::string target_;
  uint64_t hash_ = 0;
  measure::MeasureOptions measured_;
  std::optional<AtomicFile> file_;
};

}  // namespace

measure::MeasureOptions thisMachine(const std::string& file) {
  measure::MeasureOptions options;
  options.name = baseName(file);
  options.cores = availableCores();
  options.ranks = std::max<int64_t>(options.cores, 4);
  options.machine = cat(options.cores, options.cores == 1 ? " core of " : " cores of ", processorName());
  options.memoryBytes = machineMemory();
  options.memorySource = "what the operating system grants this process, for all ranks together";
  return options;
}

Status writeProfile(const std::string& profile, AtomicFile& file) {
  Status written = file.write(std::as_bytes(std::span(profile)));
  return written.ok() ? file.commit() : written;
}

Status measure(const RunOptions& options, RunControl& control) {
  Expected<std::unique_ptr<Job>> job = Job::join(control.interrupted, options.quiet, control.lost);
  if (!job.ok()) return job.status();
  return (*job)->end(Measurer(options, control, **job).execute());
}

}  // namespace sheaf::exec
