#include "codegen/emit/Emit.h"

#include <algorithm>

#include "runtime/base/Text.h"
#include "runtime/plan/CallSchema.h"
#include "runtime/plan/Digests.h"
#include "runtime/plan/Library.h"
#include "runtime/plan/MemoryByKind.h"
#include "runtime/plan/Proof.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/Verify.h"

namespace sheaf::codegen {
namespace {

// Refuses a plan with a size that is beyond the limit of library calls: its batch is too large.
Status checkCallSizes(const plan::Plan& plan) {
  for (const auto& [section, list] : plan::sectionsOf(plan))
    for (const plan::Instruction& instruction : *list) {
      if (!instruction.has_call() || plan::parseCall(instruction.call()).ok()) continue;
      for (const plan::Attribute& attribute : instruction.call().attributes())
        if (attribute.integer() > plan::kMaxSize)
          return Status::error(cat(plan::shortName(instruction.label()), ": a call of ", instruction.call().function(),
                                   " would have ", attribute.name(), " = ", attribute.integer(), ", and takes at most ",
                                   plan::kMaxSize, "; the batch of ", plan.batch(), " gives each rank ",
                                   counted(plan.batch() / std::max<int64_t>(plan.ranks(), 1), "row"),
                                   ": give a smaller --batch, or more --ranks or --micro-batches"));
    }
  return {};
}

}  // namespace

Status sealPlan(plan::Plan& plan) {
  SHEAF_RETURN_IF_ERROR(checkCallSizes(plan));
  plan.mutable_memory()->set_library_bytes(plan::libraryBytes(plan));
  plan::declareMemoryByKind(plan);
  plan::digestTables(plan);
  Status proved = plan::verifyPlan(plan);
  if (proved.ok()) proved = plan::provePlan(plan);
  if (proved.ok()) proved = plan::requireDigests(plan);
  if (proved.ok()) return {};
  return Status::error("the compiler made a plan that does not verify; please report this: " + proved.message());
}

}  // namespace sheaf::codegen
