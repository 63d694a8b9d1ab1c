#include "runtime/device/cuda/InstructionTable.h"

#include <set>

#include "runtime/plan/Types.h"

namespace sheaf::cuda {
namespace {

// At least every so many instructions of a stream are marked, and every collective: that is where ranks wait for
// others.
constexpr int kMarkInterval = 64;

Status prepare(const plan::Plan& plan, int64_t rank, const Arena& arena, Blas& blas, Entry& entry) {
  const plan::Instruction& instruction = *entry.instruction;
  plan::forEachOperand(instruction, [&](const plan::Operand& operand) {
    entry.operands.push_back(arena.data() + plan.buffers(static_cast<int>(operand.buffer())).offset() +
                             operand.offset() + static_cast<uint64_t>(rank) * operand.shard_stride());
  });
  for (std::byte*& operand : entry.operands) entry.arguments.push_back(&operand);
  size_t hostBytes = 0;
  switch (instruction.kind_case()) {
    case plan::Instruction::kCall: {
      auto function = makeLibraryFunction(instruction.call(), plan.training().seed(), blas);
      if (!function.ok()) return function.status();
      entry.function = std::move(*function);
      break;
    }
    case plan::Instruction::kInput:
      hostBytes = instruction.input().destination().bytes();
      break;
    case plan::Instruction::kScalars:
      hostBytes = instruction.scalars().destination().bytes();
      break;
    case plan::Instruction::kOutput: {
      bool norm = instruction.output().output() == plan::GRADIENT_NORM;
      if (instruction.output().source().bytes() < outputBytes(instruction.output()))
        return Status::error(norm ? "the gradient norm must be one f64" : "the loss must be one f32");
      // Its value, and the first error that kernels have found so far.
      hostBytes = findingOffset(instruction.output()) + sizeof(uint64_t);
      break;
    }
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

}  // namespace

Expected<std::unique_ptr<InstructionTable>> InstructionTable::create(const plan::Plan& plan, int64_t rank,
                                                                     const Arena& arena, Blas& blas) {
  auto table = std::make_unique<InstructionTable>();
  const std::vector<plan::Section> sections = plan::sectionsOf(plan);
  size_t size = 0;
  for (const plan::Section& section : sections) {
    if (section.list == &plan.body()) table->bodyBegin_ = static_cast<uint32_t>(size);
    size += static_cast<size_t>(section.list->size());
  }
  table->entries_.resize(size);  // entries stay where they are: arguments point into them
  table->bodyEnd_ = table->bodyBegin_ + static_cast<uint32_t>(plan.body_size());
  std::set<uint32_t> recorded;  // events, in the body so far
  std::vector<int> unmarked(std::max(plan.streams_size(), 1), kMarkInterval);
  uint32_t number = 0;
  for (const plan::Section& section : sections) {
    for (const plan::Instruction& instruction : *section.list) {
      Entry& entry = table->entries_[number];
      entry.instruction = &instruction;
      entry.number = number;
      entry.inBody = section.list == &plan.body();
      auto fail = [&](const std::string& why) {
        return Status::error(cat(plan::describe(plan, instruction), ": ", why));
      };
      if (instruction.stream() >= unmarked.size())
        return fail(cat("stream ", instruction.stream(), " is not in the plan"));
      if (++unmarked[instruction.stream()] >= kMarkInterval || instruction.has_collective()) {
        entry.marked = true;
        unmarked[instruction.stream()] = 0;
      }
      if (Status status = prepare(plan, rank, arena, blas, entry); !status.ok()) return fail(status.message());
      if (entry.inBody && instruction.has_record()) recorded.insert(instruction.record().event());
      entry.waitsOutside = entry.inBody && instruction.has_wait() && !recorded.count(instruction.wait().event());
      table->numbers_.emplace(&instruction, number++);
    }
  }
  return table;
}

}  // namespace sheaf::cuda
