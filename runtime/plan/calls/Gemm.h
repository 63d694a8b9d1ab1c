// gemm: matrix products.
#pragma once

#include "runtime/plan/CallSchema.h"
#include "runtime/plan/RowPitch.h"

namespace sheaf::plan {

// What a product of one batch does besides, as train.matmul_epilogue: see Schema<GemmCall>::kText.
enum class GemmEpilogue : int64_t { kNone, kBias, kGelu, kBiasGelu, kGeluGrad, kSumA, kSumB };
inline constexpr Choice<GemmEpilogue> kGemmEpilogues[] = {
    {GemmEpilogue::kNone, "none"},          {GemmEpilogue::kBias, "bias"},          {GemmEpilogue::kGelu, "gelu"},
    {GemmEpilogue::kBiasGelu, "bias_gelu"}, {GemmEpilogue::kGeluGrad, "gelu_grad"}, {GemmEpilogue::kSumA, "sum_a"},
    {GemmEpilogue::kSumB, "sum_b"},
};

struct GemmCall {
  int64_t m = 0, n = 0, k = 0, batch = 1;
  bool transposeA = false, transposeB = false;
  int64_t lda = 0, ldb = 0, ldc = 0;
  int64_t strideA = 0, strideB = 0, strideC = 0;
  GemmEpilogue epilogue = GemmEpilogue::kNone;
  bool tf32 = false;
  ElementType type = F32;

  // Of a and b as they lie in memory.
  int64_t rowsA() const { return transposeA ? k : m; }
  int64_t columnsA() const { return transposeA ? m : k; }
  int64_t rowsB() const { return transposeB ? n : k; }
  int64_t columnsB() const { return transposeB ? k : n; }

  bool addsBias() const { return epilogue == GemmEpilogue::kBias || epilogue == GemmEpilogue::kBiasGelu; }
  bool appliesGelu() const { return epilogue == GemmEpilogue::kGelu || epilogue == GemmEpilogue::kBiasGelu; }
  // Elements of a row of c with its padding, if ldc is what a row of n elements is padded to (RowPitch.h).
  int64_t paddedRowC() const { return ldc == rowPitch(n, static_cast<int64_t>(elementBytes(type))) ? ldc : n; }
  bool sums() const { return epilogue == GemmEpilogue::kSumA || epilogue == GemmEpilogue::kSumB; }

  Status check() const;
  uint64_t scratchPerThread() const;
  uint64_t deviceScratch() const;
  uint64_t packingBytes() const;
};

template <>
struct Schema<GemmCall> {
  static constexpr std::string_view kName = "gemm";
  static constexpr std::string_view kText =
      "With p = op(a) op(b), where op may transpose, and gelu the tanh form of GELU, by epilogue: none: c = p; bias: "
      "c = p + bias; gelu: c = gelu(p), saved_gelu_input = p; bias_gelu: c = gelu(p + bias), saved_gelu_input = "
      "p + bias; gelu_grad: c = p gelu'(gelu_input); sum_a: c = p, sum = the sum of op(a) over k, and a is transposed; "
      "sum_b: c = p, sum = the sum of op(b) over k, and b is not transposed.";
  static constexpr auto kFields = std::tuple{
      required("m", &GemmCall::m, kSizes, "rows of op(a) and c"),
      required("n", &GemmCall::n, kSizes, "columns of op(b) and c"),
      required("k", &GemmCall::k, kSizes, "columns of op(a), rows of op(b)"),
      defaulted("batch", &GemmCall::batch, kSizes, "products, one after the other"),
      flag("transpose_a", &GemmCall::transposeA, "a is stored as [k, m]"),
      flag("transpose_b", &GemmCall::transposeB, "b is stored as [n, k]"),
      required("lda", &GemmCall::lda, {[](const GemmCall& c) { return c.columnsA(); }, "a's columns"},
               "elements from one row of a to the next"),
      required("ldb", &GemmCall::ldb, {[](const GemmCall& c) { return c.columnsB(); }, "b's columns"},
               "elements from one row of b to the next"),
      required("ldc", &GemmCall::ldc, {[](const GemmCall& c) { return c.n; }, "n"},
               "elements from one row of c to the next"),
      defaulted("stride_a", &GemmCall::strideA, kStrides, "elements from one batch of a to the next"),
      defaulted("stride_b", &GemmCall::strideB, kStrides, "elements from one batch of b to the next"),
      defaulted("stride_c", &GemmCall::strideC, kStrides,
                "elements from one batch of c to the next; batches do not overlap"),
      defaulted("epilogue", &GemmCall::epilogue, kGemmEpilogues, "of a product of one batch"),
      flag("tf32", &GemmCall::tf32, "f32 operands may be rounded to TF32, where that is fast"),
      defaulted("type", &GemmCall::type, kFloatTypes, "of all operands"),
  };
  static constexpr auto kOperands = std::to_array<OperandRow<GemmCall>>({
      {"a", READ, Width::kType,
       [](const GemmCall& c) { return rowsSpan(c.batch, c.strideA, rowsSpan(c.rowsA(), c.lda, c.columnsA())); },
       "[batch, m, k], or [batch, k, m]"},
      {"b", READ, Width::kType,
       [](const GemmCall& c) { return rowsSpan(c.batch, c.strideB, rowsSpan(c.rowsB(), c.ldb, c.columnsB())); },
       "[batch, k, n], or [batch, n, k]"},
      {"bias", READ, Width::kType, [](const GemmCall& c) { return c.n; }, "[n]",
       [](const GemmCall& c) { return c.addsBias(); }},
      {"gelu_input", READ, Width::kType,
       [](const GemmCall& c) {
         return product({c.m, c.n});
       },
       "[m, n]", [](const GemmCall& c) { return c.epilogue == GemmEpilogue::kGeluGrad; }},
      {"c", WRITE, Width::kType,
       [](const GemmCall& c) { return rowsSpan(c.batch, c.strideC, rowsSpan(c.m, c.ldc, c.n)); }, "[batch, m, n]",
       nullptr,
       [](const GemmCall& c) {
         return Runs{{{c.batch, c.strideC}, {c.m, c.ldc}}, c.paddedRowC()};
       }},
      {"saved_gelu_input", WRITE, Width::kType,
       [](const GemmCall& c) {
         return product({c.m, c.n});
       },
       "[m, n]", [](const GemmCall& c) { return c.appliesGelu(); }},
      {"sum", WRITE, Width::kType, [](const GemmCall& c) { return c.epilogue == GemmEpilogue::kSumA ? c.m : c.n; },
       "[m] or [n]", [](const GemmCall& c) { return c.sums(); }},
  });
};

}  // namespace sheaf::plan
