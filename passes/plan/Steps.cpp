#include "passes/plan/Steps.h"

#include <algorithm>
#include <vector>

#include "runtime/base/Text.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/Verify.h"

namespace sheaf::plan_ir {
namespace {

constexpr StepOption kLower[] = {
    {"max-threads-per-rank", "8", "Threads that scratch is reserved for", 1, plan::kMaxThreads},
    {"cpu", "true", "Reserve the scratch that calls need on the CPU"},
    {"gpu", "false", "Reserve the scratch that calls need on a GPU"},
};
constexpr StepOption kOffload[] = {
    {"optimizer", "device", "Space of optimizer state and master weights"},
    {"parameters", "device", "Space of parameters"},
    {"gradients", "device", "Space of gradients until their update"},
    {"activations", "device", "Space of activations until the backward pass"},
    {"within", "-1", "Bytes of the device; negative: each kind as its option says"},
    {"host-bytes", "-1", "Most bytes to host memory, then to files; negative: all"},
    {"update-on", "device", "Place of updates of buckets whose optimizer state has been moved: device or host"},
    {"profile", "cpu", "Hardware profile: a name or a file"},
};
constexpr StepOption kSchedule[] = {
    {"profile", "cpu", "Hardware profile: a name or a file"},
    {"memory-limit", "0", "Most bytes of a rank's arena; 0: no limit", 0},
    {"prefetch", "-1", "Gathers under way beyond those in use; negative: the best number"},
};
constexpr StepOption kGenerations[] = {{"generations", "2", "Places of each state, 1 or 2", 1, 2}};
constexpr StepOption kEvents[] = {{"placed", "false", "Buffers have their offsets"}};

constexpr Step kSteps[] = {
    {"plan-lower", "turns the step into instructions on buffers", kLower, nullptr},
    {"plan-digest-dataflow",
     "writes digests of what outputs and state are computed from into the plan",
     {},
     [](Draft& draft, const StepArguments&) { return digestDataflow(draft); }},
    {"plan-offload", "moves optimizer state, parameters, gradients and activations to host memory or files", kOffload,
     [](Draft& draft, const StepArguments& a) {
       return offload(draft, {a.text("optimizer"), a.text("parameters"), a.text("gradients"), a.text("activations"),
                              a.integer("within"), a.integer("host-bytes"), a.text("update-on"), a.text("profile")});
     }},
    {"plan-host-operands",
     "copies to host memory what launches on the host read of device buffers, and back what they write",
     {},
     [](Draft& draft, const StepArguments&) { return copyHostOperands(draft); }},
    {"plan-schedule", "orders the step's instructions: computation, gathers, reductions and updates in one loop",
     kSchedule,
     [](Draft& draft, const StepArguments& a) {
       return scheduleInstructions(
           draft, {a.text("profile"), static_cast<uint64_t>(a.integer("memory-limit")), a.integer("prefetch")});
     }},
    {"plan-generations", "gives state in files two places that take turns, and persists every step", kGenerations,
     [](Draft& draft, const StepArguments& a) { return addGenerations(draft, a.integer("generations")); }},
    {"plan-insert-events", "orders every two conflicting accesses of different streams by an event", kEvents,
     [](Draft& draft, const StepArguments& a) { return insertEvents(draft, a.flag("placed")); }},
    {"plan-elide-events",
     "removes waits that stream order and the other waits imply, and records that nothing waits for",
     {},
     [](Draft& draft, const StepArguments&) { return elideEvents(draft); }},
    {"plan-allocate-arena",
     "gives every buffer its offset in the arena of its space",
     {},
     [](Draft& draft, const StepArguments&) { return allocateArena(draft); }},
};

// Checks that a value has the form of the option's default.
Status checkForm(const StepOption& option, const std::string& value) {
  int64_t number = 0;
  const std::string_view byDefault = option.byDefault;
  if (byDefault == "true" || byDefault == "false")
    return value == "true" || value == "false" ? Status() : Status::error("expected true or false");
  if (!parseInteger(std::string(byDefault), number)) return {};
  if (!parseInteger(value, number)) return Status::error("expected a whole number");
  if (number < option.least) return Status::error(cat("expected at least ", option.least));
  return number <= option.most ? Status() : Status::error(cat("expected at most ", option.most));
}

// Checks the indices and operands of one instruction.
Status checkInstruction(const plan::Plan& plan, const plan::Instruction& instruction) {
  struct Index {
    const char* what;
    uint64_t index;
    int64_t count;
  };
  std::vector<Index> indices{{"its stream", instruction.stream(), plan::kMaxStreams}};
  if (instruction.updates_bucket() > 0)
    indices.push_back({"its bucket", instruction.updates_bucket() - 1, plan.buckets_size()});
  if (instruction.has_kernel()) indices.push_back({"its kernel", instruction.kernel().kernel(), plan.kernels_size()});
  if (instruction.has_input()) indices.push_back({"its input", instruction.input().input(), plan.inputs_size()});
  if (instruction.has_record()) indices.push_back({"its event", instruction.record().event(), plan::kMaxEvents});
  if (instruction.has_wait()) indices.push_back({"its event", instruction.wait().event(), plan::kMaxEvents});
  if (const std::optional<uint32_t> communicator = plan::communicatorOf(plan, instruction))
    indices.push_back({"its communicator", *communicator, plan::kMaxCommunicators});
  for (const Index& one : indices)
    if (one.index >= static_cast<uint64_t>(one.count))
      return Status::error(plan::indexError(one.what, one.index, one.count));
  for (const plan::Operand& operand : instruction.operands())
    if (const plan::Buffer& buffer = plan.buffers(static_cast<int>(operand.buffer()));
        !plan::liesInBuffer(plan, operand))
      return Status::error(cat("an operand lies outside of the ", buffer.bytes(), " bytes of buffer '",
                               plan::shortName(buffer.name()), "': ", plan::placeText(operand)));
  return {};
}

}  // namespace

std::span<const Step> steps() {
  return kSteps;
}

Expected<StepArguments> StepArguments::parse(const Step& step, std::string_view text) {
  StepArguments arguments(step);
  for (const StepOption& option : step.options) arguments.values_.emplace_back(option.byDefault);
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(word.size() + 1, text.size()));
    if (word.empty()) continue;
    const size_t equals = word.find('=');
    const std::string_view name = word.substr(0, equals);
    const std::string value(equals == std::string_view::npos ? "true" : word.substr(equals + 1));
    const auto* option = std::find_if(step.options.data(), step.options.data() + step.options.size(),
                                      [&](const StepOption& known) { return known.name == name; });
    if (option == step.options.data() + step.options.size())
      return Status::error(cat("-", step.name, " has no option '", name, "'; --plan-steps lists the options"));
    if (Status form = checkForm(*option, value); !form.ok())
      return Status::error(cat("-", step.name, ": ", name, "=", value, ": ", form.message()));
    arguments.values_[static_cast<size_t>(option - step.options.data())] = value;
  }
  return arguments;
}

