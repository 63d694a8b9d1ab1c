#include "runtime/profile/Work.h"

#include <algorithm>
#include <type_traits>

#include "runtime/plan/StepWork.h"
#include "runtime/plan/Types.h"

namespace sheaf::profile {
namespace {

double bytesOf(const plan::Instruction& instruction) {
  double bytes = 0;
  plan::forEachOperand(instruction, [&](const plan::Operand& operand) {
    bytes += static_cast<double>(operand.bytes()) * (operand.access() == plan::READ_WRITE ? 2 : 1);
  });
  // Scratch is the last operand, stays in the caches and is written as often as a thread needs it.
  if (plan::hasScratch(instruction)) bytes -= 2 * static_cast<double>(instruction.operands().rbegin()->bytes());
  return bytes;
}

// Bytes between the rows of a product's operands, which are not moved.
double paddingOf(const plan::GemmCall& call) {
  auto between = [](int64_t rows, int64_t leading, int64_t columns) {
    return static_cast<double>(rows) * static_cast<double>(leading - columns);
  };
  const double elements = between(call.rowsA(), call.lda, call.columnsA()) +
                          between(call.rowsB(), call.ldb, call.columnsB()) + between(call.m, call.ldc, call.n);
  return elements * static_cast<double>(call.batch) * static_cast<double>(plan::elementBytes(call.type));
}

// Bytes of the rows of a table that a gather does not read. With an index for each row or more it may read all.
double unreadBytes(const plan::GatherCall& call) {
  return static_cast<double>(call.outer) * static_cast<double>(std::max<int64_t>(call.rows - call.count, 0)) *
         static_cast<double>(call.inner) * static_cast<double>(call.elementBytes);
}

Work convolutionWork(const plan::ConvolutionShape& call) {
  Work work =
      gemmWork(plan::F32, call.o / call.groups, call.oh * call.ow, call.patch(), call.n * call.groups, false, false);
  work.kind = Work::Kind::kConvolution;
  work.tf32 = call.tf32;
  work.bytes = 0;
  return work;
}

}  // namespace

Work gemmWork(plan::ElementType type, int64_t m, int64_t n, int64_t k, int64_t batch, bool transposeA,
              bool transposeB) {
  const double rows = static_cast<double>(m), columns = static_cast<double>(n), depth = static_cast<double>(k);
  const double width = static_cast<double>(plan::elementBytes(type)), times = static_cast<double>(batch);
  Work work;
  work.kind = Work::Kind::kGemm;
  work.type = type;
  work.flops = 2 * rows * columns * depth * times;
  work.bytes = (rows * depth + depth * columns + rows * columns) * times * width;
  work.m = m, work.n = n, work.k = k, work.batch = batch;
  work.transposeA = transposeA, work.transposeB = transposeB;
  return work;
}

Work attentionWork(plan::ElementType type, int64_t batch, int64_t heads, int64_t queries, int64_t keys, int64_t width,
                   int64_t valueWidth, bool causal, bool gradient, int64_t window) {
  plan::AttentionShape shape;
  shape.b = batch, shape.h = heads, shape.s = queries, shape.t = keys, shape.d = width, shape.e = valueWidth;
  shape.causal = causal, shape.window = window;
  Work work;
  work.kind = Work::Kind::kAttention;
  work.type = type;
  work.flops = static_cast<double>(gradient ? plan::attentionGradFlops(shape) : plan::attentionFlops(shape));
  work.m = queries, work.n = causal && window > 0 && window < keys ? window : keys, work.k = width,
  work.batch = batch * heads;
  work.gradient = gradient;
  work.causal = causal;
  return work;
}

Work movingWork(Work::Kind kind, plan::ElementType type, double bytes, double flops) {
  Work work;
  work.kind = kind;
  work.type = type;
  work.bytes = bytes;
  work.flops = flops;
  return work;
}

Work gemmWork(const plan::GemmCall& call) {
  Work work = gemmWork(call.type, call.m, call.n, call.k, call.batch, call.transposeA, call.transposeB);
  work.tf32 = call.tf32;
  if (call.appliesGelu() || call.epilogue == plan::GemmEpilogue::kGeluGrad)
    work.epilogueBytes =
        static_cast<double>(call.m) * static_cast<double>(call.n) * static_cast<double>(plan::elementBytes(call.type));
  return work;
}

Work workOf(const plan::AnyCall& any) {
  return std::visit(
      []<typename Call>(const Call& call) {
        if constexpr (std::is_same_v<Call, plan::GemmCall>)
          return gemmWork(call);
        else if constexpr (std::is_base_of_v<plan::AttentionShape, Call>)
          return attentionWork(call.type, call.b, call.h, call.s, call.t, call.d, call.e, call.causal,
                               std::is_same_v<Call, plan::AttentionGradCall>, call.window);
        else if constexpr (std::is_base_of_v<plan::ConvolutionShape, Call>)
          return convolutionWork(call);
        else if constexpr (requires { call.type; })
          return movingWork(Work::Kind::kOther, call.type, 0);
        else
          return movingWork(Work::Kind::kOther, plan::F32, 0);
      },
      any);
}

Work workOf(const plan::Instruction& instruction, const plan::Plan& plan) {
  Work work;
  double unmoved = 0;  // bytes of operands that are not moved
  switch (instruction.kind_case()) {
    case plan::Instruction::kKernel:
      work.kind = Work::Kind::kKernel;
      if (instruction.kernel().kernel() < static_cast<uint32_t>(plan.kernels_size())) {
        const plan::Kernel& kernel = plan.kernels(static_cast<int>(instruction.kernel().kernel()));
        work.flops = static_cast<double>(std::max<int64_t>(kernel.operations(), 0));
        unmoved = static_cast<double>(kernel.padding());
      }
      break;
    case plan::Instruction::kCall:
      work.kind = Work::Kind::kOther;
      if (const Expected<plan::AnyCall> call = plan::parseCall(instruction.call()); call.ok()) {
        work = workOf(*call);
        if (const auto* gemm = std::get_if<plan::GemmCall>(&*call)) unmoved = paddingOf(*gemm);
        if (const auto* gather = std::get_if<plan::GatherCall>(&*call)) unmoved = unreadBytes(*gather);
      }
      break;
    case plan::Instruction::kInput:
    case plan::Instruction::kScalars:
    case plan::Instruction::kOutput:
      work.kind = Work::Kind::kOther;
      break;
    default:
      return work;
  }
  work.bytes = std::max(bytesOf(instruction) - unmoved, 0.0);
  return work;
}

}  // namespace sheaf::profile
