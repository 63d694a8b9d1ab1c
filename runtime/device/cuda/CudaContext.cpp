#include "runtime/device/cuda/CudaContext.h"

#include <chrono>
#include <cstring>
#include <limits>
#include <set>
#include <thread>

#include "runtime/device/cuda/Blas.h"
#include "runtime/plan/Generations.h"
#include "runtime/plan/Types.h"

namespace sheaf::cuda {
namespace {

constexpr int64_t kUnknownStep = std::numeric_limits<int64_t>::min();

std::string_view text(Finding finding) {
  return finding == Finding::kIndexOutOfRange ? "an index is out of range" : "a kernel found its data wrong";
}

}  // namespace

// The slots through which a step's results reach the host.
struct CudaContext::Delivery {
  CudaContext* context;
  Values step;
  std::vector<std::pair<const Entry*, const std::byte*>> outputs;
};

CudaContext::CudaContext(std::shared_ptr<World> world, int64_t local)
    : world_(std::move(world)),
      local_(local),
      arena_(*world_->arenas[local]),
      spaces_(world_->spaces[static_cast<size_t>(local)]),
      progress_(*world_->progress[local]),
      clock_(rank()) {}

Expected<std::unique_ptr<CudaContext>> CudaContext::create(std::shared_ptr<World> world, int64_t local) {
  std::unique_ptr<CudaContext> context(new CudaContext(std::move(world), local));
  if (Status status = context->open(); !status.ok())
    return Status::error(cat("rank ", context->rank(), ": ", status.message()));
  return context;
}

Status CudaContext::open() {
  const plan::Plan& plan = *world_->plan;
  const DeviceOptions& options = world_->options;
  // Products are measured in the arena, which nothing is in yet: next to a large model there is no room for them.
  BlasOptions choices{.table = world_->products,
                      .tableName = options.products,
                      .measure = world_->measureProducts && rank() == 0,
                      .bench = {arena_.data(), arena_.allocated()}};
  // Once a process: all its ranks would log the same.
  if (options.warn && local_ == 0) choices.warn = options.warn;
  Expected<std::unique_ptr<Blas>> blas = Blas::open(choices);
  if (!blas.ok()) return blas.status();
  blas_ = std::move(*blas);
  auto table = GpuInstructions::create(plan, rank(), arena_, spaces_.host.get(), world_->hostKernels.get(), *blas_);
  if (!table.ok()) return table.status();
  table_ = std::move(*table);
  if (choices.measure) SHEAF_RETURN_IF_ERROR(arena_.clear());
  int least = 0, greatest = 0;
  SHEAF_RETURN_IF_ERROR(check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cannot ask for priorities"));
  for (int i = 0; i < std::max(plan.streams_size(), 1); ++i) {
    // Communication goes first: others wait for it, and it takes few of the GPU's processors.
    bool compute = i >= plan.streams_size() || plan.streams(i) == "compute";
    cudaStream_t stream = nullptr;
    SHEAF_RETURN_IF_ERROR(
        check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, compute ? least : greatest),
              "cannot create a stream"));
    streams_.emplace_back(stream);
  }
  for (uint32_t i = 0; i < 2 * plan.events(); ++i) {
    Expected<Event> event = makeEvent();
    if (!event.ok()) return event.status();
    (i < plan.events() ? events_ : capturedEvents_).push_back(std::move(*event));
  }
  lastInGraph_.assign(plan.events(), false);
  Expected<Event> persisted = makeEvent();
  if (!persisted.ok()) return persisted.status();
  persisted_ = std::move(*persisted);
  odd_ = spaces_.durable && spaces_.durable->wasOdd();
  SHEAF_RETURN_IF_ERROR(openMemory());
  return openGraphs();
}

