// checkLibraryCall: what a device may run passes, hostile calls are refused with the function and the attribute, or the
// operand and its sizes.
#include <gmock/gmock.h>

#include <limits>
#include <set>

#include "test/runtime/Numbers.h"
#include "test/runtime/ValidCalls.h"

namespace sheaf::testing {
namespace {

using ::testing::HasSubstr;

constexpr plan::Access R = plan::READ, W = plan::WRITE;

plan::Instruction without(plan::Instruction call, const std::string& name) {
  for (int i = call.call().attributes_size() - 1; i >= 0; --i)
    if (call.call().attributes(i).name() == name) call.mutable_call()->mutable_attributes()->DeleteSubrange(i, 1);
  return call;
}

Status check(const plan::Instruction& call) {
  return plan::checkLibraryCall(call, 8);
}

TEST(LibraryCheck, TakesValidCalls) {
  for (const Valid& valid : validCalls())
    for (const plan::Instruction& call : {valid.instruction(), spelledOut(valid)}) {
      Status status = check(call);
      EXPECT_TRUE(status.ok()) << status.message();
    }
}

TEST(LibraryCheck, EveryOperandByteCounts) {
  for (const Valid& each : validCalls()) {
    const plan::Instruction valid = each.instruction();
    for (int i = 0; i < valid.operands_size(); ++i) {
      if (valid.call().function() == "zero") continue;  // it takes any size
      plan::Instruction call = valid;
      call.mutable_operands(i)->set_bytes(valid.operands(i).bytes() - 1);
      Status status = check(call);
      ASSERT_FALSE(status.ok()) << valid.call().function() << ", operand " << i;
      EXPECT_THAT(status.message(), HasSubstr(valid.call().function() + ": operand " + std::to_string(i)));
      EXPECT_THAT(status.message(), HasSubstr(std::to_string(valid.operands(i).bytes() - 1) + " bytes"));
      EXPECT_THAT(status.message(), HasSubstr(std::to_string(valid.operands(i).bytes()) + " are accessed"));
    }
  }
}

TEST(LibraryCheck, OperandsMustBeThereAndDeclareTheirAccess) {
  for (const Valid& each : validCalls()) {
    const plan::Instruction valid = each.instruction();
    for (int i = 0; i < valid.operands_size(); ++i) {
      plan::Instruction call = valid;
      const bool written = valid.operands(i).access() != R;
      call.mutable_operands(i)->set_access(written ? R : W);
      EXPECT_THAT(check(call).message(), HasSubstr(written ? "is written, but not declared so" : "is read, but not"));
      call = valid;
      call.mutable_operands(i)->set_access(plan::ACCESS_UNSPECIFIED);
      EXPECT_FALSE(check(call).ok());
    }
    plan::Instruction call = valid;
    call.mutable_operands()->RemoveLast();
    EXPECT_THAT(check(call).message(), HasSubstr(") is missing"));
    call = valid;
    *call.add_operands() = valid.operands(0);
    EXPECT_THAT(check(call).message(), HasSubstr("operands, not"));
  }
}

TEST(LibraryCheck, EpiloguesSuitTheirProducts) {
  using plan::GemmEpilogue;
  auto refused = [](const plan::GemmCall& call) {
    plan::Instruction instruction;
    *instruction.mutable_call() = plan::toWire(call);
    return check(instruction).message();
  };
  EXPECT_THAT(refused(product(GemmEpilogue::kSumA, false)), HasSubstr("sums a, which must be transposed"));
  EXPECT_THAT(refused(product(GemmEpilogue::kSumB, true, true)), HasSubstr("sums b, which must not be transposed"));
  EXPECT_THAT(refused(product(GemmEpilogue::kGelu, false, false, 2)), HasSubstr("has one batch"));
  EXPECT_THAT(refused(product(static_cast<GemmEpilogue>(7), false)),
              HasSubstr("gemm: attribute 'epilogue' is 7, but must be 0 (none), 1 (bias), 2 (gelu), 3 (bias_gelu), "
                        "4 (gelu_grad), 5 (sum_a) or 6 (sum_b)"));
}

TEST(LibraryCheck, OperandsAreAligned) {
  plan::Instruction call = validCall("gemm").instruction();
  call.mutable_operands(1)->set_offset(2);
  EXPECT_THAT(check(call).message(), HasSubstr("gemm: operand 1 (b) does not start at a multiple"));
  call = validCall("gemm").instruction();
  call.mutable_operands(1)->set_shard_stride(6);
  EXPECT_THAT(check(call).message(), HasSubstr("operand 1 (b) does not start at a multiple"));
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
      "transpose_a", "transpose_b",   "stride_a",       "stride_b",       "stride_c",    "epilogue",    "tf32",
      "causal",      "window",        "mask",           "mask_b",         "mask_h",      "node",        "exclusive",
      "reverse",     "zero",          "clip",           "rank",           "kh",          "kw",          "stride_h",
      "stride_w",    "pad_top",       "pad_left",       "pad_bottom",     "pad_right",   "dilation_h",  "dilation_w",
      "o",           "source_offset", "source_stride0", "source_stride1", "index_outer", "index_inner", "kind",
      "largest",     "data",          "channels_last",  "scaled",         "interval",    "judged",      "pieces",
      "whole"};
  int refused = 0;
  for (const Valid& each : validCalls()) {
    const plan::Instruction valid = spelledOut(each);
    for (const plan::Attribute& attribute : valid.call().attributes()) {
      for (int64_t value : kHostile) {
        if (attribute.has_real()) continue;
        const bool ok = check(with(valid, attribute.name(), value)).ok();
        refused += !ok;
        const bool extreme = value < -1 || value > (int64_t(1) << 40);
        if (extreme || !harmless.count(attribute.name())) {
          EXPECT_FALSE(ok) << valid.call().function() << ": " << attribute.name() << " = " << value;
        }
      }
    }
  }
  EXPECT_GT(refused, 1000);
}

TEST(LibraryCheck, ManyHostileAttributesTogether) {
  Numbers numbers(1);
  std::vector<plan::Instruction> calls;
  for (const Valid& valid : validCalls()) calls.push_back(spelledOut(valid));
  for (int round = 0; round < 20000; ++round) {
    plan::Instruction instruction = calls[numbers.below(calls.size())];
    plan::LibraryCall& call = *instruction.mutable_call();
    for (int change = 0; change < 3 && call.attributes_size() > 0; ++change)
      call.mutable_attributes(numbers.below(call.attributes_size()))
          ->set_integer(int64_t(numbers.bits() >> numbers.below(64)) * (numbers.below(4) ? 1 : -1));
    // Without overflow (the sanitizers watch) and without a crash; most are refused.
    Status status = check(instruction);
    EXPECT_TRUE(status.ok() || status.message().find(call.function() + ": ") == 0) << status.message();
  }
}

TEST(LibraryCheck, NamesWhatIsWrong) {
  const plan::Instruction gemm = validCall("gemm").instruction();
  plan::Instruction call = gemm;
  EXPECT_EQ(check(without(gemm, "m")).message(), "gemm: attribute 'm' is missing");
  EXPECT_EQ(check(with(gemm, "colour", 3)).message(), "gemm: it has no attribute 'colour'");
  EXPECT_EQ(check(with(gemm, "transpos_b", 1)).message(),
            "gemm: it has no attribute 'transpos_b'; did you mean 'transpose_b'?");
  EXPECT_EQ(check(with(gemm, "m", 0)).message(), "gemm: attribute 'm' is 0, but must lie in [1, 2147483648]");
  EXPECT_EQ(check(with(gemm, "lda", 2)).message(), "gemm: attribute 'lda' is 2, but must be at least 3 (a's columns)");
  EXPECT_EQ(check(with(gemm, "stride_c", 3)).message(),
            "gemm: attribute 'stride_c' is 3, but each of its 2 results takes 17 elements");
  *call.mutable_call()->add_attributes() = call.call().attributes(0);
  EXPECT_EQ(check(call).message(), "gemm: attribute 'm' is given twice");
  call = gemm;
  find(call, "k")->set_real(7);
  EXPECT_EQ(check(call).message(), "gemm: attribute 'k' must be an integer");
  call = gemm;
  for (int i = 0; i < 200; ++i) call.mutable_call()->add_attributes()->set_name(std::to_string(i));
  EXPECT_EQ(check(call).message(), "gemm: it has more than 128 attributes");
  EXPECT_EQ(check(with(gemm, "type", plan::I64)).message(),
            "gemm: attribute 'type' is 5, but must be 1 (f32), 3 (bf16) or 4 (f16)");
  EXPECT_EQ(check(with(with(gemm, "type", plan::BF16), "tf32", 1)).message(), "gemm: TF32 needs operands of type f32");

  const plan::Instruction attention = validCall("attention").instruction();
  EXPECT_EQ(check(with(attention, "g", 3)).message(),
            "attention: attribute 'key_row' is 8, but must be at least 9 (g * d)");
  EXPECT_EQ(check(with(attention, "h", 3)).message(), "attention: its 3 heads are not a multiple of its 2 key heads");
  EXPECT_EQ(check(with(attention, "scale", 1)).message(), "attention: attribute 'scale' must be a real number");
  EXPECT_EQ(check(with(with(attention, "causal", 0), "window", 3)).message(),
            "attention: only causal attention has a window");
  EXPECT_EQ(check(with(attention, "mask_b", 3)).message(),
            "attention: its mask is of 3 sequences and 4 heads, but must be of 1 or 2 and 1 or 4");
  // One of the gradient's only.
  EXPECT_THAT(check(with(attention, "gradient_row", 24)).message(), HasSubstr("it has no attribute 'gradient_row'"));

  call = validCall("dropout").instruction();
  find(call, "ratio")->set_real(std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(check(call).message(), "dropout: attribute 'ratio' is nan, but must lie in [0, 1]");
  call = validCall("gather").instruction();
  EXPECT_EQ(check(with(call, "element_bytes", 3)).message(),
            "gather: attribute 'element_bytes' is 3, but must be 1, 2, 4 or 8");
  call = validCall("top_k").instruction();
  EXPECT_EQ(check(with(call, "k", 21)).message(), "top_k: it takes 21 of 20 elements");
  call = validCall("scatter").instruction();
  EXPECT_EQ(check(with(with(call, "kind", 1), "type", plan::BF16)).message(),
            "scatter: only elements of type f32, f64, i32 or i64 can be combined with updates");
  call = validCall("conv").instruction();
  EXPECT_EQ(check(with(call, "groups", 4)).message(), "conv: its 4 and 6 channels are not multiples of its 4 groups");
  call.mutable_call()->set_scratch_per_thread(8);
  EXPECT_THAT(check(call).message(), HasSubstr("8 bytes of scratch for each thread, but needs"));
  call.mutable_call()->set_function("levitate");
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
    plan::Instruction call;
    *call.mutable_call() = plan::toWire(scatter);
    for (const Sizes& size : valid.operands) Valid::add(call, size);
    call.mutable_call()->set_scratch_per_thread(cpu);
    call.mutable_call()->set_device_scratch(gpu);
    if (cpu + gpu > 0) Valid::add(call, {std::max(8 * cpu, gpu), plan::READ_WRITE});
    return call;
  };
  auto refused = [](const plan::Instruction& call, plan::Devices devices) {
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
  plan::Instruction less = call(0, 1);
  less.mutable_call()->set_device_scratch(less.call().device_scratch() - 8);
  for (plan::Devices devices : {cpu, gpu}) EXPECT_THAT(refused(less, devices), HasSubstr("bytes of scratch"));
  less = call(0, 1);
  less.mutable_operands()->rbegin()->set_bytes(less.call().device_scratch() - 8);
  EXPECT_THAT(refused(less, gpu), HasSubstr("(scratch)"));
}

TEST(LibraryCheck, CopiesStayInTheirOperandsAndDoNotMeet) {
  const plan::Instruction copy = validCall("copy").instruction();
  EXPECT_THAT(check(with(copy, "source_offset", 7)).message(),  // rows go backwards from it
              HasSubstr("its source begins 1 elements before its operand"));
  EXPECT_THAT(check(with(copy, "destination_stride1", 2)).message(),  // columns three long, two apart
              HasSubstr("two of its elements have the same place in the destination"));
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
  *small = validCall("gemm").instruction();
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
