#include "passes/train/FollowRows.h"

#include <climits>

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

// The location of an op; of the next one that was made of a node of the graph, if it was not.
Location placeOf(Operation* op) {
  Operation* named = op;
  while (named && !nodeOf(named)) named = named->getNextNode();
  return named ? named->getLoc() : op->getLoc();
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
        if (failed(follow(one, x, y))) return failure();
      for (OpOperand& operand : one->getOpOperands())
        if (Operation* made = operand.get().getDefiningOp(); made && isKnown(*made)) {
          Value other = two->getOperand(operand.getOperandNumber());
          if (failed(follow(one, operand.get(), other)) || failed(atConstant(operand, other))) return failure();
        }
      for (auto [x, y] : llvm::zip(one->getResults(), two->getResults())) pairs[x] = y;
    }
  }

  // The dimension of a value that holds the batch, by its counterpart's sizes, or -1.
  static int64_t dimensionOf(Value a, Value b) {
    for (int64_t d = 0; d < int64_t(shapeOf(a).size()); ++d)
      if (shapeOf(a)[d] != shapeOf(b)[d]) return d;
    return -1;
  }

  Value counterpartOf(Value v) const { return pairs.lookup(v); }

  static Block& bodyOf(ModuleOp module) { return module.lookupSymbol<func::FuncOp>("step").getBody().front(); }

  LogicalResult refuse(Operation* at, const Twine& why) const {
    ModuleOp step = imports.step;
    return refuseRows(step, at ? placeOf(at) : step.getLoc(), why);
  }

 private:
  RowImports imports;
  DenseMap<Value, Value> pairs;  // values of the step, and of the other one

  // Checks that the sizes of a value, which `op` makes or reads, follow the number of rows in one dimension at most.
  LogicalResult follow(Operation* op, Value a, Value b) const {
    const int64_t dimension = dimensionOf(a, b);
    if (dimension < 0) return success();
    if (shapeOf(a).drop_front(dimension + 1) != shapeOf(b).drop_front(dimension + 1))
      return refuse(op, "has a value with the rows of the batch in two dimensions");
    const int64_t n = shapeOf(a)[dimension], m = shapeOf(b)[dimension];
    if (n % imports.rows == 0 && __int128(n) * imports.otherRows == __int128(m) * imports.rows) return success();
    return refuse(op, "has a value whose size is " + Twine(n) + " for " + Twine(imports.rows) +
                          " rows of the batch and " + Twine(m) + " for " + Twine(imports.otherRows) +
                          ", which is not in proportion");
  }

  // At the earlier node: one of the imports made nothing of it.
  LogicalResult differ(Operation* a, Operation* b) const {
    auto numberOf = [](Operation* op) { return op && nodeOf(op) ? nodeOf(op) : UINT_MAX; };
    Operation* at = numberOf(a) <= numberOf(b) ? a : b;
    return refuse(at  ? at
                  : a ? a
                      : b,
                  "depends on the number of rows in the batch, as a reshape to a fixed number of groups or rows does");
  }

  // An attribute of sizes or places along dimensions may differ where those of the tensors do.
  static bool isSameAttribute(Operation& a, Operation& b, NamedAttribute attribute) {
    const bool followsSizes = isa<SliceOp>(a)
                                  ? attribute.getName() == "starts" || attribute.getName() == "sizes"
                                  : isa<PadOp>(a) && (attribute.getName() == "low" || attribute.getName() == "high");
    const Attribute other = b.getAttr(attribute.getName());
    if (attribute.getValue() == other) return true;
    auto ours = dyn_cast<DenseI64ArrayAttr>(attribute.getValue());
    auto theirs = dyn_cast_or_null<DenseI64ArrayAttr>(other);
    if (!followsSizes || !ours || !theirs || ours.size() != theirs.size()) return false;
    auto sizeDiffers = [&](Value x, Value y, int64_t d) { return shapeOf(x)[d] != shapeOf(y)[d]; };
    for (int64_t d = 0; d < int64_t(ours.size()); ++d)
      if (ours[d] != theirs[d] && !sizeDiffers(a.getOperand(0), b.getOperand(0), d) &&
          !sizeDiffers(a.getResult(0), b.getResult(0), d))
        return false;
    return true;
  }

  bool isSame(Operation& a, Operation& b) const {
    if (a.getName() != b.getName() || a.getNumOperands() != b.getNumOperands() ||
        a.getNumResults() != b.getNumResults() || a.getAttrs().size() != b.getAttrs().size())
      return false;
    auto rankOf = [](Value v) { return shapeOf(v).size(); };
    for (auto [x, y] : llvm::zip(a.getOperands(), b.getOperands())) {
      Operation *made = x.getDefiningOp(), *other = y.getDefiningOp();
      const bool known = made && isKnown(*made);
      if (known != (other && isKnown(*other)) || rankOf(x) != rankOf(y)) return false;
      if (!known && pairs.lookup(x) != y) return false;
    }
    return llvm::all_of(a.getAttrs(), [&](NamedAttribute one) { return isSameAttribute(a, b, one); }) &&
           llvm::all_of(llvm::zip(a.getResults(), b.getResults()),
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

LogicalResult takeBatchConstants(RowImports imports) {
  Comparison comparison(imports);
  DenseMap<std::pair<Value, Value>, Value> taken;
  SmallVector<std::pair<OpOperand*, Value>> changes;
  const LogicalResult done = comparison.run([&](OpOperand& operand, Value theirs) -> LogicalResult {
    Value ours = operand.get();
    Operation* user = operand.getOwner();
    const int64_t dimension = Comparison::dimensionOf(ours, theirs);
    const std::optional<Constant> known = knownValue(ours), whole = knownValue(theirs);
    if (!known || !whole) return comparison.refuse(user, kTooLarge);
    Constant value = imports.rows == imports.batch ? *known : *whole;
    if (dimension >= 0) {
      const int64_t size = shapeOf(ours)[dimension];
      if (!value.repeats(dimension, size / imports.rows)) return comparison.refuse(user, kRowsDiffer);
      value = value.first(dimension, size);
    }
    if (value.stored == known->stored && *value.data == *known->data) return success();
    if (imports.rows != imports.batch && imports.otherRows != imports.batch) return comparison.refuse(user, kTooLarge);
    Value& made = taken[{ours, theirs}];
    if (!made) {
      OpBuilder builder(ours.getDefiningOp());
      made = materialize(builder, ours.getLoc(), value);
    }
    changes.emplace_back(&operand, made);
    return success();
  });
  if (failed(done)) return failure();
  for (auto [operand, value] : changes) operand->set(value);
  return success();
}

void markRows(RowImports imports) {
  if (Comparison::bodyOf(imports.step).getParentOp()->hasAttr(kRowsRefusedAttr)) return;
  // The passes fold products of constants, which may count rows, too.
  if (failed(takeBatchConstants(imports))) return;
  Comparison comparison(imports);
  Marker marker;
  auto atConstant = [&](OpOperand& operand, Value theirs) {
    marker.markConstant(operand, Comparison::dimensionOf(operand.get(), theirs));
    return success();
  };
  if (failed(comparison.run(atConstant))) return;
  for (Operation& op : Comparison::bodyOf(imports.step)) {
    if (isKnown(op)) continue;
    SmallVector<int64_t> dimensions;
    for (Value result : op.getResults())
      dimensions.push_back(Comparison::dimensionOf(result, comparison.counterpartOf(result)));
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
