// Makes the step compute in f32 where the graph says bf16 or f16: the types in memory are decided later, in the same
// way for all models.
#include "ir/Train/ElementTypes.h"
#include "ir/Train/TensorBuilder.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "passes/train/Passes.h"

namespace sheaf::train {
#define GEN_PASS_DEF_WIDENFLOATS
#include "passes/train/Passes.h.inc"
}  // namespace sheaf::train

using namespace mlir;
using namespace sheaf::train;

namespace {

// Returns the type with f32 elements; null for a type that kernels do not widen.
RankedTensorType widened(Type type) {
  auto tensor = dyn_cast<RankedTensorType>(type);
  if (!tensor || !isWidened(tensor.getElementType())) return {};
  return tensor.clone(Float32Type::get(type.getContext()));
}

void widen(Value v) {
  if (RankedTensorType type = widened(v.getType())) v.setType(type);
}

struct WidenFloats : sheaf::train::impl::WidenFloatsBase<WidenFloats> {
  using Base::Base;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    for (auto parameter : module.getOps<ParameterOp>()) {
      auto type = cast<RankedTensorType>(parameter.getType());
      RankedTensorType wide = widened(type);
      if (!wide) continue;
      parameter->setAttr("train.source_type", TypeAttr::get(type.getElementType()));
      parameter.setType(wide);
    }
    auto step = module.lookupSymbol<func::FuncOp>("step");
    if (!step || step.isExternal()) return;
    Block& block = step.getBody().front();
    for (Value argument : block.getArguments()) widen(argument);
    step.setType(FunctionType::get(&getContext(), block.getArgumentTypes(), step.getResultTypes()));
    step.walk([&](Operation* op) {
      if (auto constant = dyn_cast<ConstantOp>(op)) {
        if (!widened(constant.getType())) return;
        auto value = dyn_cast<DenseFPElementsAttr>(constant.getValue());
        if (!value) {
          constant.emitError("the elements of a constant of 16-bit floats must be in the program, not in a resource");
          return signalPassFailure();
        }
        constant.setValueAttr(value.mapValues(Float32Type::get(&getContext()), [](const APFloat& x) {
          APFloat y = x;
          bool lost;
          y.convert(APFloat::IEEEsingle(), APFloat::rmNearestTiesToEven, &lost);
          return y.bitcastToAPInt();
        }));
      }
      for (Value result : op->getResults()) widen(result);
    });
  }
};

}  // namespace
