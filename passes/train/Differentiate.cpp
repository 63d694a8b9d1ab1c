// Reverse mode over @step: one gradient, and one train.update, per trainable parameter that the loss depends on.
#include "ir/Train/BatchNorm.h"
#include "ir/Train/Matchers.h"
#include "ir/Train/StopGradient.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/ADT/StringSet.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "passes/train/Passes.h"

namespace sheaf::train {
#define GEN_PASS_DEF_DIFFERENTIATE
#include "passes/train/Passes.h.inc"
}  // namespace sheaf::train

using namespace mlir;
using namespace sheaf::train;

namespace {

bool isFloat(Value v) {
  auto type = dyn_cast<RankedTensorType>(v.getType());
  return type && isa<FloatType>(type.getElementType());
}

// Reverse-mode differentiation of one block. Forward ops stay as they are; the backward pass is appended in reverse
// order.
struct ReverseMode {
  Block& body;
  LossOp loss;
  const llvm::StringMap<ParameterOp>& trainable;
  const bool scaled;
  OpBuilder builder;

  // Values of float type that depend on a trainable parameter, and those of them that the loss depends on.
  DenseSet<Value> varied{}, wanted{};
  // Gradients found so far of a wanted value, and how many of its uses have not contributed yet.
  DenseMap<Value, SmallVector<Value>> terms{};
  DenseMap<Value, int64_t> pending{};
  // The same for parameters, whose uses are reads (several where a weight is tied).
  llvm::StringMap<SmallVector<Value>> parameterTerms{};
  llvm::StringMap<int64_t> pendingReads{};
  llvm::StringSet<> updated{};

  LogicalResult findWanted();
  void differentiate();
  void contribute(Value value, Value gradient);
  Value lossScale(TensorBuilder& t);
  Value sum(Location location, ArrayRef<Value> gradients);
};

LogicalResult ReverseMode::findWanted() {
  for (Operation& op : body) {
    auto read = dyn_cast<ReadOp>(op);
    bool depends = read ? trainable.contains(read.getParameter())
                        : llvm::any_of(op.getOperands(), [&](Value v) { return varied.contains(v); });
    // Random numbers depend on the shape of their operand alone.
    if (!depends || isa<RandomUniformOp, StopGradientOp>(op)) continue;
    for (Value result : op.getResults())
      if (isFloat(result)) varied.insert(result);
  }
  if (varied.contains(loss.getValue())) {
    wanted.insert(loss.getValue());
    pending[loss.getValue()] = 1;
  }
  for (Operation& op : llvm::reverse(body)) {
    if (llvm::none_of(op.getResults(), [&](Value v) { return wanted.contains(v); })) continue;
    if (auto read = dyn_cast<ReadOp>(op)) {
      ++pendingReads[read.getParameter()];
      continue;
    }
    if (!isa<Differentiable>(op)) return op.emitOpError("has no gradient rule, but the loss depends on it");
    for (Value operand : op.getOperands())
      if (varied.contains(operand)) {
        wanted.insert(operand);
        ++pending[operand];
      }
  }
  return success();
}

// Pairwise, in the order of arrival, which is fixed by the order of the ops.
Value ReverseMode::sum(Location location, ArrayRef<Value> gradients) {
  if (gradients.empty()) return {};
  TensorBuilder t{builder, location};
  Value total = gradients.front();
  for (Value next : gradients.drop_front()) total = t.add(total, next);
  return total;
}

// One use of `value` gives its gradient (null: none). A read whose last use this was gives the parameter's.
void ReverseMode::contribute(Value value, Value gradient) {
  if (gradient) terms[value].push_back(gradient);
  if (--pending[value] > 0) return;
  auto read = value.getDefiningOp<ReadOp>();
  if (!read) return;
  StringRef name = read.getParameter();
  if (Value total = sum(read.getLoc(), terms[value])) parameterTerms[name].push_back(total);
  if (--pendingReads[name] > 0 || parameterTerms[name].empty()) return;
  ParameterOp parameter = trainable.lookup(name);
  auto optimizer = parameter->getAttrOfType<FlatSymbolRefAttr>("train.optimizer");
  if (!optimizer) optimizer = FlatSymbolRefAttr::get(builder.getContext(), "optimizer");
  Value total = sum(read.getLoc(), parameterTerms[name]);
  UpdateOp::create(builder, read.getLoc(), read.getParameterAttr(), optimizer, total);
  updated.insert(name);
}

Value ReverseMode::lossScale(TensorBuilder& t) {
  auto type = TensorBuilder::typeOf(loss.getValue());
  Type f32 = builder.getF32Type();
  Value scale = LossScaleOp::create(builder, loss.getLoc(), RankedTensorType::get({}, f32));
  if (type.getElementType() != f32)
    scale = CastOp::create(builder, loss.getLoc(), RankedTensorType::get({}, type.getElementType()), scale);
  return t.reshape(scale, type.getShape());
}

void ReverseMode::differentiate() {
  SmallVector<Operation*> forward;
  for (Operation& op : body)
    if (!isa<ReadOp>(op) && llvm::any_of(op.getResults(), [&](Value v) { return wanted.contains(v); }))
      forward.push_back(&op);

  TensorBuilder t{builder, loss.getLoc()};
  contribute(loss.getValue(), scaled ? lossScale(t) : t.splatLike(loss.getValue(), 1));
  for (Operation* op : llvm::reverse(forward)) {
    SmallVector<Value> results, operands(op->getNumOperands());
    for (Value result : op->getResults()) results.push_back(sum(op->getLoc(), terms.lookup(result)));
    if (llvm::any_of(results, [](Value v) { return bool(v); }))
      cast<Differentiable>(op).buildGradient(builder, results, operands);
    for (auto [operand, gradient] : llvm::zip_equal(op->getOperands(), operands))
      if (wanted.contains(operand)) contribute(operand, gradient);
  }
}

// Unused results: gradients of data, and forward ops that neither the loss nor a result depends on.
void eraseDead(Block& body) {
  for (Operation& op : llvm::make_early_inc_range(llvm::reverse(body)))
    if (isOpTriviallyDead(&op)) op.erase();
}

// Gradients are stopped by now: the values stay.
void eraseStops(Block& body) {
  for (auto stop : llvm::make_early_inc_range(body.getOps<StopGradientOp>())) {
    SmallVector<Operation*> users(stop->user_begin(), stop->user_end());
    stop.replaceAllUsesWith(stop.getOperand());
    // Stopped for some elements alone.
    for (Operation* user : users)
      if (auto select = dyn_cast<SelectOp>(user); select && select.getOnTrue() == select.getOnFalse())
        select.replaceAllUsesWith(select.getOnTrue());
    stop.erase();
  }
}

struct Differentiate : sheaf::train::impl::DifferentiateBase<Differentiate> {
  using Base::Base;

