// sheaf same: whether plans compute the same bits.
#include <cstdio>

#include "runtime/base/Json.h"
#include "runtime/plan/Proof.h"
#include "runtime/plan/Same.h"
#include "runtime/plan/Summary.h"
#include "runtime/plan/Types.h"
#include "tools/sheaf/Command.h"
#include "tools/sheaf/PlanKinds.h"

namespace sheaf::tool {
namespace {

struct SameOptions {
  std::vector<std::string> plans;
  std::string format = "text";
};

std::string layoutText(const plan::Plan& plan) {
  const int64_t microBatches = plan::microBatches(plan);
  return cat(plan::divisionText(plan), microBatches > 1 ? cat(", ", microBatches, " micro-batches") : "");
}

int same(SameOptions& o, const options::Given&) {
  if (o.plans.size() < 2) return misuse("sheaf same compares two plans or more");
  std::vector<std::unique_ptr<plan::Plan>> plans;
  json::Array list, notes;
  std::string text;
  std::optional<plan::Difference> difference;
  std::string other;
  for (const std::string& path : o.plans) {
    Expected<std::unique_ptr<plan::Plan>> plan = plan::readProvedPlan(path);
    if (!plan.ok()) return fail(plan.status().message());
    if (Status status = requireModel(**plan, path); !status.ok()) return fail(status.message());
    plans.push_back(std::move(*plan));
    list.push_back(json::Object{{"plan", path},
                                {"ranks", plans.back()->ranks()},
                                {"zero", static_cast<int64_t>(plans.back()->zero_stage())},
                                {"division", plan::divisionText(*plans.back())},
                                {"micro_batches", plan::microBatches(*plans.back())},
                                {"leaves", plans.back()->origin().leaves()}});
  }
  for (size_t i = 1; i < plans.size() && !difference; ++i) {
    Expected<plan::Comparison> comparison = plan::compareOrigins(*plans[0], o.plans[0], *plans[i], o.plans[i]);
    if (!comparison.ok()) return fail(comparison.status().message());
    difference = comparison->difference;
    other = o.plans[i];
    for (const std::string& note : comparison->notes) {
      text += cat("note: ", o.plans[0], " and ", other, ": ", note, "\n");
      notes.push_back(cat(o.plans[0], " and ", other, ": ", note));
    }
    if (difference) break;
    comparison = plan::compareInstructions(*plans[0], o.plans[0], *plans[i], other);
    if (!comparison.ok()) return fail(comparison.status().message());
    difference = comparison->difference;
  }
  if (o.format == "json") {
    json::Object object{{"same", !difference}, {"plans", list}, {"notes", notes}};
    if (difference)
      object.set("difference", json::Object{{"plan", other},
                                            {"subject", difference->subject},
                                            {"first", difference->first},
                                            {"second", difference->second},
                                            {"options", difference->options},
                                            {"remedy", difference->remedy}});
    print(json::write(std::move(object), 2) + "\n");
    return difference ? kFailed : kDone;
  }
  if (difference)
    return fail(
        cat(o.plans[0], " and ", other,
            difference->certain ? " do not compute the same bits: " : " are not proved to compute the same bits: ",
            difference->text()));
  const int64_t leaves = plans[0]->origin().leaves();
  text += cat("the same bits, with ", counted(leaves, "leaf", "leaves"), " of ",
              counted(plans[0]->batch() / std::max<int64_t>(leaves, 1), "row"), ":\n");
  for (size_t i = 0; i < plans.size(); ++i) text += cat("  ", o.plans[i], ": ", layoutText(*plans[i]), "\n");
  return print(text);
}

}  // namespace

Command sameCommand() {
  using O = SameOptions;
  using Row = options::Rows<O>;
  options::Table table{
      "sheaf same",
      "Proves plans as `sheaf verify` does, and says whether they compute the same bits: the same "
      "losses, gradients and weights after every step, on any number of ranks and micro-batches and at "
      "any stage. If not, names the first thing in which they differ; the exit status is then 1.",
      {"sheaf same A.plan B.plan... [--format text|json]"},
      Row::positional<&O::plans>("A.plan B.plan"),
      {},
      "All are compared with the first. docs/proof.md says what the answer takes as given."};
  table.sections = {{"Options", {Row::word<&O::format>("--format", {"text", "json"}, "json: for programs.")}}};
  return command(std::move(table), same);
}

}  // namespace sheaf::tool