Status CudaContext::openMemory() {
  const size_t bytes = sizeof(uint64_t) * (1 + streams_.size());
  Expected<DeviceMemory> values = makeDeviceMemory(bytes, "cannot allocate device memory");
  if (!values.ok()) return values.status();
  values_ = std::move(*values);
  lists_.resize(table_->lists().size() + 1);
  current_ = lists_.size() - 1;
  for (List& list : lists_)
    for (size_t i = 0; i < streams_.size(); ++i) {
      Expected<HostSlots> slots = HostSlots::create(sizeof(int64_t));
      if (!slots.ok()) return slots.status();
      list.steps.push_back(std::move(*slots));
    }
  stepOnStream_.assign(streams_.size(), kUnknownStep);
  return fill(values_.get(), 0, bytes);
}

Status CudaContext::openGraphs() {
  std::vector<cudaStream_t> streams;
  for (const Stream& stream : streams_) streams.push_back(stream.get());
  Expected<StepGraphs> graphs = StepGraphs::create(streams, lists_.size());
  if (!graphs.ok()) return graphs.status();
  graphs_ = std::make_unique<StepGraphs>(std::move(*graphs));
  for (size_t l = 0; l < table_->lists().size(); ++l) {
    List& list = lists_[l];
    std::set<uint32_t> calling, recorded;
    for (uint32_t i = table_->lists()[l].begin; i < table_->lists()[l].end; ++i) {
      const Entry& entry = (*table_)[i];
      if (entry.kind == plan::Instruction::kOutput) list.outputs.push_back(&entry);
      if (entry.kind == plan::Instruction::kCall) calling.insert(entry.stream);
      if (entry.kind == plan::Instruction::kRecord) recorded.insert(entry.index);
    }
    list.callingStreams.assign(calling.begin(), calling.end());
    list.recordedEvents.assign(recorded.begin(), recorded.end());
  }
  return {};
}

CudaContext::~CudaContext() {
  if (streams_.empty()) return;
  // A rank that is destroyed while its peers wait for it must end their waits.
  if (graphs_) graphs_->dropCapture();
  bool idle = true;
  for (Stream& stream : streams_) idle &= cudaStreamQuery(stream.get()) != cudaErrorNotReady;
  if (!idle) abort("the rank was closed while instructions were still running");
  for (Stream& stream : streams_) (void)cudaStreamSynchronize(stream.get());
}

void CudaContext::abort(const std::string& why) {
  // Where other processes are concerned, this is all that is known of where the others were.
  const bool alone = world_->options.ranks == world_->localRanks || !progress_.busy();
  world_->abort.raise(Status::error(cat("rank ", rank(), ": ", why, alone ? "" : "; it was at " + progress_.text())));
}

void CudaContext::raise(const plan::Instruction& instruction, const std::string& why) {
  if (!world_->abort.raised()) abort(cat(plan::describe(*world_->plan, instruction), ": ", why));
}

void CudaContext::raiseFinding(uint64_t finding) {
  uint32_t number = static_cast<uint32_t>(finding >> 32);
  std::string_view why = text(static_cast<Finding>(finding & UINT32_MAX));
  if (number < table_->size()) raise(*(*table_)[number].instruction, std::string(why));
}

Status CudaContext::read(uint64_t offset, std::span<std::byte> host) {
  Status status = arena_.read(offset, host);
  return status.ok() ? status : Status::error(cat("rank ", rank(), ": ", status.message()));
}

Status CudaContext::write(uint64_t offset, std::span<const std::byte> host) {
  Status status = arena_.write(offset, host);
  return status.ok() ? status : Status::error(cat("rank ", rank(), ": ", status.message()));
}

Status CudaContext::readSpace(plan::Buffer::Space space, uint64_t offset, std::span<std::byte> host) {
  if (space == plan::Buffer::HOST && spaces_.host) return spaces_.host->read(offset, host);
  if (space == plan::Buffer::FILE && spaces_.files) return spaces_.files->read(offset, host);
  return RankContext::readSpace(space, offset, host);
}

Status CudaContext::writeSpace(plan::Buffer::Space space, uint64_t offset, std::span<const std::byte> host) {
  if (space == plan::Buffer::HOST && spaces_.host) return spaces_.host->write(offset, host);
  if (space == plan::Buffer::FILE && spaces_.files) return spaces_.files->write(offset, host);
  return RankContext::writeSpace(space, offset, host);
}

