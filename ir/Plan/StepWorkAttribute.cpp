#include "ir/Plan/StepWorkAttribute.h"

#include "runtime/plan/StepWork.h"

using namespace mlir;

namespace sheaf::plan_ir {

namespace {

struct Field {
  const char* name;
  uint64_t (plan::StepWork::*get)() const;
  void (plan::StepWork::*set)(uint64_t);
};
constexpr Field kFields[] = {
    {"state_bytes", &plan::StepWork::state_bytes, &plan::StepWork::set_state_bytes},
    {"reduced_bytes", &plan::StepWork::reduced_bytes, &plan::StepWork::set_reduced_bytes},
    {"gathered_bytes", &plan::StepWork::gathered_bytes, &plan::StepWork::set_gathered_bytes},
};
constexpr StringRef kProducts = "products";

}  // namespace

DictionaryAttr stepWorkAttribute(Builder& builder, const plan::StepWork& work) {
  auto number = [&](const std::string& name, uint64_t value) {
    return builder.getNamedAttr(name, builder.getI64IntegerAttr(static_cast<int64_t>(value)));
  };
  SmallVector<NamedAttribute> products, fields;
  for (const plan::ProductFlops& one : work.products()) products.push_back(number(plan::productWord(one), one.flops()));
  fields.push_back(builder.getNamedAttr(kProducts, builder.getDictionaryAttr(products)));
  for (const Field& field : kFields) fields.push_back(number(field.name, (work.*field.get)()));
  return builder.getDictionaryAttr(fields);
}

FailureOr<plan::StepWork> stepWorkOf(Operation* holder, DictionaryAttr attribute) {
  plan::StepWork work;
  auto number = [&](NamedAttribute from, uint64_t& value) -> LogicalResult {
    auto integer = dyn_cast<IntegerAttr>(from.getValue());
    if (!integer || integer.getValue().isNegative())
      return holder->emitError() << "floor: '" << from.getName().strref() << "' must be a number that is not negative";
    value = integer.getValue().getZExtValue();
    return success();
  };
  for (NamedAttribute one : attribute) {
    const StringRef name = one.getName().strref();
    auto products = dyn_cast<DictionaryAttr>(one.getValue());
    const Field* field = llvm::find_if(kFields, [&](const Field& f) { return name == f.name; });
    uint64_t value = 0;
    if (name == kProducts && products) {
      for (NamedAttribute type : products) {
        std::optional<plan::ProductFlops> flops = plan::productsOfWord(type.getName().strref());
        if (!flops)
          return holder->emitError() << "floor: there are no products of type '" << type.getName().strref() << "'";
        if (failed(number(type, value))) return failure();
        flops->set_flops(value);
        plan::addProducts(work, *flops);
      }
    } else if (field != std::end(kFields)) {
      if (failed(number(one, value))) return failure();
      (work.*field->set)(value);
    } else {
      return holder->emitError() << "floor: '" << name << "' is not one of its fields";
    }
  }
  return work;
}

}  // namespace sheaf::plan_ir
