#include "runtime/schedule/MeasuredCalls.h"

#include "runtime/plan/Library.h"
#include "runtime/plan/RowPitch.h"
#include "runtime/plan/Types.h"

namespace sheaf::schedule {

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

MeasuredCall gemmCall(plan::ElementType type, int64_t m, int64_t n, int64_t k, bool transposeA, bool transposeB) {
  // As the values of a step lie: rows that would start anywhere are padded.
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
                                     {"type", type}}),
          {{bytesOf(type, {transposeA ? k : m, lda}), plan::READ},
           {bytesOf(type, {transposeB ? n : k, ldb}), plan::READ},
           {bytesOf(type, {m, ldc}), plan::WRITE}}};
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

}  // namespace sheaf::schedule
