#include "runtime/exec/Trainer.h"

#include <optional>

#include "runtime/base/Text.h"
#include "runtime/exec/FileResume.h"
#include "runtime/exec/StepScalars.h"
#include "runtime/exec/StopVote.h"
#include "runtime/plan/Library.h"
#include "runtime/plan/LossScale.h"
#include "runtime/plan/MicroBatches.h"
#include "runtime/plan/Probe.h"
#include "runtime/plan/Types.h"

namespace sheaf::exec {
namespace {

bool bodyWrites(const plan::Plan& plan, plan::OutputKind kind) {
  for (const plan::Instruction& instruction : plan.body())
    if (instruction.has_output() && instruction.output().output() == kind) return true;
  return false;
}

// True if updates are also skipped when the loss alone is not finite.
bool judgesLoss(const plan::Plan& plan) {
  for (const plan::Instruction& instruction : plan.body())
    if (instruction.has_call() && instruction.call().function() == plan::Schema<plan::GradientNormCall>::kName)
      if (Expected<plan::AnyCall> call = plan::parseCall(instruction.call()); call.ok())
        return std::get<plan::GradientNormCall>(*call).judged;
  return false;
}

}  // namespace

Status checkTrainable(const plan::Plan& plan) {
  if (plan::isProbe(plan))
    return Status::error("the plan is a probe and trains nothing: `sheaf-run --measure OUT.json` measures with it");
  if (!bodyWrites(plan, plan::LOSS))
    return Status::error("the plan has no training step: it was compiled with --eval-only");
  return {};
}

Trainer::Trainer(const plan::Plan& plan, const std::vector<std::unique_ptr<RankContext>>& ranks,
                 const RunThreads& threads, const io::DataSource& data, TrainerOptions options)
    : plan_(plan),
      ranks_(ranks),
      threads_(threads),
      data_(data),
      options_(std::move(options)),
      hasNorm_(bodyWrites(plan, plan::GRADIENT_NORM)),
      step_(options_.step),
      updates_(options_.updates) {}

uint64_t Trainer::samplesAt(int64_t step) const {
  return options_.samples + static_cast<uint64_t>(step - options_.step) * static_cast<uint64_t>(plan_.batch());
}

std::shared_ptr<StepValues> Trainer::makeValues(int64_t step, int64_t update, double& learningRate) const {
  const std::vector<double> rates = learningRates(options_.training, step);
  learningRate = rates[0];
  auto values = std::make_shared<StepValues>();
  values->step = step;
  values->scalars = stepScalars(plan_, rates, update);
  if (options_.gradients && step == options_.step)
    values->onGradient = [capture = options_.gradients](int64_t rank, uint32_t bucket,
                                                        std::span<const std::byte> gradient) {
      capture->add(rank, bucket, gradient);
    };
  if (options_.trace)
    values->onInstruction = [trace = options_.trace, step](int64_t rank, const plan::Instruction& instruction,
                                                           Trace::Time begin, Trace::Time end) {
      trace->add(rank, step, instruction, begin, end);
    };
  return values;
}

Expected<std::optional<Committed>> Trainer::stateAfter(StepLedger& ledger, int64_t step,
                                                       std::span<const std::byte> lossScale,
                                                       const StepValues::Poll& poll) const {
  Expected<StepLedger::Outcome> outcome = ledger.outcome(step, poll);
  if (!outcome.ok()) return outcome.status();
  if (!outcome->finite) return std::optional<Committed>();
  RunPosition position{.step = step + 1,
                       .updates = outcome->updates,
                       .samples = samplesAt(step + 1),
                       .shuffleSeed = options_.shuffleSeed,
                       .lossScale = {},
                       .length = options_.length,
                       .cpu = {}};
  if (!lossScale.empty()) setLossScale(position, lossScale);
  return std::optional(committedAt(position, *options_.fileRun));
}

std::shared_ptr<const StepValues> Trainer::ofMicroBatch(const StepValues& step, int64_t microBatch) const {
  auto values = std::make_shared<StepValues>(step);
  const plan::PiecesOfRanks pieces = plan::piecesOfRanks(plan_, microBatch);
  values->firstPiece = pieces.first;
  values->pieceStride = pieces.stride;
  values->readInput = [data = &data_, sample = samplesAt(step.step), first = values->firstPiece,
                       stride = values->pieceStride](int64_t rank, uint32_t input, std::span<std::byte> destination) {
    return data->read(first + rank * stride, input, sample, destination);
  };
  return values;
}

Status Trainer::runRank(StepLedger& ledger, size_t rank, int64_t firstStep) const {
  RankContext& context = *ranks_[rank];
  auto issueAll = [&](const auto& instructions, const std::shared_ptr<const StepValues>& values) -> Status {
    for (const plan::Instruction& instruction : instructions) SHEAF_RETURN_IF_ERROR(context.issue(instruction, values));
    return {};
  };
  auto take = [&](int64_t step) { return ledger.take(step, [&] { return context.poll(); }); };
  std::shared_ptr<const StepValues> last, values = take(firstStep);
  if (!values) return {};
  SHEAF_RETURN_IF_ERROR(issueAll(plan_.prologue(), ofMicroBatch(*values, 0)));
  const std::vector<plan::StepTurn> parts = plan::stepOf(plan_);
  for (int64_t step = firstStep; values; values = take(++step)) {
    for (const plan::StepTurn& part : parts) {
      last = ofMicroBatch(*values, part.microBatch);
      SHEAF_RETURN_IF_ERROR(issueAll(*part.list, last));
    }
  }
  SHEAF_RETURN_IF_ERROR(ledger.status());
  SHEAF_RETURN_IF_ERROR(issueAll(plan_.epilogue(), last));
  return context.synchronize();
}

Status Trainer::run(int64_t steps, const std::function<void(const StepResult&)>& report) {
  std::optional<StopVote> vote;
  StepLedger ledger({.firstStep = step_,
                     .steps = steps,
                     .updates = updates_,
                     .ranks = static_cast<int64_t>(ranks_.size()),
                     .reporter = options_.firstRank,
                     .hasNorm = hasNorm_,
                     .skipOnNan = options_.training.on_nan() == plan::Training::SKIP,
                     .lossJudged = judgesLoss(plan_),
                     .leastLossScale = plan_.training().has_loss_scale()
                                           ? std::optional(plan::leastOf(plan_.training().loss_scale()))
                                           : std::nullopt,
                     .interrupted = options_.interrupted,
                     .vote = options_.processes ? [&vote](int64_t step, bool stop) { vote->ask(step, stop); }
                                                : std::function<void(int64_t, bool)>(),
                     .awaitInput = [this](int64_t step) { return data_.await(samplesAt(step + 1)); },
                     .makeValues =
                         [this, &ledger](int64_t step, int64_t update, double& learningRate) {
                           std::shared_ptr<StepValues> values = makeValues(step, update, learningRate);
                           if (options_.fileRun)
                             values->commit = [this, &ledger, step](int64_t, std::span<const std::byte> lossScale,
                                                                    const StepValues::Poll& poll) {
                               return stateAfter(ledger, step, lossScale, poll);
                             };
                           return values;
                         }});
  if (options_.processes)
    vote.emplace(*options_.processes, *threads_.vote, [&ledger](int64_t step, const Expected<bool>& stop) {
      if (stop.ok())
        ledger.voted(step, *stop);
      else
        ledger.fail(stop.status());
    });
  std::vector<Status> ends(ranks_.size());
  threads_.ranks->start([&](size_t rank) {
    Status status = runRank(ledger, rank, step_);
    if (!status.ok()) {
      ledger.fail(status);
      ranks_[rank]->abort(status.message());
      // The streams must be empty before this run ends, because what they hold refers to it.
      ends[rank] = ranks_[rank]->synchronize();
    }
    ledger.rankDone();
  });
  StepResult result;
  while (ledger.nextResult(result)) report(result);
  threads_.ranks->wait();
  Status why = ledger.status();
  // A vote that fails says which process is lost, and the device where its rank was then.
  if (!why.ok() && options_.processes)
    for (const Status& end : ends)
      if (end.message().find(why.message()) != std::string::npos) why = end;
  // The others wait for a rank that failed, and a vote for them.
  if (!why.ok() && options_.processes) options_.processes->fail(why.message());
  vote.reset();
  if (!why.ok()) return why;
  SHEAF_RETURN_IF_ERROR(ledger.status());  // of a vote since
  step_ = ledger.nextStep();
  updates_ = ledger.updates();
  badStep_ = ledger.badStep();
  interrupted_ = ledger.interrupted();
  // What is not finite is the first cause.
  inputEnded_ = !ledger.inputError().ok() && badStep_ < 0;
  return inputEnded_ ? ledger.inputError() : Status();
}

}  // namespace sheaf::exec
