// How algorithms of matrix products are chosen, and the table of measured ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "runtime/device/cuda/Blas.h"

namespace sheaf::cuda {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Tuning : public ::testing::Test {
 protected:
  static constexpr size_t kBenchBytes = 2 << 20;
  void SetUp() override { ASSERT_EQ(cudaMalloc(&memory_, kBenchBytes), cudaSuccess); }
  void TearDown() override { cudaFree(memory_); }

  std::unique_ptr<Blas> open(bool measure, const std::string& table = "", size_t benchBytes = kBenchBytes) {
    BlasOptions options;
    options.measure = measure;
    options.bench = {static_cast<std::byte*>(memory_), benchBytes};
    options.table = table;
    options.tableName = "table.txt";
    options.warn = [this](const std::string& what) { warnings_.push_back(what); };
    auto blas = Blas::open(options);
    error_ = blas.status().message();
    return blas.ok() ? std::move(*blas) : nullptr;
  }
  // The table after choosing for two shapes.
  std::string choose(Blas& blas) {
    ProductShape shape;
    shape.m = 5, shape.n = 7, shape.k = 3;
    shape.lda = 3, shape.ldb = shape.ldc = 7;
    shape.workspace = 1 << 20;
    for (FloatType type : {FloatType::kF32, FloatType::kBf16}) {
      shape.type = type;
      auto product = blas.product(shape);
      EXPECT_TRUE(product.ok()) << product.status().message();
    }
    return blas.table();
  }
  static std::string replaced(std::string text, const std::string& from, const std::string& to) {
    return text.replace(text.find(from), from.size(), to);
  }

  std::string error_;
  std::vector<std::string> warnings_;
  void* memory_ = nullptr;
};

TEST_F(Tuning, WhatWasMeasuredIsChosenAgain) {
  auto measured = open(true);
  ASSERT_TRUE(measured) << error_;
  const std::string table = choose(*measured);
  EXPECT_THAT(table, HasSubstr("sheaf-products 1\nlibrary "));
  EXPECT_THAT(table, HasSubstr("\ndevice Emulated GPU\nprocessors 4\nbf16,nn,m5,n7,k3,batch1,"));
  EXPECT_THAT(table, HasSubstr("\nf32,nn,m5,n7,k3,batch1,"));
  auto again = open(false, table);
  ASSERT_TRUE(again) << error_;
  EXPECT_EQ(choose(*again), table);
  EXPECT_EQ(again->hash(), measured->hash());
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(Tuning, MeasuresInTheMemoryThatItIsGiven) {
  // A workspace, a c of 140 bytes, and a and b of less than 128 each, which may share theirs.
  for (const auto& [more, suffices] : {std::pair<size_t, bool>{512, true}, {384, true}, {256, false}}) {
    const size_t bytes = (1 << 20) + more;
    warnings_.clear();
    std::memset(static_cast<std::byte*>(memory_) + bytes, 0x77, kBenchBytes - bytes);
    auto blas = open(true, "", bytes);
    ASSERT_TRUE(blas) << error_;
    const std::string table = choose(*blas);
    if (suffices)
      EXPECT_THAT(warnings_, IsEmpty()) << bytes;
    else
      EXPECT_THAT(warnings_, ::testing::Contains(HasSubstr("no memory to measure the product f32,nn,m5,n7,k3")))
          << bytes;
    EXPECT_EQ(table.find(" 0 ") == std::string::npos, suffices) << table;
    for (size_t i = bytes; i < kBenchBytes; ++i)
      ASSERT_EQ(static_cast<std::byte*>(memory_)[i], std::byte{0x77}) << "byte " << i << " of " << bytes;
  }
}

// Equal choices have one hash, though not the same bytes: some are unused, and differ from process to process.
TEST_F(Tuning, TheHashTellsOtherChoices) {
  auto first = open(false), second = open(false);
  ASSERT_TRUE(first && second) << error_;
  std::string table = choose(*first);
  EXPECT_NE(first->hash(), second->hash());
  EXPECT_NE(choose(*second), table) << "the double fills unused bytes with the same values";
  EXPECT_EQ(first->hash(), second->hash());
  // The same products, one of them by the next algorithm: its number is the emulated algorithm's ninth byte.
  table[table.rfind(' ') + 1 + 2 * 8 + 1] = '1';
  auto third = open(false, table);
  ASSERT_TRUE(third) << error_;
  EXPECT_EQ(choose(*third), table);
  EXPECT_THAT(warnings_, IsEmpty());
  EXPECT_NE(third->hash(), first->hash());
}

TEST_F(Tuning, ATableOfAnotherDeviceIsNotUsed) {
  auto blas = open(true);
  ASSERT_TRUE(blas) << error_;
  blas = open(false, replaced(choose(*blas), "processors 4", "processors 132"));
  ASSERT_TRUE(blas) << error_;
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("was made with another device or cuBLASLt: it is not used")));
  EXPECT_THAT(choose(*blas), HasSubstr("processors 4"));
}

TEST_F(Tuning, AnAlgorithmThatIsNotTakenFallsBack) {
  auto blas = open(false);
  ASSERT_TRUE(blas) << error_;
  const std::string table = choose(*blas);
  const uint64_t before = blas->hash();
  const size_t algorithm = table.rfind(' ') + 1;
  blas = open(false, std::string(table).replace(algorithm, 128, 128, 'f'));
  ASSERT_TRUE(blas) << error_;
  choose(*blas);
  EXPECT_EQ(blas->hash(), before);
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("has an algorithm for f32,nn,m5,n7,k3,batch1,")));
}

TEST_F(Tuning, ErrorsNameTheLine) {
  auto blas = open(false);
  ASSERT_TRUE(blas) << error_;
  const std::string table = choose(*blas);
  auto expectError = [&](const std::string& text, const std::string& message) {
    EXPECT_FALSE(open(false, text));
    EXPECT_THAT(error_, HasSubstr(message));
  };
  expectError("\n", "table.txt is not a table of products: its first line is not \"sheaf-products 1\"");
  expectError(replaced(table, "sheaf-products 1", "sheaf-products 2"), "is not a table of products");
  expectError(replaced(table, "device ", "gadget "), ", line 3: it must begin with \"device \"");
  expectError("sheaf-products 1\nlibrary 1\n", ", line 3: it must begin with \"device \"");
  expectError(table + "\n",
              ", line 7: it must have a product, microseconds and an algorithm of 128 hexadecimal digits");
  expectError(table.substr(0, table.size() - 2) + "\n", ", line 6: it must have a product");
  expectError(replaced(table, " 0 ", " fast "), ", line 5: it must have a product");
}

}  // namespace
}  // namespace sheaf::cuda
