// Whether plans compute the same bits: whether they were compiled from the same program of one leaf, the same leaves,
// settings and parameters. How the leaves are divided among ranks and micro-batches, the stage, the schedule and memory
// do not count. docs/proof.md says what this takes as given.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/base/Text.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::plan {

struct Difference {
  std::string subject;        // "the number of leaves"
  std::string first, second;  // what each plan has
  std::string options;        // options of `sheaf compile` that only one of them was given; may be empty
  std::string remedy;         // "compile both with --leaves 8"
  bool certain = true;        // false: terms of instructions differ, which may still give the same bits

  // "the number of leaves is 8 and 4; compile both with --leaves 8". Inline, because runs load comparePlans() and do
  // not link this library.
  std::string text() const {
    std::string text = cat(subject, " is ", first, " and ", second);
    if (!options.empty()) text += cat("; of the options, ", options);
    return remedy.empty() ? text : cat(text, "; ", remedy);
  }
};

struct Comparison {
  std::optional<Difference> difference;  // the first one; none: they compute the same bits
  std::vector<std::string> notes;        // what was not compared, such as evaluations of different batches
  bool proved = false;                   // whether the instructions were compared
};

// Compares what the instructions of two plans compute (leaves/LeafDataflow.h), of plans that compareOrigins() finds no
// difference in. An error names the plan by the given name. With `most`, not where that takes more pieces of values.
Expected<Comparison> compareInstructions(const Plan& first, const std::string& firstName, const Plan& second,
                                         const std::string& secondName, std::optional<uint64_t> most = std::nullopt);

// Compares two plans that verifyPlan() and the digests have accepted. An error if one does not state what it was
// compiled from; it names the plan by the given name.
Expected<Comparison> compareOrigins(const Plan& first, const std::string& firstName, const Plan& second,
                                    const std::string& secondName);

// Pieces of values that are followed where a comparison should take no more than a few seconds.
inline constexpr uint64_t kQuickPieces = uint64_t{1} << 22;

// Compares origins, and then instructions if that takes at most kQuickPieces a plan: a note says if it does not.
Expected<Comparison> comparePlans(const Plan& first, const std::string& firstName, const Plan& second,
                                  const std::string& secondName);

// The type of comparePlans(), which libsheaf_same.so exports as sheaf_compare_plans (extern "C").
using ComparePlans = Expected<Comparison> (*)(const Plan& first, const std::string& firstName, const Plan& second,
                                              const std::string& secondName);

}  // namespace sheaf::plan
