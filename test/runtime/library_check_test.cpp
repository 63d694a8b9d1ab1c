// Library calls: from and to the wire; checkLibraryCall: what a device may run passes, hostile calls are refused with
// the function and the attribute, or the operand and its sizes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <type_traits>

#include "runtime/base/Text.h"
#include "runtime/plan/Library.h"
#include "test/runtime/Numbers.h"

namespace sheaf::testing {
namespace {

using ::testing::HasSubstr;

constexpr plan::Access R = plan::READ, W = plan::WRITE;

struct Sizes {
  uint64_t bytes;
  plan::Access access;
};

struct Valid {
  plan::AnyCall call;
  std::vector<Sizes> operands;  // without scratch

  plan::LibraryCall wire(uint32_t threads = 8) const {
    plan::LibraryCall wire = plan::toWire(call);
    for (const Sizes& size : operands) add(wire, size);
    if (const uint64_t scratch = plan::scratchPerThread(call)) {
      wire.set_scratch_per_thread(scratch);
      add(wire, {scratch * threads, plan::READ_WRITE});
    }
    return wire;
  }
  static void add(plan::LibraryCall& wire, const Sizes& size) {
    plan::Operand* operand = wire.add_operands();
    operand->set_bytes(size.bytes);
    operand->set_access(size.access);
  }
};

plan::Attribute* find(plan::LibraryCall& call, const std::string& name) {
  for (plan::Attribute& attribute : *call.mutable_attributes())
    if (attribute.name() == name) return &attribute;
  return nullptr;
}
plan::LibraryCall with(plan::LibraryCall call, const std::string& name, int64_t value) {
  plan::Attribute* attribute = find(call, name);
  if (!attribute) attribute = call.add_attributes();
  attribute->set_name(name);
  attribute->set_integer(value);
  return call;
}
plan::LibraryCall without(plan::LibraryCall call, const std::string& name) {
  for (int i = call.attributes_size() - 1; i >= 0; --i)
    if (call.attributes(i).name() == name) call.mutable_attributes()->DeleteSubrange(i, 1);
  return call;
}

// The call with all attributes of its table, those at their default too.
plan::LibraryCall spelledOut(const Valid& valid) {
  plan::LibraryCall wire = valid.wire();
  auto spell = [&]<typename Owner, typename Value, typename Limits>(const plan::Field<Owner, Value, Limits>& field) {
    if constexpr (!std::is_same_v<Value, double>)
      if (!find(wire, std::string(field.name)))
        wire = with(wire, std::string(field.name), static_cast<int64_t>(Owner().*field.member));
  };
  std::visit(
      [&]<typename Call>(const Call&) {
        plan::forEachField<Call>([&](const auto& row) {
          if constexpr (requires { row.limits; }) spell(row);
        });
      },
      valid.call);
  return wire;
}

// A product of [3, 7] and [7, 5] with an epilogue.
plan::GemmCall product(plan::GemmEpilogue epilogue, bool transposeA, bool transposeB = false, int64_t batch = 1) {
  return {.m = 3,
          .n = 5,
          .k = 7,
          .batch = batch,
          .transposeA = transposeA,
          .transposeB = transposeB,
          .lda = transposeA ? 3 : 7,
          .ldb = transposeB ? 7 : 5,
          .ldc = 5,
          .strideC = 15,
          .epilogue = epilogue};
}
plan::GemmCall product(plan::GemmEpilogue epilogue) {
  return product(epilogue, epilogue == plan::GemmEpilogue::kSumA);
}

void set(plan::AttentionShape& call) {
  call.b = 2, call.s = 5, call.t = 7, call.h = 4, call.g = 2, call.d = 3, call.e = 6;
  call.causal = call.mask = true, call.maskH = 4, call.scale = 0.5;
  call.queryRow = 12, call.keyRow = 8, call.valueRow = 12, call.resultRow = 24;
}
plan::AttentionCall attention() {
  plan::AttentionCall call;
  set(call);
  return call;
}
plan::AttentionGradCall attentionGrad() {
  plan::AttentionGradCall call;
  set(call);
  call.gradientRow = 24, call.queryGradientRow = 12, call.keyGradientRow = 6, call.valueGradientRow = 12;
  return call;
}

template <typename Call>
Call window() {
  Call call;
  call.n = 2, call.c = 4, call.h = 6, call.w = 7, call.kh = 3, call.kw = 2, call.oh = 4, call.ow = 6;
  if constexpr (requires { call.groups; }) call.o = 6, call.groups = 2;
  return call;
}

constexpr plan::GemmCall kProduct{
    .m = 3, .n = 5, .k = 7, .batch = 2, .transposeA = true, .lda = 4, .ldb = 5, .ldc = 6, .strideA = 30, .strideC = 20};
const plan::CopyCall kCopy{.elementBytes = 8, .dimensions = {{3, -4, 1}, {4, 1, 3}}, .sourceOffset = 8, .zero = true};

// Valid calls of each function. Sizes of operands are worked out by hand here.
std::vector<Valid> validCalls() {
  using plan::GemmEpilogue;
  const uint64_t query = (9 * 12 + 12) * 4, key = (13 * 8 + 6) * 4, value = (13 * 12 + 12) * 4,
                 result = (9 * 24 + 24) * 4, rows = 2 * 4 * 5 * 4, mask = 4 * 5 * 7 * 4, keyGradient = (13 * 6 + 6) * 4;
  const uint64_t image = 2 * 4 * 6 * 7 * 4, filter = 6 * 2 * 3 * 2 * 4, convolved = 2 * 6 * 4 * 6 * 4,
                 pooled = 2 * 4 * 4 * 6 * 4;
  std::vector<Valid> calls = {
      {kProduct, {{(30 + 6 * 4 + 3) * 4, R}, {35 * 4, R}, {(20 + 2 * 6 + 5) * 4, W}}},
      {attention(), {{query, R}, {key, R}, {value, R}, {mask, R}, {result, W}, {rows, W}}},
      {attentionGrad(),
       {{query, R},
        {key, R},
        {value, R},
        {result, R},
        {rows, R},
        {result, R},
        {mask, R},
        {query, W},
        {keyGradient, W},
        {value, W}}},
      {plan::GatherCall{.outer = 2, .rows = 5, .inner = 3, .count = 4, .elementBytes = 2, .indexBytes = 8},
       {{60, R}, {32, R}, {48, W}}},
      {plan::ScatterAddCall{.outer = 2, .rows = 5, .inner = 3, .count = 4, .indexBytes = 4},
       {{96, R}, {16, R}, {120, W}}},
      {kCopy, {{96, R}, {96, W}}},
      {plan::SumPartialsCall{.p = 3, .c = 5}, {{60, R}, {20, W}}},
      {plan::CumSumCall{.outer = 2, .n = 3, .inner = 4, .reverse = true, .type = plan::I64}, {{192, R}, {192, W}}},
      {plan::DropoutCall{.count = 9, .node = 3, .ratio = 0.25}, {{36, R}, {36, W}}},
      {window<plan::ConvCall>(), {{image, R}, {filter, R}, {convolved, W}}},
      {window<plan::ConvGradInputCall>(), {{convolved, R}, {filter, R}, {image, W}}},
      {window<plan::ConvGradFilterCall>(), {{image, R}, {convolved, R}, {filter, W}}},
      {window<plan::MaxPoolCall>(), {{image, R}, {pooled, W}}},
      {window<plan::MaxPoolGradCall>(), {{image, R}, {pooled, R}, {image, W}}},
      {plan::SquareSumCall{.n = 10}, {{40, R}, {8, W}}},
      {plan::GradientNormCall{.ranks = 2, .buckets = 3, .clip = true}, {{48, R}, {8, W}, {8, W}, {4, R}}},
      {plan::ZeroCall(), {{13, W}}},
      {product(GemmEpilogue::kBias), {{84, R}, {140, R}, {20, R}, {60, W}}},
      {product(GemmEpilogue::kGelu), {{84, R}, {140, R}, {60, W}, {60, W}}},
      {product(GemmEpilogue::kBiasGelu), {{84, R}, {140, R}, {20, R}, {60, W}, {60, W}}},
      {product(GemmEpilogue::kGeluGrad), {{84, R}, {140, R}, {60, R}, {60, W}}},
      {product(GemmEpilogue::kSumA), {{84, R}, {140, R}, {60, W}, {12, W}}},
      {product(GemmEpilogue::kSumB), {{84, R}, {140, R}, {60, W}, {20, W}}},
  };
  // Those that have one, in bf16: the operands that are bf16 then.
  const std::map<std::string_view, std::vector<size_t>> halves = {
      {"gemm", {0, 1, 2, 3, 4}}, {"attention", {0, 1, 2, 4}}, {"attention_grad", {0, 1, 2, 3, 5, 7, 8, 9}},
      {"scatter_add", {0, 2}},   {"sum_partials", {1}},       {"square_sum", {0}}};
  for (size_t i = 0, single = calls.size(); i < single; ++i) {
    auto found = halves.find(plan::nameOf(calls[i].call));
    if (found == halves.end()) continue;
    Valid half = calls[i];
    std::visit(
        [](auto& call) {
          if constexpr (requires { call.type; }) call.type = plan::BF16;
        },
        half.call);
    for (size_t operand : found->second)
      if (operand < half.operands.size()) half.operands[operand].bytes /= 2;
    calls.push_back(half);
  }
  return calls;
}

Valid validCall(std::string_view name) {
  for (const Valid& valid : validCalls())
    if (plan::nameOf(valid.call) == name) return valid;
  ADD_FAILURE() << name;
  return {};
}

Status check(const plan::LibraryCall& call) {
  return plan::checkLibraryCall(call, 8);
}

TEST(LibraryCheck, TakesValidCalls) {
  for (const Valid& valid : validCalls())
    for (const plan::LibraryCall& call : {valid.wire(), spelledOut(valid)}) {
      Status status = check(call);
      EXPECT_TRUE(status.ok()) << status.message();
    }
}

TEST(LibraryCheck, EveryOperandByteCounts) {
  for (const Valid& each : validCalls()) {
    const plan::LibraryCall valid = each.wire();
    for (int i = 0; i < valid.operands_size(); ++i) {
      if (valid.function() == "zero") continue;  // it takes any size
      plan::LibraryCall call = valid;
      call.mutable_operands(i)->set_bytes(valid.operands(i).bytes() - 1);
      Status status = check(call);
      ASSERT_FALSE(status.ok()) << valid.function() << ", operand " << i;
      EXPECT_THAT(status.message(), HasSubstr(valid.function() + ": operand " + std::to_string(i)));
      EXPECT_THAT(status.message(), HasSubstr(std::to_string(valid.operands(i).bytes() - 1) + " bytes"));
      EXPECT_THAT(status.message(), HasSubstr(std::to_string(valid.operands(i).bytes()) + " are accessed"));
    }
  }
}

TEST(LibraryCheck, OperandsMustBeThereAndDeclareTheirAccess) {
  for (const Valid& each : validCalls()) {
    const plan::LibraryCall valid = each.wire();
    for (int i = 0; i < valid.operands_size(); ++i) {
      plan::LibraryCall call = valid;
      const bool written = valid.operands(i).access() != R;
      call.mutable_operands(i)->set_access(written ? R : W);
      EXPECT_THAT(check(call).message(), HasSubstr(written ? "is written, but not declared so" : "is read, but not"));
      call = valid;
      call.mutable_operands(i)->set_access(plan::ACCESS_UNSPECIFIED);
      EXPECT_FALSE(check(call).ok());
    }
    plan::LibraryCall call = valid;
    call.mutable_operands()->RemoveLast();
    EXPECT_THAT(check(call).message(), HasSubstr(") is missing"));
    call = valid;
    *call.add_operands() = valid.operands(0);
    EXPECT_THAT(check(call).message(), HasSubstr("operands, not"));
  }
}

TEST(LibraryCheck, EpiloguesSuitTheirProducts) {
  using plan::GemmEpilogue;
  auto refused = [](const plan::GemmCall& call) { return check(plan::toWire(call)).message(); };
  EXPECT_THAT(refused(product(GemmEpilogue::kSumA, false)), HasSubstr("sums a, which is not transposed"));
  EXPECT_THAT(refused(product(GemmEpilogue::kSumB, true, true)), HasSubstr("sums b, which is transposed"));
  EXPECT_THAT(refused(product(GemmEpilogue::kGelu, false, false, 2)), HasSubstr("has one batch"));
  EXPECT_THAT(refused(product(static_cast<GemmEpilogue>(7), false)),
              HasSubstr("gemm: attribute 'epilogue' is 7, but must be 0 (none), 1 (bias), 2 (gelu), 3 (bias_gelu), "
                        "4 (gelu_grad), 5 (sum_a) or 6 (sum_b)"));
}

TEST(LibraryCheck, OperandsAreAligned) {
  plan::LibraryCall call = validCall("gemm").wire();
  call.mutable_operands(1)->set_offset(2);
  EXPECT_THAT(check(call).message(), HasSubstr("gemm: operand 1 (b) does not start at a multiple"));
  call = validCall("gemm").wire();
  call.mutable_operands(1)->set_shard_stride(6);
  EXPECT_THAT(check(call).message(), HasSubstr("operand 1 (b) does not start at a multiple"));
}

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
    plan::LibraryCall call = spelledOut(valid);
    std::reverse(call.mutable_attributes()->begin(), call.mutable_attributes()->end());
    EXPECT_EQ(text(call), text(valid.wire()));
  }
  EXPECT_NE(text(with(validCall("gemm").wire(), "batch", 1)), text(validCall("gemm").wire()));
  // What is no call keeps what it has.
  const plan::LibraryCall wrong = with(validCall("gemm").wire(), "colour", 3);
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
    const plan::LibraryCall wire = spelledOut(valid);
    for (const plan::Attribute& attribute : wire.attributes())
      EXPECT_THAT(page, HasSubstr(cat("\n| `", attribute.name(), "` |")));
  }
  EXPECT_THAT(page, HasSubstr("| `window` | 0 .. 2^31 | 0 | of causal attention"));
  EXPECT_THAT(page, HasSubstr("| `destination_stride0`, .. | -2^40 .. 2^40 |"));
}

