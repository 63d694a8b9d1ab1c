// sheaf profile: measures this machine for the simulator, or makes what another one is measured with.
#include <cstdio>

#include "runtime/base/Print.h"
#include "runtime/base/Text.h"
#include "runtime/base/WrittenPath.h"
#include "runtime/exec/DeviceLibrary.h"
#include "runtime/exec/Measure.h"
#include "runtime/plan/Digests.h"
#include "runtime/plan/PlanFile.h"
#include "tools/sheaf/Command.h"
#include "tools/sheaf/CompileProbe.h"

namespace sheaf::tool {

namespace {

int writeProbe(const codegen::KernelTargets& targets, int64_t ranks, const std::string& output) {
  // Before the compiling: an output that cannot be written is an error at once.
  if (Expected<AtomicFile> file = AtomicFile::create(output); !file.ok()) return fail(file.status().message());
  plan::Plan probe;
  if (!compileProbe(targets, ranks, probe)) return 1;
  plan::redigest(probe);
  if (Status written = plan::writePlan(output, probe); !written.ok()) return fail(written.message());
  note(cat("wrote ", writtenPath(output), ": a probe; next, on the machine to measure: sheaf-run ", shellPath(output),
           " --measure P.json"));
  return kDone;
}

int measureHere(measure::MeasureOptions options, const std::string& output) {
  // Before half a minute of measuring.
  Expected<AtomicFile> file = AtomicFile::create(output);
  if (!file.ok()) return fail(file.status().message());
  Expected<Device*> device = exec::loadDevice("cpu");
  if (!device.ok()) return fail(device.status().message());
  if (!compileProbe({}, options.ranks, options.kernels)) return 1;
  options.samples = plan::samplesOf(options.kernels);
  options.progress = note;
  Expected<std::string> measured = measure::measureProfile(**device, options);
  if (!measured.ok()) return fail(measured.status().message());
  if (Status written = exec::writeProfile(*measured, *file); !written.ok()) return fail(written.message());
  note(cat("wrote ", writtenPath(output), ": a profile; give it to --profile"));
  return kDone;
}

struct ProfileOptions {
  std::string output, disk;
  int64_t ranks = 0, threads = 0;
  codegen::KernelTargets targets;
};

int profile(ProfileOptions& o, const options::Given& given) {
  const bool probe = given.has("--target");
  if (probe && given.has("--threads-per-rank"))
    return misuse("--threads-per-rank is for measuring, which --target leaves to `sheaf-run --measure`");
  if (probe && given.has("--disk"))
    return misuse("--disk is for measuring this machine; a probe measures a GPU and its links");
  if (given.has("--cpu") && !probe)
    return misuse("--cpu is for --target: this machine is measured with its own kernels");
  if (Status status = codegen::checkCpu(o.targets); !status.ok()) return misuse(status.message());
  if (Status status = codegen::checkToolkit(o.targets); !status.ok()) return fail(status.message());
  if (probe) return writeProbe(o.targets, std::max<int64_t>(o.ranks, 1), o.output);
  measure::MeasureOptions options = exec::thisMachine(o.output);
  if (o.ranks > 0) options.ranks = o.ranks;
  options.threads = o.threads;
  options.disk = o.disk;
  return measureHere(std::move(options), o.output);
}

}  // namespace

Command profileCommand() {
  using O = ProfileOptions;
  using Row = options::Rows<O>;
  options::Table table{
      "sheaf profile",
      "Measures this machine for `sheaf simulate`, or makes the probe that another machine is measured with.",
      {"sheaf profile -o P.json [options]", "sheaf profile -o PROBE.plan --target LIST [options]"},
      {},
      {},
      "Measuring takes about half a minute. Nothing else should run meanwhile.\n\n"
      "Where this program does not run, such as on a machine with GPUs, `sheaf-run PROBE.plan --measure P.json` "
      "measures. A probe is a plan of the kernels that are timed."};
  table.sections = {
      {"Options",
       {Row::text<&O::output>("-o", "FILE", "File for the profile, or for the probe.")
            .writes([](const options::Given& given) {
              return std::vector<std::string>{given.has("--target") ? "plan" : "json"};
            })
            .required("where is the profile to be written?"),
        Row::integer<&O::ranks>(
            "--ranks", "N", 1, 256,
            "Most ranks that will run here; with --target, the ranks of one process, which share its "
            "GPU.")
            .defaultsTo("the cores, but at least 4; with --target 1"),
        Row::integer<&O::threads>("--threads-per-rank", "T", 1, 1024, "Measure only ranks of T threads.")
            .defaultsTo("1, 2, 4, ... up to the cores"),
        Row::text<&O::disk>(
            "--disk", "DIR",
            "Measure reads and writes of this folder's disk as well, how long it takes to make a step durable, and the "
            "host memory's bandwidth, for plans with --offload KIND=file: some 12 seconds after a file of at most 1 "
            "GiB has been written, which is removed.")
            .defaultsTo("none")}},
      {"Probe",
       {Row::parsed<&O::targets, &codegen::KernelTargets::list>(
            "--target", "LIST", "cpu or cuda:sm_NN, such as cuda:sm_90, or a list of them",
            "Make a probe for these targets, as of `sheaf compile`: cuda:sm_90, or cpu,cuda:sm_80,cuda:sm_90.",
            codegen::parseTargets),
        Row::text<&O::targets, &codegen::KernelTargets::cpu>("--cpu", "NAME",
                                                             "Processor for the target cpu, as of `sheaf compile`.")}}};
  return command(std::move(table), profile);
}

}  // namespace sheaf::tool
