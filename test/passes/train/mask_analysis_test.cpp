// What masks let through: random expressions over positions, against all their elements by the reference evaluator.
#include "passes/train/MaskAnalysis.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <random>
#include <set>

#include "ir/Train/Evaluator.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinOps.h"
#include "passes/train/PiecewiseRow.h"

using namespace sheaf::train;

namespace {

// Builds random masks [batch, heads, rows, columns] as exporters write them.
class Masks {
 public:
  Masks(mlir::MLIRContext& context, std::mt19937& random, llvm::ArrayRef<int64_t> shape)
      : context(context), random(random), shape(shape), builder(&context) {
    module = mlir::ModuleOp::create(builder.getUnknownLoc());
    builder.setInsertionPointToStart(module->getBody());
    function = mlir::func::FuncOp::create(builder, builder.getUnknownLoc(), "f", builder.getFunctionType({}, {}));
    builder.setInsertionPointToStart(function.addEntryBlock());
  }

  mlir::Value additive(int depth) {
    if (chance(3)) return b.add(additive(depth - 1), additive(depth - 1));
    mlir::Value low = splat(f32(), pick({-1e5, -3.4028234663852886e38, -INFINITY, -1, 0}));
    return chance(2) ? b.select(boolean(depth), splat(f32(), 0), low) : b.select(boolean(depth), low, splat(f32(), 0));
  }

  mlir::Value boolean(int depth) {
    if (depth <= 0 || chance(4)) return chance(4) ? constant(i1()) : chance(3) ? window(1 + below(4)) : seen();
    switch (below(6)) {
      case 0:
        return b.make<AndOp>(boolean(depth - 1), boolean(depth - 1));
      case 1:
        return b.make<OrOp>(boolean(depth - 1), boolean(depth - 1));
      case 2:
        return b.make<NotOp>(boolean(depth - 1));
      case 3:
        return b.select(boolean(depth - 1), boolean(depth - 1), boolean(depth - 1));
      case 4:
        return b.cast(number(depth - 1), i1());
      default:
        return b.compare(ComparePredicate(below(6)), number(depth - 1), number(depth - 1));
    }
  }

  // What a causal mask shows: columns up to the row's own, counted from the last.
  mlir::Value seen() {
    mlir::Value row = b.add(iota(2), splat(i64(), double(shape[3] - shape[2])));
    return chance(2) ? b.compare(ComparePredicate::le, iota(3), row)
                     : b.compare(ComparePredicate::gt, row, b.sub(iota(3), splat(i64(), 1)));
  }

  // Of those, the nearest `width`.
  mlir::Value window(int64_t width) {
    mlir::Value distance = b.sub(iota(2), iota(3));
    return b.make<AndOp>(seen(), b.compare(ComparePredicate::lt, distance, splat(i64(), double(width))));
  }

  TensorBuilder& ops() { return b; }
  mlir::Value iota(int64_t axis, mlir::Type type) {
    return b.make<IotaOp>(mlir::RankedTensorType::get(shape, type), builder.getI64IntegerAttr(axis));
  }

  size_t size() { return function.getBody().front().getOperations().size(); }

  // The elements, by the function that yields them.
  Tensor evaluate(mlir::Value mask) {
    mlir::func::ReturnOp::create(builder, builder.getUnknownLoc(), mask);
    EvaluatorOptions options;
    options.round = true;
    return evaluateFunction(function, {}, {}, options)->results[0];
  }

 private:
  mlir::Type i1() { return builder.getI1Type(); }
  mlir::Type i64() { return builder.getI64Type(); }
  mlir::Type f32() { return builder.getF32Type(); }
  int below(int n) { return int(random() % unsigned(n)); }
  bool chance(int n) { return below(n) == 0; }
  double pick(std::vector<double> values) { return values[below(values.size())]; }
  mlir::Value splat(mlir::Type type, double value) { return b.splat(mlir::RankedTensorType::get(shape, type), value); }
  mlir::Value iota(int64_t axis) { return iota(axis, i64()); }