std::string StepArguments::text(std::string_view option) const {
  size_t i = 0;
  while (step_->options[i].name != option) ++i;
  return values_[i];
}

int64_t StepArguments::integer(std::string_view option) const {
  int64_t number = 0;
  parseInteger(text(option), number);
  return number;
}

Status checkStepInput(const plan::Plan& plan) {
  if (plan.ranks() < 1 || plan.ranks() > plan::kMaxRanks)
    return Status::error(cat("ranks ", plan.ranks(), " is not between 1 and ", plan::kMaxRanks));
  if (plan.ranks_per_node() < 0 || plan.ranks() % plan::ranksPerNode(plan) != 0)
    return Status::error(
        cat("ranks_per_node ", plan.ranks_per_node(), " does not divide the ", plan.ranks(), " ranks"));
  for (const plan::Turn& turn : plan.turns())
    if (turn.part() >= static_cast<uint32_t>(plan.parts_size()))
      return Status::error(plan::indexError("a turn's part", turn.part(), plan.parts_size()));
  return plan::checkInstructions(
      plan, [&](std::string_view section, int index, const plan::Instruction& instruction) -> Status {
        Status status = checkInstruction(plan, instruction);
        return status.ok() ? status : Status::error(cat(section, " instruction ", index, ": ", status.message()));
      });
}

LowerOptions lowerOptionsOf(const StepArguments& arguments) {
  return {arguments.integer("max-threads-per-rank"), arguments.flag("cpu"), arguments.flag("gpu")};
}

std::string stepReference() {
  std::string text =
      "# Steps that make a plan\n\n`sheaf-opt` takes them as options; `passes/plan/Finish.h` describes "
      "each in full.\n";
  for (const Step& step : kSteps) {
    text += cat("\n## `-", step.name, "`\n\nIt ", step.summary, ".\n");
    if (!step.options.empty()) text += "\n| option | default | meaning |\n|---|---|---|\n";
    for (const StepOption& option : step.options)
      text += cat("| `", option.name, "` | `", option.byDefault, "` | ", option.help, " |\n");
  }
  return text;
}

}  // namespace sheaf::plan_ir