  void runOnOperation() override {
    if (failed(run())) signalPassFailure();
  }

  LogicalResult run() {
    ModuleOp module = getOperation();
    auto step = module.lookupSymbol<func::FuncOp>("step");
    if (!step || step.isExternal()) return module.emitError("has no function @step to differentiate");
    Block& body = step.getBody().front();
    auto losses = llvm::to_vector(body.getOps<LossOp>());
    if (losses.size() != 1) return step.emitError("needs exactly one train.loss, and has ") << losses.size();
    LossOp loss = losses.front();
    if (TensorBuilder::typeOf(loss.getValue()).getNumElements() != 1)
      return loss.emitOpError("must be a single number to be differentiated, and is ") << loss.getValue().getType();
    if (module->removeAttr("train.gradients_given")) {  // by the model itself
      eraseStops(body);
      if (!scaled) return success();
      return module.emitError(
          "the model computes its gradients itself, so its loss cannot be scaled: give --loss-scale "
          "none or another --precision than f16");
    }
    for (auto update : body.getOps<UpdateOp>())
      if (!isStatistic(update))
        return update.emitOpError(
            "is already in the step that is to be differentiated: its parameter would be updated twice");

    llvm::StringMap<ParameterOp> trainable;
    for (auto parameter : module.getOps<ParameterOp>())
      if (parameter.getTrainable() && isa<FloatType>(cast<RankedTensorType>(parameter.getType()).getElementType()))
        trainable[parameter.getSymName()] = parameter;

    ReverseMode reverse{body, loss, trainable, scaled, OpBuilder(body.getTerminator())};
    if (failed(reverse.findWanted())) return failure();
    reverse.differentiate();
    eraseStops(body);
    if (reverse.updated.empty())
      return loss.emitError("nothing trainable: the loss depends on no trainable parameter; ")
             << "see --train and --freeze, or choose another loss with --loss";
    eraseDead(body);
    freezeUnused(module, reverse.updated);
    return success();
  }

  void freezeUnused(ModuleOp module, const llvm::StringSet<>& updated) {
    for (auto parameter : module.getOps<ParameterOp>()) {
      if (!parameter.getTrainable() || updated.contains(parameter.getSymName())) continue;
      parameter.setTrainable(false);
      recordDecision(module, "frozen: " + parameter.getSymName() + " (the loss does not depend on it)");
    }
  }
};

}  // namespace
