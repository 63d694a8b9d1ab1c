#include "runtime/device/cpu/CpuContext.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>

#include "runtime/base/Text.h"
#include "runtime/device/cpu/LibraryThreads.h"
#include "runtime/device/cpu/RaceRanges.h"
#include "runtime/device/cpu/RunKernel.h"
#include "runtime/plan/MicroBatches.h"
#include "runtime/plan/Types.h"

namespace sheaf::cpu {
namespace {

// The stream whose instructions use the pool.
uint32_t findComputeStream(const plan::Plan& plan) {
  auto compute = std::find(plan.streams().begin(), plan.streams().end(), "compute");
  return compute == plan.streams().end() ? 0 : compute - plan.streams().begin();
}

Status missing(const char* what, uint64_t index) {
  return Status::error(std::string(what) + " " + std::to_string(index) + " is not in the plan");
}

}  // namespace

CpuContext::CpuContext(std::shared_ptr<World> world, int64_t rank)
    : world_(std::move(world)),
      rank_(rank),
      arena_(*world_->arenas[world_->local(rank)]),
      host_(world_->hostArenas.empty() ? nullptr : world_->hostArenas[world_->local(rank)].get()),
      file_(world_->fileArenas.empty() ? nullptr : world_->fileArenas[world_->local(rank)].get()),
      computeStream_(findComputeStream(*world_->plan)),
      pool_(world_->options.threadsPerRank, world_->spins, useOneLibraryThread),
      single_(1, 0),
      events_(*world_->events[world_->local(rank)]) {
  if (file_) {
    durable_.emplace(*world_->plan, *file_);
    odd_ = durable_->wasOdd();
  }
  for (int stream = 0; stream < world_->plan->streams_size(); ++stream)
    streams_.push_back(
        std::make_unique<Stream>([this, stream](const Work& work) { perform(work, stream); }, world_->spins));
}

Status CpuContext::status() const {
  SHEAF_RETURN_IF_ERROR(pool_.status());
  for (const auto& stream : streams_) SHEAF_RETURN_IF_ERROR(stream->status());
  return {};
}

CpuContext::~CpuContext() {
  // A rank that is destroyed while its peers wait for it must end their waits.
  bool idle = true;
  for (auto& stream : streams_) idle &= stream->idle();
  if (!idle) abort("the rank was closed while instructions were still running");
  streams_.clear();
}

void CpuContext::abort(const std::string& why) {
  world_->abort.raise(Status::error("rank " + std::to_string(rank_) + ": " + why));
}

plan::Buffer::Space CpuContext::spaceOf(const plan::Operand& operand) const {
  return world_->plan->buffers(operand.buffer()).space();
}

uint64_t CpuContext::offsetOf(const plan::Operand& operand, bool odd) const {
  const uint32_t buffer = world_->generations->placeOf(operand.buffer(), odd);
  return world_->plan->buffers(static_cast<int>(buffer)).offset() + operand.offset() +
         plan::rankOffset(*world_->plan, operand, rank_);
}

std::byte* CpuContext::address(const plan::Operand& operand) const {
  return (spaceOf(operand) == plan::Buffer::HOST ? *host_ : arena_).data() + offsetOf(operand);
}

const Arena* CpuContext::memoryOf(plan::Buffer::Space space) const {
  return space == plan::Buffer::DEVICE ? &arena_ : space == plan::Buffer::HOST ? host_ : nullptr;
}

Status CpuContext::checkRange(plan::Buffer::Space space, uint64_t offset, uint64_t bytes) const {
  const uint64_t size = memoryOf(space) ? memoryOf(space)->size() : 0;
  if (offset <= size && bytes <= size - offset) return Status();
  return Status::error("rank " + std::to_string(rank_) + ": bytes [" + std::to_string(offset) + ", +" +
                       std::to_string(bytes) + ") lie outside the arena of " + std::to_string(size));
}

Status CpuContext::read(uint64_t offset, std::span<std::byte> host) {
  return readSpace(plan::Buffer::DEVICE, offset, host);
}

Status CpuContext::write(uint64_t offset, std::span<const std::byte> host) {
  return writeSpace(plan::Buffer::DEVICE, offset, host);
}

Status CpuContext::readSpace(plan::Buffer::Space space, uint64_t offset, std::span<std::byte> host) {
  if (space == plan::Buffer::FILE && file_) return file_->read(offset, host);
  SHEAF_RETURN_IF_ERROR(checkRange(space, offset, host.size()));
  if (!host.empty()) std::memcpy(host.data(), memoryOf(space)->data() + offset, host.size());
  return Status();
}

Status CpuContext::writeSpace(plan::Buffer::Space space, uint64_t offset, std::span<const std::byte> host) {
  if (space == plan::Buffer::FILE && file_) return file_->write(offset, host);
  SHEAF_RETURN_IF_ERROR(checkRange(space, offset, host.size()));
  if (!host.empty()) std::memcpy(memoryOf(space)->data() + offset, host.data(), host.size());
  return Status();
}

Status CpuContext::issue(const plan::Instruction& instruction, std::shared_ptr<const StepValues> step) {
  if (world_->abort.raised()) return world_->abort.status();
  const plan::Plan& plan = *world_->plan;
  auto fail = [&](const Status& status) {
    // An error of the data names the input, the file and the row.
    if (instruction.has_input() && status.message().starts_with("input '")) return status;
    return Status::error("rank " + std::to_string(rank_) + ": " + plan::describe(plan, instruction) + ": " +
                         status.message());
  };
  if (instruction.stream() >= streams_.size()) return fail(missing("stream", instruction.stream()));
  if (step && step->step != issuedStep_) {
    issuedStep_ = step->step;
    persistsBefore_ = issuedPersists_;
  }
  Work work{&instruction, nullptr, std::move(step), {}, odd_, persistsBefore_};
  switch (instruction.kind_case()) {
    case plan::Instruction::kRecord:
      if (instruction.record().event() >= plan.events()) return fail(missing("event", instruction.record().event()));
      work.record = events_.issueRecord(instruction.record().event(), instruction.stream());
      break;
    case plan::Instruction::kWait:
      if (instruction.wait().event() >= plan.events()) return fail(missing("event", instruction.wait().event()));
      work.record = events_.latestRecord(instruction.wait().event());
      break;
    case plan::Instruction::kCall: {
      auto made = world_->functions.find(&instruction);
      if (made != world_->functions.end()) {
        work.function = made->second;
        break;
      }
      Expected<Function> function = makeLibraryFunction(instruction, plan.training().seed());
      if (!function.ok()) return fail(function.status());
      work.function = std::move(*function);
      break;
    }
    case plan::Instruction::kPersist:
      odd_ = !odd_;
      ++issuedPersists_;
      break;
    default:
      break;
  }
  streams_[instruction.stream()]->push(std::move(work));
  return Status();
}

Status CpuContext::synchronize() {
  for (auto& stream : streams_) stream->drain();
  return world_->abort.status();
}

void CpuContext::perform(const Work& work, uint32_t stream) {
  if (world_->abort.raised()) return;
  ComputePool& pool = stream == computeStream_ ? pool_ : single_;
  const bool timed = work.step && work.step->onInstruction;
  std::chrono::steady_clock::time_point begin;
  if (timed) begin = std::chrono::steady_clock::now();
  Status status = execute(work, pool);
  if (timed) work.step->onInstruction(rank_, *work.instruction, begin, std::chrono::steady_clock::now());
  if (!status.ok() && !world_->abort.raised())
    abort(plan::describe(*world_->plan, *work.instruction) + ": " + status.message());
}

Status CpuContext::execute(const Work& work, ComputePool& pool) {
  const plan::Instruction& instruction = *work.instruction;
  if (instruction.has_persist()) return persist(work);
  declareAccesses(instruction, [this](const plan::Operand& operand) { return address(operand); });
  switch (instruction.kind_case()) {
    case plan::Instruction::kKernel:
      if (instruction.updates_bucket() > 0 && work.step && work.step->onGradient) {
        const plan::Operand& gradient = instruction.operands(1);
        work.step->onGradient(rank_, instruction.updates_bucket() - 1, {address(gradient), gradient.bytes()});
      }
      return launch(instruction, pool);
    case plan::Instruction::kCall:
      return call(work, pool);
    case plan::Instruction::kCollective:
      return collective(instruction);
    case plan::Instruction::kRecord:
      events_.reach(work.record);
      return Status();
    case plan::Instruction::kWait:
      return events_.wait(work.record, instruction.stream()) ? Status() : world_->abort.status();
    case plan::Instruction::kInput: {
      const plan::Operand& destination = plan::destinationOf(instruction);
      if (!work.step || !work.step->readInput) return Status::error("the step has no input data");
      const Status read =
          work.step->readInput(rank_, instruction.input().input(), {address(destination), destination.bytes()});
      // The run ends with this, and the step before, which is complete, must not be lost by it.
      if (!read.ok()) awaitStateBefore(work);
      return read;
    }
    case plan::Instruction::kScalars: {
      const plan::Operand& destination = plan::destinationOf(instruction);
      if (!work.step || work.step->scalars.size() * sizeof(float) > destination.bytes())
        return Status::error("the step has another number of scalars than the plan");
      std::memcpy(address(destination), work.step->scalars.data(), work.step->scalars.size() * sizeof(float));
      return Status();
    }
    case plan::Instruction::kOutput:
      return writeOutput(work);
    case plan::Instruction::kTransfer:
      return transfer(instruction, work.odd);
    case plan::Instruction::kPersist:
    case plan::Instruction::KIND_NOT_SET:
      break;
  }
  return Status::error("the instruction is empty");
}

Status CpuContext::launch(const plan::Instruction& instruction, ComputePool& pool) {
  const uint32_t kernel = instruction.kernel().kernel();
  KernelEntry entry = world_->kernels->entry(kernel);
  if (!entry) return missing("kernel", kernel);
  // Kernels have few operands; more than this is not a plan of our compiler.
  constexpr int kMaxOperands = 256;
  void* args[kMaxOperands];
  if (instruction.operands_size() > kMaxOperands) return Status::error("a kernel has more than 256 operands");
  for (int i = 0; i < instruction.operands_size(); ++i) args[i] = address(instruction.operands(i));
  runKernel(entry, args, instruction, pool);
  return Status();
}

Status CpuContext::call(const Work& work, ComputePool& pool) {
  const plan::Instruction& instruction = *work.instruction;
  std::vector<std::byte*> operands(instruction.operands_size());
  for (int i = 0; i < instruction.operands_size(); ++i) operands[i] = address(instruction.operands(i));
  std::byte* scratch = instruction.call().scratch_per_thread() > 0 && !operands.empty() ? operands.back() : nullptr;
  const int64_t piece = work.step ? work.step->pieceOf(rank_) : rank_;
  return work.function->run({pool, operands.data(), scratch, piece, work.step ? work.step->step : 0});
}

Status CpuContext::collective(const plan::Instruction& instruction) {
  const plan::Collective& collective = instruction.collective();
  if (collective.communicator() >= world_->communicators.size())
    return missing("communicator", collective.communicator());
  const plan::Axis axis = plan::axisOf(*world_->plan, collective);
  auto& groups = world_->communicators[collective.communicator()];
  const auto group = groups.find(plan::groupOn(*world_->plan, axis, rank_));
  if (group == groups.end()) return missing("communicator", collective.communicator());
  return group->second->run(
      plan::placeOn(*world_->plan, axis, rank_),
      {collective.op(), collective.type(), collective.count(), address(plan::sourceOf(instruction)),
       address(plan::destinationOf(instruction)), plan::continues(instruction)},
      peerReadListener());
}

Status CpuContext::transfer(const plan::Instruction& instruction, bool odd) {
  const plan::Operand &from = plan::sourceOf(instruction), &to = plan::destinationOf(instruction);
  if (spaceOf(from) == plan::Buffer::FILE) return file_->read(offsetOf(from, odd), {address(to), to.bytes()});
  if (spaceOf(to) == plan::Buffer::FILE) return file_->write(offsetOf(to, odd), {address(from), from.bytes()});
  std::memcpy(address(to), address(from), from.bytes());
  return Status();
}

// The vote is the word of all ranks that they have got so far, before which nothing that follows may overwrite the
// generation before.
Status CpuContext::persist(const Work& work) {
  const plan::Instruction& persist = *work.instruction;
  std::span<const std::byte> lossScale;
  if (const int scale = lossScaleIn(persist, *world_->plan); scale >= 0)
    lossScale = {address(persist.operands(scale)), persist.operands(scale).bytes()};
  SHEAF_RETURN_IF_ERROR(
      durable_->persist(rank_, work.odd, work.step.get(), lossScale, [this] { return world_->abort.status(); }));
  if (world_->plan->ranks() > 1) SHEAF_RETURN_IF_ERROR(vote(persist));
  std::lock_guard lock(persistMutex_);
  ++donePersists_;
  persisted_.notify_all();
  return {};
}

// No deadlock: all that an earlier step's persist waits for was issued before this work on every rank, and streams run
// in order, so none of it waits for this stream.
void CpuContext::awaitStateBefore(const Work& work) {
  constexpr std::chrono::milliseconds kPollInterval(50);
  std::unique_lock lock(persistMutex_);
  while (!persisted_.wait_for(lock, kPollInterval, [&] { return donePersists_ >= work.persists; }))
    if (world_->abort.raised()) return;
}

Status CpuContext::vote(const plan::Instruction& persist) {
  if (persist.operands_size() == 0) return Status::error("it has no vote");
  std::byte* const memory = address(persist.operands(0));
  const float one = 1;
  std::memcpy(memory, &one, sizeof one);
  SHEAF_RETURN_IF_ERROR(collective(plan::voteOf(persist)));
  float votes;
  std::memcpy(&votes, memory, sizeof votes);
  return durable_->checkVotes(votes);
}

Status CpuContext::commit(const Committed& state) {
  return durable_ ? durable_->commit(odd_, state) : RankContext::commit(state);
}

Status CpuContext::writeChecksum() {
  return durable_ ? durable_->writeChecksum(odd_) : Status();
}

Status CpuContext::verifyChecksum() {
  return durable_ ? durable_->verifyChecksum(odd_) : Status();
}

Status CpuContext::writeOutput(const Work& work) {
  const plan::WriteOutput& output = work.instruction->output();
  const plan::Operand& operand = plan::sourceOf(*work.instruction);
  const std::byte* source = address(operand);
  if (output.output() == plan::TENSOR) {
    if (!work.step || !work.step->writeTensor) return Status();
    return work.step->writeTensor(rank_, output.tensor(), {source, operand.bytes()});
  }
  double value = 0;
  if (output.output() == plan::GRADIENT_NORM) {
    if (operand.bytes() < sizeof(double)) return Status::error("the gradient norm must be one f64");
    std::memcpy(&value, source, sizeof(double));
  } else {
    float single;
    if (operand.bytes() < sizeof(float)) return Status::error("the loss must be one f32");
    std::memcpy(&single, source, sizeof(float));
    value = single;
  }
  if (work.step && work.step->writeOutput) work.step->writeOutput(rank_, output.output(), value);
  return Status();
}

}  // namespace sheaf::cpu