Status CudaContext::commit(const Committed& state) {
  return spaces_.durable ? spaces_.durable->commit(odd_, state) : RankContext::commit(state);
}

Status CudaContext::writeChecksum() {
  return spaces_.durable ? spaces_.durable->writeChecksum(odd_) : Status();
}

Status CudaContext::verifyChecksum() {
  return spaces_.durable ? spaces_.durable->verifyChecksum(odd_) : Status();
}

uint64_t CudaContext::highestTouchedByte() {
  return arena_.highestTouchedByte();
}

Status CudaContext::poll() {
  if (world_->abort.raised()) return world_->abort.status();
  for (Stream& stream : streams_) {
    cudaError_t state = cudaStreamQuery(stream.get());
    if (state == cudaSuccess || state == cudaErrorNotReady) continue;
    abort(cat(check(state, "the GPU failed").message(), ", at ", progress_.text()));
  }
  return world_->abort.status();
}

Status CudaContext::synchronize() {
  graphs_->dropCapture();  // the step was not issued to its end
  for (Stream& stream : streams_)
    if (Status status = check(cudaStreamSynchronize(stream.get()), "the GPU failed"); !status.ok())
      abort(cat(status.message(), ", at ", progress_.text()));
  // Once the streams are done, or the run is aborted, its thread has nothing to wait for. What it does refers to the
  // run.
  if (spaces_.persist) spaces_.persist->drain();
  progress_.setBusy(false);
  if (Status status = clock_.report(true); !status.ok()) abort(status.message());
  uint64_t finding = 0;
  if (Status status = check(cudaMemcpy(&finding, values_.get(), sizeof finding, cudaMemcpyDeviceToHost),
                            "cannot read what kernels found");
      !status.ok())
    abort(status.message());
  if (finding) raiseFinding(finding);
  return world_->abort.status();
}

Status CudaContext::issue(const plan::Instruction& instruction, Values step) {
  if (world_->abort.raised()) {
    // The run may have been aborted during a capture, which only this thread can end.
    graphs_->dropCapture();
    return world_->abort.status();
  }
  Entry* entry = table_->find(instruction);
  if (!entry) return Status::error(cat("rank ", rank(), ": the instruction is not in the plan"));
  progress_.setBusy(true);
  if (Status status = perform(*entry, step); !status.ok()) {
    graphs_->dropCapture();
    // The run ends with a step that cannot be read, and the step before, which is complete, must not be lost by it.
    if (entry->kind == plan::Instruction::kInput) awaitStateBefore();
    raise(instruction, status.message());
  }
  return world_->abort.status();
}

Status CudaContext::perform(Entry& entry, const Values& step) {
  const size_t list = entry.list >= 0 ? static_cast<size_t>(entry.list) : lists_.size() - 1;
  if (entry.list < 0)
    current_ = list;
  else if (entry.number == table_->lists()[list].begin)
    SHEAF_RETURN_IF_ERROR(begin(list, step.get()));
  SHEAF_RETURN_IF_ERROR(fillSlot(entry, step));
  const uint32_t stream = entry.stream;
  if (entry.list < 0 || mode_ != Mode::kLaunch) {
    SHEAF_RETURN_IF_ERROR(graphs_->enter(stream));
    const bool timed = step && step->onInstruction;
    if (timed) SHEAF_RETURN_IF_ERROR(clock_.begin(streams_[stream].get(), *entry.instruction, step));
    SHEAF_RETURN_IF_ERROR(enqueue(entry, step));
    if (timed) SHEAF_RETURN_IF_ERROR(clock_.end(streams_[stream].get()));
  }
  return entry.list >= 0 && entry.number + 1 == table_->lists()[list].end ? end(list, step) : Status();
}