// Attributes that stand for nothing that can overflow or be divided by: each is set to hostile values in turn, and the
// check must neither crash nor let a call pass that accesses more than its operands hold.
TEST(LibraryCheck, HostileAttributes) {
  constexpr int64_t kHostile[] = {0,
                                  -1,
                                  1 << 20,
                                  (int64_t(1) << 31) - 1,
                                  int64_t(1) << 31,
                                  int64_t(1) << 32,
                                  int64_t(1) << 40,
                                  int64_t(1) << 62,
                                  std::numeric_limits<int64_t>::max(),
                                  std::numeric_limits<int64_t>::min()};
  // What may grow or become zero without a larger access.
  const std::set<std::string> harmless = {
      "transpose_a", "transpose_b",   "stride_a",       "stride_b",      "stride_c",  "epilogue",   "tf32",
      "causal",      "window",        "mask",           "mask_b",        "mask_h",    "node",       "exclusive",
      "reverse",     "zero",          "clip",           "rank",          "kh",        "kw",         "stride_h",
      "stride_w",    "pad_top",       "pad_left",       "pad_bottom",    "pad_right", "dilation_h", "dilation_w",
      "o",           "source_offset", "source_stride0", "source_stride1"};
  int refused = 0;
  for (const Valid& each : validCalls()) {
    const plan::LibraryCall valid = spelledOut(each);
    for (const plan::Attribute& attribute : valid.attributes()) {
      for (int64_t value : kHostile) {
        if (attribute.has_real()) continue;
        const bool ok = check(with(valid, attribute.name(), value)).ok();
        refused += !ok;
        const bool extreme = value < -1 || value > (int64_t(1) << 40);
        if (extreme || !harmless.count(attribute.name())) {
          EXPECT_FALSE(ok) << valid.function() << ": " << attribute.name() << " = " << value;
        }
      }
    }
  }
  EXPECT_GT(refused, 1000);
}

