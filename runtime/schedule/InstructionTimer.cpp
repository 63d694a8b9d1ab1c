#include "runtime/schedule/InstructionTimer.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cmath>
#include <mutex>
#include <thread>

#include "runtime/plan/Library.h"
#include "runtime/plan/Types.h"

namespace sheaf::schedule {
namespace {

// A repetition takes long compared with starting it, and short compared with other load's coming and going.
constexpr double kRepetition = 1e-3;
constexpr int kMostTimes = 2000;
constexpr size_t kLeastRepetitions = 12;
constexpr double kLeastSeconds = 0.02, kMostSeconds = 0.5;
// Two repetitions agree if they differ by less than this part.
constexpr double kAgree = 0.02;
// What takes longer than the quickest by more than this part was disturbed by other load.
constexpr double kUsual = 0.15;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

InstructionTimer::InstructionTimer(Device& device, int64_t ranks, int threads, uint64_t arenaBytes,
                                   const plan::Plan& kernels)
    : device_(device), arenaBytes_(arenaBytes) {
  options_.ranks = ranks;
  options_.threadsPerRank = threads;
  *plan_.mutable_kernels() = kernels.kernels();
  *plan_.mutable_images() = kernels.images();
  plan_.set_ranks(ranks);
  plan_.set_max_threads(static_cast<uint32_t>(threads));
  for (const char* stream : {"compute", "communication"}) plan_.add_streams(stream);
  plan_.set_communicators(1);
  plan_.set_events(2);  // one a stream
  plan_.add_buffers()->set_bytes(arenaBytes);
  plan_.mutable_memory()->set_peak_bytes(arenaBytes);
}

size_t InstructionTimer::group(uint64_t footprint) {
  groups_.push_back({plan_.body_size(), plan_.body_size(), footprint});
  cursor_ = 0;
  return groups_.size() - 1;
}

plan::Operand InstructionTimer::place(uint64_t bytes, plan::Access access) {
  const uint64_t limit = std::min(groups_.back().footprint, arenaBytes_);
  if (cursor_ + bytes > limit) cursor_ = 0;
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

void InstructionTimer::call(plan::LibraryCall call, uint32_t stream) {
  if (const uint64_t scratch = plan::scratchPerThread(call)) {
    call.set_scratch_per_thread(scratch);
    *call.add_operands() = place(scratch * plan_.max_threads(), plan::READ_WRITE);
  }
  plan::Instruction instruction;
  *instruction.mutable_call() = std::move(call);
  add(std::move(instruction), stream);
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
  // Ordinary numbers, none of which becomes denormal.
  std::vector<float> values(1 << 18);
  for (size_t i = 0; i < values.size(); ++i) values[i] = 0.25f + 0.001f * static_cast<float>(i * 7919 % 997);
  const std::span<const std::byte> bytes = std::as_bytes(std::span(values));
  for (auto& context : contexts_)
    for (uint64_t at = 0; at < arenaBytes_; at += bytes.size())
      SHEAF_RETURN_IF_ERROR(context->write(at, bytes.first(std::min<uint64_t>(bytes.size(), arenaBytes_ - at))));
  return {};
}

Status InstructionTimer::issueGroup(RankContext& context, const Group& group, int times) const {
  for (int time = 0; time < times; ++time)
    for (int i = group.first; i < group.last; ++i) SHEAF_RETURN_IF_ERROR(context.issue(plan_.body(i), step_));
  return {};
}

Expected<InstructionTimer::Taken> InstructionTimer::measure(const Issue& issue) {
  const size_t ranks = contexts_.size();
  std::barrier start(static_cast<ptrdiff_t>(ranks));
  std::vector<double> begin(ranks), end(ranks);
  std::mutex mutex;
  Status failed;
  auto run = [&](size_t rank) {
    start.arrive_and_wait();
    begin[rank] = now();
    Status status = issue(*contexts_[rank]);
    if (!status.ok()) contexts_[rank]->abort(status.message());
    Status done = contexts_[rank]->synchronize();
    end[rank] = now();
    std::lock_guard lock(mutex);
    if (failed.ok()) failed = status.ok() ? done : status;
  };
  std::vector<std::thread> threads;
  for (size_t rank = 1; rank < ranks; ++rank) threads.emplace_back(run, rank);
  run(0);
  for (std::thread& thread : threads) thread.join();
  if (!failed.ok()) return failed;
  double quickest = end[0] - begin[0];
  for (size_t rank = 1; rank < ranks; ++rank) quickest = std::min(quickest, end[rank] - begin[rank]);
  return Taken{quickest, *std::max_element(end.begin(), end.end()) - *std::min_element(begin.begin(), begin.end())};
}

Expected<double> InstructionTimer::undisturbed(const Issue& issue) {
  std::vector<double> seconds;
  double first = HUGE_VAL, second = HUGE_VAL, sum = 0;
  while (seconds.size() < kLeastRepetitions || sum < kLeastSeconds ||
         (second > first * (1 + kAgree) && sum < kMostSeconds)) {
    Expected<Taken> taken = measure(issue);
    if (!taken.ok()) return taken.status();
    seconds.push_back(taken->quickest);
    second = std::min(second, std::max(first, taken->quickest));
    first = std::min(first, taken->quickest);
    sum += taken->all;
  }
  std::sort(seconds.begin(), seconds.end());
  const auto disturbed = std::upper_bound(seconds.begin(), seconds.end(), first * (1 + kUsual));
  return seconds[static_cast<size_t>(disturbed - seconds.begin()) / 2];
}

Expected<double> InstructionTimer::quantileOfAll(const Issue& issue, double quantile) {
  std::vector<double> seconds;
  double sum = 0;
  while (seconds.size() < 3 * kLeastRepetitions || sum < kLeastSeconds) {
    Expected<Taken> taken = measure(issue);
    if (!taken.ok()) return taken.status();
    seconds.push_back(taken->all);
    sum += taken->all;
  }
  const auto at = static_cast<ptrdiff_t>(quantile * static_cast<double>(seconds.size() - 1));
  std::nth_element(seconds.begin(), seconds.begin() + at, seconds.end());
  return seconds[static_cast<size_t>(at)];
}

Expected<int> InstructionTimer::timesOf(const Group& group) {
  // The first run also touches the memory.
  double once = HUGE_VAL;
  for (int attempt = 0; attempt < 4; ++attempt) {
    Expected<Taken> taken = measure([&](RankContext& context) { return issueGroup(context, group, 1); });
    if (!taken.ok()) return taken.status();
    once = std::min(once, taken->quickest);
  }
  return static_cast<int>(std::clamp(kRepetition / std::max(once, 1e-9), 0.0, double{kMostTimes}));
}

Expected<double> InstructionTimer::seconds(size_t index) {
  const Group& group = groups_[index];
  const int count = std::max(group.last - group.first, 1), ranks = static_cast<int>(contexts_.size());
  Expected<int> times = timesOf(group);
  if (!times.ok()) return times.status();
  // Long instructions are taken one at a time, if they are the same but for their places.
  if (*times == 0 && group.alike) {
    std::atomic<int> next = 0;
    return undisturbed([&](RankContext& context) {
      const int turn = next.fetch_add(1) / ranks % count;
      return issueGroup(context, {group.first + turn, group.first + turn + 1}, 1);
    });
  }
  const int repeats = std::max(*times, 1);
  Expected<double> seconds = undisturbed([&](RankContext& context) { return issueGroup(context, group, repeats); });
  if (!seconds.ok()) return seconds;
  return *seconds / (static_cast<double>(repeats) * count);
}

Expected<double> InstructionTimer::secondsOfAll(size_t index, double quantile) {
  const Group& group = groups_[index];
  Expected<int> times = timesOf(group);
  if (!times.ok()) return times.status();
  const int repeats = std::max(*times, 1);
  Expected<double> seconds =
      quantileOfAll([&](RankContext& context) { return issueGroup(context, group, repeats); }, quantile);
  if (!seconds.ok()) return seconds;
  return *seconds / (static_cast<double>(repeats) * std::max(group.last - group.first, 1));
}

Expected<double> InstructionTimer::together(const std::vector<size_t>& groups, const std::vector<int>& times) {
  constexpr double kTypical = 0.25;
  return quantileOfAll(
      [&](RankContext& context) {
        Status status;
        for (size_t i = 0; i < groups.size() && status.ok(); ++i)
          status = issueGroup(context, groups_[groups[i]], times[i]);
        return status;
      },
      kTypical);
}

}  // namespace sheaf::schedule
