// Runs the evaluation of a plan over all rows of its data: one issuing thread per rank of this process.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/comm/process/ProcessGroup.h"
#include "runtime/device/Device.h"
#include "runtime/exec/OutputFiles.h"
#include "runtime/exec/RunThreads.h"
#include "runtime/io/DataSource.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::exec {

struct EvaluationResult {
  // The mean over all rows: that of the batches' losses, by their weights, in f64.
  std::optional<double> loss;
  std::optional<double> accuracy;    // labels that the logits predict, of those that count
  std::optional<double> perplexity;  // exp(loss), where the plan says so
  bool noLabels = false;             // all are ignored: the above are absent
  uint64_t rows = 0;
  double seconds = 0;
  bool interrupted = false;  // it ended early, after the same batch on all processes: there is no result
};

class BatchGate;

class EvaluationRunner {
 public:
  // The plan must have passed checkEvaluable() with this data. `firstRank`: of this process. `interrupted`: asks for an
  // early end. `processes`: null if there is one.
  EvaluationRunner(const plan::Plan& plan, const std::vector<std::unique_ptr<RankContext>>& ranks,
                   const RunThreads& threads, const io::DataSource& data, int64_t firstRank,
                   const std::atomic<bool>& interrupted, comm::ProcessGroup* processes);

  // Evaluates with the weights that the ranks hold, and changes nothing that they keep from step to step. Only between
  // runs of the trainer. Tensors go to `outputs`, which may be null.
  Expected<EvaluationResult> run(OutputFiles* outputs);

 private:
  struct Batch {
    double loss = 0, weight = 0, correct = 0, labels = 0;
  };
  std::shared_ptr<StepValues> makeValues(int64_t batch, OutputFiles* outputs, std::vector<Batch>& batches) const;
  Status runRank(size_t rank, BatchGate& gate, OutputFiles* outputs, std::vector<Batch>& results) const;

  const plan::Plan& plan_;
  const std::vector<std::unique_ptr<RankContext>>& ranks_;
  const RunThreads& threads_;
  const io::DataSource& data_;
  const int64_t firstRank_;
  const std::atomic<bool>& interrupted_;
  comm::ProcessGroup* processes_;
};

// Whether a verified plan has an evaluation; the remedy is in the error.
Status checkEvaluable(const plan::Plan& plan);
// Whether it can evaluate so many rows: without a mask of rows, or a weight of the loss, every batch must be full.
Status checkEvaluable(const plan::Plan& plan, uint64_t rows);

// A line for people: "loss 2.3026, accuracy 10.2 % of 1,000 rows".
std::string text(const EvaluationResult& result);

}  // namespace sheaf::exec
