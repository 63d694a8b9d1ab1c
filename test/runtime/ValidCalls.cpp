#include "test/runtime/ValidCalls.h"

#include <gtest/gtest.h>

#include <map>
#include <type_traits>

namespace sheaf::testing {
namespace {

constexpr plan::Access R = plan::READ, W = plan::WRITE;

void set(plan::AttentionShape& call) {
  call.b = 2, call.s = 5, call.t = 7, call.h = 4, call.g = 2, call.d = 3, call.e = 6;
  call.causal = call.mask = true, call.maskH = 4, call.scale = 0.5;
  call.queryRow = 12, call.keyRow = 8, call.valueRow = 12, call.resultRow = 24;
}

template <typename Call>
Call window(bool channelsLast = false) {
  Call call;
  call.channelsLast = channelsLast;
  call.n = 2, call.c = 4, call.h = 6, call.w = 7, call.kh = 3, call.kw = 2, call.oh = 4, call.ow = 6;
  if constexpr (requires { call.groups; }) call.o = 6, call.groups = 2;
  return call;
}

constexpr plan::GemmCall kProduct{
    .m = 3, .n = 5, .k = 7, .batch = 2, .transposeA = true, .lda = 4, .ldb = 5, .ldc = 6, .strideA = 30, .strideC = 20};
const plan::CopyCall kCopy{.elementBytes = 8, .dimensions = {{3, -4, 1}, {4, 1, 3}}, .sourceOffset = 8, .zero = true};

}  // namespace

plan::Instruction Valid::instruction(uint32_t threads) const {
  plan::Instruction instruction;
  *instruction.mutable_call() = plan::toWire(call);
  for (const Sizes& size : operands) add(instruction, size);
  if (const uint64_t scratch = plan::scratchPerThread(call)) {
    instruction.mutable_call()->set_scratch_per_thread(scratch);
    add(instruction, {scratch * threads, plan::READ_WRITE});
  }
  return instruction;
}

void Valid::add(plan::Instruction& instruction, const Sizes& size) {
  plan::Operand* operand = instruction.add_operands();
  operand->set_bytes(size.bytes);
  operand->set_access(size.access);
}

plan::Attribute* find(plan::Instruction& instruction, const std::string& name) {
  for (plan::Attribute& attribute : *instruction.mutable_call()->mutable_attributes())
    if (attribute.name() == name) return &attribute;
  return nullptr;
}
plan::Instruction with(plan::Instruction instruction, const std::string& name, int64_t value) {
  plan::Attribute* attribute = find(instruction, name);
  if (!attribute) attribute = instruction.mutable_call()->add_attributes();
  attribute->set_name(name);
  attribute->set_integer(value);
  return instruction;
}

plan::Instruction spelledOut(const Valid& valid) {
  plan::Instruction instruction = valid.instruction();
  auto spell = [&]<typename Owner, typename Value, typename Limits>(const plan::Field<Owner, Value, Limits>& field) {
    if constexpr (!std::is_same_v<Value, double>)
      if (!find(instruction, std::string(field.name)))
        instruction = with(instruction, std::string(field.name), static_cast<int64_t>(Owner().*field.member));
  };
  std::visit(
      [&]<typename Call>(const Call&) {
        plan::forEachField<Call>([&](const auto& row) {
          if constexpr (requires { row.limits; }) spell(row);
        });
      },
      valid.call);
  return instruction;
}

plan::GemmCall product(plan::GemmEpilogue epilogue, bool transposeA, bool transposeB, int64_t batch) {
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
      {plan::GatherCall{.outer = 2,
                        .rows = 5,
                        .inner = 3,
                        .count = 4,
                        .elementBytes = 4,
                        .indexBytes = 4,
                        .indexOuter = true,
                        .indexInner = true},
       {{120, R}, {96, R}, {96, W}}},
      {plan::ScatterCall{.outer = 2, .rows = 5, .inner = 3, .count = 4, .indexBytes = 8, .indexInner = true},
       {{96, R}, {96, R}, {120, W}}},
      {plan::ScatterCall{.outer = 2,
                         .rows = 5,
                         .inner = 3,
                         .count = 4,
                         .indexBytes = 4,
                         .kind = plan::ScatterKind::kMax,
                         .indexOuter = true,
                         .data = true,
                         .type = plan::I64},
       {{32, R}, {192, R}, {240, R}, {240, W}}},
      {plan::TopKCall{.outer = 2, .n = 20, .inner = 3, .k = 10, .largest = true, .type = plan::I64},
       {{960, R}, {480, W}}},
      {kCopy, {{96, R}, {96, W}}},
      {plan::SumPartialsCall{.p = 3, .c = 5}, {{60, R}, {20, W}}},
      {plan::CumSumCall{.outer = 2, .n = 3, .inner = 4, .reverse = true, .type = plan::I64}, {{192, R}, {192, W}}},
      {plan::DropoutCall{{.count = 9, .node = 3}, 0.25}, {{36, R}, {36, W}}},
      {plan::RandomUniformCall{{.count = 9, .node = 3}}, {{36, W}}},
      {window<plan::ConvCall>(), {{image, R}, {filter, R}, {convolved, W}}},
      {window<plan::ConvGradInputCall>(), {{convolved, R}, {filter, R}, {image, W}}},
      {window<plan::ConvGradFilterCall>(), {{image, R}, {convolved, R}, {filter, W}}},
      {window<plan::ConvCall>(true), {{image, R}, {filter, R}, {convolved, W}, {2 * 64 * 16 * 6 * 4, W}}},
      {window<plan::ConvGradInputCall>(true), {{convolved, R}, {filter, R}, {image, W}, {2 * 16 * 16 * 6 * 4, W}}},
      {window<plan::ConvGradFilterCall>(true), {{image, R}, {convolved, R}, {filter, W}, {2 * 2 * 16 * 16 * 6 * 4, W}}},
      {window<plan::MaxPoolCall>(), {{image, R}, {pooled, W}}},
      {window<plan::MaxPoolIndicesCall>(), {{image, R}, {2 * pooled, W}}},
      {window<plan::MaxPoolGradCall>(), {{image, R}, {pooled, R}, {image, W}}},
      {plan::SquareSumCall{.n = 10}, {{40, R}, {8, W}}},
      {plan::GradientNormCall{.ranks = 2, .buckets = 3, .clip = true}, {{48, R}, {8, W}, {8, W}, {4, R}}},
      {plan::GradientNormCall{.ranks = 2, .buckets = 3, .scaled = true}, {{48, R}, {8, W}, {8, W}, {4, R}}},
      {plan::GradientNormCall{.ranks = 2, .buckets = 3, .clip = true, .scaled = true, .judged = true},
       {{48, R}, {8, W}, {8, W}, {4, R}, {4, R}, {4, R}}},
      {plan::UpdateScalarCall{.kind = plan::UpdateScalar::kLrOverBiasCorrection, .value = 0.9},
       {{24, R}, {4, W}, {4, R}}},
      {plan::UpdateScalarCall{.kind = plan::UpdateScalar::kStep}, {{24, R}, {4, W}}},
      {plan::AdvanceLossScaleCall{{.interval = 5, .growth = 2, .backoff = 0.5, .floor = 1}},
       {{8, R}, {24, plan::READ_WRITE}}},
      {plan::ZeroCall(), {{13, W}}},
      {product(GemmEpilogue::kBias), {{84, R}, {140, R}, {20, R}, {60, W}}},
      {product(GemmEpilogue::kGelu), {{84, R}, {140, R}, {60, W}, {60, W}}},
      {product(GemmEpilogue::kBiasGelu), {{84, R}, {140, R}, {20, R}, {60, W}, {60, W}}},
      {product(GemmEpilogue::kGeluGrad), {{84, R}, {140, R}, {60, R}, {60, W}}},
      {product(GemmEpilogue::kSumA), {{84, R}, {140, R}, {60, W}, {12, W}}},
      {product(GemmEpilogue::kSumB), {{84, R}, {140, R}, {60, W}, {20, W}}},
  };
  // Those that have one, in bf16 and f16: the operands that are so then.
  const std::map<std::string_view, std::vector<size_t>> halves = {
      {"gemm", {0, 1, 2, 3, 4}}, {"attention", {0, 1, 2, 4}}, {"attention_grad", {0, 1, 2, 3, 5, 7, 8, 9}},
      {"scatter_add", {0, 2}},   {"sum_partials", {1}},       {"square_sum", {0}}};
  for (size_t i = 0, single = calls.size(); i < single; ++i) {
    auto found = halves.find(plan::nameOf(calls[i].call));
    if (found == halves.end()) continue;
    for (plan::ElementType type : {plan::BF16, plan::F16}) {
      Valid half = calls[i];
      std::visit(
          [type](auto& call) {
            if constexpr (requires { call.type; }) call.type = type;
          },
          half.call);
      for (size_t operand : found->second)
        if (operand < half.operands.size()) half.operands[operand].bytes /= 2;
      calls.push_back(half);
    }
  }
  return calls;
}

Valid validCall(std::string_view name) {
  for (const Valid& valid : validCalls())
    if (plan::nameOf(valid.call) == name) return valid;
  ADD_FAILURE() << name;
  return {};
}

}  // namespace sheaf::testing
