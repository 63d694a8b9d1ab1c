// The library calls that are measured, in groups of an InstructionTimer.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

#include "runtime/schedule/InstructionTimer.h"

namespace sheaf::schedule {

// Of one rank's arena: more than caches hold.
inline constexpr uint64_t kArenaBytes = uint64_t{160} << 20;
// Operands have been touched a few instructions ago: a group cycles through so many times what an instruction moves.
inline constexpr int kFootprints = 4;

plan::LibraryCall libraryCall(const char* function, const std::vector<std::pair<const char*, int64_t>>& integers);

// Bytes of so many f32.
uint64_t floats(std::initializer_list<int64_t> sizes);

// Adds the call `copies` times, on operands of its own each time.
void addCalls(InstructionTimer& timer, const plan::LibraryCall& call,
              const std::vector<std::pair<uint64_t, plan::Access>>& operands, int copies);

struct GemmShape {
  int64_t m, n, k;
};
void addGemm(InstructionTimer& timer, const GemmShape& shape, bool transposeA, bool transposeB, int copies);

}  // namespace sheaf::schedule
