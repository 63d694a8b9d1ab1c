#include "runtime/measure/InstructionTimer.h"

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cmath>
#include <cstring>
#include <mutex>

#include "runtime/comm/process/ProcessGroup.h"
#include "runtime/measure/HandOff.h"
#include "runtime/plan/Tiles.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/Words.h"

namespace sheaf::measure {
namespace {

// Seconds of a repetition: long compared with starting it and, on a CPU, short compared with bursts of other load.
constexpr double kRepetition = 1e-3, kGpuRepetition = 4e-3;
constexpr int kMostPerRepetition = 2000;  // times that a group is issued
// The least repetitions; the second if they are slow on a GPU.
constexpr size_t kRepetitions = 12, kRepetitionsWhenSlow = 3;
// Least and most seconds of measuring a group. A GPU's clock follows its power draw with some 10 ms of delay.
constexpr double kLeastSeconds = 0.02, kGpuLeastSeconds = 0.05, kMostSeconds = 0.5;
// After so many seconds a few repetitions are enough for a quantile.
constexpr double kMostOfAll = 2;
// Two repetitions agree if they differ by less than this part.
constexpr double kAgree = 0.02;
// Repetitions slower than the fastest by more than this fraction count as disturbed by other load.
constexpr double kDisturbed = 0.15;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

InstructionTimer::InstructionTimer(Device& device, const MeasureOptions& options, const RankSet& set,
                                   uint64_t arenaBytes, const plan::Plan& kernels)
    : device_(device),
      options_(deviceOptions(options, set)),
      checkInterrupt_(options.checkInterrupt),
      gpu_(options.gpu),
      arenaBytes_(arenaBytes) {
  *plan_.mutable_kernels() = kernels.kernels();
  *plan_.mutable_images() = kernels.images();
  plan_.set_ranks(set.ranks);
  plan_.set_max_threads(static_cast<uint32_t>(set.threads));
  for (const char* stream : {"compute", "communication"}) plan_.add_streams(stream);
  plan_.set_communicators(1);
  plan_.set_events(2);  // one a stream
  plan_.add_buffers()->set_bytes(arenaBytes);
  plan_.mutable_memory()->set_peak_bytes(arenaBytes);
}

size_t InstructionTimer::group(uint64_t footprint, uint64_t first) {
  groups_.push_back({plan_.body_size(), plan_.body_size(), footprint, first});
  cursor_ = first;
  return groups_.size() - 1;
}

plan::Operand InstructionTimer::place(uint64_t bytes, plan::Access access, uint64_t alignment) {
  const Group& group = groups_.back();
  const uint64_t limit = std::min(group.begin + group.footprint, arenaBytes_);
  cursor_ = (cursor_ + alignment - 1) / alignment * alignment;
  if (cursor_ + bytes > limit) cursor_ = group.begin;
  plan::Operand operand;
  operand.set_offset(cursor_);
  operand.set_bytes(bytes);
  operand.set_access(access);
  cursor_ += plan::aligned(bytes);
  return operand;
}

void InstructionTimer::add(plan::Instruction instruction, uint32_t stream) {
  instruction.set_stream(stream);
  *plan_.add_body() = std::move(instruction);
  groups_.back().last = plan_.body_size();
}

void InstructionTimer::add(const plan::AnyCall& call, int copies) {
  for (int i = 0; i < copies; ++i) {
    plan::Instruction instruction;
    plan::LibraryCall& wire = *instruction.mutable_call() = plan::toWire(call);
    for (const plan::OperandNeed& operand : plan::operandsOf(call))
      *instruction.add_operands() = place(operand.bytes, operand.access);
    wire.set_scratch_per_thread(plan::scratchPerThread(call));
    if (gpu_) wire.set_device_scratch(plan::deviceScratch(call));
    if (const uint64_t bytes = std::max(wire.scratch_per_thread() * plan_.max_threads(), wire.device_scratch()))
      *instruction.add_operands() = place(bytes, plan::READ_WRITE, plan::kDeviceAlignment);
    add(std::move(instruction));
  }
}

void InstructionTimer::addSpace(plan::Buffer::Space space, uint64_t bytes, const std::string& folder) {
  spaces_[space] = static_cast<uint32_t>(plan_.buffers_size());
  plan::Buffer& buffer = *plan_.add_buffers();
  buffer.set_space(space);
  buffer.set_bytes(bytes);
  if (!folder.empty()) options_.offloadFolders = {folder};
}

uint32_t InstructionTimer::streamOf(plan::Transfer::Kind kind) {
  const auto [found, isNew] = streams_.emplace(kind, static_cast<uint32_t>(plan_.streams_size()));
  if (isNew) {
    plan_.add_streams(plan::word(kind));
    plan_.set_events(static_cast<uint32_t>(plan_.streams_size()));
  }
  return found->second;
}

void InstructionTimer::add(plan::Transfer::Kind kind, uint64_t bytes) {
  constexpr uint64_t kBlock = 4096;
  plan::Instruction instruction;
  instruction.mutable_transfer()->set_kind(kind);
  const bool fetches = kind == plan::Transfer::TO_DEVICE || kind == plan::Transfer::READ_FILE;
  const bool ofFile = kind == plan::Transfer::READ_FILE || kind == plan::Transfer::WRITE_FILE;
  // The same place in both spaces.
  plan::Operand there = place(bytes, fetches ? plan::READ : plan::WRITE, kBlock), here = there;
  there.set_buffer(spaces_.at(ofFile ? plan::Buffer::FILE : plan::Buffer::HOST));
  here.set_access(fetches ? plan::WRITE : plan::READ);
  *instruction.add_operands() = fetches ? there : here;
  *instruction.add_operands() = fetches ? here : there;
  add(std::move(instruction), streamOf(kind));
}

void InstructionTimer::order(uint32_t earlier, uint32_t later) {
  plan::Instruction record, wait;
  record.mutable_record()->set_event(earlier);
  wait.mutable_wait()->set_event(earlier);
  add(std::move(record), earlier);
  add(std::move(wait), later);
  groups_.back().alike = false;
}

Status InstructionTimer::open() {
  Expected<std::vector<std::unique_ptr<RankContext>>> contexts = device_.open(plan_, options_);
  if (!contexts.ok()) return contexts.status();
  contexts_ = std::move(*contexts);
  // A GPU's is filled before each group: see seconds().
  return gpu_ ? Status() : fill(arenaBytes_);
}

Status InstructionTimer::fill(uint64_t bytes) {
  // Random numbers of magnitude 0.5 to 2, as f32 and as bf16. Power draw, and with it the clock, depends on how many
  // bits change; denormal numbers would be slow.
  static const std::vector<uint16_t> words = [] {
    std::vector<uint16_t> made(8 << 20);
    for (size_t i = 0; i < made.size(); ++i) {
      const uint64_t hash = (i + 1) * 0x9e3779b97f4a7c15u >> 32;
      made[i] = static_cast<uint16_t>(0x3f00 | (hash & 0xff) | (i % 2 == 0 ? hash << 7 & 0x8000 : 0));
    }
    return made;
  }();
  const std::span<const std::byte> pattern = std::as_bytes(std::span(words));
  for (auto& context : contexts_)
    for (uint64_t at = 0; at < bytes; at += pattern.size())
      SHEAF_RETURN_IF_ERROR(context->write(at, pattern.first(std::min<uint64_t>(pattern.size(), bytes - at))));
  return {};
}

void InstructionTimer::append(std::vector<const plan::Instruction*>& list, const Group& group, int times) const {
  for (int time = 0; time < times; ++time)
    for (int i = group.first; i < group.last; ++i) list.push_back(&plan_.body(i));
}

Expected<InstructionTimer::Run> InstructionTimer::prepare(std::vector<const plan::Instruction*> instructions) {
  Run run{std::move(instructions), {}};
  for (auto& context : contexts_) {
    Expected<std::unique_ptr<Burst>> burst = context->prepare(run.instructions);
    if (!burst.ok()) return burst.status();
    run.bursts.push_back(std::move(*burst));
  }
  return run;
}

Expected<double> InstructionTimer::perform(const Run& run, size_t rank, double& begin, double& end) {
  RankContext& context = *contexts_[rank];
  begin = now();
  if (run.bursts[rank]) {
    Expected<double> seconds = run.bursts[rank]->run();
    if (seconds.ok()) end = begin + std::max(*seconds, 1e-9);
    return seconds;
  }
  Status status;
  for (size_t i = 0; i < run.instructions.size() && status.ok(); ++i)
    status = context.issue(*run.instructions[i], step_);
  if (!status.ok()) context.abort(status.message());
  Status done = context.synchronize();
  end = now();
  if (!status.ok() || !done.ok()) return status.ok() ? done : status;
  return end - begin;
}

// Every process has measured its own rank. An instruction takes as long as on the slowest rank. A collective begins
// when the last rank arrives, and that rank waits least, so the least time of all counts.
Status InstructionTimer::combine(Timing& taken) const {
  const double mine[] = {taken.fastest, taken.all};
  const std::string message(reinterpret_cast<const char*>(mine), sizeof mine);
  Expected<std::vector<std::string>> all = options_.processes->allGather(message, "measured times");
  if (!all.ok()) return all.status();
  for (const std::string& theirs : *all) {
    double seconds[2];
    if (theirs.size() != sizeof seconds) return Status::error("another process sent no times");
    std::memcpy(seconds, theirs.data(), sizeof seconds);
    taken.fastest = std::max(taken.fastest, seconds[0]);
    taken.all = std::min(taken.all, seconds[1]);
  }
  return {};
}

Expected<InstructionTimer::Timing> InstructionTimer::measure(const Run& run) {
  if (checkInterrupt_) SHEAF_RETURN_IF_ERROR(checkInterrupt_());
  const size_t ranks = contexts_.size();
  if (!others_) {
    Expected<std::unique_ptr<WorkerThreads>> others = WorkerThreads::create("measurements", ranks - 1);
    if (!others.ok()) return others.status();
    others_ = std::move(*others);
  }
  std::barrier start(static_cast<ptrdiff_t>(ranks));
  std::vector<double> begin(ranks), end(ranks);
  std::mutex mutex;
  Status failed;
  auto runRank = [&](size_t rank) {
    start.arrive_and_wait();
    Expected<double> seconds = perform(run, rank, begin[rank], end[rank]);
    std::lock_guard lock(mutex);
    if (failed.ok() && !seconds.ok()) failed = seconds.status();
  };
  others_->start([&](size_t other) { runRank(other + 1); });
  runRank(0);
  others_->wait();
  if (!failed.ok()) return failed;
  double fastest = end[0] - begin[0];
  for (size_t rank = 1; rank < ranks; ++rank) fastest = std::min(fastest, end[rank] - begin[rank]);
  Timing taken{fastest, *std::max_element(end.begin(), end.end()) - *std::min_element(begin.begin(), begin.end())};
  // Ranks that share collectives must agree whether to go on.
  if (options_.processes && options_.ranks > 1) SHEAF_RETURN_IF_ERROR(combine(taken));
  return taken;
}

// Times vary little on a GPU, so long instructions need fewer repetitions there.
bool InstructionTimer::tooFew(size_t repetitions, size_t least, double seconds) const {
  return repetitions < (gpu_ && seconds > kMostSeconds ? kRepetitionsWhenSlow : least);
}

Expected<double> InstructionTimer::undisturbed(const std::vector<Run>& runs) {
  std::vector<double> seconds;
  double first = HUGE_VAL, second = HUGE_VAL, sum = 0;
  const double least = gpu_ ? kGpuLeastSeconds : kLeastSeconds;
  while (tooFew(seconds.size(), kRepetitions, sum) || sum < least ||
         (second > first * (1 + kAgree) && sum < kMostSeconds)) {
    Expected<Timing> taken = measure(runs[seconds.size() % runs.size()]);
    if (!taken.ok()) return taken.status();
    seconds.push_back(taken->fastest);
    second = std::min(second, std::max(first, taken->fastest));
    first = std::min(first, taken->fastest);
    sum += taken->all;
  }
  std::sort(seconds.begin(), seconds.end());
  // Nothing else runs on a GPU; its times vary only with its clock.
  if (runs.front().bursts.front()) return seconds[seconds.size() / 2];
  const auto disturbed = std::upper_bound(seconds.begin(), seconds.end(), first * (1 + kDisturbed));
  return seconds[static_cast<size_t>(disturbed - seconds.begin()) / 2];
}

Expected<double> InstructionTimer::quantileOfAll(const Run& run, double quantile) {
  std::vector<double> seconds;
  double sum = 0;
  while (tooFew(seconds.size(), sum < kMostOfAll ? 3 * kRepetitions : kRepetitionsWhenSlow, sum) ||
         sum < kLeastSeconds) {
    Expected<Timing> taken = measure(run);
    if (!taken.ok()) return taken.status();
    seconds.push_back(taken->all);
    sum += taken->all;
  }
  const auto at = static_cast<ptrdiff_t>(quantile * static_cast<double>(seconds.size() - 1));
  std::nth_element(seconds.begin(), seconds.begin() + at, seconds.end());
  return seconds[static_cast<size_t>(at)];
}

Expected<int> InstructionTimer::timesOf(const Group& group) {
  if (gpu_) SHEAF_RETURN_IF_ERROR(fill(std::min(group.begin + group.footprint, arenaBytes_)));
  std::vector<const plan::Instruction*> list;
  append(list, group, 1);
  Expected<Run> run = prepare(std::move(list));
  if (!run.ok()) return run.status();
  // The first run also touches the memory.
  double once = HUGE_VAL;
  for (int attempt = 0; attempt < 4; ++attempt) {
    Expected<Timing> taken = measure(*run);
    if (!taken.ok()) return taken.status();
    once = std::min(once, taken->fastest);
  }
  const double repetition = gpu_ ? kGpuRepetition : kRepetition;
  return static_cast<int>(std::clamp(repetition / std::max(once, 1e-9), 0.0, double{kMostPerRepetition}));
}

Expected<double> InstructionTimer::seconds(size_t index) {
  const Group& group = groups_[index];
  const int count = std::max(group.last - group.first, 1);
  Expected<int> times = timesOf(group);
  if (!times.ok()) return times.status();
  // Long instructions that differ only in the places of their operands are issued one per repetition.
  const bool single = *times == 0 && group.alike;
  const int repeats = single ? 1 : std::max(*times, 1);
  std::vector<Run> runs;
  for (int turn = 0; turn < (single ? count : 1); ++turn) {
    std::vector<const plan::Instruction*> list;
    append(list, single ? Group{group.first + turn, group.first + turn + 1} : group, repeats);
    Expected<Run> run = prepare(std::move(list));
    if (!run.ok()) return run.status();
    runs.push_back(std::move(*run));
  }
  Expected<double> seconds = undisturbed(runs);
  if (!seconds.ok()) return seconds;
  Timing taken{*seconds / (single ? 1 : static_cast<double>(repeats) * count), 0};
  if (options_.processes && options_.ranks == 1) SHEAF_RETURN_IF_ERROR(combine(taken));
  return taken.fastest;
}

Expected<double> InstructionTimer::secondsOfAll(size_t index, double quantile) {
  const Group& group = groups_[index];
  Expected<int> times = timesOf(group);
  if (!times.ok()) return times.status();
  const int repeats = std::max(*times, 1);
  std::vector<const plan::Instruction*> list;
  append(list, group, repeats);
  Expected<Run> run = prepare(std::move(list));
  if (!run.ok()) return run.status();
  Expected<double> seconds = quantileOfAll(*run, quantile);
  if (!seconds.ok()) return seconds;
  return *seconds / (static_cast<double>(repeats) * std::max(group.last - group.first, 1));
}

Expected<double> InstructionTimer::together(const std::vector<size_t>& groups, const std::vector<int>& times) {
  std::vector<const plan::Instruction*> list;
  for (size_t i = 0; i < groups.size(); ++i) append(list, groups_[groups[i]], times[i]);
  Expected<Run> run = prepare(std::move(list));
  if (!run.ok()) return run.status();
  return quantileOfAll(*run, kTypical);
}

}  // namespace sheaf::measure
