#include "runtime/device/InstructionTable.h"

#include <algorithm>
#include <cstring>

#include "runtime/device/cpu/DurableState.h"
#include "runtime/plan/MicroBatches.h"

namespace sheaf {
namespace {

class Resolver {
 public:
  Resolver(const RankInMemory& rank, const plan::Generations& generations, ResolvedInstruction& entry)
      : rank_(rank), plan_(rank.plan), generations_(generations), instruction_(*entry.instruction), entry_(entry) {}

  Status resolve() {
    entry_.kind = instruction_.kind_case();
    entry_.stream = instruction_.stream();
    if (entry_.stream >= static_cast<uint32_t>(std::max(plan_.streams_size(), 1)))
      return Status::error(cat("stream ", entry_.stream, " is not in the plan"));
    for (const plan::Operand& operand : instruction_.operands()) entry_.operands.push_back(addressOf(operand));
    if (instruction_.operands_size() < leastOperands())
      return Status::error(cat("it has ", instruction_.operands_size(), " operands and takes ", leastOperands()));
    switch (entry_.kind) {
      case plan::Instruction::kKernel:
        resolveKernel();
        return {};
      case plan::Instruction::kCall:
        if (plan::hasScratch(instruction_)) entry_.scratch = entry_.operands.back();
        return {};
      case plan::Instruction::kCollective:
        resolveCollective(instruction_);
        return {};
      case plan::Instruction::kRecord:
        return resolveEvent(instruction_.record().event());
      case plan::Instruction::kWait:
        return resolveEvent(instruction_.wait().event());
      case plan::Instruction::kInput:
      case plan::Instruction::kScalars:
        entry_.index = instruction_.input().input();
        entry_.bytes = plan::destinationOf(instruction_).bytes();
        return {};
      case plan::Instruction::kOutput:
        return resolveOutput();
      case plan::Instruction::kTransfer:
        return resolveTransfer();
      case plan::Instruction::kPersist:
        resolvePersist();
        return {};
      case plan::Instruction::KIND_NOT_SET:
        break;
    }
    return Status::error("the instruction is empty");
  }

 private:
  // The operands that devices take from their places. The plan may not have been verified.
  int leastOperands() const {
    if (instruction_.has_collective() || instruction_.has_transfer()) return 2;
    if (instruction_.has_persist()) return plan_.ranks() > 1 ? 1 : 0;
    return instruction_.has_input() || instruction_.has_scalars() || instruction_.has_output() ? 1 : 0;
  }

  plan::Buffer::Space spaceOf(const plan::Operand& operand) const {
    return plan_.buffers(static_cast<int>(operand.buffer())).space();
  }
  // The operand's place in the arena of its space. `odd`: see RankContext::oddGeneration.
  uint64_t offsetOf(const plan::Operand& operand, bool odd) const {
    const uint32_t buffer = generations_.placeOf(operand.buffer(), odd);
    const uint64_t begin = plan_.buffers(static_cast<int>(buffer)).offset() + operand.offset();
    return begin + plan::rankOffset(plan_, operand, rank_.rank);
  }
  std::byte* addressOf(const plan::Operand& operand) const {
    const plan::Buffer::Space space = spaceOf(operand);
    std::byte* const memory = space == plan::Buffer::DEVICE ? rank_.device
                              : space == plan::Buffer::HOST ? rank_.host
                                                            : nullptr;
    return memory ? memory + offsetOf(operand, false) : nullptr;
  }

  void resolveKernel() {
    entry_.index = instruction_.kernel().kernel();
    entry_.launch = cpu::KernelLaunch(rank_.kernels ? rank_.kernels->entry(entry_.index) : nullptr, instruction_);
    if (instruction_.updates_bucket() == 0) return;
    entry_.updates = instruction_.updates_bucket() - 1;
    if (instruction_.operands_size() > 1) entry_.bytes = instruction_.operands(1).bytes();
  }

  Status resolveEvent(uint32_t event) {
    entry_.index = event;
    return event < plan_.events() ? Status() : Status::error(cat("event ", event, " is not in the plan"));
  }

  void resolveCollective(const plan::Instruction& instruction) {
    const plan::Collective& collective = instruction.collective();
    entry_.index = collective.communicator();
    entry_.collective = {collective.op(),
                         collective.type(),
                         collective.count(),
                         addressOf(plan::sourceOf(instruction)),
                         addressOf(plan::destinationOf(instruction)),
                         plan::continues(instruction)};
  }

  Status resolveOutput() {
    const uint64_t has = plan::sourceOf(instruction_).bytes();
    entry_.output = instruction_.output().output();
    entry_.index = instruction_.output().tensor();
    const bool norm = entry_.output == plan::GRADIENT_NORM;
    entry_.bytes = entry_.output == plan::TENSOR ? has : norm ? sizeof(double) : sizeof(float);
    if (has >= entry_.bytes) return {};
    return Status::error(norm ? "the gradient norm must be one f64" : "the loss must be one f32");
  }

  Status resolveTransfer() {
    const plan::Operand &from = plan::sourceOf(instruction_), &to = plan::destinationOf(instruction_);
    const plan::Transfer::Kind kind = instruction_.transfer().kind();
    if (!plan::joins(kind, spaceOf(from), spaceOf(to)))
      return Status::error("its operands lie in other spaces than its kind says");
    entry_.bytes = from.bytes();
    entry_.toDevice = kind == plan::Transfer::TO_DEVICE;
    const bool read = spaceOf(from) == plan::Buffer::FILE;
    if (!read && spaceOf(to) != plan::Buffer::FILE) return {};
    const plan::Operand &inFile = read ? from : to, &inMemory = read ? to : from;
    entry_.file = {.read = read,
                   .offset = offsetOf(inFile, false),
                   .oddOffset = offsetOf(inFile, true),
                   .memory = addressOf(inMemory),
                   .bytes = inMemory.bytes(),
                   .onDevice = spaceOf(inMemory) == plan::Buffer::DEVICE};
    return {};
  }

  void resolvePersist() {
    entry_.lossScale = cpu::lossScaleIn(instruction_, plan_);
    if (entry_.lossScale >= 0) entry_.bytes = instruction_.operands(entry_.lossScale).bytes();
    if (plan_.ranks() > 1) resolveCollective(plan::voteOf(instruction_));
  }

  const RankInMemory& rank_;
  const plan::Plan& plan_;
  const plan::Generations& generations_;
  const plan::Instruction& instruction_;
  ResolvedInstruction& entry_;
};

}  // namespace

Status resolveInstruction(const RankInMemory& rank, const plan::Generations& generations,
                          const plan::Instruction& instruction, ResolvedInstruction& entry) {
  entry.instruction = &instruction;
  return Resolver(rank, generations, entry).resolve();
}

double scalarOutput(const ResolvedInstruction& output, const std::byte* bytes) {
  if (output.output == plan::GRADIENT_NORM) {
    double norm;
    std::memcpy(&norm, bytes, sizeof norm);
    return norm;
  }
  float loss;
  std::memcpy(&loss, bytes, sizeof loss);
  return loss;
}

}  // namespace sheaf
