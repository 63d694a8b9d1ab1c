// The evaluator's frame: values, rounding, dispatch, regions. What the ops mean is in the other Evaluator*.cpp.
#include "ir/Train/Evaluator.h"

#include "ir/Train/EvaluatorDetail.h"
#include "mlir/IR/Diagnostics.h"
#include "mlir/Interfaces/FunctionInterfaces.h"

using namespace mlir;
using namespace sheaf::train;

// --- values ---

Tensor Tensor::zeros(RankedTensorType type) {
  Tensor t{type, {}, {}};
  if (t.isFloat())
    t.f.assign(t.size(), 0);
  else
    t.i.assign(t.size(), 0);
  return t;
}

namespace {

double roundTo(const llvm::fltSemantics& semantics, double value) {
  APFloat number(value);
  bool lost;
  number.convert(semantics, APFloat::rmNearestTiesToEven, &lost);
  return number.convertToDouble();
}

bool isUnsigned(Type type) {
  // Booleans are 0 or 1, not 0 or -1.
  return type.isUnsignedInteger() || type.isInteger(1);
}

}  // namespace

void evaluator::normalize(const MutableColumn& out, int64_t count, bool round) {
  Type element = out.element;
  if (out.isFloat()) {
    if (!round || element.isF64()) return;
    if (element.isF32()) {
      for (int64_t k = 0; k < count; ++k) out.f[k] = float(out.f[k]);
    } else {
      // By way of f32, in which 16-bit floats are computed.
      const llvm::fltSemantics& semantics = cast<FloatType>(element).getFloatSemantics();
      for (int64_t k = 0; k < count; ++k) out.f[k] = roundTo(semantics, float(out.f[k]));
    }
    return;
  }
  int drop = 64 - int(element.getIntOrFloatBitWidth());
  if (drop == 0) return;
  if (isUnsigned(element))
    for (int64_t k = 0; k < count; ++k) out.i[k] = int64_t(uint64_t(out.i[k]) << drop >> drop);
  else
    for (int64_t k = 0; k < count; ++k) out.i[k] = int64_t(uint64_t(out.i[k]) << drop) >> drop;
}

// --- ops ---

namespace {

// A fusion's column sums are partial: one row for each block of rows. The region says the whole sum; `summed` is what
// it sums.
Tensor partialSums(FusionOp fusion, const Tensor& summed, RankedTensorType type) {
  int64_t rows = fusion.getRows(), columns = rows ? summed.size() / rows : 0;
  Tensor partial = Tensor::zeros(type);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) partial.f[r / fusion.getBlock() * columns + c] += summed.f[r * columns + c];
  return partial;
}

class RegionEvaluator {
 public:
  RegionEvaluator(Region& region, const std::map<std::string, Tensor>& parameters, const EvaluatorOptions& options)
      : block(region.front()), parameters(parameters), options(options) {}

  FailureOr<Evaluation> run(ArrayRef<Tensor> arguments) {
    if (arguments.size() != block.getNumArguments())
      return emitError(block.getParentOp()->getLoc())
             << "takes " << block.getNumArguments() << " arguments, and has " << arguments.size();
    for (auto [argument, value] : llvm::zip(block.getArguments(), arguments)) {
      if (argument.getType() != value.type)
        return emitError(argument.getLoc()) << "argument " << argument.getArgNumber() << " takes " << argument.getType()
                                            << ", and has " << value.type;
      values[argument] = value;
    }
    for (Operation& op : block.without_terminator())
      if (failed(step(&op))) return failure();
    if (failed(finish(block.getTerminator()))) return failure();
    return std::move(evaluation);
  }

 private:
  Block& block;
  const std::map<std::string, Tensor>& parameters;
  const EvaluatorOptions& options;
  llvm::DenseMap<Value, Tensor> values;
  Evaluation evaluation;

  LogicalResult step(Operation* op) {
    if (auto read = dyn_cast<ReadOp>(op)) {
      auto found = parameters.find(read.getParameter().str());
      if (found == parameters.end() || found->second.type != read.getType())
        return op->emitOpError("reads a parameter that has no value of its type");
      values[read] = found->second;
      return success();
    }
    if (auto loss = dyn_cast<LossOp>(op)) {
      evaluation.loss = values[loss.getValue()];
      return success();
    }
    if (auto update = dyn_cast<UpdateOp>(op)) {
      evaluation.gradients[update.getParameter().str()] = values[update.getGradient()];
      return success();
    }
    SmallVector<const Tensor*> operands;
    for (Value operand : op->getOperands()) {
      auto found = values.find(operand);
      if (found == values.end()) return op->emitOpError("uses a value that was not evaluated");
      operands.push_back(&found->second);
    }
    FailureOr<std::vector<Tensor>> results = evaluateWith(op, operands, options);
    if (failed(results)) return failure();
    for (auto [result, value] : llvm::zip(op->getResults(), *results)) values[result] = std::move(value);
    release(op);
    return success();
  }

