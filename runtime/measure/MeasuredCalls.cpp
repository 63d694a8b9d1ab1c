#include "runtime/measure/MeasuredCalls.h"

#include "runtime/plan/Library.h"
#include "runtime/plan/RowPitch.h"
#include "runtime/plan/Types.h"

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

uint64_t bytesOf(plan::ElementType type, std::initializer_list<int64_t> sizes) {
  uint64_t bytes = plan::elementBytes(type);
  for (int64_t size : sizes) bytes *= static_cast<uint64_t>(size);
  return bytes;
}

uint64_t MeasuredCall::bytes() const {
  uint64_t sum = 0;
  for (const auto& operand : operands) sum += operand.first;
  return sum;
}

uint64_t MeasuredCall::gpuScratch() const {
  return plan::aligned(plan::deviceScratch(call));
}

bool MeasuredCall::supported() const {
  plan::LibraryCall whole = call;
  for (const auto& [bytes, access] : operands) {
    plan::Operand* operand = whole.add_operands();
    operand->set_bytes(bytes);
    operand->set_access(access);
  }
  if (const uint64_t scratch = plan::scratchPerThread(whole)) {
    whole.set_scratch_per_thread(scratch);
    whole.add_operands()->set_bytes(scratch);
    whole.mutable_operands()->rbegin()->set_access(plan::READ_WRITE);
  }
  return plan::checkLibraryCall(whole, 1, 1).ok();
}

MeasuredCall gemmCall(plan::ElementType type, int64_t m, int64_t n, int64_t k, bool transposeA, bool transposeB,
                      bool tf32) {
  // Rows are padded as in a plan (RowPitch.h).
  const int64_t width = static_cast<int64_t>(plan::elementBytes(type));
  const int64_t lda = plan::rowPitch(transposeA ? m : k, width), ldb = plan::rowPitch(transposeB ? k : n, width),
                ldc = plan::rowPitch(n, width);
  return {plan::libraryCall("gemm", {{"m", m},
                                     {"n", n},
                                     {"k", k},
                                     {"batch", 1},
                                     {"transpose_a", transposeA},
                                     {"transpose_b", transposeB},
                                     {"lda", lda},
                                     {"ldb", ldb},
                                     {"ldc", ldc},
                                     {"tf32", tf32},
                                     {"type", type}}),
          {{bytesOf(type, {transposeA ? k : m, lda}), plan::READ},
           {bytesOf(type, {transposeB ? n : k, ldb}), plan::READ},
           {bytesOf(type, {m, ldc}), plan::WRITE}}};
}

MeasuredCall geluCall(int64_t m, int64_t n, int64_t k) {
  MeasuredCall made = gemmCall(plan::BF16, m, n, k, false, false);
  plan::Attribute* epilogue = made.call.add_attributes();
  epilogue->set_name("epilogue");
  epilogue->set_integer(static_cast<int64_t>(plan::Epilogue::kBiasGelu));
  made.operands.insert(made.operands.begin() + 2, {bytesOf(plan::BF16, {n}), plan::READ});
  made.operands.emplace_back(bytesOf(plan::BF16, {m, n}), plan::WRITE);
  return made;
}

MeasuredCall attentionCall(plan::ElementType type, int64_t batch, int64_t sequence, int64_t heads, int64_t width,
                           bool causal, bool gradient) {
  const int64_t row = heads * width;
  MeasuredCall made{plan::libraryCall(gradient ? "attention_grad" : "attention",
                                      {{"b", batch},
                                       {"s", sequence},
                                       {"t", sequence},
                                       {"h", heads},
                                       {"g", heads},
                                       {"d", width},
                                       {"e", width},
                                       {"causal", causal},
                                       {"type", type},
                                       {"query_row", row},
                                       {"key_row", row},
                                       {"value_row", row},
                                       {"result_row", row},
                                       {"gradient_row", row},
                                       {"query_gradient_row", row},
                                       {"key_gradient_row", row},
                                       {"value_gradient_row", row}},
                                      {{"scale", 0.01}}),
                    {}};
  const uint64_t tokens = bytesOf(type, {batch, sequence, row}), sums = bytesOf(plan::F32, {batch, heads, sequence});
  const plan::Access result = gradient ? plan::READ : plan::WRITE;
  made.operands.assign(3, {tokens, plan::READ});  // query, key, value
  made.operands.push_back({tokens, result});
  made.operands.push_back({sums, result});
  if (gradient) made.operands.push_back({tokens, plan::READ});
  if (gradient) made.operands.insert(made.operands.end(), 3, {tokens, plan::WRITE});
  return made;
}

void addCalls(InstructionTimer& timer, const MeasuredCall& call, int copies) {
  for (int i = 0; i < copies; ++i) {
    plan::LibraryCall placed = call.call;
    for (const auto& [bytes, access] : call.operands) *placed.add_operands() = timer.place(bytes, access);
    timer.call(std::move(placed));
  }
}

}  // namespace sheaf::measure
