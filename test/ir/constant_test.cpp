// Constants store no repetitions, and ops on them give what they give on all elements.
#include "ir/Train/Constant.h"

#include <gmock/gmock.h>

#include <cmath>
#include <numeric>
#include <random>

#include "ir/Train/TensorBuilder.h"
#include "mlir/IR/MLIRContext.h"

using namespace sheaf::train;
using ::testing::ElementsAre;

namespace {

using Dims = llvm::SmallVector<int64_t>;
using mlir::RankedTensorType;

class ConstantTest : public ::testing::Test {
 protected:
  ConstantTest() { context.loadDialect<TrainDialect>(); }

  mlir::MLIRContext context{mlir::MLIRContext::Threading::DISABLED};
  mlir::OpBuilder builder{&context};
  mlir::Block block;
  mlir::Type i64 = builder.getI64Type(), f32 = builder.getF32Type(), i1 = builder.getI1Type();

  RankedTensorType type(llvm::ArrayRef<int64_t> shape, mlir::Type element) {
    return RankedTensorType::get(shape, element);
  }

  // The result of the op that `make` builds on values that stand for the operands.
  Constant apply(llvm::ArrayRef<Constant> operands, auto make) {
    builder.setInsertionPointToEnd(&block);
    llvm::SmallVector<mlir::Value> values;
    for (const Constant& x : operands) values.push_back(block.addArgument(x.type, builder.getUnknownLoc()));
    TensorBuilder b{builder, builder.getUnknownLoc()};
    mlir::Operation* op = mlir::Value(make(b, mlir::ValueRange(values))).getDefiningOp();
    ConstantEvaluation evaluation(op, operands);
    mostElements = evaluation.elements();
    auto result = evaluation.run();
    EXPECT_TRUE(succeeded(result));
    checkAgainstAllElements(op, operands, result->front());
    return result->front();
  }

  void checkAgainstAllElements(mlir::Operation* op, llvm::ArrayRef<Constant> operands, const Constant& found) {
    std::vector<Tensor> whole;
    int64_t most = 1;
    for (const Constant& x : operands) most = std::max(most, x.type.getNumElements());
    if (std::max(most, found.type.getNumElements()) > (1 << 22)) return;
    for (const Constant& x : operands) whole.push_back(x.elements());
    EvaluatorOptions options;
    options.round = true;
    auto expected = evaluate(op, whole, options);
    ASSERT_TRUE(succeeded(expected));
    ASSERT_EQ(found.type, expected->front().type);
    Constant all = Constant::fromTensor(expected->front());
    EXPECT_EQ(all.stored, found.stored) << op->getName().getStringRef().str();
    EXPECT_EQ(*all.data, *found.data) << op->getName().getStringRef().str();
  }

  Constant integers(llvm::ArrayRef<int64_t> shape, llvm::ArrayRef<int64_t> values) {
    return Constant::integers(type(shape, i64), values);
  }
  Constant broadcast(const Constant& x, llvm::ArrayRef<int64_t> shape) {
    return apply({x}, [&](auto& b, auto v) { return b.template make<BroadcastOp>(type(shape, x.element()), v[0]); });
  }
  Constant iota(llvm::ArrayRef<int64_t> shape, int64_t axis) {
    return apply(
        {}, [&](auto& b, auto) { return b.template make<IotaOp>(type(shape, i64), builder.getI64IntegerAttr(axis)); });
  }

