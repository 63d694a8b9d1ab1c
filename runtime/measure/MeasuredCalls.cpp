#include "runtime/measure/MeasuredCalls.h"

#include "runtime/plan/RowPitch.h"
#include "runtime/plan/Tiles.h"

namespace sheaf::measure {

const MeasuredShapes& measuredShapes(bool gpu) {
  // Every combination of small and large m, n and k, and some shapes of small transformers. Attention is causal except
  // for one shape.
  static const MeasuredShapes kCpu{
      {{64, 64, 64},     {128, 128, 128},  {32, 512, 512},   {512, 32, 512},   {512, 512, 32},
       {256, 384, 384},  {512, 128, 128},  {512, 344, 128},  {512, 1024, 256}, {256, 128, 512},
       {1024, 64, 256},  {64, 1024, 256},  {1024, 384, 384}, {512, 1536, 384}, {512, 384, 1536},
       {2048, 256, 384}, {512, 1152, 384}, {384, 384, 2048}, {384, 1536, 512}, {768, 384, 1024}},
      {{4, 4, 64, 32, true},
       {2, 4, 128, 32, true},
       {2, 6, 256, 64, true},
       {2, 6, 256, 64, false},
       {1, 8, 512, 64, true},
       {1, 4, 512, 128, true},
       {1, 3, 1024, 64, true}},
      {128, 1024, 8192, 65536}};
  // Shapes that fill a GPU: those of transformers with 0.1 to 13 billion parameters on 2k to 16k tokens, for the
  // forward pass and the gradients of inputs (large m) and the gradients of weights (large k). Vocabularies have their
  // padded size. MeasureCompute.cpp skips sizes that a device is too slow for.
  static const MeasuredShapes kGpu{
      {{64, 64, 64},        {256, 256, 256},     {512, 512, 512},     {1024, 1024, 1024},  {2048, 2048, 2048},
       {4096, 4096, 4096},  {8192, 8192, 8192},  {256, 4096, 4096},   {4096, 256, 4096},   {4096, 4096, 256},
       {2048, 768, 768},    {2048, 3072, 768},   {8192, 768, 768},    {8192, 2304, 768},   {8192, 768, 3072},
       {16384, 768, 768},   {16384, 2304, 768},  {16384, 3072, 768},  {16384, 768, 3072},  {768, 768, 16384},
       {768, 3072, 16384},  {3072, 768, 16384},  {16384, 50304, 768}, {768, 50304, 16384}, {50304, 768, 16384},
       {2048, 4096, 4096},  {4096, 6144, 4096},  {8192, 4096, 4096},  {8192, 14336, 4096}, {8192, 4096, 14336},
       {4096, 14336, 8192}, {14336, 4096, 8192}, {8192, 13824, 5120}},
      {{1, 1, 64, 64, true},
       {1, 2, 128, 64, true},
       {2, 12, 256, 64, true},
       {4, 12, 512, 64, true},
       {1, 12, 1024, 64, true},
       {8, 12, 1024, 64, true},
       {16, 12, 1024, 64, true},
       {4, 16, 1024, 64, false},
       {2, 32, 1024, 128, true},
       {2, 16, 2048, 64, true},
       {1, 32, 2048, 128, true},
       {1, 32, 4096, 128, true},
       {1, 16, 8192, 128, true}},
      {1 << 10, 1 << 13, 1 << 16, 1 << 18, 1 << 20, 1 << 22}};
  return gpu ? kGpu : kCpu;
}

uint64_t operandBytes(const plan::AnyCall& call) {
  uint64_t sum = 0;
  for (const plan::OperandNeed& operand : plan::operandsOf(call)) sum += operand.bytes;
  return sum;
}

uint64_t gpuScratch(const plan::AnyCall& call) {
  const uint64_t bytes = plan::deviceScratch(call);
  return bytes > 0 ? bytes + plan::kDeviceAlignment : 0;
}

plan::GemmCall gemmCall(plan::ElementType type, int64_t m, int64_t n, int64_t k, bool transposeA, bool transposeB,
                        bool tf32) {
  plan::GemmCall call{
      .m = m, .n = n, .k = k, .transposeA = transposeA, .transposeB = transposeB, .tf32 = tf32, .type = type};
  // Rows are padded as in a plan (RowPitch.h).
  const int64_t width = static_cast<int64_t>(plan::elementBytes(type));
  call.lda = plan::rowPitch(call.columnsA(), width);
  call.ldb = plan::rowPitch(call.columnsB(), width);
  call.ldc = plan::rowPitch(n, width);
  return call;
}

plan::GemmCall geluCall(int64_t m, int64_t n, int64_t k) {
  plan::GemmCall call = gemmCall(plan::BF16, m, n, k, false, false);
  call.epilogue = plan::GemmEpilogue::kBiasGelu;
  return call;
}

plan::AnyCall attentionCall(plan::ElementType type, int64_t batch, int64_t sequence, int64_t heads, int64_t width,
                            bool causal, bool gradient) {
  const int64_t row = heads * width;
  auto set = [&](plan::AttentionShape& call) {
    call.b = batch, call.s = call.t = sequence, call.h = call.g = heads, call.d = call.e = width;
    call.causal = causal, call.scale = 0.01, call.type = type;
    call.queryRow = call.keyRow = call.valueRow = call.resultRow = row;
  };
  if (!gradient) {
    plan::AttentionCall call;
    set(call);
    return call;
  }
  plan::AttentionGradCall call;
  set(call);
  call.gradientRow = call.queryGradientRow = call.keyGradientRow = call.valueGradientRow = row;
  return call;
}

plan::CopyCall copyCall(int64_t rows, int64_t columns, int64_t row) {
  return {.elementBytes = sizeof(float), .dimensions = {{rows, row, columns}, {columns, 1, 1}}};
}

}  // namespace sheaf::measure
