// Feeds mutated models, plans, their texts, data, weights and states to the code that reads them. Seeded: every finding
// can be repeated.
//
// usage: sheaf-fuzz --corpus DIR [--runs N] [--seed S] [--only TARGET] [--first I] [--jobs J]
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "test/Paths.h"
#include "test/fuzz/Targets.h"

using namespace sheaf::fuzz;

int main(int argc, char** argv) {
  RunnerOptions options;
  options.jobs = std::max(1u, std::thread::hardware_concurrency());
  std::string corpus, only;
  for (int i = 1; i + 1 < argc; i += 2) {
    std::string name = argv[i], value = argv[i + 1];
    if (name == "--corpus") corpus = value;
    if (name == "--only") only = value;
    if (name == "--runs") options.runs = std::strtoull(value.c_str(), nullptr, 10);
    if (name == "--seed") options.seed = std::strtoull(value.c_str(), nullptr, 10);
    if (name == "--first") options.first = std::strtoull(value.c_str(), nullptr, 10);
    if (name == "--jobs") options.jobs = static_cast<unsigned>(std::strtoul(value.c_str(), nullptr, 10));
  }
  if (corpus.empty()) {
    std::fprintf(stderr,
                 "usage: sheaf-fuzz --corpus DIR [--runs N] [--seed S] [--only TARGET] [--first I] [--jobs J]\n");
    return 2;
  }
  setenv("SHEAF_LIBRARY_PATH", sheaf::paths::kLibraries, 0);
#ifdef __SANITIZE_ADDRESS__
  options.residentBytes *= 4;  // shadow memory and quarantine
  options.secondsPerInput *= 5;
#endif
  using Make = Target (*)(const std::string&);
  std::vector<Target> targets;
  for (Make make : {Make(onnxTarget), Make(exportTarget), Make(planTarget), Make(textTarget), Make(dataTarget),
                    Make(weightsTarget), Make(stateTarget), Make(simulateTarget)}) {
    Target target = make(corpus);
    if (only.empty() || target.name == only) targets.push_back(std::move(target));
  }
  uint64_t findings = runTargets(targets, options);
  std::printf("fuzz: %lu findings\n", findings);
  return findings ? 1 : 0;
}
