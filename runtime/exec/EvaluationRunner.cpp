#include "runtime/exec/EvaluationRunner.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <mutex>

#include "runtime/base/Text.h"
#include "runtime/exec/StopVote.h"
#include "runtime/plan/Types.h"

namespace sheaf::exec {
namespace {

// Most batches that are issued and not done: an interrupted evaluation ends after them.
constexpr int64_t kInFlight = 4;

bool writes(const plan::Plan& plan, plan::OutputKind kind) {
  for (const plan::Instruction& instruction : plan.evaluation())
    if (instruction.has_output() && instruction.output().output() == kind) return true;
  return false;
}

bool hasRowMask(const plan::Plan& plan) {
  for (const plan::Instruction& instruction : plan.evaluation())
    if (instruction.has_input() && plan.inputs(static_cast<int>(instruction.input().input())).row_mask()) return true;
  return false;
}

bool hasPerplexity(const plan::Plan& plan) {
  for (const plan::Instruction& instruction : plan.evaluation())
    if (instruction.has_input() && plan.inputs(static_cast<int>(instruction.input().input())).perplexity()) return true;
  return false;
}

}  // namespace

// Says to all ranks of all processes alike whether a batch begins. Each vote of the processes runs during the batch
// before.
class BatchGate {
 public:
  BatchGate(int64_t batches, const std::atomic<bool>& interrupted, comm::ProcessGroup* processes,
            const RunThreads& threads)
      : batches_(batches), interrupted_(interrupted) {
    if (processes)
      vote_.emplace(*processes, *threads.vote, [this](int64_t batch, const Expected<bool>& stop) {
        if (!stop.ok()) return fail(stop.status());
        std::lock_guard lock(mutex_);
        decide(batch, *stop);
      });
  }

  Expected<bool> begins(int64_t batch) {
    std::unique_lock lock(mutex_);
    for (; asked_ <= std::min(batch + 1, batches_ - 1); ++asked_) {
      if (vote_)
        vote_->ask(asked_, interrupted_);
      else if (asked_ == batch)
        decide(batch, interrupted_);
      else
        break;
    }
    changed_.wait(lock, [&] { return !failed_.ok() || decided_ > batch || batch >= end_; });
    if (!failed_.ok()) return failed_;
    return batch < end_;
  }
  // Ends the waiting of all ranks.
  void fail(const Status& status) {
    std::lock_guard lock(mutex_);
    if (failed_.ok()) failed_ = status;
    changed_.notify_all();
  }
  bool stopped() {
    std::lock_guard lock(mutex_);
    return end_ < batches_;
  }

 private:
  void decide(int64_t batch, bool stop) {
    decided_ = batch + 1;
    if (stop) end_ = std::min(end_, batch);
    changed_.notify_all();
  }