Status CudaContext::begin(size_t number, const StepValues* step) {
  List& list = lists_[number];
  current_ = number;
  list.slot = static_cast<int>(++list.runs % kSlots);
  SHEAF_RETURN_IF_ERROR(clock_.report(false));
  SHEAF_RETURN_IF_ERROR(graphs_->wait(graphOf(number)));
  const bool hooks = step && (step->onInstruction || step->onGradient);
  const bool graphs = world_->options.graphs && world_->communicators->capturable();
  if (!graphs || hooks || list.runs <= kRunsBeforeGraphs) {
    mode_ = Mode::kDirect;
    return {};
  }
  mode_ = graphs_->captured(graphOf(number)) ? Mode::kLaunch : Mode::kCapture;
  for (uint32_t stream : list.callingStreams) {
    Expected<std::byte*> slot = list.steps[stream].acquire(list.slot);
    if (!slot.ok()) return slot.status();
    const int64_t number = step ? step->step : 0;
    std::memcpy(*slot, &number, sizeof number);
  }
  if (mode_ == Mode::kLaunch) return {};
  // During a capture events cannot be waited for.
  for (uint32_t i = table_->lists()[number].begin; i < table_->lists()[number].end; ++i)
    if (Entry& entry = (*table_)[i]; entry.slots)
      if (Expected<std::byte*> slot = entry.slots->acquire(list.slot); !slot.ok()) return slot.status();
  stepOnStream_.assign(streams_.size(), kUnknownStep);
  world_->communicators->beginOrder();
  return graphs_->beginCapture();
}

Status CudaContext::end(size_t number, const Values& step) {
  const List& list = lists_[number];
  current_ = lists_.size() - 1;
  if (mode_ == Mode::kDirect) return {};
  if (mode_ == Mode::kCapture) SHEAF_RETURN_IF_ERROR(graphs_->endCapture(graphOf(number)));
  mode_ = Mode::kDirect;
  world_->communicators->beginOrder();
  SHEAF_RETURN_IF_ERROR(graphs_->launch(graphOf(number)));
  stepOnStream_.assign(streams_.size(), kUnknownStep);
  for (uint32_t event : list.recordedEvents) lastInGraph_[event] = true;
  return list.outputs.empty() ? Status() : deliver(list.outputs, step, streams_[0].get());
}

Status CudaContext::fillSlot(Entry& entry, const Values& step) {
  if (entry.file) spaces_.fileStreams.at(entry.stream)->request(*entry.instruction, *entry.file, odd_);
  if (entry.kind == plan::Instruction::kPersist) {
    std::span<const std::byte> lossScale;
    if (entry.lossScale >= 0) lossScale = {entry.slots->memory(slotOf(entry)), entry.bytes};
    spaces_.persist->request({entry.instruction, odd_, step, lossScale});
    odd_ = !odd_;
  }
  if (entry.onHost) spaces_.hostComputes.at(entry.stream)->request(entry.onHost);
  const bool input = entry.kind == plan::Instruction::kInput;
  if (!input && entry.kind != plan::Instruction::kScalars) return {};
  if (!entry.slots) return {};  // nothing to read
  Expected<std::byte*> slot = entry.slots->acquire(slotOf(entry));
  if (!slot.ok()) return slot.status();
  if (input) {
    if (!step || !step->readInput) return Status::error("the step has no input data");
    return step->readInput(rank(), entry.index, {*slot, entry.bytes});
  }
  const size_t bytes = step ? step->scalars.size() * sizeof(float) : 0;
  if (!step || bytes > entry.bytes) return Status::error("the step has another number of scalars than the plan");
  std::memcpy(*slot, step->scalars.data(), bytes);
  return {};
}

