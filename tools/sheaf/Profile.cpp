// sheaf profile: measures this machine for the simulator, or makes what another one is measured with.
#include <cstdio>

#include "runtime/base/Text.h"
#include "runtime/exec/DeviceLibrary.h"
#include "runtime/exec/Measure.h"
#include "runtime/plan/Digests.h"
#include "runtime/plan/PlanFile.h"
#include "tools/sheaf/Arguments.h"
#include "tools/sheaf/CompileProbe.h"

namespace sheaf::tool {

static const char kHelp[] = R"(Measures this machine, so that `sheaf simulate` can tell what a plan takes on it.

usage: sheaf profile -o P.json [options]
       sheaf profile -o PROBE.plan --target LIST [--ranks N]

  -o P.json              where the profile is written
  --ranks N              most ranks that will run here (default: the cores, but at least 4)
  --threads-per-rank T   measure ranks of T threads only (default: 1, 2, 4, ... up to the cores)

Nothing else should run meanwhile. It takes about half a minute.

Where this program does not run, such as on a machine with GPUs, `sheaf-run PROBE.plan --measure P.json` measures:

  -o PROBE.plan          where the probe is written, a plan of the kernels that are timed
  --target LIST          what they are compiled for, as of `sheaf compile`: cuda:sm_90, or cpu,cuda:sm_80,cuda:sm_90
  --cpu CPU              a processor for the target cpu, as of `sheaf compile` (default: this one)
  --ranks N              ranks that one process has, sharing its GPU (default 1; several processes have one each)
)";

namespace {

int writeProbe(const codegen::KernelTargets& targets, int64_t ranks, const std::string& output) {
  // Before the compiling: an output that cannot be written is an error at once.
  if (Expected<AtomicFile> file = AtomicFile::create(output); !file.ok()) return fail(file.status().message());
  plan::Plan probe;
  if (!compileProbe(targets, ranks, probe)) return 1;
  plan::redigest(probe);
  Status written = plan::writePlan(output, probe);
  return written.ok() ? 0 : fail(written.message());
}

int measureHere(measure::MeasureOptions options, const std::string& output) {
  // Before half a minute of measuring.
  Expected<AtomicFile> file = AtomicFile::create(output);
  if (!file.ok()) return fail(file.status().message());
  Expected<Device*> device = exec::loadDevice("cpu");
  if (!device.ok()) return fail(device.status().message());
  if (!compileProbe({}, options.ranks, options.kernels)) return 1;
  options.samples = plan::samplesOf(options.kernels);
  options.progress = [](const std::string& what) { std::fprintf(stderr, "sheaf: %s\n", what.c_str()); };
  Expected<profile::Profile> measured = measure::measureMachine(**device, options);
  if (!measured.ok()) return fail(measured.status().message());
  Status written = exec::writeProfile(*measured, *file);
  return written.ok() ? 0 : fail(written.message());
}

}  // namespace

int profile(const std::vector<std::string>& arguments) {
  std::string output;
  int64_t ranks = 0, threads = 0;
  codegen::KernelTargets targets;
  bool probe = false, processor = false;
  Arguments parser("profile", "profile -o P.json");
  parser.option("-o", output);
  parser.option("--ranks", ranks, 1, 256);
  parser.option("--threads-per-rank", threads, 1, 1024);
  parser.option("--target", [&](const std::string& text) {
    std::string error;
    mlir::FailureOr<std::vector<codegen::KernelTarget>> list = codegen::parseTargets(text, error);
    if (mlir::failed(list)) return Status::error(cat("--target ", text, ": ", error));
    targets.list = std::move(*list);
    probe = true;
    return Status();
  });
  parser.option("--cpu", [&](const std::string& text) {
    targets.cpu = text;
    processor = true;
    return Status();
  });
  if (Status parsed = parser.parse(arguments); !parsed.ok()) return fail(parsed.message());
  if (parser.help) return help(kHelp);
  if (output.empty()) return fail("-o P.json is missing: where is the profile to be written?");
  if (probe && threads > 0)
    return fail("--threads-per-rank is for measuring, which --target leaves to `sheaf-run --measure`");
  if (processor && !probe) return fail("--cpu is for --target: this machine is measured with its own kernels");
  if (probe) return writeProbe(targets, std::max<int64_t>(ranks, 1), output);
  measure::MeasureOptions options = exec::thisMachine(output);
  if (ranks > 0) options.ranks = ranks;
  options.threads = threads;
  return measureHere(std::move(options), output);
}

}  // namespace sheaf::tool
