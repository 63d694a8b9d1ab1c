// Library calls: from and to the wire, their defaults, their operands' places and their reference.
#include <gmock/gmock.h>

#include <algorithm>

#include "runtime/base/Text.h"
#include "test/runtime/ValidCalls.h"

namespace sheaf::testing {
namespace {

using ::testing::HasSubstr;

TEST(LibraryCalls, ComeBackFromTheWire) {
  for (const Valid& valid : validCalls()) {
    const plan::LibraryCall wire = plan::toWire(valid.call);
    const Expected<plan::AnyCall> read = plan::parseCall(wire);
    ASSERT_TRUE(read.ok()) << read.status().message();
    EXPECT_EQ(read->index(), valid.call.index());
    EXPECT_EQ(plan::toWire(*read).SerializeAsString(), wire.SerializeAsString());
  }
  const Expected<plan::AnyCall> read = plan::parseCall(plan::toWire(attentionGrad()));
  ASSERT_TRUE(read.ok());
  const auto& call = std::get<plan::AttentionGradCall>(*read);
  EXPECT_TRUE(call.causal && call.mask);
  EXPECT_EQ(call.window, 0);
  EXPECT_EQ(call.maskB, 1);
  EXPECT_EQ(call.maskH, 4);
  EXPECT_EQ(call.scale, 0.5);
  EXPECT_EQ(call.keyGradientRow, 6);
  EXPECT_EQ(call.type, plan::F32);
}

TEST(LibraryCalls, LeaveOutWhatIsAtItsDefault) {
  auto names = [](const plan::AnyCall& call) {
    std::string names;
    const plan::LibraryCall wire = plan::toWire(call);
    for (const plan::Attribute& attribute : wire.attributes()) names += attribute.name() + " ";
    return names;
  };
  plan::GemmCall gemm{.m = 1, .n = 1, .k = 1, .lda = 1, .ldb = 1, .ldc = 1};
  EXPECT_EQ(names(gemm), "m n k lda ldb ldc ");
  gemm.transposeB = true, gemm.type = plan::BF16;
  EXPECT_EQ(names(gemm), "m n k transpose_b lda ldb ldc type ");
  EXPECT_EQ(names(plan::CopyCall{.elementBytes = 4}), "element_bytes ");
  EXPECT_EQ(names(plan::ZeroCall()), "");
}

TEST(LibraryCalls, AreTheSameWithTheirDefaultsSpelledOutAndInAnyOrder) {
  auto text = [](const plan::LibraryCall& call) {
    std::string text;
    for (const plan::Attribute& attribute : plan::canonicalAttributes(call)) text += attribute.SerializeAsString();
    return text;
  };
  for (const Valid& valid : validCalls()) {
    plan::LibraryCall call = spelledOut(valid).call();
    std::reverse(call.mutable_attributes()->begin(), call.mutable_attributes()->end());
    EXPECT_EQ(text(call), text(valid.instruction().call()));
  }
  const plan::Instruction gemm = validCall("gemm").instruction();
  EXPECT_NE(text(with(gemm, "batch", 1).call()), text(gemm.call()));
  // An unknown call keeps its attributes.
  const plan::LibraryCall wrong = with(gemm, "colour", 3).call();
  EXPECT_EQ(plan::canonicalAttributes(wrong).size(), static_cast<size_t>(wrong.attributes_size()));
}

TEST(LibraryCalls, OperandsHaveTheirPlaces) {
  plan::AttentionCall masked = attention(), plain = attention();
  plain.mask = false;
  EXPECT_EQ(plan::operandIndex<"value">(masked), 2);
  EXPECT_EQ(plan::operandIndex<"mask">(masked), 3);
  EXPECT_EQ(plan::operandIndex<"mask">(plain), -1);
  EXPECT_EQ(plan::operandIndex<"result">(masked), 4);
  EXPECT_EQ(plan::operandIndex<"result">(plain), 3);
  static_assert(plan::kOperand<plan::AttentionCall, "value"> == 2);
  static_assert(plan::kOperand<plan::GatherCall, "result"> == 2);
  const plan::GemmCall gelu = product(plan::GemmEpilogue::kBiasGelu), sum = product(plan::GemmEpilogue::kSumB);
  EXPECT_EQ(plan::operandIndex<"c">(gelu), 3);
  EXPECT_EQ(plan::operandIndex<"saved_gelu_input">(gelu), 4);
  EXPECT_EQ(plan::operandIndex<"sum">(sum), 3);
  EXPECT_EQ(plan::operandIndex<"bias">(sum), -1);
}

TEST(LibraryCalls, AreAllInTheReference) {
  const std::string page = plan::libraryReference();
  for (const Valid& valid : validCalls()) {
    EXPECT_THAT(page, HasSubstr(cat("\n## ", plan::nameOf(valid.call), "\n")));
    for (const plan::OperandNeed& operand : plan::operandsOf(valid.call))
      EXPECT_THAT(page, HasSubstr(cat("\n| `", operand.name, "`")));
    if (plan::nameOf(valid.call) == "copy") continue;  // lists have other names: see below
    const plan::LibraryCall wire = spelledOut(valid).call();
    for (const plan::Attribute& attribute : wire.attributes())
      EXPECT_THAT(page, HasSubstr(cat("\n| `", attribute.name(), "` |")));
  }
  EXPECT_THAT(page, HasSubstr("| `window` | 0 .. 2^31 | 0 | of causal attention"));
  EXPECT_THAT(page, HasSubstr("| `destination_stride0`, .. | -2^40 .. 2^40 |"));
}

}  // namespace
}  // namespace sheaf::testing
