#include "runtime/device/cpu/CpuContext.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>

#include "runtime/base/Text.h"
#include "runtime/device/cpu/LibraryThreads.h"
#include "runtime/device/cpu/RaceRanges.h"
#include "runtime/device/cpu/RunKernel.h"
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

CpuContext::CpuContext(std::shared_ptr<World> world, int64_t rank, std::shared_ptr<Entries> entries)
    : world_(std::move(world)),
      rank_(rank),
      entries_(std::move(entries)),
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
  for (int stream = 0; stream < std::max(world_->plan->streams_size(), 1); ++stream)
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
  const Entry* entry = entries_->find(instruction);
  if (!entry) return Status::error(cat("rank ", rank_, ": the instruction is not in the plan"));
  if (step && step->step != issuedStep_) {
    issuedStep_ = step->step;
    persistsBefore_ = issuedPersists_;
  }
  Work work{entry, std::move(step), {}, odd_, persistsBefore_};
  if (entry->kind == plan::Instruction::kRecord) {
    work.record = events_.issueRecord(entry->index, entry->stream);
  } else if (entry->kind == plan::Instruction::kWait) {
    work.record = events_.latestRecord(entry->index);
  } else if (entry->kind == plan::Instruction::kPersist) {
    odd_ = !odd_;
    ++issuedPersists_;
  }
  streams_[entry->stream]->push(std::move(work));
  return Status();
}

Status CpuContext::synchronize() {
  for (auto& stream : streams_) stream->drain();
  return world_->abort.status();
}

void CpuContext::perform(const Work& work, uint32_t stream) {
  if (world_->abort.raised()) return;
  ComputePool& pool = stream == computeStream_ ? pool_ : single_;
  const plan::Instruction& instruction = *work.entry->instruction;
  const bool timed = work.step && work.step->onInstruction;
  std::chrono::steady_clock::time_point begin;
  if (timed) begin = std::chrono::steady_clock::now();
  Status status = execute(work, pool);
  if (timed) work.step->onInstruction(rank_, instruction, begin, std::chrono::steady_clock::now());
  if (!status.ok() && !world_->abort.raised())
    abort(plan::describe(*world_->plan, instruction) + ": " + status.message());
}

Status CpuContext::execute(const Work& work, ComputePool& pool) {
  const Entry& entry = *work.entry;
  if (entry.kind == plan::Instruction::kPersist) return persist(work);
  declareAccesses(*entry.instruction, entry.operands.data());
  switch (entry.kind) {
    case plan::Instruction::kKernel:
      return launch(work, pool);
    case plan::Instruction::kCall:
      return call(work, pool);
    case plan::Instruction::kCollective:
      return collective(entry);
    case plan::Instruction::kRecord:
      events_.reach(work.record);
      return Status();
    case plan::Instruction::kWait:
      return events_.wait(work.record, entry.stream) ? Status() : world_->abort.status();
    case plan::Instruction::kInput: {
      if (!work.step || !work.step->readInput) return Status::error("the step has no input data");
      const Status read = work.step->readInput(rank_, entry.index, {entry.operands[0], entry.bytes});
      // The run ends with this, and the step before, which is complete, must not be lost by it.
      if (!read.ok()) awaitStateBefore(work);
      return read;
    }
    case plan::Instruction::kScalars: {
      if (!work.step || work.step->scalars.size() * sizeof(float) > entry.bytes)
        return Status::error("the step has another number of scalars than the plan");
      std::memcpy(entry.operands[0], work.step->scalars.data(), work.step->scalars.size() * sizeof(float));
      return Status();
    }
    case plan::Instruction::kOutput:
      return writeOutput(work);
    case plan::Instruction::kTransfer:
      return transfer(entry, work.odd);
    case plan::Instruction::kPersist:
    case plan::Instruction::KIND_NOT_SET:
      break;
  }
  return Status::error("the instruction is empty");
}

Status CpuContext::launch(const Work& work, ComputePool& pool) {
  const Entry& entry = *work.entry;
  if (entry.updates && work.step && work.step->onGradient)
    work.step->onGradient(rank_, *entry.updates, {entry.operands[1], entry.bytes});
  if (!entry.launch.entry) return missing("kernel", entry.index);
  runKernel(entry.launch, entry.operands.data(), pool);
  return Status();
}

Status CpuContext::call(const Work& work, ComputePool& pool) {
  const Entry& entry = *work.entry;
  const int64_t piece = work.step ? work.step->pieceOf(rank_) : rank_;
  return entry.function->run({pool, entry.operands.data(), entry.scratch, piece, work.step ? work.step->step : 0});
}

Status CpuContext::collective(const Entry& entry) {
  if (!entry.communicator) return missing("communicator", entry.index);
  return entry.communicator->run(entry.place, entry.collective, peerReadListener());
}

Status CpuContext::transfer(const Entry& entry, bool odd) {
  if (!entry.file) {
    std::memcpy(entry.operands[1], entry.operands[0], entry.bytes);
    return Status();
  }
  const FileTransfer& file = *entry.file;
  const std::span<std::byte> memory(file.memory, file.bytes);
  return file.read ? file_->read(file.offsetAt(odd), memory) : file_->write(file.offsetAt(odd), memory);
}

// The vote is the word of all ranks that they have got so far, before which nothing that follows may overwrite the
// generation before.
Status CpuContext::persist(const Work& work) {
  const Entry& persist = *work.entry;
  std::span<const std::byte> lossScale;
  if (persist.lossScale >= 0) lossScale = {persist.operands[static_cast<size_t>(persist.lossScale)], persist.bytes};
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

Status CpuContext::vote(const Entry& persist) {
  if (persist.operands.empty()) return Status::error("it has no vote");
  std::byte* const memory = persist.operands[0];
  const float one = 1;
  std::memcpy(memory, &one, sizeof one);
  SHEAF_RETURN_IF_ERROR(collective(persist));
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
  const Entry& entry = *work.entry;
  const std::byte* source = entry.operands[0];
  if (entry.output == plan::TENSOR) {
    if (!work.step || !work.step->writeTensor) return Status();
    return work.step->writeTensor(rank_, entry.index, {source, entry.bytes});
  }
  if (work.step && work.step->writeOutput) work.step->writeOutput(rank_, entry.output, scalarOutput(entry, source));
  return Status();
}

}  // namespace sheaf::cpu
