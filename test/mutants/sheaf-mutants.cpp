// Mutation test of the plan's proof: every single change of a kind is made to compiled plans, and what changes an order
// or a byte must be refused. What the verifier accepts is put to an oracle that shares no code with it (Oracle.h).
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/Text.h"
#include "runtime/plan/Digests.h"
#include "runtime/plan/Proof.h"
#include "runtime/plan/Verify.h"
#include "test/mutants/Mutations.h"
#include "test/mutants/Oracle.h"

namespace sheaf::mutants {
namespace {

const char kHelp[] = R"(Makes every mutant of compiled plans and checks that the verifier refuses what it must.

usage: sheaf-mutants PLAN... [--sample N] [--cross-check N] [--verbose]

  --sample N       at most N mutants of a kind and plan, evenly spread (default: all)
  --cross-check N  every N-th mutant that digests or the proof refuse goes to the oracle too: it must find a fault in most of them,
                   or its judgement of the survivors is worth nothing (default: 100; 0: none)
  --verbose        what the verifier says of each mutant

Exits with 1 if a mutant is accepted that the oracle finds at fault, or that could be spared: a wait, say.
)";

struct Options {
  std::vector<std::string> plans;
  int64_t sample = 0, crossCheck = 100;
  bool verbose = false;
};

struct Tally {
  int64_t mutants = 0, byStructure = 0, byDigest = 0, byProof = 0, survivors = 0, checked = 0, confirmed = 0;

  void add(const Tally& other) {
    mutants += other.mutants, byStructure += other.byStructure, byDigest += other.byDigest, byProof += other.byProof;
    survivors += other.survivors;
    checked += other.checked, confirmed += other.confirmed;
  }
};

std::string nameOf(const plan::Plan& plan) {
  return cat(plan.model(), " on ", plan.ranks(), " ranks at stage ", plan.zero_stage(),
             plan.training().clip_norm() > 0 ? ", clipped" : "");
}

class Run {
 public:
  explicit Run(const Options& options) : options_(options), tallies_(kMutationKinds.size()) {}

  Status plan(const std::string& path) {
    Expected<std::unique_ptr<plan::Plan>> read = plan::readProvedPlan(path);
    if (!read.ok()) return read.status();
    plan::Plan& original = **read;
    Oracle oracle(original);
    if (Verdict own = oracle.judge(original); !own.fault.empty())
      return Status::error(cat(path, ": the oracle finds a fault in the plan itself: ", own.fault));
    for (size_t k = 0; k < kMutationKinds.size(); ++k) {
      std::vector<Mutation> all = kMutationKinds[k].make(original);
      size_t count = options_.sample > 0 ? std::min(all.size(), size_t(options_.sample)) : all.size();
      for (size_t i = 0; i < count; ++i) one(original, oracle, k, all[i * all.size() / count]);
    }
    return {};
  }

  // Whether every mutant that had to be refused was.
  bool report() const {
    std::printf("\n%-36s %9s %9s %9s %12s %9s %9s\n", "kind", "mutants", "rejected", "by digest", "by structure",
                "by proof", "survivors");
    Tally sum;
    auto line = [](const char* name, const Tally& t) {
      std::printf("%-36s %9lld %9lld %9lld %12lld %9lld %9lld\n", name, static_cast<long long>(t.mutants),
                  static_cast<long long>(t.byStructure + t.byDigest + t.byProof), static_cast<long long>(t.byDigest),
                  static_cast<long long>(t.byStructure), static_cast<long long>(t.byProof),
                  static_cast<long long>(t.survivors));
    };
    for (size_t k = 0; k < kMutationKinds.size(); ++k) {
      line(kMutationKinds[k].name, tallies_[k]);
      sum.add(tallies_[k]);
    }
    line("all", sum);
    std::printf(
        "%lld survivors explained, %lld wrongly accepted; of %lld rejected mutants put to the oracle it finds %lld at "
        "fault\n",
        static_cast<long long>(sum.survivors - wrong_), static_cast<long long>(wrong_),
        static_cast<long long>(sum.checked), static_cast<long long>(sum.confirmed));
    return wrong_ == 0 && sum.mutants > 0;
  }

 private:
  void one(const plan::Plan& original, Oracle& oracle, size_t k, const Mutation& mutation) {
    const MutationKind& kind = kMutationKinds[k];
    Tally& tally = tallies_[k];
    plan::Plan mutant = original;
    mutation.apply(mutant);
    ++tally.mutants;
    auto say = [&](const char* what, const std::string& why) {
      std::printf("%s: %s: %s: %s: %s\n", nameOf(original).c_str(), what, kind.name, mutation.description.c_str(),
                  why.c_str());
    };
    auto rejected = [&](int64_t& by, const Status& status) {
      if (status.ok()) return false;
      ++by;
      // What cannot be indexed cannot be judged.
      if (options_.crossCheck > 0 && ++rejected_ % options_.crossCheck == 0 && plan::verifyPlan(mutant).ok()) {
        ++tally.checked;
        tally.confirmed += !oracle.judge(mutant).fault.empty();
      }
      if (options_.verbose) say("rejected", status.message());
      return true;
    };
    // In the order in which a plan's file is judged.
    if (rejected(tally.byDigest, plan::checkTables(mutant)) || rejected(tally.byStructure, plan::verifyPlan(mutant)) ||
        rejected(tally.byProof, plan::provePlan(mutant)) || rejected(tally.byDigest, plan::requireDigests(mutant)))
      return;
    // Exchanging what is equal changes nothing.
    if (mutant.SerializeAsString() == original.SerializeAsString()) {
      --tally.mutants;
      return;
    }
    ++tally.survivors;
    Verdict verdict = oracle.judge(mutant);
    if (!verdict.fault.empty() || !kind.mayBeEquivalent) {
      ++wrong_;
      say("WRONGLY ACCEPTED", verdict.fault.empty() ? "nothing depends on what was changed" : verdict.fault);
      return;
    }
    say("survivor", cat("the oracle finds all ", verdict.conflicts, " conflicting pairs ordered and all ",
                        verdict.values, " outputs and states as they were"));
  }

  const Options& options_;
  std::vector<Tally> tallies_;
  int64_t rejected_ = 0, wrong_ = 0;
};

Status parse(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; ++i) {
    std::string argument = argv[i];
    int64_t* number = argument == "--sample"        ? &options.sample
                      : argument == "--cross-check" ? &options.crossCheck
                                                    : nullptr;
    if (number) {
      if (++i == argc || !parseInteger(argv[i], *number) || *number < 0)
        return Status::error(argument + " takes a number, 0 or more");
    } else if (argument == "--verbose") {
      options.verbose = true;
    } else if (argument.starts_with("-")) {
      return Status::error("unknown option " + argument);
    } else {
      options.plans.push_back(argument);
    }
  }
  return options.plans.empty() ? Status::error("no plan is given") : Status();
}

}  // namespace
}  // namespace sheaf::mutants

int main(int argc, char** argv) {
  using namespace sheaf;
  mutants::Options options;
  if (Status parsed = mutants::parse(argc, argv, options); !parsed.ok()) {
    std::fprintf(stderr, "sheaf-mutants: %s\n\n%s", parsed.message().c_str(), mutants::kHelp);
    return 2;
  }
  mutants::Run run(options);
  for (const std::string& path : options.plans)
    if (Status status = run.plan(path); !status.ok()) {
      std::fprintf(stderr, "sheaf-mutants: %s\n", status.message().c_str());
      return 1;
    }
  return run.report() ? 0 : 1;
}
