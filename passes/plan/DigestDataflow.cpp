// Writes down what the step computes, before anything is decided about order and memory.
#include "passes/plan/Finish.h"
#include "runtime/plan/Dataflow.h"

namespace sheaf::plan_ir {

Status digestDataflow(Draft& draft) {
  auto& table = *draft.plan.mutable_digests()->mutable_dataflow();
  table.Clear();
  for (uint64_t digest : plan::followDataflow(plan::Places(draft.plan)).digests) table.Add(digest);
  return {};
}

}  // namespace sheaf::plan_ir
