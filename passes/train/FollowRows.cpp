#include "passes/train/FollowRows.h"

#include "ir/Train/Constant.h"
#include "ir/Train/TensorBuilder.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"

using namespace mlir;

namespace sheaf::train {
namespace {

constexpr const char* kNotDivided = ", which is not supported with more than one rank, leaf or micro-batch";
constexpr const char* kRowsDiffer =
    "takes a constant that differs from row to row of the batch, such as a range of its size (make it an input of the "
    "model, with a row for each row of the batch)";

constexpr const char* kTooLarge =
    "counts rows of the batch, in a graph whose constants are too large to be computed for all rows";
constexpr const char* kTwoDimensions =
    "makes a value that has the rows of the batch in two dimensions, or not as many elements for each row as for any "
    "other";

ArrayRef<int64_t> shapeOf(Value v) {
  return TensorBuilder::typeOf(v).getShape();
}

// Known elements: a constant, or one that is repeated along dimensions of size 1.
std::optional<Constant> knownValue(Value v) {
  if (auto constant = v.getDefiningOp<ConstantOp>()) return Constant::fromAttribute(constant.getValue());
  auto broadcast = v.getDefiningOp<BroadcastOp>();
  auto constant = broadcast ? broadcast.getOperand().getDefiningOp<ConstantOp>() : ConstantOp();
  if (!constant) return std::nullopt;
  auto known = Constant::fromAttribute(constant.getValue());
  if (known) known->type = TensorBuilder::typeOf(v);
  return known;
}

bool isKnown(Operation& op) {
  if (isa<ConstantOp>(op)) return true;
  auto broadcast = dyn_cast<BroadcastOp>(op);
  return broadcast && broadcast.getOperand().getDefiningOp<ConstantOp>();
}

// The number of the graph's node that an op was made of; 0 if unknown.
unsigned nodeOf(Operation* op) {
  unsigned node = 0;
  op->getLoc()->walk([&](Location location) {
    if (auto place = dyn_cast<FileLineColLoc>(location)) node = std::max(node, place.getLine());
    return WalkResult::advance();
  });
  return node;
}

// An attribute of sizes or places along dimensions, which differ with the number of rows: the sizes of the
// result tell what they are.
bool followsSizes(Operation& op, StringRef attribute) {
  if (isa<SliceOp>(op)) return attribute == "starts" || attribute == "sizes";
  return isa<PadOp>(op) && (attribute == "low" || attribute == "high");
}

using AtConstant = llvm::function_ref<LogicalResult(OpOperand&, Value other)>;

// Walks the two steps together, op by op.
class Comparison {
 public:
  explicit Comparison(const RowImports& imports) : imports(imports) {}

  // Calls `atConstant` for every operand that is known. Constants are compared there alone: how many of them are equal
  // to each other, and so are one op, depends on the number of rows.
  LogicalResult run(AtConstant atConstant) {
    Block &ours = bodyOf(imports.step), &theirs = bodyOf(imports.other);
    if (ours.getNumArguments() != theirs.getNumArguments()) return differ(nullptr, nullptr);
    for (auto [a, b] : llvm::zip(ours.getArguments(), theirs.getArguments())) pairs[a] = b;
    for (auto a = ours.begin(), b = theirs.begin();; ++a, ++b) {
      while (a != ours.end() && isKnown(*a)) ++a;
      while (b != theirs.end() && isKnown(*b)) ++b;
      Operation *one = a == ours.end() ? nullptr : &*a, *two = b == theirs.end() ? nullptr : &*b;
      if (!one && !two) return success();
      if (!one || !two || !isSame(*one, *two)) return differ(one, two);
      for (auto [x, y] : llvm::zip(one->getResults(), two->getResults()))
        if (!dimensionOf(x, y)) return refuseRows(imports.step, one->getLoc(), kTwoDimensions);
      for (OpOperand& operand : one->getOpOperands())
        if (Operation* made = operand.get().getDefiningOp(); made && isKnown(*made))
          if (failed(atConstant(operand, two->getOperand(operand.getOperandNumber())))) return failure();
      for (auto [x, y] : llvm::zip(one->getResults(), two->getResults())) pairs[x] = y;
    }
  }

  // The dimension of a value that holds the batch, by its counterpart's sizes, or -1. Nothing if the sizes of several
  // differ, or not as the numbers of rows do.
  std::optional<int64_t> dimensionOf(Value a, Value b) const {
    int64_t found = -1;
    for (int64_t d = 0; d < int64_t(shapeOf(a).size()); ++d) {
      const int64_t n = shapeOf(a)[d], m = shapeOf(b)[d];
      if (n == m) continue;
      if (found >= 0 || n % imports.rows || __int128(n) * imports.otherRows != __int128(m) * imports.rows)
        return std::nullopt;
      found = d;
    }
    return found;
  }

  Value counterpartOf(Value v) const { return pairs.lookup(v); }

  static Block& bodyOf(ModuleOp module) { return module.lookupSymbol<func::FuncOp>("step").getBody().front(); }

 private:
  RowImports imports;
  DenseMap<Value, Value> pairs;  // values of the step, and of the other one

  // At the earlier node: one of the imports made nothing of it.
  LogicalResult differ(Operation* a, Operation* b) {
    Operation* at = a && b ? (nodeOf(a) < nodeOf(b) ? a : b) : a ? a : b;
    return refuseRows(imports.step, at ? at->getLoc() : imports.step.getLoc(),
                      "does something else with all rows of the batch than with a part of them, as a reshape does that "
                      "has a fixed number of groups or of rows");
  }

