#include "runtime/device/cuda/InstructionTable.h"

#include <algorithm>
#include <set>

#include "runtime/device/cpu/DurableState.h"
#include "runtime/plan/Generations.h"
#include "runtime/plan/Library.h"
#include "runtime/plan/Types.h"

namespace sheaf::cuda {
namespace {

// At least every so many instructions of a stream are marked, and every collective, launch on the host and persist:
// that is where ranks wait for others, and streams for the host.
constexpr int kMarkInterval = 64;

// Of a rank: its arenas in memory, which files have none of, and the kernels of launches on the host.
struct Memories {
  std::byte *device, *host;
  const cpu::KernelImages* hostKernels;
  const plan::Generations* generations;
};

Status prepareOnHost(const plan::Plan& plan, const Memories& memories, Entry& entry) {
  const plan::Instruction& launch = *entry.instruction;
  const uint32_t kernel = launch.kernel().kernel();
  auto request = std::make_shared<HostCompute::Request>();
  request->instruction = entry.instruction;
  request->kernel = memories.hostKernels ? memories.hostKernels->entry(kernel) : nullptr;
  if (!request->kernel) {
    const bool known = kernel < static_cast<uint32_t>(plan.kernels_size());
    return Status::error(cat("it is on the host, and the plan has no kernel '",
                             known ? plan.kernels(static_cast<int>(kernel)).symbol() : "",
                             "' for that; compile the model again"));
  }
  for (int i = 0; i < launch.operands_size(); ++i) {
    if (plan.buffers(static_cast<int>(launch.operands(i).buffer())).space() != plan::Buffer::HOST)
      return Status::error(cat("it is on the host, and its operand ", i, " is not in host memory"));
    request->operands.push_back(entry.operands[static_cast<size_t>(i)]);
  }
  entry.onHost = std::move(request);
  return {};
}

Status prepare(const plan::Plan& plan, int64_t rank, const Memories& memories, Blas& blas, Entry& entry) {
  const plan::Instruction& instruction = *entry.instruction;
  auto spaceOf = [&](const plan::Operand& operand) { return plan.buffers(static_cast<int>(operand.buffer())).space(); };
  auto offsetOf = [&](const plan::Operand& operand, bool odd = false) {
    const uint32_t buffer = memories.generations->placeOf(operand.buffer(), odd);
    return plan.buffers(static_cast<int>(buffer)).offset() + operand.offset() + plan::rankOffset(plan, operand, rank);
  };
  plan::forEachOperand(instruction, [&](const plan::Operand& operand) {
    const plan::Buffer::Space space = spaceOf(operand);
    std::byte* const memory = space == plan::Buffer::DEVICE ? memories.device
                              : space == plan::Buffer::HOST ? memories.host
                                                            : nullptr;
    entry.operands.push_back(memory ? memory + offsetOf(operand) : nullptr);
  });
  for (std::byte*& operand : entry.operands) entry.arguments.push_back(&operand);
  size_t hostBytes = 0;
  switch (instruction.kind_case()) {
    case plan::Instruction::kKernel:
      if (plan::isOnHost(instruction)) SHEAF_RETURN_IF_ERROR(prepareOnHost(plan, memories, entry));
      break;
    case plan::Instruction::kCall: {
      auto function = makeLibraryFunction(instruction, plan.training().seed(), blas);
      if (!function.ok()) return function.status();
      entry.function = std::move(*function);
      break;
    }
    case plan::Instruction::kInput:
    case plan::Instruction::kScalars:
      hostBytes = plan::destinationOf(instruction).bytes();
      break;
    case plan::Instruction::kOutput: {
      bool norm = instruction.output().output() == plan::GRADIENT_NORM;
      if (plan::sourceOf(instruction).bytes() < outputBytes(instruction))
        return Status::error(norm ? "the gradient norm must be one f64" : "the loss must be one f32");
      // Its value, and the first error that kernels have found so far.
      hostBytes = findingOffset(instruction) + sizeof(uint64_t);
      break;
    }
    case plan::Instruction::kTransfer: {
      const plan::Operand &from = plan::sourceOf(instruction), &to = plan::destinationOf(instruction);
      if (!plan::joins(instruction.transfer().kind(), spaceOf(from), spaceOf(to)))
        return Status::error("its operands lie in other spaces than its kind says");
      const bool read = spaceOf(from) == plan::Buffer::FILE;
      if (!read && spaceOf(to) != plan::Buffer::FILE) break;
      const plan::Operand& other = read ? to : from;
      entry.file = FileStream::Request{.instruction = &instruction,
                                       .read = read,
                                       .offset = offsetOf(read ? from : to),
                                       .oddOffset = offsetOf(read ? from : to, true),
                                       .bytes = other.bytes(),
                                       .memory = entry.operands[read ? 1 : 0],
                                       .onDevice = spaceOf(other) == plan::Buffer::DEVICE};
      break;
    }
    case plan::Instruction::kPersist:
      if (const int scale = cpu::lossScaleIn(instruction, plan); scale >= 0)
        hostBytes = instruction.operands(scale).bytes();
      break;
    case plan::Instruction::kRecord:
      if (instruction.record().event() >= plan.events())
        return Status::error(cat("event ", instruction.record().event(), " is not in the plan"));
      break;
    case plan::Instruction::kWait:
      if (instruction.wait().event() >= plan.events())
        return Status::error(cat("event ", instruction.wait().event(), " is not in the plan"));
      break;
    case plan::Instruction::KIND_NOT_SET:
      return Status::error("the instruction is empty");
    default:
      break;
  }
  if (hostBytes > 0) {
    Expected<HostSlots> slots = HostSlots::create(hostBytes);
    if (!slots.ok()) return slots.status();
    entry.slots = std::move(*slots);
  }
  return {};
}

// How many of its first instructions run as a whole: those before a persist, if the list is the body, or a part of the
// step whose turns do the same.
uint32_t wholeOf(const plan::Plan& plan, const plan::InstructionList& list) {
  int turns = 0;
  for (const plan::StepTurn& turn : plan::stepOf(plan)) turns += turn.list == &list;
  const bool random = std::any_of(list.begin(), list.end(), [](const plan::Instruction& instruction) {
    return instruction.has_call() && plan::isRandom(instruction.call());
  });
  if (turns != 1 && (turns < 1 || random)) return 0;
  const auto persist = std::find_if(list.begin(), list.end(), [](const auto& i) { return i.has_persist(); });
  return static_cast<uint32_t>(persist - list.begin());
}

}  // namespace

Expected<std::unique_ptr<InstructionTable>> InstructionTable::create(const plan::Plan& plan, int64_t rank,
                                                                     const Arena& arena, const HostArena* host,
                                                                     const cpu::KernelImages* hostKernels, Blas& blas) {
  const plan::Generations generations(plan);
  const Memories memories{arena.data(), host ? host->data() : nullptr, hostKernels, &generations};
  auto table = std::make_unique<InstructionTable>();
  const std::vector<plan::Section> sections = plan::sectionsOf(plan);
  size_t size = 0;
  for (const plan::Section& section : sections) size += static_cast<size_t>(section.list->size());
  table->entries_.resize(size);  // entries stay where they are: arguments point into them
  std::set<uint32_t> recorded;   // events, in the list so far
  std::vector<int> unmarked(std::max(plan.streams_size(), 1), kMarkInterval);
  uint32_t number = 0;
  for (const plan::Section& section : sections) {
    int list = -1;
    const uint32_t whole = number + wholeOf(plan, *section.list);
    if (whole > number) {
      list = static_cast<int>(table->lists_.size());
      table->lists_.push_back({number, whole});
      recorded.clear();
    }
    for (const plan::Instruction& instruction : *section.list) {
      if (number == whole) list = -1;
      Entry& entry = table->entries_[number];
      entry.instruction = &instruction;
      entry.number = number;
      entry.list = list;
      auto fail = [&](const std::string& why) {
        return Status::error(cat(plan::describe(plan, instruction), ": ", why));
      };
      if (instruction.stream() >= unmarked.size())
        return fail(cat("stream ", instruction.stream(), " is not in the plan"));
      if (++unmarked[instruction.stream()] >= kMarkInterval || instruction.has_collective() ||
          plan::isOnHost(instruction) || instruction.has_persist()) {
        entry.marked = true;
        unmarked[instruction.stream()] = 0;
      }
      if (Status status = prepare(plan, rank, memories, blas, entry); !status.ok()) return fail(status.message());
      if (list >= 0 && instruction.has_record()) recorded.insert(instruction.record().event());
      entry.waitsOutside = list >= 0 && instruction.has_wait() && !recorded.count(instruction.wait().event());
      table->numbers_.emplace(&instruction, number++);
    }
  }
  return table;
}

}  // namespace sheaf::cuda
