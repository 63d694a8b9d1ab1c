// Mutation test of what `sheaf same` compares: good plans that compute something else must be distinguished.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/Text.h"
#include "runtime/plan/Digests.h"
#include "runtime/plan/Proof.h"
#include "runtime/plan/Verify.h"
#include "runtime/plan/leaves/LeafDataflow.h"
#include "test/mutants/LeafMutations.h"

namespace sheaf::mutants {
namespace {

const char kHelp[] =
    R"(Makes every mutant of compiled plans that is about leaves, states its digests again, and checks that what it computes is
distinguished from what the plan computes.

usage: sheaf-leaf-mutants PLAN... [--sample N] [--verbose]

  --sample N  at most N mutants of a kind and plan, evenly spread (default: all)
  --verbose   what is said of each mutant

Exits with 1 if a mutant that is a good plan counts as the same, of a kind that changes what is computed, or if the dataflow that the
proof compares (Dataflow.h) knows it as another one.
)";

struct Tally {
  int64_t mutants = 0, refused = 0, apart = 0, same = 0;
};

class Run {
 public:
  Run(int64_t sample, bool verbose) : sample_(sample), verbose_(verbose), tallies_(kLeafMutationKinds.size()) {}

  Status plan(const std::string& path) {
    Expected<std::unique_ptr<plan::Plan>> read = plan::readProvedPlan(path);
    if (!read.ok()) return read.status();
    const plan::Plan& original = **read;
    Expected<plan::LeafDataflow> own = plan::followLeaves(original);
    if (!own.ok()) return Status::error(cat(path, ": ", own.status().message()));
    for (size_t k = 0; k < kLeafMutationKinds.size(); ++k) {
      const std::vector<Mutation> all = kLeafMutationKinds[k].make(original);
      const size_t count = sample_ > 0 ? std::min(all.size(), static_cast<size_t>(sample_)) : all.size();
      for (size_t i = 0; i < count; ++i) one(original, *own, k, all[i * all.size() / count]);
    }
    return {};
  }

  bool report() const {
    std::printf("\n%-40s %9s %9s %9s %9s\n", "kind", "mutants", "refused", "apart", "same");
    int64_t mutants = 0;
    for (size_t k = 0; k < kLeafMutationKinds.size(); ++k) {
      const Tally& t = tallies_[k];
      mutants += t.mutants;
      std::printf("%-40s %9lld %9lld %9lld %9lld\n", kLeafMutationKinds[k].name, static_cast<long long>(t.mutants),
                  static_cast<long long>(t.refused), static_cast<long long>(t.apart), static_cast<long long>(t.same));
    }
    std::printf("%lld wrongly counted as the same\n", static_cast<long long>(wrong_));
    return wrong_ == 0 && mutants > 0;
  }

 private:
  void one(const plan::Plan& original, const plan::LeafDataflow& own, size_t k, const Mutation& mutation) {
    plan::Plan mutant = original;
    mutation.apply(mutant);
    if (mutant.SerializeAsString() == original.SerializeAsString()) return;
    Tally& tally = tallies_[k];
    ++tally.mutants;
    auto say = [&](const char* what, const std::string& why) {
      std::printf("%s: %s: %s: %s\n", what, kLeafMutationKinds[k].name, mutation.description.c_str(), why.c_str());
    };
    // What changes an order or reads what nothing wrote is not a good plan, whatever its digests.
    Status status = plan::verifyPlan(mutant);
    if (status.ok()) plan::redigest(mutant);
    if (status.ok()) status = plan::provePlan(mutant);
    Expected<plan::LeafDataflow> others = status.ok() ? plan::followLeaves(mutant) : status;
    if (!others.ok()) {
      ++tally.refused;
      if (verbose_) say("refused", others.status().message());
      return;
    }
    const std::optional<plan::LeafDifference> found =
        plan::firstDifference({original, own}, {mutant, *others}, /*evaluations=*/true);
    if (found) {
      ++tally.apart;
      if (verbose_) say("apart", found->value);
      return;
    }
    ++tally.same;
    const bool equal = dataflowOf(mutant) == dataflowOf(original);
    if (!kLeafMutationKinds[k].mayBeEquivalent || !equal) {
      ++wrong_;
      say("WRONGLY THE SAME", equal ? "nothing depends on what was changed" : "its dataflow is another one");
    } else {
      say("the same", "its dataflow is the same");
    }
  }

  // As the proof has it, without what only leaves know of kernels.
  static std::string dataflowOf(const plan::Plan& plan) {
    std::string text;
    for (uint64_t digest : plan.digests().dataflow()) text += hexText(digest);
    return text;
  }

  const int64_t sample_;
  const bool verbose_;
  std::vector<Tally> tallies_;
  int64_t wrong_ = 0;
};

}  // namespace
}  // namespace sheaf::mutants

int main(int argc, char** argv) {
  using namespace sheaf;
  std::vector<std::string> plans;
  int64_t sample = 0;
  bool verbose = false, good = true;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--sample" && i + 1 < argc)
      good &= parseInteger(argv[++i], sample) && sample >= 0;
    else if (argument == "--verbose")
      verbose = true;
    else if (argument.starts_with("-"))
      good = false;
    else
      plans.push_back(argument);
  }
  if (!good || plans.empty()) {
    std::fprintf(stderr, "%s", mutants::kHelp);
    return 2;
  }
  mutants::Run run(sample, verbose);
  for (const std::string& path : plans)
    if (Status status = run.plan(path); !status.ok()) {
      std::fprintf(stderr, "sheaf-leaf-mutants: %s\n", status.message().c_str());
      return 1;
    }
  return run.report() ? 0 : 1;
}
