// Folded constants: repetitions are not stored, and the operators see through them.
#include <gtest/gtest.h>

#include "frontend/onnx/Fold.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/MLIRContext.h"

namespace sheaf::frontend {
namespace {

using Dims = llvm::SmallVector<int64_t>;
using Values = std::vector<int64_t>;

class Fold : public ::testing::Test {
 protected:
  mlir::MLIRContext context{mlir::MLIRContext::Threading::DISABLED};
  mlir::Type i64 = mlir::IntegerType::get(&context, 64), i8 = mlir::IntegerType::get(&context, 8);
  mlir::Type f32 = mlir::Float32Type::get(&context), boolean = mlir::IntegerType::get(&context, 1);
};

TEST_F(Fold, DropsRepetitions) {
  Constant c = fold::integers(i64, {2, 3}, {1, 2, 3, 1, 2, 3});
  EXPECT_EQ(c.stored, Dims({1, 3}));
  EXPECT_EQ(c.integers(), Values({1, 2, 3, 1, 2, 3}));
  EXPECT_TRUE(fold::integers(i64, {2, 2}, {7, 7, 7, 7}).isSplat());
}

TEST_F(Fold, CausalMaskOfManyRowsStaysSmall) {
  constexpr int64_t batch = 1000, n = 64;
  Constant line = *fold::iota(i64, n, 0, 1);
  Constant column = *fold::broadcast(*fold::reshape(line, {1, n, 1}), {batch, n, n});
  Constant row = *fold::broadcast(*fold::reshape(line, {1, 1, n}), {batch, n, n});
  Constant mask = *fold::compare(train::ComparePredicate::le, row, column);
  EXPECT_EQ(mask.stored, Dims({1, n, n}));
  EXPECT_EQ(fold::reduce(train::ReduceKind::sum, *fold::cast(mask, i64), {1, 2})->splatValue(), n * (n + 1) / 2);
}

TEST_F(Fold, MovesElements) {
  Constant c = fold::integers(i64, {2, 3}, {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(fold::transpose(c, {1, 0})->integers(), Values({1, 4, 2, 5, 3, 6}));
  EXPECT_EQ(fold::slice(c, {0, 2}, {2, 2}, {1, -2})->integers(), Values({3, 1, 6, 4}));
  EXPECT_EQ(fold::concat({c, fold::splat(i64, {1, 3}, 9)}, 0)->integers(), Values({1, 2, 3, 4, 5, 6, 9, 9, 9}));
  Constant at = fold::integers(i64, {2}, {-1, 0});
  EXPECT_EQ(fold::gather(c, at, 1)->integers(), Values({3, 1, 6, 4}));
  EXPECT_EQ(fold::gatherNd(c, fold::integers(i64, {2, 2}, {1, 0, 0, -1}))->integers(), Values({4, 3}));
  EXPECT_EQ(fold::cumsum(c, 1, true, true)->integers(), Values({5, 3, 0, 11, 6, 0}));
  // A repeated dimension is reshaped without writing it out.
  Constant tall = *fold::broadcast(*fold::reshape(c, {1, 6}), {1 << 20, 6});
  Constant folded = *fold::reshape(tall, {1 << 10, 1 << 10, 6});
  EXPECT_EQ(folded.stored, Dims({1, 1, 6}));
}

TEST_F(Fold, RefusesWhatIsNotDefinedOrTooLarge) {
  Constant c = fold::integers(i64, {2}, {1, 0});
  EXPECT_FALSE(fold::binary(Binary::Div, c, c));
  EXPECT_FALSE(fold::gather(c, fold::integers(i64, {1}, {2}), 0));
  EXPECT_FALSE(fold::iota(i64, int64_t(1) << 40, 0, 1));
  Constant row = *fold::broadcast(*fold::reshape(*fold::iota(i64, 1 << 14, 0, 1), {1, 1 << 14}), {1 << 14, 1 << 14});
  EXPECT_FALSE(fold::compare(train::ComparePredicate::lt, row, *fold::transpose(row, {1, 0})));
}

TEST_F(Fold, ArithmeticIsThatOfTheType) {
  Constant big = fold::splat(i8, {1}, 127);
  EXPECT_EQ(fold::binary(Binary::Add, big, fold::splat(i8, {1}, 1))->splatInteger(), -128);
  Constant low = fold::integers(i64, {1}, {INT64_MIN});
  EXPECT_EQ(fold::binary(Binary::Div, low, fold::splat(i64, {1}, -1))->splatInteger(), INT64_MIN);
  EXPECT_EQ(fold::binary(Binary::Mod, fold::splat(i64, {1}, -7), fold::splat(i64, {1}, 3))->splatInteger(), 2);
  EXPECT_EQ(fold::cast(fold::splat(f32, {1}, -2.9), i64)->splatInteger(), -2);
  EXPECT_EQ(fold::cast(fold::splat(f32, {1}, 0.5), boolean)->splatInteger(), 1);
  mlir::Type bf16 = mlir::BFloat16Type::get(&context);
  EXPECT_EQ(fold::cast(fold::splat(f32, {1}, 1.001), bf16)->splatValue(), 1.0);
}

}  // namespace
}  // namespace sheaf::frontend
