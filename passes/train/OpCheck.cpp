#include "passes/train/OpCheck.h"

#include <cmath>

#include "ir/Train/BatchNorm.h"
#include "ir/Train/Constant.h"
#include "ir/Train/Matchers.h"
#include "mlir/IR/Diagnostics.h"
#include "mlir/IR/Verifier.h"
#include "passes/train/OpResult.h"

using namespace mlir;

namespace sheaf::train {
namespace {

// Kinds of numbers, each of which is drawn once; so often where there are few results, and at most so often where they
// do not tell enough.
constexpr int kKinds = 3, kDrawsOfFew = 12, kDraws = 24;
constexpr int64_t kFew = 256;
// Elements of a pair's values on all leaves together, and products of elements, that are worth a try.
constexpr int64_t kMaxElements = int64_t(1) << 22, kMaxProducts = int64_t(1) << 22;
// Elements of all draws of all ops: some seconds.
constexpr int64_t kMaxSpent = int64_t(1) << 28;

// The operand that holds indices, and how many entries they name; -1: there is none.
std::pair<int, int64_t> indicesOf(Operation* op) {
  if (auto o = dyn_cast<GatherOp>(op)) return {1, typeOf(o.getData()).getDimSize(o.getAxis())};
  if (auto o = dyn_cast<GatherElementsOp>(op)) return {1, typeOf(o.getData()).getDimSize(o.getAxis())};
  if (auto o = dyn_cast<ScatterAddOp>(op)) return {1, typeOf(o.getResult()).getDimSize(o.getAxis())};
  if (auto o = dyn_cast<ScatterOp>(op)) return {0, typeOf(o.getResult()).getDimSize(o.getAxis())};
  if (auto o = dyn_cast<CrossEntropyOp>(op)) return {1, typeOf(o.getLogits()).getDimSize(1)};
  return {-1, 0};
}

// The evaluator relies on these; no verifier looks at them.
bool haveSameRows(Operation* op) {
  if (!isa<ConvGradInputOp, ConvGradFilterOp, MaxPoolGradOp, AttentionGradOp>(op)) return true;
  auto rows = [](Value v) { return typeOf(v).getDimSize(0); };
  const int64_t n = rows(op->getOperand(0));
  if (isa<ConvGradInputOp>(op)) return rows(op->getResult(0)) == n;
  if (isa<ConvGradFilterOp, MaxPoolGradOp>(op)) return rows(op->getOperand(1)) == n;
  return llvm::all_of(op->getOperands().take_front(6), [&](Value v) { return rows(v) == n; });
}

bool isTerm(const Claim& claim) {
  return claim.kind == Claim::Partial;
}

bool isValid(Operation* op) {
  return succeeded(verify(op)) && haveSameRows(op);
}

// About how many products of elements an op computes.
int64_t productsOf(Operation* op) {
  const int64_t elements = typeOf(op->getResult(0)).getNumElements();
  auto sizeOf = [&](unsigned i) { return typeOf(op->getOperand(i)).getNumElements(); };
  if (auto o = dyn_cast<MatMulOp>(op)) {
    const RankedTensorType a = typeOf(o.getLhs());
    return elements * a.getDimSize(o.getTransposeA() ? a.getRank() - 2 : a.getRank() - 1);
  }
  if (isa<ConvOp>(op)) return elements * sizeOf(1) / typeOf(op->getOperand(1)).getDimSize(0);
  if (isa<ConvGradInputOp>(op)) return sizeOf(0) * sizeOf(1) / typeOf(op->getOperand(1)).getDimSize(0);
  if (isa<ConvGradFilterOp>(op)) return sizeOf(1) * elements / typeOf(op->getResult(0)).getDimSize(0);
  if (isa<AttentionOp, AttentionGradOp>(op)) return 4 * sizeOf(0) * typeOf(op->getOperand(1)).getDimSize(1);
  return elements;
}

std::string shapeText(ArrayRef<int64_t> shape) {
  std::string text = "[";
  for (int64_t n : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(n);
  return text + "]";
}

// The number that all elements of a value are, if it is known.
std::optional<Constant> splatOf(Value v) {
  auto known = knownConstant(v);
  return known && known->isSplat() ? known : std::nullopt;
}

}  // namespace

// A pair at small sizes, with values of the batch and of each leaf.
struct OpCheck::Instance {
  Operation *batch, *leaf;
  const PairShapes& shapes;
  std::vector<Tensor> operands, results;
  std::vector<std::vector<Tensor>> leafOperands, leafResults;  // by leaf
};

std::string nodeName(Location location) {
  std::string name;
  location->walk([&](Location part) {
    if (auto named = dyn_cast<NameLoc>(part); named && name.empty()) name = named.getName().str();
    return WalkResult::advance();
  });
  return name.empty() ? "the model" : name;
}

OpCheck::OpCheck(MLIRContext* context, int64_t leaves, int64_t fault) : leaves(leaves), fault(fault), random(1) {
  OpBuilder builder(context);
  scratch = func::FuncOp::create(builder, builder.getUnknownLoc(), "scratch", builder.getFunctionType({}, {}));
  scratch->addEntryBlock();
}

LogicalResult OpCheck::check(const OpPair& pair) {
  std::string key;
  llvm::raw_string_ostream out(key);
  out << pair.batch->getName() << pair.batch->getAttrDictionary() << pair.leaf->getAttrDictionary() << pair.factor;
  auto add = [&](ValueRange values, ArrayRef<Claim> claims) {
    for (auto [v, claim] : llvm::zip(values, claims)) {
      out << ';' << v.getType() << claim.kind << ',' << claim.place.dimension << ',' << claim.place.run;
      if (auto splat = splatOf(v)) out << llvm::bit_cast<uint64_t>(splat->splatValue()) << ' ' << splat->splatInteger();
    }
  };
  add(pair.batch->getOperands(), pair.operands);
  add(pair.batch->getResults(), pair.results);
  for (Type type : pair.leaf->getOperandTypes()) out << type;
  for (Type type : pair.leaf->getResultTypes()) out << type;
  for (Value v : pair.batch->getOperands())
    out << ' ' << llvm::find(pair.batch->getOperands(), v) - pair.batch->operand_begin();
  auto [entry, isNew] = known.try_emplace(key);
  if (isNew) {
    OpPair tried = pair;
    inject(tried);
    entry->second = tryPair(tried);
  }
  return report(pair.leaf, entry->second);
}

LogicalResult OpCheck::checkTerm(Operation* leaf, double factor) {
  if (isFault(leaf, "a term twice as large")) factor *= 2;
  if (isFault(leaf, "the whole for a term")) factor = 1;
  // The factor is rounded to the element type.
  if (std::abs(factor * double(leaves) - 1) < 0x1p-7) return report(leaf, {});
  return report(leaf, {Verdict::Wrong, "a leaf's term is " + std::to_string(factor) + " of the whole"});
}

LogicalResult OpCheck::checkEffect(Operation* leaf, Claim claim) {
  if (isFault(leaf, "all of it for a term of it")) claim = {Claim::Whole, {}};
  if (claim.kind == Claim::Partial) return report(leaf, {});
  return report(leaf, {Verdict::Wrong, "a leaf gives " + describe(claim) + ", not a term of it"});
}

void OpCheck::skip(Operation* leaf, StringRef why) {
  ++total;
  uncheckedOps.push_back(nodeName(leaf->getLoc()) + ": " + leaf->getName().getStringRef().str() + ", " + why.str());
}

LogicalResult OpCheck::report(Operation* leaf, const Verdict& verdict) {
  if (verdict.kind == Verdict::Unchecked) return skip(leaf, verdict.why), success();
  ++total;
  if (verdict.kind == Verdict::Weak)
    weakOps.push_back(nodeName(leaf->getLoc()) + ": " + leaf->getName().getStringRef().str() + ", " + verdict.why);
  if (verdict.kind != Verdict::Wrong) return success();
  return leaf->emitOpError() << "is not divided rightly among " << leaves << " leaves: " << verdict.why
                             << ". This is a fault of the compiler: report it with the model, and compile with "
                                "--ranks 1 --leaves 1 meanwhile";
}

void OpCheck::addTo(ModuleOp module, StringRef pass) const {
  if (!injectedFault.empty()) emitRemark(module.getLoc()) << "fault: " << injectedFault;
  if (total == 0) return;
  auto add = [&](const Twine& line) { recordDecision(module, pass + ": " + line); };
  add(Twine(total - int64_t(uncheckedOps.size())) + " of " + Twine(total) + " ops were tried on " + Twine(leaves) +
      " leaves");
  for (const std::string& op : uncheckedOps) add("not tried: " + op);
  for (const std::string& op : weakOps) add("inconclusive: " + op);
}

//===--- Faults ---===//

bool OpCheck::isFault(Operation* op, const Twine& what) {
  if (fault < 0 || fault-- > 0) return false;
  injectedFault = (op->getName().getStringRef() + ": " + what).str();
  return true;
}

void OpCheck::inject(OpPair& pair) {
  auto others = [&](ValueRange values, MutableArrayRef<Claim> claims, const char* which) {
    for (auto [i, v] : llvm::enumerate(values)) {
      const ArrayRef<int64_t> shape = typeOf(v).getShape();
      const Claim given = claims[i];
      auto exchange = [&](const Claim& other) {
        if (other == given) return;
        // A number is the same in all places.
        const bool moved = given.kind == Claim::Split && other.kind == Claim::Split;
        if (moved && other.place.dimension == given.place.dimension && splatOf(v)) return;
        if (isFault(pair.batch, Twine(which) + " " + Twine(i) + " as " + describe(other) + ", not " + describe(given) +
                                    "; operand 0 is " + describe(pair.operands[0]) + ", result 0 " +
                                    describe(pair.results[0])))
          claims[i] = other;
      };
      exchange({Claim::Whole, {}});
      exchange({Claim::Partial, {}});
      for (int64_t d = 0; d < int64_t(shape.size()); ++d)
        for (int64_t run = 1; run <= shape[size_t(d)] / leaves; ++run)
          if (shape[size_t(d)] % (run * leaves) == 0) exchange({Claim::Split, {d, run}});
    }
  };
  if (fault < 0) return;
  others(pair.batch->getOperands(), pair.operands, "operand");
  others(pair.batch->getResults(), pair.results, "result");
  if (pair.factor != 1 && isFault(pair.batch, "a factor twice as large")) pair.factor *= 2;
  if (pair.factor != 1 && isFault(pair.batch, "no factor")) pair.factor = 1;
}

//===--- Tries ---===//

OpCheck::Verdict OpCheck::tryPair(const OpPair& pair) {
  const PairShapes shapes = shapesOf(pair);
  std::string wrong;
  auto fits = [&](ValueRange values, auto& batch, ArrayRef<Claim> claims, const char* which, bool inFront) {
    for (auto [i, v] : llvm::enumerate(values)) {
      auto expected = leafShape(batch[i], claims[i], leaves);
      if (expected && inFront) expected->erase(expected->begin());
      const bool terms = claims[i].kind != Claim::Partial || !typeOf(v).getElementType().isInteger(1);
      if (expected && terms && ArrayRef<int64_t>(*expected) == typeOf(v).getShape()) continue;
      wrong = std::string(which) + " " + std::to_string(i) + " of " + shapeText(batch[i]) + " has the shape " +
              shapeText(typeOf(v).getShape()) + " on a leaf, which is not " + describe(claims[i]);
    }
  };
  fits(pair.leaf->getOperands(), shapes.operands, pair.operands, "operand", false);
  fits(pair.leaf->getResults(), shapes.results, pair.results, "result", hasLeavesInFront(pair.batch));
  if (!wrong.empty()) return {Verdict::Wrong, wrong};
  // An error of an op at a small size is not one of the model.
  ScopedDiagnosticHandler quiet(pair.batch->getContext(), [](Diagnostic&) { return success(); });
  Verdict verdict = tryAt(pair, smallerShapes(pair, leaves));
  Block& block = scratch->getBody().front();
  block.clear();
  block.eraseArguments([](BlockArgument) { return true; });
  return verdict;
}

// Random numbers name the blocks before a leaf's part, which are fewer at smaller sizes. A wrong number stays wrong.
// The batch is one block, whose elements follow each other.
void OpCheck::fitBlocks(const OpPair& pair, Instance& instance, const PairShapes& shapes) const {
  auto blocks = pair.leaf->getAttrOfType<IntegerAttr>("blocks");
  if (!blocks) return;
  instance.batch->setAttr("blocks", IntegerAttr::get(blocks.getType(), 1));
  if (shapes.resultClaims[0].kind != Claim::Split) return;
  auto blocksOf = [&](ArrayRef<int64_t> shape, Place place) {
    return ShapedType::getNumElements(shape.take_front(size_t(place.dimension) + 1)) / (place.run * leaves);
  };
  if (typeOf(pair.leaf->getResult(0)).getNumElements() == 0) return;
  const int64_t were = blocksOf(typeOf(pair.batch->getResult(0)).getShape(), pair.results[0].place);
  const int64_t are = blocks.getInt() * blocksOf(shapes.results[0], shapes.resultClaims[0].place);
  if (are % were == 0) instance.leaf->setAttr("blocks", IntegerAttr::get(blocks.getType(), are / were));
}

OpCheck::Verdict OpCheck::tryAt(const OpPair& pair, const PairShapes& shapes) {
  auto leafShapes = [&](auto& batch, ArrayRef<Claim> claims) {
    SmallVector<SmallVector<int64_t>> all;
    for (auto [shape, claim] : llvm::zip(batch, claims)) all.push_back(*leafShape(shape, claim, leaves));
    return all;
  };
  auto leafOperands = leafShapes(shapes.operands, shapes.operandClaims);
  auto leafResults = leafShapes(shapes.results, shapes.resultClaims);
  if (hasLeavesInFront(pair.batch)) leafResults[0].erase(leafResults[0].begin());
  int64_t elements = 0;
  for (const auto* all : {&leafOperands, &leafResults})
    for (const auto& shape : *all) elements += leaves * ShapedType::getNumElements(shape);
  if (elements > kMaxElements) return {Verdict::Unchecked, "too large to be tried"};
  if (spent > kMaxSpent) return {Verdict::Unchecked, "other ops took the time for tries"};

  Instance instance{make(pair.batch, shapes.operands, shapes.results),
                    make(pair.leaf, leafOperands, leafResults),
                    shapes,
                    {},
                    {},
                    {},
                    {}};
  fitBlocks(pair, instance, shapes);
  if (!isValid(instance.batch)) return {Verdict::Unchecked, "cannot be tried at a smaller size"};
  if (!isValid(instance.leaf)) return {Verdict::Wrong, "it cannot be computed for a leaf"};
  if (leaves * productsOf(instance.leaf) > kMaxProducts) return {Verdict::Unchecked, "too large to be tried"};

  // Each leaf computes the same of whole values.
  const bool alike = llvm::all_of(pair.operands, [](const Claim& claim) { return claim.kind == Claim::Whole; });
  // Leaves round like the batch unless they add up what it adds in another order.
  const bool rounds =
      isa<BatchNormOp>(pair.batch) || llvm::any_of(pair.operands, isTerm) || llvm::any_of(pair.results, isTerm);
  const size_t count = pair.results.size();
  std::vector<bool> tells(count), distinct(count);
  // A sum is right with any numbers, and a large one among the model's would hide the others.
  const bool isSum = isa<AddOp, SubOp, FmaOp>(pair.batch);
  auto tellsAll = [&](size_t j) { return tells[j] && distinct[j]; };
  for (int i = 0; i < kDraws; ++i) {
    const auto all = llvm::seq(count);
    const bool few = elements < kFew * leaves && leaves <= kFew && i < kDrawsOfFew;
    if (i >= kKinds && !few && llvm::all_of(all, tellsAll)) break;
    // The numbers that the model has may hide what an op does, such as those of a product with zeros.
    const bool ignoresConstants = isSum || i >= kDrawsOfFew, refuses = isSum || i < kDrawsOfFew;
    spent += elements;
    draw(pair, instance, i % kKinds, ignoresConstants);
    auto results = evaluate(instance.batch, instance.operands);
    if (failed(results)) return {Verdict::Unchecked, "has no value that the evaluator knows"};
    instance.results = std::move(*results);
    if (failed(evaluateLeaves(instance))) {
      if (!refuses) break;
      return {Verdict::Wrong, "it cannot be computed for a leaf"};
    }
    for (size_t j = 0; j < count; ++j) {
      std::vector<const Tensor*> own;
      for (const auto& leaf : instance.leafResults) own.push_back(&leaf[j]);
      const OpResult result{instance.results[j], own, j ? 1 : pair.factor, !rounds};
      const Claim& claim = shapes.resultClaims[j];
      std::string wrong = result.mismatch(claim);
      if (!wrong.empty() && !refuses) break;
      if (!wrong.empty())
        return {Verdict::Wrong, (count > 1 ? "of result " + std::to_string(j) + " " : "") + wrong + ", at sizes " +
                                    shapeText(shapes.results[j]) + ", of which a leaf is to have " + describe(claim)};
      tells[j] = tells[j] || result.tells(instance.batch);
      distinct[j] = distinct[j] || alike || !result.batch.size() || result.isDistinct(claim);
    }
  }
  for (size_t j = 0; j < count; ++j) {
    if (!tells[j]) return {Verdict::Weak, "nearly all results are zero or not finite"};
    if (!distinct[j]) return {Verdict::Weak, "the leaves' results are alike"};
  }
  return {};
}

Operation* OpCheck::make(Operation* op, ArrayRef<SmallVector<int64_t>> operands,
                         ArrayRef<SmallVector<int64_t>> results) {
  Block& block = scratch->getBody().front();
  SmallVector<Value> values;
  for (auto [v, shape] : llvm::zip(op->getOperands(), operands))
    values.push_back(block.addArgument(typeOf(v).clone(shape), op->getLoc()));
  SmallVector<Type> types;
  for (auto [v, shape] : llvm::zip(op->getResults(), results)) types.push_back(typeOf(v).clone(shape));
  OpBuilder builder = OpBuilder::atBlockEnd(&block);
  Operation* made = builder.create(OperationState(op->getLoc(), op->getName(), values, types, op->getAttrs()));
  if (auto slice = dyn_cast<SliceOp>(made)) slice.setSizes(results[0]);
  // A narrower window still leaves some of fewer keys out.
  auto narrow = [](auto attention) {
    const int64_t keys = typeOf(attention.getKey()).getDimSize(1);
    if (auto window = attention.getWindow(); window && int64_t(*window) >= keys)
      attention.setWindow(std::max<int64_t>(keys / 2, 1));
  };
  if (auto attention = dyn_cast<AttentionOp>(made)) narrow(attention);
  if (auto attention = dyn_cast<AttentionGradOp>(made)) narrow(attention);
  return made;
}

//===--- Values ---===//

// Numbers of both signs; few numbers, so that some are equal, and zero; numbers for logarithms and roots.
double OpCheck::number(int kind) {
  const double unit = double(random() >> 11) * 0x1p-53;
  if (kind == 0) return 4 * unit - 2;
  if (kind == 1) return std::floor(5 * unit) / 2 - 1;
  return 0.1 + 0.8 * unit;
}

Tensor OpCheck::drawn(const OpPair& pair, Operation* op, unsigned operand, int kind) {
  Tensor t = Tensor::zeros(typeOf(op->getOperand(operand)));
  // Operands lie on both sides of a number that they are compared with.
  int64_t bound = 0;
  if (isa<CompareOp, MinOp, MaxOp>(op))
    for (Value v : pair.batch->getOperands())
      if (auto splat = splatOf(v); splat && std::abs(splat->splatValue()) < 0x1p31)
        bound = int64_t(splat->splatValue());
  for (double& x : t.f) {
    x = number(kind);
    if (kind == 1 && isa<CompareOp>(op)) x = std::max(x, 0.5);
    x += random() & 1 ? double(bound) : 0;
    if (isa<GuardOp>(op) && operand == 0 && random() & 1) x = 0;
    if ((isa<IsNanOp>(op) || (isa<GuardOp>(op) && operand == 1)) && random() & 1) x = std::nan("");
  }
  const auto [indices, entries] = indicesOf(op);
  const int64_t range = std::max<int64_t>(entries, 1);
  const Type element = t.type.getElementType();
  auto entropy = dyn_cast<CrossEntropyOp>(op);
  for (int64_t& x : t.i) {
    const uint64_t word = random();
    if (int(operand) == indices && entropy)
      x = entropy.getIgnoreIndex() && word % 4 == 0 ? int64_t(*entropy.getIgnoreIndex()) : int64_t(word / 4) % range;
    else if (int(operand) == indices)
      x = int64_t((word >> 1) % uint64_t(2 * range)) - range;
    else if (element.isInteger(1))
      x = word % 4 > uint64_t(kind);
    else
      x = bound + int64_t((word >> 1) % (kind == 1 ? 2 : 7)) - (kind == 1 || element.isUnsignedInteger() ? 0 : 3);
  }
  return t;
}

// Gives each leaf what is claimed of a value. A term is not a multiple of the sum.
std::vector<Tensor> OpCheck::divide(const Tensor& batch, const Claim& claim, int kind) {
  const auto shape = leafShape(batch.type.getShape(), claim, leaves);
  std::vector<Tensor> all(size_t(leaves), Tensor::zeros(batch.type.clone(*shape)));
  if (claim.kind == Claim::Whole) all.assign(size_t(leaves), batch);
  if (claim.kind == Claim::Split)
    for (int64_t leaf = 0; leaf < leaves; ++leaf)
      forPart(batch.type.getShape(), claim.place, leaves, leaf, [&](int64_t own, int64_t e) {
        Tensor& t = all[size_t(leaf)];
        batch.isFloat() ? void(t.f[size_t(own)] = batch.f[size_t(e)]) : void(t.i[size_t(own)] = batch.i[size_t(e)]);
      });
  if (claim.kind == Claim::Partial) {
    all[0] = batch;
    for (size_t leaf = 1; leaf < all.size(); ++leaf) {
      for (size_t e = 0; e < batch.f.size(); ++e) all[0].f[e] -= all[leaf].f[e] = number(kind == 1 ? 1 : 0);
      // Few terms of integers are not zero, so that narrow ones hold them and their sum.
      const bool isUnsigned = batch.type.getElementType().isUnsignedInteger();
      for (size_t e = 0; e < batch.i.size() && leaf < (isUnsigned ? 2 : 4); ++e)
        all[0].i[e] -= all[leaf].i[e] =
            isUnsigned ? int64_t(random() % uint64_t(batch.i[e] + 1)) : int64_t(random() % 7) - 3;
    }
  }
  return all;
}

void OpCheck::draw(const OpPair& pair, Instance& instance, int kind, bool ignoresConstants) {
  instance.operands.clear();
  instance.leafOperands.assign(size_t(leaves), {});
  for (auto [i, v] : llvm::enumerate(pair.batch->getOperands())) {
    size_t first = size_t(llvm::find(pair.batch->getOperands(), v) - pair.batch->operand_begin());
    if (instance.shapes.operands[first] != instance.shapes.operands[i]) first = i;
    if (first < i) {
      instance.operands.push_back(instance.operands[first]);
    } else if (auto splat = ignoresConstants || int(i) == indicesOf(instance.batch).first ? std::nullopt : splatOf(v)) {
      Tensor t = Tensor::zeros(typeOf(instance.batch->getOperand(unsigned(i))));
      llvm::fill(t.f, splat->splatValue());
      llvm::fill(t.i, splat->splatInteger());
      instance.operands.push_back(std::move(t));
    } else {
      instance.operands.push_back(drawn(pair, instance.batch, unsigned(i), kind));
    }
    const Claim& claim = instance.shapes.operandClaims[i];
    const bool again = first < i && claim == instance.shapes.operandClaims[first];
    std::vector<Tensor> divided;
    if (!again) divided = divide(instance.operands[i], claim, kind);
    for (size_t leaf = 0; leaf < size_t(leaves); ++leaf) {
      auto& own = instance.leafOperands[leaf];
      own.push_back(again ? own[first] : std::move(divided[leaf]));
    }
  }
}

// Sums over leaves inside of an op are those of all leaves: each is known after as many rounds as there are before it.
LogicalResult OpCheck::evaluateLeaves(Instance& instance) const {
  std::vector<Tensor> sums;
  for (bool isNew = true; isNew;) {
    const size_t known = sums.size();
    isNew = false;
    instance.leafResults.clear();
    for (int64_t leaf = 0; leaf < leaves; ++leaf) {
      size_t call = 0;
      EvaluatorOptions options;
      options.rank = leaf;
      options.ranks = leaves;
      options.globalSum = [&](Tensor& t) {
        const size_t sum = call++;
        if (sum < known) {
          t = sums[sum];
        } else if (sum == known && !isNew) {
          sums.push_back(t);
          isNew = true;
        } else if (sum == known) {
          for (size_t e = 0; e < t.f.size(); ++e) sums[sum].f[e] += t.f[e];
        }
      };
      auto results = evaluate(instance.leaf, instance.leafOperands[size_t(leaf)], options);
      if (failed(results)) return failure();
      instance.leafResults.push_back(std::move(*results));
    }
  }
  return success();
}

}  // namespace sheaf::train
