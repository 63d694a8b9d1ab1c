// checkLibraryCall: what a device may run passes; hostile calls are refused with the function, the operand and the
// sizes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <set>

#include "runtime/plan/Library.h"
#include "test/runtime/LibraryCalls.h"
#include "test/runtime/Numbers.h"

namespace sheaf::testing {
namespace {

using ::testing::HasSubstr;

struct Sizes {
  uint64_t bytes;
  plan::Access access;
};

plan::LibraryCall withOperands(plan::LibraryCall call, std::initializer_list<Sizes> operands, uint32_t threads = 8) {
  for (const Sizes& size : operands) {
    plan::Operand* operand = call.add_operands();
    operand->set_bytes(size.bytes);
    operand->set_access(size.access);
  }
  if (uint64_t scratch = plan::scratchPerThread(call)) {
    call.set_scratch_per_thread(scratch);
    plan::Operand* operand = call.add_operands();
    operand->set_bytes(scratch * threads);
    operand->set_access(plan::READ_WRITE);
  }
  return call;
}

plan::LibraryCall without(plan::LibraryCall call, std::initializer_list<const char*> names) {
  for (const char* name : names)
    for (int i = call.attributes_size() - 1; i >= 0; --i)
      if (call.attributes(i).name() == name) call.mutable_attributes()->DeleteSubrange(i, 1);
  return call;
}

// The same call with these operands in bf16.
plan::LibraryCall inHalf(plan::LibraryCall call, const std::vector<int>& operands, uint32_t threads = 8) {
  if (call.scratch_per_thread() > 0) call.mutable_operands()->RemoveLast();
  call.clear_scratch_per_thread();
  plan::Attribute* type = call.add_attributes();
  type->set_name("type");
  type->set_integer(plan::BF16);
  for (int i : operands) call.mutable_operands(i)->set_bytes(call.operands(i).bytes() / 2);
  return withOperands(call, {}, threads);
}

constexpr plan::Access R = plan::READ, W = plan::WRITE;

// A product of [3, 7] and [7, 5] with an epilogue.
plan::LibraryCall product(plan::Epilogue epilogue, bool transposeA, bool transposeB = false, int64_t batch = 1) {
  return libraryCall("gemm", {{"m", 3},
                              {"n", 5},
                              {"k", 7},
                              {"batch", batch},
                              {"transpose_a", transposeA},
                              {"transpose_b", transposeB},
                              {"lda", transposeA ? 3 : 7},
                              {"ldb", transposeB ? 7 : 5},
                              {"ldc", 5},
                              {"stride_a", 0},
                              {"stride_b", 0},
                              {"stride_c", 15},
                              {"epilogue", static_cast<int64_t>(epilogue)}});
}
plan::LibraryCall product(plan::Epilogue epilogue) {
  return product(epilogue, epilogue == plan::Epilogue::kSumA);
}

// One valid call of each function.
std::vector<plan::LibraryCall> validCalls() {
  Integers attention = {{"b", 2},
                        {"s", 5},
                        {"t", 7},
                        {"h", 4},
                        {"g", 2},
                        {"d", 3},
                        {"e", 6},
                        {"causal", 1},
                        {"mask", 1},
                        {"mask_b", 1},
                        {"mask_h", 4},
                        {"query_row", 12},
                        {"key_row", 8},
                        {"value_row", 12},
                        {"result_row", 24},
                        {"gradient_row", 24},
                        {"query_gradient_row", 12},
                        {"key_gradient_row", 6},
                        {"value_gradient_row", 12}};
  Integers window = {{"n", 2},          {"c", 4},          {"h", 6},        {"w", 7},          {"o", 6},
                     {"kh", 3},         {"kw", 2},         {"oh", 4},       {"ow", 6},         {"stride_h", 1},
                     {"stride_w", 1},   {"pad_top", 0},    {"pad_left", 0}, {"pad_bottom", 0}, {"pad_right", 0},
                     {"dilation_h", 1}, {"dilation_w", 1}, {"groups", 2}};
  const uint64_t query = (9 * 12 + 12) * 4, key = (13 * 8 + 6) * 4, value = (13 * 12 + 12) * 4,
                 result = (9 * 24 + 24) * 4, rows = 2 * 4 * 5 * 4, mask = 4 * 5 * 7 * 4, keyGradient = (13 * 6 + 6) * 4;
  const uint64_t image = 2 * 4 * 6 * 7 * 4, filter = 6 * 2 * 3 * 2 * 4, convolved = 2 * 6 * 4 * 6 * 4,
                 pooled = 2 * 4 * 4 * 6 * 4;
  std::vector<plan::LibraryCall> calls = {
      withOperands(libraryCall("gemm", {{"m", 3},
                                        {"n", 5},
                                        {"k", 7},
                                        {"batch", 2},
                                        {"transpose_a", 1},
                                        {"transpose_b", 0},
                                        {"lda", 4},
                                        {"ldb", 5},
                                        {"ldc", 6},
                                        {"stride_a", 30},
                                        {"stride_b", 0},
                                        {"stride_c", 20}}),
                   {{(30 + 6 * 4 + 3) * 4, R}, {35 * 4, R}, {(20 + 2 * 6 + 5) * 4, W}}),
      withOperands(without(libraryCall("attention", attention, {{"scale", 0.5}}),
                           {"gradient_row", "query_gradient_row", "key_gradient_row", "value_gradient_row"}),
                   {{query, R}, {key, R}, {value, R}, {mask, R}, {result, W}, {rows, W}}),
      withOperands(libraryCall("attention_grad", attention, {{"scale", 0.5}}), {{query, R},
                                                                                {key, R},
                                                                                {value, R},
                                                                                {result, R},
                                                                                {rows, R},
                                                                                {result, R},
                                                                                {mask, R},
                                                                                {query, W},
                                                                                {keyGradient, W},
                                                                                {value, W}}),
      withOperands(
          libraryCall(
              "gather",
              {{"outer", 2}, {"rows", 5}, {"inner", 3}, {"count", 4}, {"element_bytes", 2}, {"index_bytes", 8}}),
          {{60, R}, {32, R}, {48, W}}),
      withOperands(
          libraryCall("scatter_add", {{"outer", 2}, {"rows", 5}, {"inner", 3}, {"count", 4}, {"index_bytes", 4}}),
          {{96, R}, {16, R}, {120, W}}),
      withOperands(libraryCall("copy", {{"element_bytes", 8},
                                        {"rank", 2},
                                        {"size0", 3},
                                        {"size1", 4},
                                        {"source_stride0", -4},
                                        {"source_stride1", 1},
                                        {"destination_stride0", 1},
                                        {"destination_stride1", 3},
                                        {"source_offset", 8},
                                        {"zero", 1}}),
                   {{96, R}, {96, W}}),
      withOperands(libraryCall("sum_partials", {{"p", 3}, {"c", 5}}), {{60, R}, {20, W}}),
      withOperands(
          libraryCall("cumsum",
                      {{"outer", 2}, {"n", 3}, {"inner", 4}, {"exclusive", 0}, {"reverse", 1}, {"type", plan::I64}}),
          {{192, R}, {192, W}}),
      withOperands(libraryCall("dropout", {{"count", 9}, {"node", 3}}, {{"ratio", 0.25}}), {{36, R}, {36, W}}),
      withOperands(libraryCall("conv", window), {{image, R}, {filter, R}, {convolved, W}}),
      withOperands(libraryCall("conv_grad_input", window), {{convolved, R}, {filter, R}, {image, W}}),
      withOperands(libraryCall("conv_grad_filter", window), {{image, R}, {convolved, R}, {filter, W}}),
      withOperands(without(libraryCall("max_pool", window), {"o", "groups"}), {{image, R}, {pooled, W}}),
      withOperands(without(libraryCall("max_pool_grad", window), {"o", "groups"}),
                   {{image, R}, {pooled, R}, {image, W}}),
      withOperands(libraryCall("square_sum", {{"n", 10}}), {{40, R}, {8, W}}),
      withOperands(libraryCall("gradient_norm", {{"ranks", 2}, {"buckets", 3}, {"clip", 1}}),
                   {{48, R}, {8, W}, {8, W}, {4, R}}),
      withOperands(libraryCall("zero", {}), {{13, W}}),
      withOperands(product(plan::Epilogue::kBias), {{84, R}, {140, R}, {20, R}, {60, W}}),
      withOperands(product(plan::Epilogue::kGelu), {{84, R}, {140, R}, {60, W}, {60, W}}),
      withOperands(product(plan::Epilogue::kBiasGelu), {{84, R}, {140, R}, {20, R}, {60, W}, {60, W}}),
      withOperands(product(plan::Epilogue::kGeluGrad), {{84, R}, {140, R}, {60, R}, {60, W}}),
      withOperands(product(plan::Epilogue::kSumA), {{84, R}, {140, R}, {60, W}, {12, W}}),
      withOperands(product(plan::Epilogue::kSumB), {{84, R}, {140, R}, {60, W}, {20, W}}),
  };
  // Those that have one, in bf16.
  const std::map<std::string, std::vector<int>> halves = {
      {"gemm", {0, 1, 2}},     {"attention", {0, 1, 2, 4}}, {"attention_grad", {0, 1, 2, 3, 5, 7, 8, 9}},
      {"scatter_add", {0, 2}}, {"sum_partials", {1}},       {"square_sum", {0}}};
  for (size_t i = 0, single = calls.size(); i < single; ++i)
    if (auto found = halves.find(calls[i].function()); found != halves.end()) {
      std::vector<int> operands = found->second;
      if (calls[i].function() == "gemm")
        for (int k = 3; k < calls[i].operands_size(); ++k) operands.push_back(k);
      calls.push_back(inHalf(calls[i], operands));
    }
  return calls;
}

Status check(const plan::LibraryCall& call) {
  return plan::checkLibraryCall(call, 4, 8);
}

TEST(LibraryCheck, TakesValidCalls) {
  for (const plan::LibraryCall& call : validCalls()) {
    Status status = check(call);
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

TEST(LibraryCheck, EveryOperandByteCounts) {
  for (const plan::LibraryCall& valid : validCalls()) {
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
  for (const plan::LibraryCall& valid : validCalls()) {
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
    EXPECT_FALSE(check(call).ok()) << call.function();
    call = valid;
    *call.add_operands() = valid.operands(0);
    EXPECT_THAT(check(call).message(), HasSubstr("operands, not"));
  }
}

TEST(LibraryCheck, EpiloguesSuitTheirProducts) {
  using plan::Epilogue;
  EXPECT_THAT(check(product(Epilogue::kSumA, false)).message(), HasSubstr("sums a, which is not transposed"));
  EXPECT_THAT(check(product(Epilogue::kSumB, true, true)).message(), HasSubstr("sums b, which is transposed"));
  EXPECT_THAT(check(product(Epilogue::kGelu, false, false, 2)).message(), HasSubstr("has one batch"));
  EXPECT_THAT(check(product(static_cast<Epilogue>(7), false)).message(), HasSubstr("must lie in [0, 6]"));
}

TEST(LibraryCheck, OperandsAreAligned) {
  plan::LibraryCall call = validCalls()[0];
  call.mutable_operands(1)->set_offset(2);
  EXPECT_THAT(check(call).message(), HasSubstr("gemm: operand 1 (b) does not start at a multiple"));
  call = validCalls()[0];
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
  const std::set<std::string> harmless = {"transpose_a",
                                          "transpose_b",
                                          "stride_a",
                                          "stride_b",
                                          "stride_c",
                                          "causal",
                                          "window",
                                          "mask",
                                          "mask_b",
                                          "mask_h",
                                          "node",
                                          "exclusive",
                                          "reverse",
                                          "zero",
                                          "clip",
                                          "rank",
                                          "kh",
                                          "kw",
                                          "stride_h",
                                          "stride_w",
                                          "pad_top",
                                          "pad_left",
                                          "pad_bottom",
                                          "pad_right",
                                          "dilation_h",
                                          "dilation_w",
                                          "o",
                                          "source_offset",
                                          "source_stride0",
                                          "source_stride1",
                                          "gradient_row",
                                          "query_gradient_row",
                                          "key_gradient_row",
                                          "value_gradient_row"};
  int refused = 0;
  for (const plan::LibraryCall& valid : validCalls()) {
    for (int i = 0; i < valid.attributes_size(); ++i) {
      for (int64_t value : kHostile) {
        plan::LibraryCall call = valid;
        if (call.attributes(i).value_case() == plan::Attribute::kReal) continue;
        call.mutable_attributes(i)->set_integer(value);
        plan::scratchPerThread(call);
        const bool ok = check(call).ok();
        refused += !ok;
        const bool extreme = value < -1 || value > (int64_t(1) << 40);
        if (extreme || !harmless.count(call.attributes(i).name())) {
          EXPECT_FALSE(ok) << call.function() << ": " << call.attributes(i).name() << " = " << value;
        }
      }
    }
  }
  EXPECT_GT(refused, 1000);
}

TEST(LibraryCheck, ManyHostileAttributesTogether) {
  Numbers numbers(1);
  const std::vector<plan::LibraryCall> calls = validCalls();
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
  plan::LibraryCall call = validCalls()[0];
  call.mutable_attributes(0)->set_name("rows");
  EXPECT_THAT(check(call).message(), HasSubstr("gemm: attribute 'm' is missing, but must lie in [1, "));
  call = validCalls()[1];
  call.mutable_attributes(4)->set_integer(3);
  EXPECT_THAT(check(call).message(), HasSubstr("its 4 heads are no multiple of its 3 key heads"));
  call = validCalls()[3];
  call.mutable_attributes(4)->set_integer(3);
  EXPECT_THAT(check(call).message(), HasSubstr("its elements have 3 bytes, but must have 1, 2, 4 or 8"));
  call = validCalls()[8];
  call.mutable_attributes(2)->set_real(std::numeric_limits<double>::quiet_NaN());
  EXPECT_THAT(check(call).message(), HasSubstr("attribute 'ratio' is nan"));
  call = validCalls()[9];
  call.set_scratch_per_thread(8);
  EXPECT_THAT(check(call).message(), HasSubstr("8 bytes of scratch for each thread, but needs"));
  call.set_function("levitate");
  EXPECT_EQ(check(call).message(), "unknown library function 'levitate'");
}

TEST(LibraryCheck, ScratchIsThatOfThePlansDevices) {
  auto call = [](uint64_t perThread, uint64_t onGpu) {
    plan::LibraryCall call;
    for (plan::LibraryCall& valid : validCalls())
      if (valid.function() == "scatter_add" && valid.scratch_per_thread() > 0) call = valid;
    EXPECT_GT(plan::deviceScratch(call), 0u);
    const uint64_t cpu = plan::scratchPerThread(call) * perThread, gpu = plan::deviceScratch(call) * onGpu;
    call.set_scratch_per_thread(cpu);
    call.set_device_scratch(gpu);
    call.mutable_operands()->rbegin()->set_bytes(std::max(8 * cpu, gpu));
    if (cpu + gpu == 0) call.mutable_operands()->RemoveLast();
    return call;
  };
  auto refused = [](const plan::LibraryCall& call, plan::Devices devices) {
    return plan::checkLibraryCall(call, 4, 8, devices).message();
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
  plan::LibraryCall call = validCalls()[5];
  call.mutable_attributes(8)->set_integer(7);  // source_offset; rows go backwards from it
  EXPECT_THAT(check(call).message(), HasSubstr("its source begins 1 elements before its operand"));
  call = validCalls()[5];
  call.mutable_attributes(7)->set_integer(2);  // destination_stride1: columns three long, two apart
  EXPECT_THAT(check(call).message(), HasSubstr("two of its elements have one place in the destination"));
}

TEST(LibraryBytes, CountThreadsAndStreams) {
  plan::Plan plan;
  plan.add_streams("compute");
  plan.add_streams("communication");
  plan.set_max_threads(3);
  EXPECT_EQ(plan::libraryBytes(plan), 0u);
  plan::Instruction* small = plan.add_body();
  *small->mutable_call() = validCalls()[0];
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
