// A valid call of each library function, for tests of the calls and of their check.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/plan/Library.h"

namespace sheaf::testing {

struct Sizes {
  uint64_t bytes;
  plan::Access access;
};

struct Valid {
  plan::AnyCall call;
  std::vector<Sizes> operands;  // without scratch

  plan::Instruction instruction(uint32_t threads = 8) const;
  static void add(plan::Instruction& instruction, const Sizes& size);
};

// The attribute of that name; null if there is none.
plan::Attribute* find(plan::Instruction& instruction, const std::string& name);
plan::Instruction with(plan::Instruction instruction, const std::string& name, int64_t value);

// The call with all attributes of its table, those at their default too.
plan::Instruction spelledOut(const Valid& valid);

// A product of [3, 7] and [7, 5] with an epilogue.
plan::GemmCall product(plan::GemmEpilogue epilogue, bool transposeA, bool transposeB = false, int64_t batch = 1);
plan::GemmCall product(plan::GemmEpilogue epilogue);
plan::AttentionCall attention();
plan::AttentionGradCall attentionGrad();

// Valid calls of each function. Sizes of operands are worked out by hand.
std::vector<Valid> validCalls();
// The first of a function.
Valid validCall(std::string_view name);

}  // namespace sheaf::testing