Status CudaContext::enqueue(Entry& entry, const Values& step) {
  cudaStream_t stream = streams_[entry.stream].get();
  if (entry.marked && world_->options.ranks > world_->localRanks)
    SHEAF_RETURN_IF_ERROR(progress_.mark(entry.stream, entry.number, stream));
  switch (entry.kind) {
    case plan::Instruction::kKernel:
      return launch(entry, step, stream);
    case plan::Instruction::kCall:
      return call(entry, step, stream);
    case plan::Instruction::kCollective:
      return world_->communicators->enqueue(local_, entry.index, entry.collective, stream, entry.stream);
    case plan::Instruction::kRecord:
      lastInGraph_[entry.index] = graphs_->capturing();
      return check(cudaEventRecord((graphs_->capturing() ? capturedEvents_ : events_)[entry.index].get(), stream),
                   "cannot record an event");
    case plan::Instruction::kWait:
      // A graph begins when all before it has ended, and what comes after it waits for its end.
      if (graphs_->capturing() ? entry.waitsOutside : lastInGraph_[entry.index]) return {};
      return check(
          cudaStreamWaitEvent(stream, (graphs_->capturing() ? capturedEvents_ : events_)[entry.index].get(), 0),
          "cannot wait for an event");
    case plan::Instruction::kInput:
    case plan::Instruction::kScalars: {
      if (!entry.slots) return {};
      const size_t bytes = entry.kind == plan::Instruction::kInput ? entry.bytes : step->scalars.size() * sizeof(float);
      SHEAF_RETURN_IF_ERROR(check(
          cudaMemcpyAsync(entry.operands[0], entry.slots->memory(slotOf(entry)), bytes, cudaMemcpyHostToDevice, stream),
          "cannot copy to the GPU"));
      return graphs_->capturing() ? Status() : entry.slots->release(slotOf(entry), stream);
    }
    case plan::Instruction::kOutput:
      return output(entry, step, stream);
    case plan::Instruction::kTransfer:
      return transfer(entry, stream);
    case plan::Instruction::kPersist:
      return persist(entry, stream);
    case plan::Instruction::KIND_NOT_SET:
      break;
  }
  return Status::error("the instruction is empty");
}

// Host memory is registered, so that the copy is done by the GPU, in the stream's order, and can be captured.
Status CudaContext::transfer(const Entry& entry, cudaStream_t stream) {
  if (entry.file) return spaces_.fileStreams.at(entry.stream)->enqueue(*entry.file, stream);
  std::byte *from = entry.operands[0], *to = entry.operands[1];
  for (uint64_t left = entry.bytes; left > 0;) {
    const uint64_t bytes = std::min(left, spaces_.host->copiable(entry.toDevice ? from : to));
    SHEAF_RETURN_IF_ERROR(check(
        cudaMemcpyAsync(to, from, bytes, entry.toDevice ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost, stream),
        entry.toDevice ? "cannot copy to the GPU" : "cannot copy from the GPU"));
    from += bytes, to += bytes, left -= bytes;
  }
  return {};
}

Status CudaContext::persist(const Entry& entry, cudaStream_t stream) {
  if (entry.lossScale >= 0)
    SHEAF_RETURN_IF_ERROR(
        check(cudaMemcpyAsync(entry.slots->memory(slotOf(entry)), entry.operands[static_cast<size_t>(entry.lossScale)],
                              entry.bytes, cudaMemcpyDeviceToHost, stream),
              "cannot copy from the GPU"));
  // The thread waits for loss and norm, of which one rank of this process is asked: no stream waits for the thread
  // before all ranks have issued theirs, in whatever order the GPU does what it is given.
  if (world_->plan->ranks() > 1) SHEAF_RETURN_IF_ERROR(world_->communicators->meet(local_, entry.index));
  auto sum = [&] {
    return world_->communicators->enqueue(local_, entry.index, entry.collective, stream, entry.stream);
  };
  SHEAF_RETURN_IF_ERROR(spaces_.persist->enqueue(entry.operands[0], sum, stream));
  return check(cudaEventRecord(persisted_.get(), stream), "cannot record an event");
}