  const int64_t batches_;
  const std::atomic<bool>& interrupted_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t asked_ = 0, decided_ = 0, end_ = batches_;
  Status failed_;
  std::optional<StopVote> vote_;  // last: its thread ends first
};

Status checkEvaluable(const plan::Plan& plan) {
  if (plan.evaluation_size() > 0) return {};
  return Status::error("the plan has no evaluation; compile the model with --eval");
}

Status checkEvaluable(const plan::Plan& plan, uint64_t rows) {
  const uint64_t batch = static_cast<uint64_t>(plan::rowsAtOnce(plan)), rest = rows % batch;
  if (rest == 0) return {};
  const bool weighed = !writes(plan, plan::LOSS) || writes(plan, plan::LOSS_WEIGHT);
  if (weighed && hasRowMask(plan)) return {};
  return Status::error(cat("--eval-data: ", rows, " rows leave ", rest, " for a last batch of ", batch, ", and ",
                           hasRowMask(plan) ? "the loss of this model is not a mean over rows or labels"
                                            : "in this model the rows of a batch depend on each other",
                           ": every batch must be full; give a multiple of ", batch,
                           " rows, or compile with a --batch that divides them"));
}

EvaluationRunner::EvaluationRunner(const plan::Plan& plan, const std::vector<std::unique_ptr<RankContext>>& ranks,
                                   const RunThreads& threads, const io::DataSource& data, int64_t firstRank,
                                   const std::atomic<bool>& interrupted, comm::ProcessGroup* processes)
    : plan_(plan),
      ranks_(ranks),
      threads_(threads),
      data_(data),
      firstRank_(firstRank),
      interrupted_(interrupted),
      processes_(processes) {}

std::shared_ptr<StepValues> EvaluationRunner::makeValues(int64_t batch, OutputFiles* outputs,
                                                         std::vector<Batch>& batches) const {
  auto values = std::make_shared<StepValues>();
  values->step = batch;
  const uint64_t first = static_cast<uint64_t>(batch) * static_cast<uint64_t>(plan::rowsAtOnce(plan_));
  values->readInput = [this, first](int64_t rank, uint32_t input, std::span<std::byte> destination) -> Status {
    if (!plan_.inputs(static_cast<int>(input)).row_mask()) return data_.read(rank, input, first, destination);
    const uint64_t rows = destination.size() / sizeof(float), begin = first + static_cast<uint64_t>(rank) * rows;
    for (uint64_t i = 0; i < rows; ++i) {
      const float counts = begin + i < data_.rows() ? 1 : 0;
      std::memcpy(destination.data() + i * sizeof counts, &counts, sizeof counts);
    }
    return {};
  };
  // All ranks write the same numbers; only the first one of the process is heard, so nothing is written twice.
  values->writeOutput = [this, mine = &batches[static_cast<size_t>(batch)]](int64_t rank, plan::OutputKind kind,
                                                                            double value) {
    if (rank != firstRank_) return;
    (kind == plan::LOSS          ? mine->loss
     : kind == plan::LOSS_WEIGHT ? mine->weight
     : kind == plan::CORRECT     ? mine->correct
                                 : mine->labels) = value;
  };
  if (outputs)
    values->writeTensor = [outputs, batch](int64_t rank, uint32_t output, std::span<const std::byte> tensor) {
      return outputs->write(rank, output, batch, tensor);
    };
  return values;
}

Status EvaluationRunner::runRank(size_t rank, BatchGate& gate, OutputFiles* outputs,
                                 std::vector<Batch>& results) const {
  RankContext& context = *ranks_[rank];
  for (int64_t batch = 0;; ++batch) {
    Expected<bool> begins = gate.begins(batch);
    if (!begins.ok()) return begins.status();
    if (!*begins) break;
    const std::shared_ptr<const StepValues> values = makeValues(batch, outputs, results);
    for (const plan::Instruction& instruction : plan_.evaluation())
      SHEAF_RETURN_IF_ERROR(context.issue(instruction, values));
    if (batch % kInFlight == kInFlight - 1) SHEAF_RETURN_IF_ERROR(context.synchronize());
  }
  return context.synchronize();
}

Expected<EvaluationResult> EvaluationRunner::run(OutputFiles* outputs) {
  const auto begin = std::chrono::steady_clock::now();
  const uint64_t batch = static_cast<uint64_t>(plan::rowsAtOnce(plan_));
  const int64_t batches = static_cast<int64_t>((data_.rows() + batch - 1) / batch);
  std::vector<Batch> results(static_cast<size_t>(batches));
  std::mutex mutex;
  Status failed;
  bool interrupted = false;
  {
    BatchGate gate(batches, interrupted_, processes_, threads_);
    threads_.ranks->runAll([&](size_t rank) {
      Status status = runRank(rank, gate, outputs, results);
      if (status.ok()) return;
      gate.fail(status);
      ranks_[rank]->abort(status.message());
      // The streams must be empty before this evaluation ends, because what they hold refers to it.
      (void)ranks_[rank]->synchronize();
      std::lock_guard lock(mutex);
      if (failed.ok()) failed = std::move(status);
    });
    // The others wait for a rank that failed, and a vote for them.
    if (!failed.ok() && processes_) processes_->fail(failed.message());
    interrupted = gate.stopped();
  }
  if (!failed.ok()) return failed;

  EvaluationResult result;
  result.rows = data_.rows();
  result.interrupted = interrupted;
  if (interrupted) return result;
  Batch sum;
  for (const Batch& each : results) {
    // The loss of a batch without labels is not a number, and weighs nothing.
    if (each.weight != 0) sum.loss += each.weight * each.loss;
    sum.weight += each.weight, sum.correct += each.correct, sum.labels += each.labels;
  }
  if (writes(plan_, plan::LOSS)) {
    // Without weights all batches are full.
    if (!writes(plan_, plan::LOSS_WEIGHT))
      for (const Batch& each : results) sum.loss += each.loss, sum.weight += 1;
    result.noLabels = sum.weight == 0;
    if (!result.noLabels) result.loss = sum.loss / sum.weight;
  }
  if (writes(plan_, plan::LABELS) && !result.noLabels) {
    if (sum.labels > 0) result.accuracy = sum.correct / sum.labels;
    if (hasPerplexity(plan_)) result.perplexity = std::exp(*result.loss);
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

std::string text(const EvaluationResult& result) {
  std::string line = result.noLabels ? "no label counts (all are ignored)" : "";
  auto add = [&](const char* format, double value) {
    char part[64];
    std::snprintf(part, sizeof part, format, value);
    line += line.empty() ? part : cat(", ", part);
  };
  if (result.loss) add("loss %.6f", *result.loss);
  if (result.perplexity) add("perplexity %.4f", *result.perplexity);
  if (result.accuracy) add("accuracy %.2f %%", 100 * *result.accuracy);
  return cat(line, line.empty() ? "" : " of ", countText(result.rows), " rows");
}

}  // namespace sheaf::exec
