// The text of a plan: `sheaf inspect --format text` prints it, and `sheaf assemble` reads it back to the same plan.
// Both directions follow the table in TextRows.cpp.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::plan_ir {

// Returns the text. Strings of the plan must be UTF-8. A reference to a buffer that the plan does not have is printed
// as `%!` and its number, which parseText refuses.
std::string textOf(const plan::Plan& plan);

// Reads a text with one program. The error, which is the first one, begins with "FILE:LINE:COLUMN: ". Values are
// checked to be of their fields' types; verifyPlan checks the plan that they make.
Expected<plan::Plan> parseText(std::string_view text, std::string_view file);

// Reads a text with any number of programs, one after the other.
Expected<std::vector<plan::Plan>> parseTexts(std::string_view text, std::string_view file);

// Returns the table of docs/plan-format.md, in Markdown: each statement with its form and its meaning.
std::string textReference();

}  // namespace sheaf::plan_ir
