// An instruction of a plan as a word and named values, for viewers.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "runtime/plan/plan.pb.h"

namespace sheaf::plan_ir {

struct InstructionFields {
  struct Field {
    std::string name;  // as in plan.proto
    std::variant<int64_t, std::string> value;
  };
  std::string word;           // as in the text: "all_gather"
  std::vector<Field> fields;  // numbers, words and strings of its kind; lists are left out
};

InstructionFields fieldsOf(const plan::Instruction& instruction);

}  // namespace sheaf::plan_ir
