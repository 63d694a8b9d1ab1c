#include "runtime/exec/ChoosePlan.h"

#include <bit>
#include <memory>
#include <set>

#include "runtime/base/Text.h"
#include "runtime/exec/OptionalLibraries.h"
#include "runtime/plan/Digests.h"
#include "runtime/plan/Verify.h"

namespace sheaf::exec {

Expected<ChosenPlan> choosePlan(const std::vector<std::string>& paths, int64_t ranks, plan::Undigested undigested) {
  std::vector<std::unique_ptr<plan::Plan>> plans;
  for (const std::string& path : paths) {
    Expected<std::unique_ptr<plan::Plan>> plan = plan::readVerifiedPlan(path);
    if (!plan.ok()) return plan.status();
    Status sound = plan::checkTables(**plan);
    if (sound.ok() && undigested == plan::Undigested::kRefused) sound = plan::requireDigests(**plan);
    if (!sound.ok()) return Status::error(cat(path, ": ", sound.message()));
    plans.push_back(std::move(*plan));
  }
  plan::ComparePlans compare = nullptr;
  if (plans.size() > 1) {
    Expected<plan::ComparePlans> loaded = loadComparePlans();
    if (!loaded.ok()) return loaded.status();
    compare = *loaded;
  }
  std::vector<std::string> notes;
  // By what is known of one step; that every step computes it is a matter of each plan's proof.
  std::vector<bool> followed(plans.size(), false);
  for (size_t i = 1; i < plans.size(); ++i) {
    Expected<plan::Comparison> comparison = compare(*plans[0], paths[0], *plans[i], paths[i]);
    if (!comparison.ok()) return comparison.status();
    if (comparison->difference)
      return Status::error(cat(paths[0], " and ", paths[i],
                               comparison->difference->certain ? " do not compute the same bits: "
                                                               : " are not proved to compute the same bits: ",
                               comparison->difference->text(), "; a run takes several plans only if they do"));
    if (comparison->proved) followed[0] = followed[i] = true;
    for (const std::string& note : comparison->notes) notes.push_back(cat(paths[0], " and ", paths[i], ": ", note));
  }
  for (size_t i = 0; i < plans.size(); ++i)
    if (followed[i])
      if (Status proved = plan::provePlan(*plans[i]); !proved.ok())
        return Status::error(cat(paths[i], ": ", proved.message()));
  std::set<int64_t> there;
  for (size_t i = 0; i < plans.size(); ++i) {
    if (plans[i]->ranks() == ranks) return ChosenPlan{paths[i], std::move(notes)};
    there.insert(plans[i]->ranks());
  }
  std::string numbers;
  for (int64_t number : there) numbers += cat(numbers.empty() ? "" : number == *there.rbegin() ? " or " : ", ", number);
  // A rank's leaves are micro-batches times a power of two.
  const int64_t leaves = plans[0]->origin().leaves(), each = leaves / ranks;
  const bool possible = each > 0 && leaves % ranks == 0;
  const int64_t micro = possible ? each >> std::countr_zero(static_cast<uint64_t>(each)) : 1;
  return Status::error(cat("no plan is for ", ranks, ranks == 1 ? " rank" : " ranks", "; the plans are for ", numbers,
                           ": start as many processes, or say with --ranks which plan to take",
                           possible ? cat("; or compile one with --ranks ", ranks, " --like ", paths[0],
                                          micro > 1 ? cat(" --micro-batches ", micro) : "")
                                    : cat("; ", leaves, " leaves cannot be divided among ", ranks)));
}

}  // namespace sheaf::exec