  bool isSame(Operation& a, Operation& b) const {
    if (a.getName() != b.getName() || a.getNumOperands() != b.getNumOperands() ||
        a.getNumResults() != b.getNumResults() || a.getAttrs().size() != b.getAttrs().size())
      return false;
    for (NamedAttribute attribute : a.getAttrs())
      if (attribute.getValue() != b.getAttr(attribute.getName()) && !followsSizes(a, attribute.getName())) return false;
    auto rankOf = [](Value v) { return shapeOf(v).size(); };
    for (auto [x, y] : llvm::zip(a.getOperands(), b.getOperands())) {
      Operation *made = x.getDefiningOp(), *other = y.getDefiningOp();
      const bool known = made && isKnown(*made);
      if (known != (other && isKnown(*other)) || rankOf(x) != rankOf(y)) return false;
      if (!known && pairs.lookup(x) != y) return false;
    }
    return llvm::all_of(llvm::zip(a.getResults(), b.getResults()),
                        [&](auto both) { return rankOf(std::get<0>(both)) == rankOf(std::get<1>(both)); });
  }
};

// Marks dimensions of the batch. A constant that is read in several ways gets a copy for each.
class Marker {
 public:
  void markConstant(OpOperand& operand, int64_t dimension) {
    Operation* made = operand.get().getDefiningOp();
    Operation*& marked = copies[{made, dimension}];
    if (!marked) {
      const bool first = uses.insert(made).second;
      OpBuilder builder(made);
      marked = first ? made : builder.clone(*made);
      mark(marked, {dimension});
      // The operand may have the rows itself, in equal parts.
      if (auto broadcast = dyn_cast<BroadcastOp>(marked);
          broadcast && dimension >= 0 && shapeOf(broadcast.getOperand())[dimension] != 1) {
        Operation* inner = OpBuilder(marked).clone(*broadcast.getOperand().getDefiningOp());
        mark(inner, {dimension});
        broadcast->setOperand(0, inner->getResult(0));
      }
    }
    operand.set(marked->getResult(0));
  }

  static void mark(Operation* op, ArrayRef<int64_t> dimensions) {
    op->setAttr(kRowsAttr, DenseI64ArrayAttr::get(op->getContext(), dimensions));
  }

 private:
  DenseMap<std::pair<Operation*, int64_t>, Operation*> copies;
  DenseSet<Operation*> uses;
};

}  // namespace

void takeBatchConstants(RowImports imports) {
  Comparison comparison(imports);
  DenseMap<std::pair<Value, Value>, Value> taken;
  SmallVector<std::pair<OpOperand*, Value>> changes;
  const LogicalResult done = comparison.run([&](OpOperand& operand, Value theirs) -> LogicalResult {
    Value ours = operand.get();
    Operation* user = operand.getOwner();
    const std::optional<int64_t> dimension = comparison.dimensionOf(ours, theirs);
    const std::optional<Constant> known = knownValue(ours), whole = knownValue(theirs);
    if (!dimension || !known || !whole) return refuseRows(imports.step, user->getLoc(), kTwoDimensions);
    Constant value = imports.rows == imports.batch ? *known : *whole;
    if (*dimension >= 0) {
      const int64_t size = shapeOf(ours)[*dimension];
      if (!value.repeats(*dimension, size / imports.rows)) return refuseRows(imports.step, user->getLoc(), kRowsDiffer);
      value = value.first(*dimension, size);
    }
    if (value.stored == known->stored && *value.data == *known->data) return success();
    if (imports.rows != imports.batch && imports.otherRows != imports.batch)
      return refuseRows(imports.step, user->getLoc(), kTooLarge);
    Value& made = taken[{ours, theirs}];
    if (!made) {
      OpBuilder builder(ours.getDefiningOp());
      made = materialize(builder, ours.getLoc(), value);
    }
    changes.emplace_back(&operand, made);
    return success();
  });
  if (failed(done)) return;
  for (auto [operand, value] : changes) operand->set(value);
}

void markRows(RowImports imports) {
  if (Comparison::bodyOf(imports.step).getParentOp()->hasAttr(kRowsRefusedAttr)) return;
  Comparison comparison(imports);
  Marker marker;
  auto atConstant = [&](OpOperand& operand, Value theirs) -> LogicalResult {
    const std::optional<int64_t> dimension = comparison.dimensionOf(operand.get(), theirs);
    if (!dimension) return refuseRows(imports.step, operand.getOwner()->getLoc(), kTwoDimensions);
    marker.markConstant(operand, *dimension);
    return success();
  };
  if (failed(comparison.run(atConstant))) return;
  for (Operation& op : Comparison::bodyOf(imports.step)) {
    if (isKnown(op)) continue;
    SmallVector<int64_t> dimensions;
    for (Value result : op.getResults())
      dimensions.push_back(*comparison.dimensionOf(result, comparison.counterpartOf(result)));
    Marker::mark(&op, dimensions);
  }
  imports.step->setAttr(kRowsKnownAttr, UnitAttr::get(imports.step.getContext()));
}

LogicalResult refuseRows(ModuleOp module, Location where, const Twine& why) {
  auto step = module.lookupSymbol<func::FuncOp>("step");
  Builder builder(module.getContext());
  if (!step->hasAttr(kRowsRefusedAttr))
    step->setAttr(kRowsRefusedAttr,
                  builder.getDictionaryAttr({builder.getNamedAttr("at", LocationAttr(where)),
                                             builder.getNamedAttr("why", builder.getStringAttr(why + kNotDivided))}));
  return failure();
}

}  // namespace sheaf::train
