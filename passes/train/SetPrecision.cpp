// Decides what memory holds: bf16 or f16 for parameters, activations and gradients, f32 for what is small and
// sensitive.
//
// The step stays in f32: a kernel widens what it loads and rounds what it stores, once. So the pass runs when kernels
// are decided, and touches only the values that pass between them. Statistics of rows, sums on their way, the loss,
// constants and values whose absolute precision matters (F32Values.h) stay f32, and so does what a library function
// takes in f32 only.
#include "ir/Train/BatchNorm.h"
#include "ir/Train/ParameterNames.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringSet.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "passes/train/F32Values.h"
#include "passes/train/FusionOps.h"
#include "passes/train/Passes.h"

namespace sheaf::train {
#define GEN_PASS_DEF_SETPRECISION
#include "passes/train/Passes.h.inc"
}  // namespace sheaf::train

using namespace mlir;
using namespace sheaf::train;

namespace {

Type elementOf(Value v) {
  return TensorBuilder::typeOf(v).getElementType();
}

// The operands of a product that stay f32: statistics and masks.
bool staysF32(Operation* op, Value operand) {
  if (auto attention = dyn_cast<AttentionOp>(op)) return operand == attention.getMask();
  if (auto gradient = dyn_cast<AttentionGradOp>(op))
    return operand == gradient.getMask() || operand == gradient.getLogSumExp();
  return false;
}

class Narrowing {
 public:
  Narrowing(ModuleOp module, Block& block, FloatType half, Type gradient)
      : module(module), block(block), half(half), gradient(gradient), f32Values(module, block, half) {
    for (Operation& op : block)
      if (auto group = op.getAttrOfType<IntegerAttr>(kGroupAttr)) groups = std::max(groups, group.getInt() + 1);
  }

  void run() {
    for (auto parameter : module.getOps<ParameterOp>()) {
      if (isStatistic(parameter) || keepsF32(parameter))
        f32Parameters.insert(parameter.getSymName());
      else
        narrow(parameter);
      parameter->removeDiscardableAttr(kHeldTypeAttr);
    }
    SmallVector<Operation*> ops;
    for (Operation& op : block.without_terminator()) ops.push_back(&op);
    for (Operation* op : ops) {
      if (op->hasAttr(kGroupAttr)) {
        member(op);
      } else if (isa<ReadOp>(op)) {
        bool narrow = !f32Parameters.contains(cast<ReadOp>(op).getParameter());
        if (isSingle(op->getResult(0)) && narrow) retype(op->getResult(0), half);
      } else if (keepsElementType(op)) {
        mover(op);
      } else if (takesHalf(op)) {
        for (OpOperand& operand : op->getOpOperands())
          if (!staysF32(op, operand.get())) demand(operand, half);
        for (Value result : op->getResults())
          if (!isa<AttentionOp>(op) || result == op->getResult(0)) retype(result, half);
      } else if (auto update = dyn_cast<UpdateOp>(op)) {
        demand(op->getOpOperand(0), updatesF32(update) ? f32() : gradient);
      } else if (!isa<RandomUniformOp>(op)) {  // which reads no element
        for (OpOperand& operand : op->getOpOperands()) demand(operand, f32());
      }
    }
  }

 private:
  Type f32() { return Float32Type::get(module.getContext()); }
  bool isSingle(Value v) { return elementOf(v).isF32(); }
  static void retype(Value v, Type element) { v.setType(TensorBuilder::typeOf(v).clone(element)); }

  // Has a library function for 16 bits, and is to use it.
  bool takesHalf(Operation* op) { return isHalfProduct(op) && !f32Values.computes(op); }
  bool updatesF32(UpdateOp update) { return f32Parameters.contains(update.getParameter()); }

