// sheaf profile: measures this machine for the simulator.
#include <algorithm>
#include <cstdio>
#include <fstream>

#include "runtime/base/Text.h"
#include "runtime/exec/DeviceLibrary.h"
#include "runtime/exec/Machine.h"
#include "runtime/io/AtomicFile.h"
#include "runtime/plan/Types.h"
#include "runtime/schedule/Measurement.h"
#include "tools/sheaf/Arguments.h"
#include "tools/sheaf/ProfileKernels.h"

namespace sheaf::tool {

static const char kHelp[] = R"(Measures this machine, so that `sheaf simulate` can tell what a plan takes on it.

usage: sheaf profile -o P.json [options]

  -o P.json              where the profile is written
  --ranks N              most ranks that will run here (default: the cores, but at least 4)
  --threads-per-rank T   measure ranks of T threads only (default: 1, 2, 4, ... up to the cores)

Nothing else should run meanwhile. It takes about half a minute.
)";

namespace {

// The processor's name, as far as the operating system knows it.
std::string processorName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name"))
      if (size_t colon = line.find(": "); colon != std::string::npos) return line.substr(colon + 2);
  return "a processor of unknown name";
}

std::string baseName(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  const std::string name = slash == std::string::npos ? path : path.substr(slash + 1);
  return name.substr(0, name.find('.'));
}

}  // namespace

int profile(const std::vector<std::string>& arguments) {
  std::string output;
  schedule::MeasureOptions options;
  options.cores = exec::availableCores();
  options.memoryBytes = exec::machineMemory();
  options.ranks = std::max<int64_t>(options.cores, 4);
  Arguments parser("profile", "profile -o P.json");
  parser.option("-o", output);
  parser.option("--ranks", options.ranks, 1, 256);
  parser.option("--threads-per-rank", options.threads, 1, 1024);
  if (Status parsed = parser.parse(arguments); !parsed.ok()) return fail(parsed.message());
  if (parser.help) return help(kHelp);
  if (output.empty()) return fail("-o P.json is missing: where is the profile to be written?");
  options.name = baseName(output);
  options.machine = cat(options.cores, options.cores == 1 ? " core of " : " cores of ", processorName());
  options.progress = [](const std::string& what) { std::fprintf(stderr, "sheaf: %s\n", what.c_str()); };
  // Before half a minute of measuring: an output that cannot be written is an error at once.
  Expected<io::AtomicFile> file = io::AtomicFile::create(output);
  if (!file.ok()) return fail(file.status().message());
  Expected<Device*> device = exec::loadDevice("cpu");
  if (!device.ok()) return fail(device.status().message());
  if (!compileSampleKernels(options)) return 1;
  Expected<schedule::Profile> measured = schedule::measure(**device, options);
  if (!measured.ok()) return fail(measured.status().message());
  const std::string text = json::write(measured->toJson(), 1) + "\n";
  Status written = file->write(std::as_bytes(std::span(text)));
  if (written.ok()) written = file->commit();
  return written.ok() ? 0 : fail(written.message());
}

}  // namespace sheaf::tool
