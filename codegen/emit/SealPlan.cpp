#include "codegen/emit/Emit.h"
#include "runtime/plan/Digests.h"
#include "runtime/plan/Library.h"
#include "runtime/plan/MemoryByKind.h"
#include "runtime/plan/Proof.h"
#include "runtime/plan/Verify.h"

namespace sheaf::codegen {

Status sealPlan(plan::Plan& plan) {
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