  // A constant that only products read has 16 bits.
  bool keepsF32(ParameterOp parameter) {
    if (auto held = parameter->getAttrOfType<TypeAttr>(kHeldTypeAttr)) return held.getValue() != half;
    if (f32Values.contains(parameter)) return true;
    if (!parameter->hasAttr(kLargeConstantAttr)) return false;
    Demand wanted;
    for (auto read : block.getOps<ReadOp>())
      if (read.getParameter() == parameter.getSymName())
        collect(llvm::make_pointer_range(read.getResult().getUses()), wanted);
    return wanted.kernel || wanted.f32;
  }

  void narrow(ParameterOp parameter) {
    auto type = cast<RankedTensorType>(parameter.getType());
    if (!type.getElementType().isF32()) return;
    if (!parameter->hasAttr("train.source_type"))
      parameter->setAttr("train.source_type", TypeAttr::get(type.getElementType()));
    parameter.setType(type.clone(half));
  }

  static Operation* lastMember(Operation* op) {
    Attribute group = op->getAttr(kGroupAttr);
    while (op->getNextNode() && op->getNextNode()->getAttr(kGroupAttr) == group) op = op->getNextNode();
    return op;
  }

  // The type in which readers need `v` in memory, through ops that keep the type.
  struct Demand {
    bool half = false, f32 = false, kernel = false;
  };
  template <typename Uses>
  void collect(Uses&& uses, Demand& found) {
    for (OpOperand* use : uses) {
      Operation* op = use->getOwner();
      if (op->hasAttr(kGroupAttr))
        found.kernel = true;
      else if (keepsElementType(op))
        collect(llvm::make_pointer_range(op->getResult(0).getUses()), found);
      else if (auto update = dyn_cast<UpdateOp>(op))
        (gradient.isF32() || updatesF32(update) ? found.f32 : found.half) = true;
      else if (takesHalf(op) && !staysF32(op, use->get()))
        found.half = true;
      else
        found.f32 = true;
    }
  }

  // True if some of the uses are by kernels or by functions that take f32.
  bool readsSingle(ArrayRef<OpOperand*> uses) {
    Demand wanted;
    collect(uses, wanted);
    return wanted.kernel || wanted.f32;
  }

  // A member of a kernel widens what it reads; what leaves the kernel is rounded unless it is to stay f32. Of a value
  // that stays f32 products alone get a rounded copy.
  void member(Operation* op) {
    Attribute group = op->getAttr(kGroupAttr);
    heads.try_emplace(group, op);
    for (OpOperand& operand : op->getOpOperands()) {
      Value v = operand.get();
      if (elementOf(v) != half) continue;
      Value& wide = widened[{v, group}];
      if (!wide) {
        // In the order of use, as the operands' own definitions stand.
        OpBuilder builder(heads[group]);
        wide = convert(builder, v, f32(), group);
      }
      operand.set(wide);
    }
    for (Value v : op->getResults()) {
      if (!isSingle(v) || isa<ConstantOp>(op)) continue;
      SmallVector<OpOperand*> outside;
      Demand wanted;
      for (OpOperand& use : v.getUses())
        if (use.getOwner()->getAttr(kGroupAttr) != group) outside.push_back(&use);
      const bool all = !f32Values.contains(v) || !readsSingle(outside);
      if (!all) llvm::erase_if(outside, [&](OpOperand* use) { return readsSingle(use); });
      // The rounding of a column sum is part of completing it: there is one result.
      if (outside.empty() || (!all && isColumnReduction(op))) continue;
      collect(outside, wanted);
      bool small = columnsOf(v) == 1, sum = isColumnReduction(op);
      bool rounded = sum ? wanted.half : !small && (wanted.half || wanted.kernel);
      if (!rounded) continue;
      OpBuilder builder(op);
      builder.setInsertionPointAfter(lastMember(op));
      // A column sum is complete only after its kernel: train-fuse has train.sum_partials round it.
      Value narrow = convert(builder, v, half, sum ? Attribute() : group);
      for (OpOperand* use : outside) use->set(narrow);
    }
  }