  // Elements of its own in some dimensions, repeated in the others: random ones, or counting.
  mlir::Value constant(mlir::Type type) {
    llvm::SmallVector<int64_t> own;
    for (int64_t size : shape) own.push_back(chance(2) ? size : 1);
    Tensor t = Tensor::zeros(mlir::RankedTensorType::get(own, type));
    bool counts = chance(2);
    for (size_t i = 0; i < t.i.size(); ++i)
      t.i[i] = type.isInteger(1) ? below(2) : counts ? int64_t(i) : chance(9) ? 70000 : below(7) - 3;
    return b.broadcast(b.make<ConstantOp>(toAttribute(t)), shape);
  }

  mlir::Value number(int depth) {
    if (depth <= 0 || chance(4)) {
      int kind = below(4);
      return kind == 0 ? constant(i64()) : kind == 1 ? splat(i64(), below(7) - 3) : iota(kind);
    }
    mlir::Value x = number(depth - 1);
    switch (below(8)) {
      case 0:
        return b.add(x, number(depth - 1));
      case 1:
        return b.sub(x, number(depth - 1));
      case 2:
        return b.mul(x, number(depth - 1));
      case 3:
        return b.neg(x);
      case 4:
        return b.make<MinOp>(x.getType(), x, number(depth - 1));
      case 5:
        return b.make<MaxOp>(x.getType(), x, number(depth - 1));
      case 6:
        return b.select(boolean(depth - 1), x, number(depth - 1));
      default:
        return narrowed(x);
    }
  }

  // Through a type in which integers wrap around, saturate or are rounded.
  mlir::Value narrowed(mlir::Value x) {
    mlir::Type types[] = {f32(), builder.getI32Type(), builder.getIntegerType(8), builder.getIntegerType(8, false),
                          builder.getBF16Type()};
    mlir::Type type = types[below(5)];
    mlir::Value y = b.cast(x, type);
    mlir::Value z = splat(type, pick({1, 3, 100, 0, type.isUnsignedInteger() ? 7. : -2, type.isInteger() ? 5 : NAN}));
    if (chance(4)) y = iota(2 + below(2), type);
    switch (below(5)) {
      case 0:
        y = b.mul(y, z);
        break;
      case 1:
        y = b.add(y, z);
        break;
      case 2:
        y = b.neg(y);
        break;
      case 3:
        y = b.make<MaxOp>(y.getType(), y, z);
        break;
      default:
        break;
    }
    return b.cast(y, i64());
  }

