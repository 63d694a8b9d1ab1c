#include "runtime/plan/Types.h"

#include "runtime/base/Text.h"
#include "runtime/plan/Words.h"

namespace sheaf::plan {

std::string otherVersion(uint32_t version) {
  return cat("plan version ", version, " (made by ", version < kPlanVersion ? "an older" : "a newer",
             " sheaf); this program reads versions ", kOldestPlanVersion, " and ", kPlanVersion,
             ": compile the model again");
}

std::optional<uint64_t> elementCount(std::span<const int64_t> shape) {
  uint64_t count = 1;
  bool empty = false;
  for (int64_t size : shape) {
    if (size < 0 || static_cast<uint64_t>(size) > kMaxBytes) return std::nullopt;
    if (size == 0) empty = true;
    if (size > 0 && count > kMaxBytes / static_cast<uint64_t>(size)) return std::nullopt;
    if (size > 0) count *= static_cast<uint64_t>(size);
  }
  return empty ? 0 : count;
}

std::string arenaText(uint64_t begin, uint64_t end) {
  const auto space = static_cast<Buffer::Space>(begin >> kSpaceShift);
  return cat("bytes [", offsetInArena(begin), ", ", offsetInArena(end), ") of the arena",
             space == Buffer::DEVICE ? "" : cat(" in space ", word(space)));
}

uint64_t arenaTop(const Plan& plan, Buffer::Space space) {
  uint64_t top = 0;
  for (const Buffer& buffer : plan.buffers())
    if (buffer.space() == space) top = std::max(top, buffer.offset() + buffer.bytes());
  return top;
}

uint64_t peakBytes(const Plan& plan, Buffer::Space space) {
  if (space == Buffer::DEVICE) return plan.memory().peak_bytes();
  for (const SpaceMemory& memory : plan.memory().spaces())
    if (memory.space() == space) return memory.peak_bytes();
  return 0;
}

bool joins(Transfer::Kind kind, Buffer::Space source, Buffer::Space destination) {
  switch (kind) {
    case Transfer::TO_DEVICE:
      return source == Buffer::HOST && destination == Buffer::DEVICE;
    case Transfer::TO_HOST:
      return source == Buffer::DEVICE && destination == Buffer::HOST;
    case Transfer::READ_FILE:
      return source == Buffer::FILE && destination != Buffer::FILE;
    case Transfer::WRITE_FILE:
      return source != Buffer::FILE && destination == Buffer::FILE;
    default:
      return false;
  }
}

std::string deviceOf(const KernelImage& image) {
  const std::string& target = image.target();
  if (target == "cpu" || target == "host") return target;
  constexpr std::string_view kCuda = "cuda:sm_";
  bool digits = target.size() > kCuda.size() && target.size() <= kCuda.size() + 3 &&
                target.find_first_not_of("0123456789", kCuda.size()) == std::string::npos;
  return target.starts_with(kCuda) && digits ? "cuda" : "";
}

const KernelImage* imageFor(const Plan& plan, std::string_view device) {
  for (const KernelImage& image : plan.images())
    if (deviceOf(image) == device) return &image;
  return nullptr;
}

const KernelImage* hostImage(const Plan& plan) {
  const KernelImage* cpu = imageFor(plan, "cpu");
  return cpu ? cpu : imageFor(plan, "host");
}

bool hasKernel(const KernelImage& image, uint32_t kernel) {
  if (kernel >= static_cast<uint32_t>(image.entries_size())) return false;
  return deviceOf(image) == "cuda" || image.entries(static_cast<int>(kernel)).offset() < image.code().size();
}

bool updatesOnHost(const Plan& plan) {
  bool any = false;
  forEachInstruction(plan, [&](const Instruction& instruction) { any |= isOnHost(instruction); });
  return any;
}

std::vector<const KernelImage*> targetImages(const Plan& plan) {
  std::vector<const KernelImage*> images;
  for (const KernelImage& image : plan.images())
    if (deviceOf(image) != "host") images.push_back(&image);
  return images;
}

std::string targetsText(const Plan& plan) {
  std::string text;
  for (const KernelImage* image : targetImages(plan)) text += (text.empty() ? "" : ", ") + image->target();
  return text;
}

std::vector<Section> sectionsOf(const Plan& plan) {
  std::vector<Section> sections{{"prologue", &plan.prologue()}};
  for (const StepPart& part : plan.parts()) sections.push_back({part.name(), &part.instructions()});
  sections.insert(sections.end(),
                  {{"body", &plan.body()}, {"epilogue", &plan.epilogue()}, {"evaluation", &plan.evaluation()}});
  return sections;
}

std::vector<StepTurn> stepOf(const Plan& plan) {
  std::vector<StepTurn> parts;
  for (const Turn& turn : plan.turns()) {
    const StepPart& part = plan.parts(static_cast<int>(turn.part()));
    parts.push_back({part.name(), &part.instructions(), turn.micro_batch()});
  }
  parts.push_back({"body", &plan.body(), microBatches(plan) - 1});
  return parts;
}

std::vector<const Instruction*> stepInstructions(const Plan& plan) {
  std::vector<const Instruction*> instructions;
  for (const StepTurn& part : stepOf(plan))
    for (const Instruction& instruction : *part.list) instructions.push_back(&instruction);
  return instructions;
}

std::string placeText(const Operand& operand) {
  const char* index = operand.axis() == NODE ? "local" : operand.axis() == NETWORK ? "node" : "rank";
  return cat(operand.bytes(), " bytes at ", operand.offset(), " + ", index, " * ", operand.shard_stride());
}

std::string indexError(std::string_view what, uint64_t index, int64_t count) {
  return cat(what, " index ", index, " is out of range: the plan has ", count);
}

std::string instructionKind(const Instruction& instruction) {
  switch (instruction.kind_case()) {
    case Instruction::kKernel:
      return "kernel";
    case Instruction::kCall:
      return instruction.call().function().substr(0, 40);
    case Instruction::kCollective:
      return word(instruction.collective().op());
    case Instruction::kRecord:
      return "record";
    case Instruction::kWait:
      return "wait";
    case Instruction::kInput:
      return "read_input";
    case Instruction::kScalars:
      return "read_scalars";
    case Instruction::kOutput:
      return "write_output";
    case Instruction::kTransfer:
      return word(instruction.transfer().kind());
    case Instruction::kPersist:
      return "persist";
    case Instruction::KIND_NOT_SET:
      break;
  }
  return "nothing";
}

std::string describe(const Plan& plan, std::string_view section, int index, const Instruction& instruction) {
  std::string text = cat(section, " instruction ", index, " (", instructionKind(instruction));
  if (!instruction.label().empty()) text += cat(" '", shortName(instruction.label()), "'");
  if (instruction.stream() < static_cast<uint32_t>(plan.streams_size()))
    text += cat(" on stream ", plan.streams(static_cast<int>(instruction.stream())).substr(0, 40));
  return text + ")";
}

std::string describe(const Plan& plan, const Instruction& instruction) {
  for (auto [name, list] : sectionsOf(plan))
    for (int i = 0; i < list->size(); ++i)
      if (&list->Get(i) == &instruction) return describe(plan, name, i, instruction);
  return cat("an instruction (", instructionKind(instruction), " '", instruction.label(), "')");
}

}  // namespace sheaf::plan