void CudaContext::awaitStateBefore() {
  while (!world_->abort.raised() && cudaEventQuery(persisted_.get()) == cudaErrorNotReady)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

Status CudaContext::launch(const Entry& entry, const Values& step, cudaStream_t stream) {
  if (entry.updates && step && step->onGradient) {
    std::vector<std::byte> copy(entry.onHost ? 0 : entry.bytes);
    SHEAF_RETURN_IF_ERROR(check(cudaStreamSynchronize(stream), "the GPU failed"));
    if (!entry.onHost)
      SHEAF_RETURN_IF_ERROR(check(cudaMemcpy(copy.data(), entry.operands[1], entry.bytes, cudaMemcpyDeviceToHost),
                                  "cannot read a gradient"));
    step->onGradient(rank(), *entry.updates, {entry.onHost ? entry.operands[1] : copy.data(), entry.bytes});
  }
  if (entry.onHost) return spaces_.hostComputes.at(entry.stream)->enqueue(stream);
  return world_->kernels->launch(entry, const_cast<void**>(entry.arguments.data()), stream);
}

Status CudaContext::setStepNumber(uint32_t stream, const StepValues* step) {
  const int64_t number = step ? step->step : 0;
  if (stepOnStream_[stream] == number) return {};
  stepOnStream_[stream] = number;
  List& list = lists_[current_];
  if (!graphs_->capturing()) SHEAF_RETURN_IF_ERROR(graphs_->wait(graphOf(current_)));
  Expected<std::byte*> slot = list.steps[stream].acquire(list.slot);
  if (!slot.ok()) return slot.status();
  std::memcpy(*slot, &number, sizeof number);
  SHEAF_RETURN_IF_ERROR(check(cudaMemcpyAsync(values_.get() + (1 + stream) * sizeof(uint64_t), *slot, sizeof number,
                                              cudaMemcpyHostToDevice, streams_[stream].get()),
                              "cannot copy to the GPU"));
  return graphs_->capturing() ? Status() : list.steps[stream].release(list.slot, streams_[stream].get());
}

Status CudaContext::call(const Entry& entry, const Values& step, cudaStream_t stream) {
  SHEAF_RETURN_IF_ERROR(setStepNumber(entry.stream, step.get()));
  return entry.function->enqueue(
      {.stream = stream,
       .operands = entry.operands.data(),
       .scratch = entry.scratch,
       .piece = step ? step->pieceOf(rank()) : rank(),
       .step = reinterpret_cast<const int64_t*>(values_.get() + (1 + entry.stream) * sizeof(uint64_t)),
       .finding = reinterpret_cast<uint64_t*>(values_.get()),
       .instruction = entry.number});
}

Status CudaContext::output(Entry& entry, const Values& step, cudaStream_t stream) {
  std::byte* slot = entry.slots->memory(slotOf(entry));
  SHEAF_RETURN_IF_ERROR(check(cudaMemcpyAsync(slot, entry.operands[0], entry.bytes, cudaMemcpyDeviceToHost, stream),
                              "cannot copy from the GPU"));
  SHEAF_RETURN_IF_ERROR(check(
      cudaMemcpyAsync(slot + entry.findingOffset(), values_.get(), sizeof(uint64_t), cudaMemcpyDeviceToHost, stream),
      "cannot copy from the GPU"));
  return graphs_->capturing() ? Status() : deliver({&entry}, step, stream);
}

Status CudaContext::deliver(std::vector<const Entry*> outputs, const Values& step, cudaStream_t stream) {
  auto delivery = std::make_unique<Delivery>(Delivery{this, step, {}});
  for (const Entry* entry : outputs) delivery->outputs.emplace_back(entry, entry->slots->memory(slotOf(*entry)));
  auto arrive = [](void* data) {
    std::unique_ptr<Delivery> arrived(static_cast<Delivery*>(data));
    arrived->context->take(*arrived);
  };
  SHEAF_RETURN_IF_ERROR(check(cudaLaunchHostFunc(stream, arrive, delivery.get()), "cannot call the host"));
  delivery.release();
  return {};
}

// On a thread of the driver, where no function of CUDA may be called.
void CudaContext::take(const Delivery& delivery) {
  for (auto [output, slot] : delivery.outputs) {
    uint64_t finding = 0;
    std::memcpy(&finding, slot + output->findingOffset(), sizeof finding);
    if (finding) raiseFinding(finding);
    if (world_->abort.raised()) return;
    if (output->output == plan::TENSOR) {
      if (!delivery.step || !delivery.step->writeTensor) continue;
      Status status = delivery.step->writeTensor(rank(), output->index, {slot, output->bytes});
      if (!status.ok()) abort(status.message());
    } else if (delivery.step && delivery.step->writeOutput) {
      delivery.step->writeOutput(rank(), output->output, scalarOutput(*output, slot));
    }
  }
}

}  // namespace sheaf::cuda