  mlir::MLIRContext& context;
  std::mt19937& random;
  llvm::SmallVector<int64_t> shape;
  mlir::OpBuilder builder;
  mlir::OwningOpRef<mlir::ModuleOp> module;
  mlir::func::FuncOp function;
  TensorBuilder b{builder, builder.getUnknownLoc()};
};

MaskView classify(const Tensor& mask, double factor, bool inverted) {
  int64_t rows = mask.type.getDimSize(2), columns = mask.type.getDimSize(3);
  bool all = true;
  std::set<int64_t> windows;  // that the mask may have
  for (int64_t w = 1; rows <= columns && w <= columns; ++w) windows.insert(w);
  for (int64_t at = 0; at < mask.size(); ++at) {
    bool visible = mask.isFloat() ? mask.f[at] == 0 : (mask.i[at] != 0) != inverted;
    if (!visible && mask.isFloat() && !(mask.f[at] * factor <= maskedBelow)) return {Visibility::other};
    all &= visible;
    int64_t behind = at / columns % rows + columns - rows - at % columns;
    std::erase_if(windows, [&](int64_t w) { return visible != (behind >= 0 && behind < w); });
  }
  if (all) return {Visibility::all};
  if (windows.empty()) return {Visibility::other};
  return {Visibility::causal, windows.contains(columns) ? 0 : *windows.begin()};
}

Hiding hiding(const Tensor& mask, double factor, bool inverted) {
  const int64_t columns = mask.type.getDimSize(3);
  bool hides = false;
  for (int64_t row = 0; row < mask.size() / columns; ++row) {
    bool sees = false;
    for (int64_t at = row * columns; at < (row + 1) * columns; ++at) {
      const bool visible = mask.isFloat() ? mask.f[at] * factor > -1000 : (mask.i[at] != 0) != inverted;
      sees |= visible;
      hides |= !visible;
    }
    if (!sees) return Hiding::rows;
  }
  return hides ? Hiding::keys : Hiding::nothing;
}

TEST(MaskAnalysis, AgreesWithAllElements) {
  mlir::MLIRContext context(mlir::MLIRContext::Threading::DISABLED);
  context.loadDialect<mlir::func::FuncDialect, TrainDialect>();
  std::mt19937 random(1);
  std::map<Visibility, int> seen;
  int windows = 0, agreed = 0, analysed = 0;
  for (int i = 0; i < 4000; ++i) {
    int64_t batch = 1 + random() % 2, heads = 1 + random() % 2, rows = 1 + random() % 7, columns = 1 + random() % 7;
    if (i % 20 == 0) columns += 300;  // more than 8-bit types count
    Masks masks(context, random, {batch, heads, rows, columns});
    mlir::Value mask = random() % 2 ? masks.boolean(2) : masks.additive(1);
    bool inverted = random() % 4 == 0;
    double factor = random() % 4 == 0 ? 0.5 : 1;
    auto layout = HeadLayout::of(
        mask, {{HeadDim::batch, batch}, {HeadDim::head, heads}, {HeadDim::row, rows}, {HeadDim::column, columns}});
    ASSERT_TRUE(layout);
    MaskView view = classifyMask(*layout, rows, columns, factor, inverted);
    if (masks.size() > 30) continue;  // it gives up on long expressions
    const Tensor elements = masks.evaluate(mask);
    // It may give up and say rows.
    const Hiding hides = hidingOf(*layout, rows, columns, factor, inverted), whole = hiding(elements, factor, inverted);
    agreed += hides == whole;
    ASSERT_EQ(int(hides), int(hides == Hiding::rows ? Hiding::rows : whole)) << "mask " << i;
    MaskView expected = classify(elements, factor, inverted);
    ++analysed;
    ++seen[expected.visibility];
    windows += expected.window > 0;
    if (view != expected) mask.getParentRegion()->getParentOp()->dump();
    ASSERT_EQ(int(view.visibility), int(expected.visibility)) << "mask " << i;
    ASSERT_EQ(view.window, expected.window) << "mask " << i;
  }
  EXPECT_GT(seen[Visibility::all], 100);
  EXPECT_GT(seen[Visibility::causal], 300);
  EXPECT_GT(seen[Visibility::other], 1000);
  EXPECT_GT(windows, 50);
  EXPECT_GT(agreed, analysed * 9 / 10);
}

TEST(MaskAnalysis, LongSequencesAreClassifiedByTheirRows) {
  mlir::MLIRContext context(mlir::MLIRContext::Threading::DISABLED);
  context.loadDialect<mlir::func::FuncDialect, TrainDialect>();
  std::mt19937 random(2);
  constexpr int64_t kLength = 1 << 17;  // 2^34 elements
  Masks masks(context, random, {1, 1, kLength, kLength});
  auto classified = [&](mlir::Value mask, bool inverted = false) {
    auto layout = HeadLayout::of(
        mask, {{HeadDim::batch, 1}, {HeadDim::head, 1}, {HeadDim::row, kLength}, {HeadDim::column, kLength}});
    return classifyMask(*layout, kLength, kLength, 1, inverted);
  };
  EXPECT_EQ(classified(masks.seen()), MaskView{Visibility::causal});
  EXPECT_EQ(classified(masks.seen(), true), MaskView{Visibility::other});
  EXPECT_EQ(classified(masks.window(4096)), (MaskView{Visibility::causal, 4096}));
  EXPECT_EQ(classified(masks.window(kLength)), MaskView{Visibility::causal});
}

// Positions in types that do not hold them all: numbers wrap around, saturate or are rounded, and a line has an end.
TEST(MaskAnalysis, PositionsInNarrowTypes) {
  mlir::MLIRContext context(mlir::MLIRContext::Threading::DISABLED);
  context.loadDialect<mlir::func::FuncDialect, TrainDialect>();
  std::mt19937 random(3);
  constexpr int64_t kLength = 300;
  mlir::Builder types(&context);
  mlir::Type i8 = types.getI8Type(), ui8 = types.getIntegerType(8, false), i32 = types.getI32Type();
  mlir::Type i64 = types.getI64Type(), f32 = types.getF32Type(), bf16 = types.getBF16Type();
  using Make = std::function<mlir::Value(Masks&, TensorBuilder&)>;
  auto notNegative = [](TensorBuilder& b, mlir::Value x) {
    return b.compare(ComparePredicate::ge, x, b.splatLike(x, 0));
  };
  const std::pair<Make, Visibility> cases[] = {
      {[&](Masks& m, TensorBuilder& b) { return notNegative(b, m.iota(3, i8)); }, Visibility::other},
      {[&](Masks& m, TensorBuilder& b) { return notNegative(b, m.iota(3, ui8)); }, Visibility::all},
      {[&](Masks& m, TensorBuilder& b) { return notNegative(b, b.cast(m.iota(3, i64), i8)); }, Visibility::other},
      {[&](Masks& m, TensorBuilder& b) { return notNegative(b, b.mul(m.iota(3, i32), 1 << 24)); }, Visibility::other},
      {[&](Masks& m, TensorBuilder& b) { return notNegative(b, b.mul(m.iota(3, i32), 1 << 22)); }, Visibility::all},
      {[&](Masks& m, TensorBuilder& b) { return b.compare(ComparePredicate::ge, m.iota(2, f32), m.iota(3, f32)); },
       Visibility::causal},
      {[&](Masks& m, TensorBuilder& b) { return b.compare(ComparePredicate::ge, m.iota(2, bf16), m.iota(3, bf16)); },
       Visibility::other},
      {[&](Masks& m, TensorBuilder& b) {
         mlir::Value x = m.iota(3, f32), nan = b.splatLike(x, NAN);
         return notNegative(b, b.make<MaxOp>(x.getType(), nan, x));
       },
       Visibility::other},
  };
  for (auto [i, entry] : llvm::enumerate(cases)) {
    Masks masks(context, random, {1, 1, kLength, kLength});
    mlir::Value mask = entry.first(masks, masks.ops());
    auto layout = HeadLayout::of(
        mask, {{HeadDim::batch, 1}, {HeadDim::head, 1}, {HeadDim::row, kLength}, {HeadDim::column, kLength}});
    MaskView view = classifyMask(*layout, kLength, kLength, 1, /*inverted=*/false);
    EXPECT_EQ(int(view.visibility), int(entry.second)) << "case " << i;
    EXPECT_EQ(view, classify(masks.evaluate(mask), 1, false)) << "case " << i;
  }
}

std::vector<double> written(const PiecewiseRow& row) {
  std::vector<double> out;
  for (const Piece& piece : row.pieces())
    while (int64_t(out.size()) < piece.end) out.push_back(piece.at(out.size()));
  return out;
}

TEST(PiecewiseRow, HoldsWhatIsPushedInFewPieces) {
  PiecewiseRow row, flat;
  const std::vector<double> values{5, 6, 7, 8, 8, 8, 8, -1, -3, -5, 2};
  for (double v : values) row.push(v, /*slopes=*/true), flat.push(v, /*slopes=*/false);
  EXPECT_EQ(written(row), values);
  EXPECT_EQ(row.pieces().size(), 4u);  // 5 to 8, three more 8s, -1 to -5, 2
  EXPECT_EQ(written(flat), values);
  EXPECT_EQ(flat.pieces().size(), 8u);
}

TEST(PiecewiseRow, AppendedPiecesOfOneLineAreOne) {
  PiecewiseRow row;
  row.append(3, 1);
  row.append(5, 1);
  row.append(6, -0.0);
  row.append(7, 0.0);
  row.append(9, 1, 2);
  row.append(12, 1, 2);
  EXPECT_EQ(row.pieces().size(), 4u);
  EXPECT_EQ(written(row), (std::vector<double>{1, 1, 1, 1, 1, 0, 0, 15, 17, 19, 21, 23}));
}

}  // namespace
