#include "ir/Plan/Draft.h"

#include "ir/Plan/PlanProto.h"

using namespace mlir;

namespace sheaf::plan_ir {
namespace {

constexpr llvm::StringLiteral kValue = "value";

template <typename Op>
std::vector<ElementsAttr> valuesOf(Block& block) {
  std::vector<ElementsAttr> values;
  for (Op op : block.getOps<Op>()) values.push_back(op->template getAttrOfType<ElementsAttr>(kValue));
  return values;
}

template <typename Op>
void setValues(Block& block, ArrayRef<ElementsAttr> values) {
  for (auto [op, value] : llvm::zip(block.getOps<Op>(), values))
    if (value) op->setAttr(kValue, value);
}

}  // namespace

FailureOr<Draft> draftOf(ProgramOp program) {
  FailureOr<plan::Plan> plan = toProto(program, Kernels::kAny);
  if (failed(plan)) return failure();
  Draft draft;
  draft.plan = std::move(*plan);
  Block& block = program.getBody().front();
  for (KernelOp kernel : block.getOps<KernelOp>()) {
    const bool none = kernel.getFusion().empty() || kernel.getFusion().front().empty();
    draft.fusions.push_back(none ? nullptr : &kernel.getFusion().front().front());
  }
  draft.parameterValues = valuesOf<ParameterOp>(block);
  draft.copiedValues = valuesOf<CopiedOp>(block);
  draft.constantValues = valuesOf<ConstantOp>(block);
  return draft;
}

OwningOpRef<ModuleOp> programOf(MLIRContext& context, const Draft& draft) {
  OwningOpRef<ModuleOp> module = fromProto(context, draft.plan);
  Block& block = (*module->getOps<ProgramOp>().begin()).getBody().front();
  setValues<ParameterOp>(block, draft.parameterValues);
  setValues<CopiedOp>(block, draft.copiedValues);
  setValues<ConstantOp>(block, draft.constantValues);
  for (auto [kernel, fusion] : llvm::zip(block.getOps<KernelOp>(), draft.fusions))
    if (fusion) {
      OpBuilder builder(&context);
      SmallVector<Location> locations(fusion->getNumOperands(), fusion->getLoc());
      Block* body = builder.createBlock(&kernel.getFusion(), {}, fusion->getOperandTypes(), locations);
      IRMapping mapping;
      mapping.map(fusion->getOperands(), body->getArguments());
      builder.clone(*fusion, mapping);
    }
  return module;
}

}  // namespace sheaf::plan_ir
