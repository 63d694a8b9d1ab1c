// The steps of Finish.h by name, for `sheaf-opt`, which runs them one at a time on the text of a plan.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "passes/plan/Finish.h"

namespace sheaf::plan_ir {

struct StepOption {
  std::string_view name;
  std::string_view byDefault;  // its value where it is not given: a number, true or false, or any text
  std::string_view help;
  int64_t least = INT64_MIN, most = INT64_MAX;  // range if it is a number
};

class StepArguments;

// A step. The lowering, which takes a module, is the first one, and has no `run`.
struct Step {
  std::string_view name;  // "plan-offload"
  std::string_view summary;
  std::span<const StepOption> options;
  Status (*run)(Draft& draft, const StepArguments& arguments);
};

std::span<const Step> steps();

// The values of a step's options.
class StepArguments {
 public:
  // Reads "NAME=VALUE NAME=VALUE"; a name alone stands for NAME=true. The error names the option and its remedy.
  static Expected<StepArguments> parse(const Step& step, std::string_view text);

  std::string text(std::string_view option) const;
  int64_t integer(std::string_view option) const;
  bool flag(std::string_view option) const { return text(option) == "true"; }

 private:
  explicit StepArguments(const Step& step) : step_(&step) {}
  const Step* step_;
  std::vector<std::string> values_;  // in the order of the step's options
};

// Checks what the steps take for granted of a plan that was written by hand: that its indices name what it has, and
// that operands lie in their buffers. plan::verifyPlan checks finished plans.
Status checkStepInput(const plan::Plan& plan);

LowerOptions lowerOptionsOf(const StepArguments& arguments);

// The steps with their options as Markdown, for the documentation.
std::string stepReference();

}  // namespace sheaf::plan_ir