TEST(LibraryCheck, ManyHostileAttributesTogether) {
  Numbers numbers(1);
  std::vector<plan::LibraryCall> calls;
  for (const Valid& valid : validCalls()) calls.push_back(spelledOut(valid));
  for (int round = 0; round < 20000; ++round) {
    plan::LibraryCall call = calls[numbers.below(calls.size())];
    for (int change = 0; change < 3 && call.attributes_size() > 0; ++change)
      call.mutable_attributes(numbers.below(call.attributes_size()))
          ->set_integer(int64_t(numbers.bits() >> numbers.below(64)) * (numbers.below(4) ? 1 : -1));
    // Without overflow (the sanitizers watch) and without a crash; most are refused.
    Status status = check(call);
    EXPECT_TRUE(status.ok() || status.message().find(call.function() + ": ") == 0) << status.message();
  }
}

TEST(LibraryCheck, NamesWhatIsWrong) {
  const plan::LibraryCall gemm = validCall("gemm").wire();
  plan::LibraryCall call = gemm;
  EXPECT_EQ(check(without(gemm, "m")).message(), "gemm: attribute 'm' is missing");
  EXPECT_EQ(check(with(gemm, "colour", 3)).message(), "gemm: it has no attribute 'colour'");
  EXPECT_EQ(check(with(gemm, "transpos_b", 1)).message(),
            "gemm: it has no attribute 'transpos_b'; did you mean 'transpose_b'?");
  EXPECT_EQ(check(with(gemm, "m", 0)).message(), "gemm: attribute 'm' is 0, but must lie in [1, 2147483648]");
  EXPECT_EQ(check(with(gemm, "lda", 2)).message(), "gemm: attribute 'lda' is 2, but must be at least 3 (a's columns)");
  EXPECT_EQ(check(with(gemm, "stride_c", 3)).message(),
            "gemm: attribute 'stride_c' is 3, but each of its 2 results takes 17 elements");
  *call.add_attributes() = call.attributes(0);
  EXPECT_EQ(check(call).message(), "gemm: attribute 'm' is given twice");
  call = gemm;
  find(call, "k")->set_real(7);
  EXPECT_EQ(check(call).message(), "gemm: attribute 'k' must be an integer");
  call = gemm;
  for (int i = 0; i < 200; ++i) call.add_attributes()->set_name(std::to_string(i));
  EXPECT_EQ(check(call).message(), "gemm: it has more than 128 attributes");
  EXPECT_EQ(check(with(gemm, "type", plan::I64)).message(),
            "gemm: attribute 'type' is 5, but must be 1 (f32) or 3 (bf16)");
  EXPECT_EQ(check(with(with(gemm, "type", plan::BF16), "tf32", 1)).message(),
            "gemm: only products of f32 are made in TF32");

  const plan::LibraryCall attention = validCall("attention").wire();
  EXPECT_EQ(check(with(attention, "g", 3)).message(),
            "attention: attribute 'key_row' is 8, but must be at least 9 (g * d)");
  EXPECT_EQ(check(with(attention, "h", 3)).message(), "attention: its 3 heads are no multiple of its 2 key heads");
  EXPECT_EQ(check(with(attention, "scale", 1)).message(), "attention: attribute 'scale' must be a real number");
  EXPECT_EQ(check(with(with(attention, "causal", 0), "window", 3)).message(),
            "attention: only causal attention has a window");
  EXPECT_EQ(check(with(attention, "mask_b", 3)).message(),
            "attention: its mask is of 3 sequences and 4 heads, but must be of 1 or 2 and 1 or 4");
  // One of the gradient's only.
  EXPECT_THAT(check(with(attention, "gradient_row", 24)).message(), HasSubstr("it has no attribute 'gradient_row'"));

  call = validCall("dropout").wire();
  find(call, "ratio")->set_real(std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(check(call).message(), "dropout: attribute 'ratio' is nan, but must lie in [0, 1]");
  call = validCall("gather").wire();
  EXPECT_EQ(check(with(call, "element_bytes", 3)).message(),
            "gather: attribute 'element_bytes' is 3, but must be 1, 2, 4 or 8");
  call = validCall("conv").wire();
  EXPECT_EQ(check(with(call, "groups", 4)).message(), "conv: its 4 and 6 channels are no multiples of its 4 groups");
  call.set_scratch_per_thread(8);
  EXPECT_THAT(check(call).message(), HasSubstr("8 bytes of scratch for each thread, but needs"));
  call.set_function("levitate");
  EXPECT_EQ(check(call).message(), "unknown library function 'levitate'");
}

TEST(LibraryCheck, ScratchIsThatOfThePlansDevices) {
  auto call = [](uint64_t perThread, uint64_t onGpu) {
    plan::ScatterAddCall scatter = std::get<plan::ScatterAddCall>(validCall("scatter_add").call);
    scatter.type = plan::BF16;
    const uint64_t cpu = plan::scratchPerThread(scatter) * perThread, gpu = plan::deviceScratch(scatter) * onGpu;
    EXPECT_GT(plan::scratchPerThread(scatter), 0u);
    EXPECT_GT(plan::deviceScratch(scatter), 0u);
    Valid valid{scatter, {{48, R}, {16, R}, {60, W}}};
    plan::LibraryCall call = plan::toWire(scatter);
    for (const Sizes& size : valid.operands) Valid::add(call, size);
    call.set_scratch_per_thread(cpu);
    call.set_device_scratch(gpu);
    if (cpu + gpu > 0) Valid::add(call, {std::max(8 * cpu, gpu), plan::READ_WRITE});
    return call;
  };
  auto refused = [](const plan::LibraryCall& call, plan::Devices devices) {
    return plan::checkLibraryCall(call, 8, devices).message();
  };
  const plan::Devices cpu, gpu{.cpu = false, .gpu = true}, both{.cpu = true, .gpu = true};
  EXPECT_EQ(refused(call(1, 0), cpu), "");
  EXPECT_EQ(refused(call(0, 1), gpu), "");
  EXPECT_EQ(refused(call(1, 1), both), "");
  EXPECT_EQ(refused(call(1, 1), cpu), "");
  EXPECT_THAT(refused(call(0, 1), cpu), HasSubstr("it has 0 bytes of scratch for each thread, but needs"));
  EXPECT_THAT(refused(call(0, 1), both), HasSubstr("it has 0 bytes of scratch for each thread, but needs"));
  EXPECT_THAT(refused(call(1, 0), gpu), HasSubstr("it has 0 bytes of scratch on a GPU, but needs"));
  EXPECT_THAT(refused(call(1, 0), both), HasSubstr("it has 0 bytes of scratch on a GPU, but needs"));
  plan::LibraryCall less = call(0, 1);
  less.set_device_scratch(less.device_scratch() - 8);
  for (plan::Devices devices : {cpu, gpu}) EXPECT_THAT(refused(less, devices), HasSubstr("bytes of scratch"));
  less = call(0, 1);
  less.mutable_operands()->rbegin()->set_bytes(less.device_scratch() - 8);
  EXPECT_THAT(refused(less, gpu), HasSubstr("(scratch)"));
}

TEST(LibraryCheck, CopiesStayInTheirOperandsAndDoNotMeet) {
  const plan::LibraryCall copy = validCall("copy").wire();
  EXPECT_THAT(check(with(copy, "source_offset", 7)).message(),  // rows go backwards from it
              HasSubstr("its source begins 1 elements before its operand"));
  EXPECT_THAT(check(with(copy, "destination_stride1", 2)).message(),  // columns three long, two apart
              HasSubstr("two of its elements have one place in the destination"));
  EXPECT_THAT(check(with(copy, "destination_stride1", 0)).message(), HasSubstr("must be at least 1"));
  EXPECT_EQ(check(with(copy, "rank", 1)).message().substr(0, 35), "copy: it has no attribute 'size1'; ");
  EXPECT_EQ(check(with(copy, "rank", 3)).message(), "copy: attribute 'size2' is missing");
  EXPECT_EQ(check(with(copy, "rank", 17)).message(), "copy: attribute 'rank' is 17, but must lie in [0, 16]");
}

TEST(LibraryBytes, CountThreadsAndStreams) {
  plan::Plan plan;
  plan.add_streams("compute");
  plan.add_streams("communication");
  plan.set_max_threads(3);
  EXPECT_EQ(plan::libraryBytes(plan), 0u);
  plan::Instruction* small = plan.add_body();
  *small->mutable_call() = validCall("gemm").wire();
  const uint64_t one = plan::libraryBytes(plan);
  EXPECT_GT(one, 0u);
  EXPECT_EQ(one % 3, 0u);
  *plan.add_epilogue() = *small;
  EXPECT_EQ(plan::libraryBytes(plan), one);
  plan.mutable_epilogue(0)->set_stream(1);
  EXPECT_EQ(plan::libraryBytes(plan), 2 * one);
}

}  // namespace
}  // namespace sheaf::testing
