#include "runtime/schedule/MeasuredCalls.h"

namespace sheaf::schedule {

plan::LibraryCall libraryCall(const char* function, const std::vector<std::pair<const char*, int64_t>>& integers) {
  plan::LibraryCall call;
  call.set_function(function);
  for (const auto& [name, value] : integers) {
    plan::Attribute* attribute = call.add_attributes();
    attribute->set_name(name);
    attribute->set_integer(value);
  }
  return call;
}

uint64_t floats(std::initializer_list<int64_t> sizes) {
  uint64_t bytes = sizeof(float);
  for (int64_t size : sizes) bytes *= static_cast<uint64_t>(size);
  return bytes;
}

void addCalls(InstructionTimer& timer, const plan::LibraryCall& call,
              const std::vector<std::pair<uint64_t, plan::Access>>& operands, int copies) {
  for (int i = 0; i < copies; ++i) {
    plan::LibraryCall placed = call;
    for (const auto& [bytes, access] : operands) *placed.add_operands() = timer.place(bytes, access);
    timer.call(std::move(placed));
  }
}

void addGemm(InstructionTimer& timer, const GemmShape& s, bool transposeA, bool transposeB, int copies) {
  const plan::LibraryCall call = libraryCall("gemm", {{"m", s.m},
                                                      {"n", s.n},
                                                      {"k", s.k},
                                                      {"batch", 1},
                                                      {"transpose_a", transposeA},
                                                      {"transpose_b", transposeB},
                                                      {"lda", transposeA ? s.m : s.k},
                                                      {"ldb", transposeB ? s.k : s.n},
                                                      {"ldc", s.n}});
  addCalls(timer, call,
           {{floats({s.m, s.k}), plan::READ}, {floats({s.k, s.n}), plan::READ}, {floats({s.m, s.n}), plan::WRITE}},
           copies);
}

}  // namespace sheaf::schedule
