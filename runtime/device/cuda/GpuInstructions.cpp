#include "runtime/device/cuda/GpuInstructions.h"

#include <algorithm>
#include <set>

#include "runtime/plan/Library.h"
#include "runtime/plan/Types.h"

namespace sheaf::cuda {
namespace {

// At least every so many instructions of a stream are marked, and every collective, launch on the host and persist:
// that is where ranks wait for others, and streams for the host.
constexpr int kMarkInterval = 64;

Status prepareOnHost(const plan::Plan& plan, Entry& entry) {
  const plan::Instruction& launch = *entry.instruction;
  if (!entry.launch.entry) {
    const bool known = entry.index < static_cast<uint32_t>(plan.kernels_size());
    return Status::error(cat("it is on the host, and the plan has no kernel '",
                             known ? plan.kernels(static_cast<int>(entry.index)).symbol() : "",
                             "' for that; compile the model again"));
  }
  for (int i = 0; i < launch.operands_size(); ++i)
    if (plan.buffers(static_cast<int>(launch.operands(i).buffer())).space() != plan::Buffer::HOST)
      return Status::error(cat("it is on the host, and its operand ", i, " is not in host memory"));
  entry.onHost = std::make_shared<const HostCompute::Request>(
      HostCompute::Request{entry.instruction, entry.launch, entry.operands});
  return {};
}

Status prepare(const plan::Plan& plan, Blas& blas, Entry& entry) {
  const plan::Instruction& instruction = *entry.instruction;
  for (std::byte*& operand : entry.operands) entry.arguments.push_back(&operand);
  size_t hostBytes = 0;
  switch (entry.kind) {
    case plan::Instruction::kKernel:
      return plan::isOnHost(instruction) ? prepareOnHost(plan, entry) : Status();
    case plan::Instruction::kCall: {
      auto function = makeLibraryFunction(instruction, plan.training().seed(), blas);
      if (!function.ok()) return function.status();
      entry.function = std::move(*function);
      return {};
    }
    case plan::Instruction::kInput:
    case plan::Instruction::kScalars:
    case plan::Instruction::kPersist:
      hostBytes = entry.bytes;
      break;
    case plan::Instruction::kOutput:
      // Its value, and the first error that kernels have found so far.
      hostBytes = entry.findingOffset() + sizeof(uint64_t);
      break;
    default:
      break;
  }
  if (hostBytes == 0) return {};
  Expected<HostSlots> slots = HostSlots::create(hostBytes);
  if (!slots.ok()) return slots.status();
  entry.slots = std::move(*slots);
  return {};
}

// Returns how many of a list's first instructions run as a whole: those before a persist, if the list is the body, or a
// part of the step whose turns do the same.
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

Expected<std::unique_ptr<GpuInstructions>> GpuInstructions::create(const plan::Plan& plan, int64_t rank,
                                                                   const Arena& arena, const HostArena* host,
                                                                   const cpu::KernelImages* hostKernels, Blas& blas) {
  auto made = std::make_unique<GpuInstructions>();
  std::vector<int> unmarked(static_cast<size_t>(std::max(plan.streams_size(), 1)), kMarkInterval);
  auto finish = [&](Entry& entry) -> Status {
    if (++unmarked[entry.stream] >= kMarkInterval || entry.kind == plan::Instruction::kCollective ||
        entry.kind == plan::Instruction::kPersist || plan::isOnHost(*entry.instruction)) {
      entry.marked = true;
      unmarked[entry.stream] = 0;
    }
    return prepare(plan, blas, entry);
  };
  SHEAF_RETURN_IF_ERROR(made->fill({plan, rank, arena.data(), host ? host->data() : nullptr, hostKernels}, finish));
  made->findLists(plan);
  return made;
}

void GpuInstructions::findLists(const plan::Plan& plan) {
  uint32_t begin = 0;
  for (const plan::Section& section : plan::sectionsOf(plan)) {
    const uint32_t end = begin + wholeOf(plan, *section.list);
    std::set<uint32_t> recorded;  // events, in the list so far
    for (uint32_t number = begin; number < end; ++number) {
      Entry& entry = (*this)[number];
      entry.list = static_cast<int>(lists_.size());
      if (entry.kind == plan::Instruction::kRecord) recorded.insert(entry.index);
      entry.waitsOutside = entry.kind == plan::Instruction::kWait && !recorded.count(entry.index);
    }
    if (end > begin) lists_.push_back({begin, end});
    begin += static_cast<uint32_t>(section.list->size());
  }
}

}  // namespace sheaf::cuda
