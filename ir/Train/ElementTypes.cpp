#include "ir/Train/ElementTypes.h"

using namespace mlir;

namespace sheaf::train {
namespace {

bool isRowOf(const plan::ElementFacts& row, Type element) {
  if (row.isFloat())
    return plan::visitElement<&plan::ElementFacts::isFloatInPlans>(
        row.type, [&](auto known) { return isa<typename FloatOf<decltype(known)::kType>::Type>(element); });
  auto integer = dyn_cast<IntegerType>(element);
  return integer && integer.getWidth() == unsigned(row.bits) &&
         integer.isUnsigned() == (row.kind == plan::NumberKind::kUnsigned);
}

}  // namespace

const plan::ElementFacts& elementFacts(Type element) {
  for (const plan::ElementFacts& row : plan::kElements)
    if (row.inPlans() && isRowOf(row, element)) return row;
  return plan::kNoElement;
}

Type elementType(MLIRContext* context, plan::ElementType type) {
  const plan::ElementFacts& row = plan::factsOf(type);
  if (row.isFloat())
    return plan::visitElement<&plan::ElementFacts::isFloatInPlans>(
        type, [&](auto known) -> Type { return FloatOf<decltype(known)::kType>::Type::get(context); });
  const bool isUnsigned = row.kind == plan::NumberKind::kUnsigned;
  return IntegerType::get(context, unsigned(row.bits), isUnsigned ? IntegerType::Unsigned : IntegerType::Signless);
}

const plan::ElementFacts& factsOfOnnx(int32_t dataType) {
  for (const plan::ElementFacts& row : plan::kElements)
    if (row.inPlans() && row.onnx != 0 && row.onnx == dataType) return row;
  return plan::kNoElement;
}

}  // namespace sheaf::train