  int64_t mostElements = 0;
};

TEST_F(ConstantTest, StoresNoRepetitions) {
  Constant c = integers({2, 3}, {1, 2, 3, 1, 2, 3});
  EXPECT_EQ(c.stored, Dims({1, 3}));
  EXPECT_THAT(c.integers(), ElementsAre(1, 2, 3, 1, 2, 3));
  EXPECT_EQ(c.written().stored, Dims({2, 3}));
  EXPECT_TRUE(integers({2, 2}, {7, 7, 7, 7}).isSplat());
  // Zeros of both signs are not one number.
  Tensor zeros = Tensor::zeros(type({2}, f32));
  zeros.f = {0, -0.0};
  EXPECT_EQ(Constant::fromTensor(zeros).stored, Dims({2}));
  EXPECT_TRUE(std::signbit(Constant::fromTensor(zeros).elements().f[1]));
}

TEST_F(ConstantTest, ElementsAreOfTheirType) {
  EXPECT_EQ(Constant::integers(type({1}, builder.getI8Type()), {200}).splatInteger(), -56);
  EXPECT_EQ(Constant::splat(type({4}, builder.getI8Type()), 1000).splatInteger(), 127);
  EXPECT_EQ(Constant::splat(type({4}, f32), 0.1).splatValue(), 0.1f);
  EXPECT_EQ(Constant::splat(type({4}, builder.getBF16Type()), 1.001).splatValue(), 1);
  EXPECT_EQ(Constant::splat(type({2}, builder.getF64Type()), -2.9).splatInteger(), -2);
  EXPECT_EQ(integers({}, {INT64_MAX}).splatInteger(), INT64_MAX);
  EXPECT_THAT(Constant::fromBytes(type({3}, i1), llvm::StringRef("\0\1\2", 3))->integers(), ElementsAre(0, 1, 1));
  EXPECT_FALSE(Constant::fromBytes(type({3}, f32), "eleven byte"));
}

TEST_F(ConstantTest, CausalMaskOfManyRowsStaysSmall) {
  constexpr int64_t batch = 1000, n = 64;
  Constant row = iota({batch, n, n}, 1), column = iota({batch, n, n}, 2);
  Constant mask = apply({column, row}, [&](auto& b, auto v) { return b.compare(ComparePredicate::le, v[0], v[1]); });
  EXPECT_EQ(mask.stored, Dims({1, n, n}));
  EXPECT_EQ(mostElements, n * n);
  Constant counts = apply({mask}, [&](auto& b, auto v) { return b.cast(v[0], i64); });
  Constant sum = apply({counts}, [&](auto& b, auto v) { return b.reduce(ReduceKind::sum, v[0], {1, 2}); });
  EXPECT_EQ(sum.stored, Dims({1, 1, 1}));
  EXPECT_EQ(sum.splatInteger(), n * (n + 1) / 2);
}

TEST_F(ConstantTest, SplatsOfAnySizeAreOneElement) {
  Constant x = Constant::splat(type({1 << 20, 1 << 20}, f32), 1), y = Constant::splat(x.type, 3);
  Constant third = apply({x, y}, [](auto& b, auto v) { return b.div(v[0], v[1]); });
  EXPECT_TRUE(third.isSplat());
  EXPECT_EQ(mostElements, 1);
  EXPECT_EQ(third.splatValue(), 1.0f / 3);
  EXPECT_EQ(third.attribute().getType(), x.type);
  Constant flat = apply({third}, [](auto& b, auto v) { return b.reshape(v[0], {int64_t(1) << 40}); });
  EXPECT_TRUE(flat.isSplat());
}

TEST_F(ConstantTest, ReshapesKeepRepetitions) {
  Constant tall = broadcast(integers({1, 6}, {1, 2, 3, 4, 5, 6}), {1 << 20, 6});
  Constant folded = apply({tall}, [](auto& b, auto v) { return b.reshape(v[0], {1 << 10, 1 << 10, 6}); });
  EXPECT_EQ(folded.stored, Dims({1, 1, 6}));
  EXPECT_EQ(folded.data, tall.data);
  // 2 x 6 elements that repeat become 3 x 4 that do not.
  Constant small = broadcast(integers({1, 6}, {1, 2, 3, 4, 5, 6}), {2, 6});
  Constant mixed = apply({small}, [](auto& b, auto v) { return b.reshape(v[0], {3, 4}); });
  EXPECT_EQ(mixed.stored, Dims({3, 4}));
}

// More elements than are evaluated at a time.
TEST_F(ConstantTest, LargeConstantsAreCutIntoSlabs) {
  Constant line = iota({3, 70000}, 1);
  Constant y = apply({line, line}, [](auto& b, auto v) { return b.mul(v[0], v[1]); });
  EXPECT_EQ(y.stored, Dims({1, 70000}));
  apply({y}, [](auto& b, auto v) {
    return b.template make<SliceOp>(v[0], Dims{2, 69999}, Dims{1, 35000}, Dims{1, -2});
  });
  Constant table = apply({iota({700, 90}, 0), iota({700, 90}, 1)}, [](auto& b, auto v) { return b.add(v[0], v[1]); });
  Constant at = apply({iota({800}, 0), Constant::splat(type({800}, i64), 700)},
                      [](auto& b, auto v) { return b.template make<ModOp>(v[0].getType(), v[0], v[1], false); });
  apply({table, at}, [](auto& b, auto v) { return b.template make<GatherOp>(v[0], v[1], 0); });
  apply({table, table}, [](auto& b, auto v) { return b.template make<ConcatOp>(v, 1); });
  apply({table}, [](auto& b, auto v) { return b.reduce(ReduceKind::sum, v[0], {1}); });
}

TEST_F(ConstantTest, PartsOfADimension) {
  // Two rows of [0, 1, 0, 1], and columns of them.
  const Constant parts = Constant::integers(type({2, 4}, i64), {0, 1, 0, 1, 0, 1, 0, 1});
  EXPECT_TRUE(parts.repeats(0, 1));
  EXPECT_TRUE(parts.repeats(1, 2));
  EXPECT_TRUE(parts.repeats(1, 4));
  EXPECT_FALSE(parts.repeats(1, 1));
  EXPECT_FALSE(parts.repeats(1, 3));
  const Constant rows = Constant::integers(type({4, 2}, i64), {0, 1, 2, 3, 0, 1, 2, 3});
  EXPECT_TRUE(rows.repeats(0, 2));
  EXPECT_FALSE(rows.repeats(0, 1));
  EXPECT_FALSE(rows.repeats(1, 1));
  EXPECT_THAT(rows.first(0, 2).integers(), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(rows.first(1, 1).integers(), ElementsAre(0, 2, 0, 2));
  EXPECT_THAT(parts.first(0, 1).integers(), ElementsAre(0, 1, 0, 1));
  EXPECT_THAT(parts.first(1, 1).stored, ElementsAre(1, 1));
  EXPECT_TRUE(Constant::integers(type({0, 2}, i64), {}).repeats(0, 1));
}

TEST_F(ConstantTest, EmptyTensors) {
  Constant none = integers({0, 3}, {}), row = integers({1, 3}, {1, 2, 3});
  EXPECT_EQ(apply({none}, [](auto& b, auto v) { return b.reshape(v[0], {3, 0}); }).stored, Dims({3, 0}));
  Constant sum = apply({none}, [](auto& b, auto v) { return b.reduce(ReduceKind::sum, v[0], {0}); });
  EXPECT_THAT(sum.integers(), ElementsAre(0, 0, 0));
  Constant both = apply({none, row}, [](auto& b, auto v) { return b.template make<ConcatOp>(v, 0); });
  EXPECT_THAT(both.integers(), ElementsAre(1, 2, 3));
  EXPECT_EQ(none.attribute().getType(), none.type);
}

// Random ops on random constants that repeat along some dimensions: each is checked against all elements by `apply`.
TEST_F(ConstantTest, AgreesWithAllElements) {
  std::mt19937 random(1);
  auto below = [&](int64_t n) { return int64_t(random() % uint64_t(n)); };
  auto constant = [&](llvm::ArrayRef<int64_t> shape, mlir::Type element, int64_t limit) {
    Dims own;
    for (int64_t size : shape) own.push_back(below(2) ? size : 1);
    Tensor t = Tensor::zeros(type(own, element));
    for (double& x : t.f) x = below(4) ? below(9) / 4.0 - 1 : below(2) ? -0.0 : NAN;
    for (int64_t& x : t.i) x = element.isInteger(1) ? below(2) : below(2 * limit) - limit;
    return broadcast(Constant::fromTensor(t), shape);
  };
  int repeating = 0;
  constexpr int kCases = 3000;
  for (int i = 0; i < kCases; ++i) {
    Dims shape(1 + below(4));
    for (int64_t& size : shape) size = 1 + below(4);
    int64_t rank = shape.size(), axis = below(rank);
    mlir::Type element = below(3) ? i64 : f32;
    Constant x = constant(shape, element, 5), y = constant(shape, element, 5);
    Constant result;
    switch (below(15)) {
      case 0:
        result = apply({x, y}, [](auto& b, auto v) { return b.add(v[0], v[1]); });
        break;
      case 1:
        result = apply({constant(shape, i1, 1), x, y}, [](auto& b, auto v) { return b.select(v[0], v[1], v[2]); });
        break;
      case 2:
        result = apply({x, y}, [](auto& b, auto v) { return b.compare(ComparePredicate::lt, v[0], v[1]); });
        break;
      case 3: {
        Dims permutation(rank);
        std::iota(permutation.begin(), permutation.end(), 0);
        std::shuffle(permutation.begin(), permutation.end(), random);
        result = apply({x}, [&](auto& b, auto v) { return b.template make<TransposeOp>(v[0], permutation); });
        break;
      }
      case 4: {
        Dims starts, sizes, steps;
        for (int64_t size : shape) {
          bool back = below(3) == 0, all = below(3) == 0;
          int64_t start = all ? 0 : below(size), room = back ? start + 1 : size - start;
          if (all) back = false;
          int64_t step = all ? 1 : 1 + below(2);
          starts.push_back(start);
          steps.push_back(back ? -step : step);
          sizes.push_back(all ? size : (room - 1) / step + below(2));
        }
        result = apply({x}, [&](auto& b, auto v) { return b.template make<SliceOp>(v[0], starts, sizes, steps); });
        break;
      }
      case 5: {
        Dims low, high, interior;
        for (int64_t d = 0; d < rank; ++d)
          low.push_back(below(2)), high.push_back(below(2)), interior.push_back(below(4) == 0);
        result = apply({x}, [&](auto& b, auto v) { return b.template make<PadOp>(v[0], low, high, interior); });
        break;
      }
      case 6:
        result = apply({x, y, x}, [&](auto& b, auto v) { return b.template make<ConcatOp>(v, axis); });
        break;
      case 7: {
        Dims places(below(3));
        for (int64_t& size : places) size = 1 + below(3);
        Constant at = constant(places, i64, shape[axis]);
        result = apply({x, at}, [&](auto& b, auto v) { return b.template make<GatherOp>(v[0], v[1], axis); });
        break;
      }
      case 8:
        result = apply({x}, [&](auto& b, auto v) {
          return b.template make<CumSumOp>(v[0].getType(), v[0], axis, bool(i & 1), bool(i & 2));
        });
        break;
      case 9:
        result = apply({x}, [&](auto& b, auto v) { return b.reduce(ReduceKind(i % 5), v[0], {axis}); });
        break;
      case 10:
        result =
            apply({x}, [&](auto& b, auto v) { return b.template make<ReverseOp>(v[0].getType(), v[0], Dims{axis}); });
        break;
      case 11:
        result = apply({x}, [&](auto& b, auto v) {
          return b.template make<TopKOp>(v[0], axis, 1 + i % shape[axis], bool(i & 1));
        });
        break;
      case 12: {
        Dims places(shape);
        places[axis] = 1 + below(3);
        if (below(3) == 0) std::fill(places.begin(), places.begin() + axis, 1);
        if (below(3) == 0) std::fill(places.begin() + axis + 1, places.end(), 1);
        Constant at = constant(places, i64, shape[axis]);
        result = apply({x, at}, [&](auto& b, auto v) { return b.template make<GatherElementsOp>(v[0], v[1], axis); });
        break;
      }
      default: {
        Dims flat(shape);
        if (rank > 1) {
          flat[axis % (rank - 1)] *= flat[axis % (rank - 1) + 1];
          flat.erase(flat.begin() + axis % (rank - 1) + 1);
        }
        flat.insert(flat.begin() + below(flat.size() + 1), 1);
        result = apply({x}, [&](auto& b, auto v) { return b.template make<ReshapeOp>(type(flat, element), v[0]); });
      }
    }
    repeating += result.type.getNumElements() > mostElements;
    if (HasFailure()) FAIL() << "case " << i;
    block.clear();
    block.eraseArguments(0, block.getNumArguments());
  }
  EXPECT_GT(repeating, kCases / 5);
}

}  // namespace