  // Gives back what no later op reads, so that a whole training step fits.
  void release(Operation* op) {
    if (isa<FusionOp>(block.getParentOp())) return;  // partialSums looks back.
    for (Value operand : op->getOperands())
      if (llvm::all_of(operand.getUsers(), [&](Operation* user) { return user == op || user->isBeforeInBlock(op); }))
        values.erase(operand);
  }

  LogicalResult finish(Operation* terminator) {
    auto fusion = dyn_cast<FusionOp>(block.getParentOp());
    for (auto [k, operand] : llvm::enumerate(terminator->getOperands())) {
      auto found = values.find(operand);
      if (found == values.end()) return terminator->emitOpError("uses a value that was not evaluated");
      if (fusion && fusion.getResult(k).getType() != operand.getType()) {
        auto reduce = operand.getDefiningOp<ReduceOp>();
        if (!reduce || reduce.getKind() != ReduceKind::sum || fusion.getBlock() < 1)
          return terminator->emitOpError("yields a partial sum that is not a sum over rows");
        evaluation.results.push_back(
            partialSums(fusion, values[reduce.getOperand()], cast<RankedTensorType>(fusion.getResult(k).getType())));
        continue;
      }
      evaluation.results.push_back(found->second);
    }
    return success();
  }

 public:
  static FailureOr<std::vector<Tensor>> evaluateWith(Operation* op, evaluator::Operands operands,
                                                     const EvaluatorOptions& options);
};

FailureOr<std::vector<Tensor>> RegionEvaluator::evaluateWith(Operation* op, evaluator::Operands operands,
                                                             const EvaluatorOptions& options) {
  if (auto constant = dyn_cast<ConstantOp>(op)) {
    FailureOr<Tensor> value = toTensor(constant.getValue());
    if (failed(value)) return op->emitOpError("holds a constant whose elements are not available (a resource)");
    return std::vector<Tensor>{std::move(*value)};
  }
  if (auto fusion = dyn_cast<FusionOp>(op)) {
    std::vector<Tensor> arguments;
    for (const Tensor* t : operands) arguments.push_back(*t);
    FailureOr<Evaluation> inner = evaluateRegion(fusion.getBody(), arguments, {}, options);
    if (failed(inner)) return failure();
    return std::move(inner->results);
  }
  std::vector<Tensor> results;
  for (Type type : op->getResultTypes()) {
    auto tensor = dyn_cast<RankedTensorType>(type);
    if (!tensor) return op->emitOpError("has no value that the evaluator knows");
    // Elementwise ops take the shape of what they are given.
    bool elementwise = op->hasTrait<OpTrait::Elementwise>() && !operands.empty();
    results.push_back(Tensor::zeros(elementwise ? tensor.clone(operands[0]->type.getShape()) : tensor));
  }
  using namespace evaluator;
  Outcome outcome = evaluateElementwise(op, operands, results, options);
  if (!outcome) outcome = evaluateShape(op, operands, results);
  if (!outcome) outcome = evaluateIndexing(op, operands, results);
  if (!outcome) outcome = evaluateComposite(op, operands, results, options);
  if (!outcome) outcome = evaluateBatchNorm(op, operands, results, options);
  if (!outcome) outcome = evaluateAttention(op, operands, results);
  if (!outcome) outcome = evaluateWindowed(op, operands, results);
  if (!outcome) return op->emitOpError("has no value that the evaluator knows");
  if (failed(*outcome)) return failure();
  for (Tensor& result : results) normalize(result, options.round);
  return results;
}

}  // namespace

FailureOr<std::vector<Tensor>> sheaf::train::evaluate(Operation* op, ArrayRef<Tensor> operands,
                                                      const EvaluatorOptions& options) {
  SmallVector<const Tensor*> pointers;
  for (const Tensor& t : operands) pointers.push_back(&t);
  return RegionEvaluator::evaluateWith(op, pointers, options);
}

FailureOr<Evaluation> sheaf::train::evaluateRegion(Region& region, ArrayRef<Tensor> arguments,
                                                   const std::map<std::string, Tensor>& parameters,
                                                   const EvaluatorOptions& options) {
  if (!region.hasOneBlock()) return region.getParentOp()->emitOpError("must have one block to be evaluated");
  return RegionEvaluator(region, parameters, options).run(arguments);
}

FailureOr<Evaluation> sheaf::train::evaluateFunction(Operation* function, ArrayRef<Tensor> arguments,
                                                     const std::map<std::string, Tensor>& parameters,
                                                     const EvaluatorOptions& options) {
  if (function->getNumRegions() != 1) return function->emitOpError("is not a function");
  return evaluateRegion(function->getRegion(0), arguments, parameters, options);
}
