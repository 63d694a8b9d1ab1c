#include "codegen/fusion/RowProgram.h"

#include "codegen/fusion/ElementOps.h"
#include "llvm/ADT/SetVector.h"
#include "llvm/Support/raw_ostream.h"

using namespace mlir;
using namespace sheaf::train;

namespace sheaf::codegen {
namespace {

RankedTensorType tensor(Value v) {
  return cast<RankedTensorType>(v.getType());
}
int64_t lastDim(Value v) {
  return tensor(v).getRank() ? tensor(v).getShape().back() : 1;
}
int64_t rowsOf(Value v) {
  int64_t last = lastDim(v);
  return last ? tensor(v).getNumElements() / last : 0;
}

// The ops that the yielded values depend on, operands before users.
SetVector<Operation*> reachableOps(Operation* yield) {
  SetVector<Operation*> result;
  SmallVector<std::pair<Operation*, unsigned>> stack{{yield, 0}};
  while (!stack.empty()) {
    auto& [op, next] = stack.back();
    if (next == op->getNumOperands()) {
      if (op != yield) result.insert(op);
      stack.pop_back();
      continue;
    }
    Operation* producer = op->getOperand(next++).getDefiningOp();
    if (producer && !result.contains(producer)) stack.push_back({producer, 0});
  }
  return result;
}

bool isFlat(Operation* yield, const SetVector<Operation*>& ops, int64_t& elements) {
  elements = 1;
  for (Value v : yield->getOperands()) elements = std::max(elements, tensor(v).getNumElements());
  auto fits = [&](Value v) {
    int64_t n = tensor(v).getNumElements();
    return n == elements || n == 1;
  };
  if (elements == 1 ||
      !llvm::all_of(yield->getOperands(), [&](Value v) { return tensor(v).getNumElements() == elements; }))
    return false;
  for (Operation* op : ops) {
    if (isa<ReduceOp, IotaOp>(op)) return false;
    if (!llvm::all_of(op->getOperands(), fits) || !llvm::all_of(op->getResults(), fits)) return false;
  }
  return true;
}

}  // namespace

bool isRowReduction(ReduceOp op) {
  return op.getAxes().size() == 1 && op.getAxes()[0] == tensor(op.getOperand()).getRank() - 1;
}

bool RowProgram::isVector(Value value) const {
  if (flat) return tensor(value).getNumElements() == elements;
  return columns > 1 && lastDim(value) == columns;
}

FailureOr<RowProgram> RowProgram::analyze(FusionOp fusion) {
  RowProgram program;
  program.fusion = fusion;
  program.rows = fusion.getRows();
  program.columns = fusion.getColumns();
  program.block = fusion.getBlock();
  if (program.rows < 1 || program.columns < 1 || program.block < 1)
    return fusion.emitOpError("needs positive rows, columns and block"), failure();
  Operation* yield = fusion.getBody().front().getTerminator();
  if (yield->getNumOperands() != fusion.getNumResults())
    return fusion.emitOpError("yields ") << yield->getNumOperands() << " values for " << fusion.getNumResults()
                                         << " results",
           failure();
  SetVector<Operation*> ops = reachableOps(yield);
  program.flat = !fusion.getPitches() && isFlat(yield, ops, program.elements);
  if (program.flat && program.rows * program.columns < program.elements)
    return fusion.emitOpError("has results of ") << program.elements << " elements, more than rows times columns",
           failure();

  ArrayRef<int64_t> pitches = fusion.getPitches().value_or(ArrayRef<int64_t>());
  for (size_t i = 0; i < fusion->getNumOperands() + fusion->getNumResults(); ++i)
    (i < fusion->getNumOperands() ? program.operandPitches : program.resultPitches)
        .push_back(pitches.empty() || !pitches[i] ? program.columns : pitches[i]);

  // The pass after which a value is known: that of its operands, and one more after a row reduction.
  DenseMap<Value, int64_t> level;
  auto addReduction = [&](ReduceOp reduce, int64_t pass) {
    if (program.passes() <= pass) program.reductions.resize(pass + 1);
    program.reductions[pass].push_back(reduce);
  };
  DenseSet<Operation*> columnReductions;
  for (Operation* op : ops) {
    int64_t pass = 0;
    for (Value v : op->getOperands()) pass = std::max(pass, level.lookup(v));
    if (auto reduce = dyn_cast<ReduceOp>(op)) {
      if (rowsOf(reduce.getOperand()) != program.rows)
        return op->emitOpError("reduces a tensor whose rows are not those of its fusion"), failure();
      if (isRowReduction(reduce)) {
        if (reduce.getKind() == ReduceKind::mean)
          return op->emitOpError("is a mean; train-decompose writes it as a sum and a division"), failure();
        if (program.columns == 1 || !program.isVector(reduce.getOperand()))
          return op->emitOpError("reduces a row whose columns are not those of its fusion"), failure();
        addReduction(reduce, pass++);
      } else {
        if (reduce.getKind() != ReduceKind::sum || !isa<FloatType>(tensor(reduce.getOperand()).getElementType()))
          return op->emitOpError("is a column reduction other than a sum of floats"), failure();
        if (!llvm::all_of(reduce->getUsers(), [&](Operation* user) { return user == yield; }))
          return op->emitOpError("is a column reduction whose value is used inside its fusion"), failure();
        columnReductions.insert(op);
      }
    } else if (auto constant = dyn_cast<ConstantOp>(op)) {
      if (!isa<SplatElementsAttr>(constant.getValue()))
        return op->emitOpError("is not a splat; train-fuse keeps other constants outside of the fusion"), failure();
    } else if (!isa<FusableElementwise, BroadcastOp, ReshapeOp, IotaOp>(op)) {
      return op->emitOpError("is not allowed in a fusion"), failure();
    }
    if (!program.flat) {
      for (Value v : op->getResults())
        if (!columnReductions.contains(op) && lastDim(v) != 1 && lastDim(v) != program.columns)
          return op->emitOpError("has a last dimension that is neither 1 nor the columns of its fusion"), failure();
      if (isa<ReshapeOp>(op) && lastDim(op->getOperand(0)) != lastDim(op->getResult(0)))
        return op->emitOpError("moves the last dimension inside a fusion"), failure();
    }
    for (Value v : op->getResults()) level[v] = pass;
  }

  for (Value v : yield->getOperands()) {
    RowOutput output{OutputKind::Element, v};
    if (Operation* op = v.getDefiningOp(); op && columnReductions.contains(op)) {
      output = {OutputKind::ColumnPartial, op->getOperand(0)};
      program.hasColumnPartials = true;
    } else if (!program.flat && rowsOf(v) != program.rows) {
      return fusion.emitOpError("yields a value whose rows are not those of the fusion"), failure();
    }
    bool perElement = program.isVector(output.value);
    if (!perElement && output.kind == OutputKind::Element) output.kind = OutputKind::Row;
    if (perElement) {
      int64_t pass = level.lookup(output.value);
      if (program.passes() <= pass) program.reductions.resize(pass + 1);
    }
    program.outputs.push_back(output);
  }
  return program;
}

std::string structuralKey(FusionOp fusion) {
  std::string key;
  llvm::raw_string_ostream os(key);
  DenseMap<Value, int64_t> number;
  auto define = [&](ValueRange values) {
    for (Value v : values) {
      number.try_emplace(v, number.size());
      os << v.getType() << ',';
    }
  };
  os << fusion.getRows() << 'x' << fusion.getColumns() << '/' << fusion.getBlock() << ':';
  for (int64_t pitch : fusion.getPitches().value_or(ArrayRef<int64_t>())) os << pitch << ',';
  Block& body = fusion.getBody().front();
  define(body.getArguments());
  for (Operation& op : body) {
    os << ';' << op.getName() << '(';
    for (Value v : op.getOperands()) os << number.lookup(v) << ',';
    os << ')';
    for (NamedAttribute attribute : op.getAttrDictionary())
      if (attribute.getName() != "train.group") os << attribute.getName() << '=' << attribute.getValue() << ',';
    define(op.getResults());
  }
  os << "->";
  for (Type type : fusion.getResultTypes()) os << type << ',';
  return key;
}

}  // namespace sheaf::codegen
