#include "runtime/profile/Work.h"

#include <algorithm>
#include <utility>

#include "runtime/plan/Library.h"
#include "runtime/plan/Types.h"

namespace sheaf::profile {
namespace {

double bytesOf(const plan::Instruction& instruction) {
  double bytes = 0;
  plan::forEachOperand(instruction, [&](const plan::Operand& operand) {
    bytes += static_cast<double>(operand.bytes()) * (operand.access() == plan::READ_WRITE ? 2 : 1);
  });
  // Scratch is the last operand, stays in the caches and is written as often as a thread needs it.
  const plan::LibraryCall& call = instruction.call();
  if (call.operands_size() > 0 && (call.scratch_per_thread() > 0 || call.device_scratch() > 0))
    bytes -= 2 * static_cast<double>(call.operands().rbegin()->bytes());
  return bytes;
}

plan::ElementType typeOf(const plan::LibraryCall& call) {
  const int64_t type = plan::integer(call, "type");
  const bool known = type > plan::ELEMENT_TYPE_UNSPECIFIED && plan::ElementType_IsValid(static_cast<int>(type));
  return known ? static_cast<plan::ElementType>(type) : plan::F32;
}

// Bytes between the rows of a product's operands, which nobody moves.
double paddingOf(const plan::LibraryCall& call) {
  auto get = [&](const char* name) { return plan::integer(call, name); };
  const int64_t m = get("m"), n = get("n"), k = get("k");
  auto between = [&](const char* leading, bool transposed, int64_t rows, int64_t columns) {
    if (transposed) std::swap(rows, columns);
    return static_cast<double>(rows) * static_cast<double>(std::max<int64_t>(get(leading) - columns, 0));
  };
  const double elements =
      between("lda", get("transpose_a"), m, k) + between("ldb", get("transpose_b"), k, n) + between("ldc", false, m, n);
  return elements * static_cast<double>(std::max<int64_t>(get("batch"), 1)) *
         static_cast<double>(plan::elementBytes(typeOf(call)));
}

Work callWork(const plan::LibraryCall& call) {
  auto get = [&](const char* name) { return plan::integer(call, name); };
  const std::string& name = call.function();
  if (name == "gemm") {
    Work work = gemmWork(typeOf(call), get("m"), get("n"), get("k"), get("batch"), get("transpose_a") != 0,
                         get("transpose_b") != 0);
    work.tf32 = get("tf32") != 0;
    const plan::Epilogue epilogue = plan::epilogue(call);
    if (epilogue == plan::Epilogue::kGelu || epilogue == plan::Epilogue::kBiasGelu ||
        epilogue == plan::Epilogue::kGeluGrad)
      work.epilogueBytes = static_cast<double>(work.m) * static_cast<double>(work.n) *
                           static_cast<double>(plan::elementBytes(work.type));
    return work;
  }
  if (name == "attention" || name == "attention_grad")
    return attentionWork(typeOf(call), get("b"), get("h"), get("s"), get("t"), get("d"), get("e"), get("causal") != 0,
                         name == "attention_grad", get("window"));
  if (name == "conv" || name == "conv_grad_input" || name == "conv_grad_filter") {
    const int64_t groups = std::max<int64_t>(get("groups"), 1);
    Work work = gemmWork(typeOf(call), get("o") / groups, get("oh") * get("ow"),
                         get("c") / groups * get("kh") * get("kw"), get("n") * groups, false, false);
    work.kind = Work::Kind::kConvolution;
    work.tf32 = get("tf32") != 0;
    return work;
  }
  return movingWork(Work::Kind::kOther, typeOf(call), 0);
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
  if (!causal || window <= 0 || window > keys) window = keys;
  const double d = static_cast<double>(width), e = static_cast<double>(valueWidth), most = static_cast<double>(window);
  // On average over the queries; the first ones see fewer keys than the window has.
  const double seen = causal ? most * (1 - most / (2 * static_cast<double>(std::max<int64_t>(keys, 1)))) : most;
  Work work;
  work.kind = Work::Kind::kAttention;
  work.type = type;
  work.flops = 2.0 * static_cast<double>(batch) * static_cast<double>(heads) * static_cast<double>(queries) * seen *
               (gradient ? 3 * d + 2 * e : d + e);
  work.m = queries, work.n = window, work.k = width, work.batch = batch * heads;
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

Work workOf(const plan::Instruction& instruction, const plan::Plan& plan) {
  Work work;
  double padding = 0;
  switch (instruction.kind_case()) {
    case plan::Instruction::kKernel:
      work.kind = Work::Kind::kKernel;
      if (instruction.kernel().kernel() < static_cast<uint32_t>(plan.kernels_size())) {
        const plan::Kernel& kernel = plan.kernels(static_cast<int>(instruction.kernel().kernel()));
        work.flops = static_cast<double>(std::max<int64_t>(kernel.operations(), 0));
        padding = static_cast<double>(kernel.padding());
      }
      break;
    case plan::Instruction::kCall:
      work = callWork(instruction.call());
      if (instruction.call().function() == "gemm") padding = paddingOf(instruction.call());
      break;
    case plan::Instruction::kInput:
    case plan::Instruction::kScalars:
    case plan::Instruction::kOutput:
      work.kind = Work::Kind::kOther;
      break;
    default:
      return work;
  }
  work.bytes = std::max(bytesOf(instruction) - padding, 0.0);
  return work;
}

}  // namespace sheaf::profile
