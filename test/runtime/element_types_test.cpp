// Every row of plan::kElements: sizes, names in every format, conversions, sums, and the types that library calls take.
#include "runtime/plan/ElementTypes.h"

#include <gmock/gmock.h>

#include <cctype>
#include <cstring>
#include <string>
#include <vector>

#include "runtime/base/Text.h"
#include "runtime/comm/local/Reduce.h"
#include "runtime/io/DataType.h"
#include "runtime/io/Npy.h"
#include "runtime/io/Safetensors.h"
#include "runtime/plan/CallSchema.h"
#include "runtime/plan/ElementValues.h"
#include "runtime/plan/Library.h"
#include "runtime/plan/Words.h"

namespace sheaf {
namespace {

using plan::ElementFacts;
using plan::ElementType;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

io::DataType fileType(const ElementFacts& row) {
  return static_cast<io::DataType>(row.type);
}

// Elements of a row with small values that all types have, and back.
template <typename Values>
std::vector<std::byte> stored(const ElementFacts& row, const Values& values) {
  return plan::visitElement<&ElementFacts::isElement>(row.type, [&](auto element) {
    using Element = decltype(element);
    std::vector<std::byte> bytes;
    for (int value : values) {
      typename Element::Stored one;
      if constexpr (Element::kWidened)
        plan::narrow(static_cast<float>(value), one);
      else
        one = static_cast<typename Element::Stored>(value);
      const auto* begin = reinterpret_cast<const std::byte*>(&one);
      bytes.insert(bytes.end(), begin, begin + sizeof one);
    }
    return bytes;
  });
}

TEST(ElementTypes, EveryTypeOfPlansHasItsRow) {
  int inPlans = 0;
  for (const ElementFacts& row : plan::kElements) {
    EXPECT_EQ(&plan::factsOfStored(row.type), &row) << row.name;
    if (!row.inPlans()) continue;
    ++inPlans;
    EXPECT_EQ(&plan::factsOf(row.type), &row) << row.name;
    EXPECT_EQ(plan::word(row.type), row.name);
    EXPECT_EQ(plan::valueOf<ElementType>(row.name), row.type) << row.name;
  }
  EXPECT_EQ(inPlans, static_cast<int>(plan::words<ElementType>().size()));
}

TEST(ElementTypes, WhatPlansLackHasNoFacts) {
  for (int number :
       {-1, 0, plan::ElementType_MAX + 1, static_cast<int>(plan::kFileU64), plan::kElementTypes + 1, 1000}) {
    const auto type = static_cast<ElementType>(number);
    EXPECT_EQ(plan::elementBytes(type), 0u) << number;
    EXPECT_FALSE(plan::isFloat(type) || plan::isWidened(type) || comm::canSum(type)) << number;
    EXPECT_EQ(plan::computedType(type), type) << number;
  }
}

TEST(ElementTypes, SizesAreThoseOfTheTypesInMemory) {
  for (const ElementFacts& row : plan::kElements) {
    const size_t bytes = plan::visitElement<&ElementFacts::isElement>(row.type, [&](auto element) {
      EXPECT_EQ(decltype(element)::kType, row.type);
      return sizeof(typename decltype(element)::Stored);
    });
    EXPECT_EQ(row.bytes(), bytes) << row.name;
    EXPECT_EQ(io::bytesOf(fileType(row)), bytes) << row.name;
    // A widened type is a float that is computed in a wider one, which is computed in itself.
    const ElementFacts& computed = plan::factsOfStored(row.computed);
    EXPECT_EQ(computed.computed, row.computed) << row.name;
    EXPECT_EQ(row.isWidened(), row.bytes() < computed.bytes()) << row.name;
  }
}

TEST(ElementTypes, NamesAreReadAsTheyAreWritten) {
  for (const ElementFacts& row : plan::kElements) {
    const io::DataType type = fileType(row);
    EXPECT_EQ(io::nameOf(type), row.name);
    if (row.inPlans()) {
      EXPECT_EQ(io::dataTypeOf(row.type), type) << row.name;
    }
    const std::vector<std::byte> data = stored(row, std::vector<int>{0, 1, 1});

    const Expected<std::string> npy = io::npyHeader(type, std::vector<int64_t>{3});
    if (row.npy.empty()) {
      EXPECT_THAT(npy.status().message(), HasSubstr(cat("NumPy has no elements of type ", row.name)));
    } else {
      ASSERT_TRUE(npy.ok()) << row.name;
      std::string file = *npy + std::string(reinterpret_cast<const char*>(data.data()), data.size());
      const Expected<io::NpyArray> array = io::parseNpy(std::as_bytes(std::span(file)));
      ASSERT_TRUE(array.ok()) << row.name << ": " << array.status().message();
      EXPECT_EQ(array->type, type) << row.name;
    }

    const std::vector<io::SafetensorsWriter::Entry> entries{{"x", type, {3}}};
    const Expected<io::SafetensorsHead> head = io::safetensorsHead(entries, {});
    if (row.safetensors.empty()) {
      EXPECT_THAT(head.status().message(), HasSubstr(cat("has no elements of type ", row.name)));
      continue;
    }
    ASSERT_TRUE(head.ok()) << row.name;
    std::string file = head->bytes + std::string(reinterpret_cast<const char*>(data.data()), data.size());
    const Expected<io::Safetensors> tensors = io::Safetensors::parse(std::as_bytes(std::span(file)));
    ASSERT_TRUE(tensors.ok()) << row.name << ": " << tensors.status().message();
    EXPECT_EQ(tensors->find("x")->type, type) << row.name;
  }
}

TEST(ElementTypes, NamesDiffer) {
  for (const ElementFacts& a : plan::kElements)
    for (const ElementFacts& b : plan::kElements) {
      if (&a == &b) continue;
      EXPECT_NE(a.name, b.name);
      EXPECT_TRUE(a.npy.empty() || a.npy != b.npy) << a.name << " " << b.name;
      EXPECT_TRUE(a.safetensors.empty() || a.safetensors != b.safetensors) << a.name << " " << b.name;
      EXPECT_TRUE(a.onnx == 0 || a.onnx != b.onnx) << a.name << " " << b.name;
    }
}

TEST(ElementTypes, SmallValuesSurviveConversions) {
  const std::vector<int> values{1, 0, 1};
  for (const ElementFacts& from : plan::kElements)
    for (const ElementFacts& to : plan::kElements) {
      const std::vector<std::byte> source = stored(from, values);
      std::vector<std::byte> result(values.size() * to.bytes());
      const Status status = io::convert(fileType(from), source.data(), fileType(to), result.data(), values.size());
      EXPECT_EQ(status.ok(), io::convertible(fileType(from), fileType(to)) || &from == &to) << from.name << to.name;
      if (status.ok()) {
        EXPECT_EQ(result, stored(to, values)) << from.name << " to " << to.name;
      } else {
        EXPECT_EQ(status.message(), cat(from.name, " cannot become ", to.name));
      }
    }
}

TEST(ElementTypes, IntegersThatDoNotFitAreErrors) {
  const ElementFacts& i64 = plan::factsOf(plan::I64);
  for (const ElementFacts& to : plan::kElements) {
    if (to.isFloat() || to.kind == plan::NumberKind::kBool || to.bits >= 63) continue;
    const bool isSigned = to.kind == plan::NumberKind::kSigned;
    const int64_t high = (int64_t{1} << (isSigned ? to.bits - 1 : to.bits)) - 1, low = isSigned ? -high - 1 : 0;
    std::byte result[8];
    auto converts = [&](int64_t value) {
      return io::convert(fileType(i64), reinterpret_cast<const std::byte*>(&value), fileType(to), result, 1).ok();
    };
    EXPECT_TRUE(converts(high) && converts(low)) << to.name;
    EXPECT_FALSE(converts(high + 1) || converts(low - 1)) << to.name;
  }
}

TEST(ElementTypes, SumsOverRanks) {
  for (const ElementFacts& row : plan::kElements) {
    if (!row.inPlans()) continue;
    EXPECT_EQ(comm::canSum(row.type), row.summed) << row.name;
    if (!row.summed) continue;
    const std::vector<std::byte> a = stored(row, std::vector<int>{1, 2, 3}),
                                 b = stored(row, std::vector<int>{10, 0, 5}),
                                 c = stored(row, std::vector<int>{20, 4, 1});
    const std::byte* sources[] = {a.data(), b.data(), c.data()};
    std::vector<std::byte> sum(a.size());
    comm::sumOverRanks(row.type, sources, sum.data(), 3);
    EXPECT_EQ(sum, stored(row, std::vector<int>{31, 6, 9})) << row.name;
  }
}

template <typename Choices>
std::vector<std::string> namesOf(const Choices& choices) {
  std::vector<std::string> names;
  for (const auto& choice : choices) {
    EXPECT_EQ(plan::word(choice.value), choice.name);
    names.emplace_back(choice.name);
  }
  return names;
}

// In the order in which messages and `sheaf calls` list them.
TEST(ElementTypes, TypesOfLibraryCalls) {
  EXPECT_THAT(namesOf(plan::kFloatTypes), ElementsAre("f32", "bf16", "f16"));
  EXPECT_THAT(namesOf(plan::kArithmeticTypes), ElementsAre("f32", "f64", "i32", "i64"));
  EXPECT_EQ(namesOf(plan::kScatterTypes), plan::words<ElementType>());
  plan::ScatterCall scatter;
  scatter.type = plan::U8;
  scatter.kind = plan::ScatterKind::kAdd;
  EXPECT_EQ(scatter.check().message(), "only elements of type f32, f64, i32 or i64 can be combined with updates");
}

}  // namespace
}  // namespace sheaf