  // Pieces of a concatenation have one type; of a gather and its adjoint, the elements count, not the indices.
  void mover(Operation* op) {
    SmallVector<OpOperand*> uses(llvm::make_pointer_range(op->getResult(0).getUses()));
    const bool wide = f32Values.contains(op->getResult(0)) && readsSingle(uses);
    if (isa<ConcatOp>(op) && llvm::any_of(op->getOperands(), [&](Value v) { return elementOf(v) == half; }))
      for (OpOperand& operand : op->getOpOperands()) demand(operand, wide ? f32() : half);
    // A count adds elements up: it is exact only in f32.
    if (isa<ScatterAddOp>(op) && wide) demand(op->getOpOperand(0), f32());
    if (Type element = elementOf(op->getOperand(0)); element == half) retype(op->getResult(0), half);
  }

  // Gives the operand in memory as `element`: a constant is converted here, anything else by a kernel of its own.
  void demand(OpOperand& operand, Type element) {
    Value v = operand.get();
    if (!(elementOf(v).isF32() || elementOf(v) == half) || elementOf(v) == element) return;
    OpBuilder builder(operand.getOwner());
    if (auto constant = v.getDefiningOp<ConstantOp>())
      if (auto value = dyn_cast<DenseFPElementsAttr>(constant.getValue())) {
        auto& semantics = cast<FloatType>(element).getFloatSemantics();
        auto converted = value.mapValues(element, [&](const APFloat& x) {
          APFloat y = x;
          bool lost;
          y.convert(semantics, APFloat::rmNearestTiesToEven, &lost);
          return y.bitcastToAPInt();
        });
        return operand.set(ConstantOp::create(builder, constant.getLoc(), converted));
      }
    operand.set(convert(builder, v, element, IntegerAttr::get(IntegerType::get(module.getContext(), 64), groups++)));
  }

  static Value convert(OpBuilder& builder, Value v, Type element, Attribute group) {
    auto op = CastOp::create(builder, v.getLoc(), TensorBuilder::typeOf(v).clone(element), v);
    if (group) op->setAttr(kGroupAttr, group);
    return op;
  }

  ModuleOp module;
  Block& block;
  Type half, gradient;
  F32Values f32Values;
  int64_t groups = 0;
  llvm::StringSet<> f32Parameters;
  DenseMap<Attribute, Operation*> heads;  // the first member of a kernel before which its casts stand
  DenseMap<std::pair<Value, Attribute>, Value> widened;
};

struct SetPrecision : sheaf::train::impl::SetPrecisionBase<SetPrecision> {
  using Base::Base;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    const std::optional<Precision> held = symbolizePrecision(precision);
    const std::optional<Precision> reduced = reducePrecision.empty() ? held : symbolizePrecision(reducePrecision);
    if (!held || !reduced) {
      module.emitError() << "precision '" << precision << "' and reduce-precision '" << reducePrecision
                         << "' must be of " << llvm::join(enumWords<Precision>(), ", ");
      return signalPassFailure();
    }
    if (!reducePrecision.empty() && *reduced != Precision::f32 && *reduced != *held) {
      module.emitError() << "gradients cannot be summed over ranks in " << reducePrecision << " with precision "
                         << precision << ": take f32, or the precision";
      return signalPassFailure();
    }
    if (*held == Precision::tf32)
      module.walk([](Operation* op) {
        if (isa<MatMulOp, MatMulEpilogueOp, ConvOp, ConvGradInputOp, ConvGradFilterOp>(op))
          op->setAttr(kTf32Attr, UnitAttr::get(op->getContext()));
      });
    auto step = module.lookupSymbol<func::FuncOp>("step");
    if (!step || step.isExternal()) return;
    FloatType half;
    if (*held == Precision::bf16)
      half = BFloat16Type::get(&getContext());
    else if (*held == Precision::f16)
      half = Float16Type::get(&getContext());
    else
      return;
    Type gradient = *reduced == Precision::f32 ? Type(Float32Type::get(&getContext())) : half;
    Narrowing(module, step.getBody().front(), half, gradient).run();
  }
};

}  // namespace
