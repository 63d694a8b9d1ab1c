#include "passes/Choose.h"

#include <algorithm>
#include <cmath>

#include "passes/StepModule.h"
#include "passes/schedule/Bound.h"
#include "passes/schedule/Floor.h"
#include "passes/schedule/PlanLoop.h"
#include "passes/schedule/ShippedProfiles.h"
#include "passes/zero/Passes.h"
#include "runtime/base/Text.h"
#include "runtime/plan/MemoryByKind.h"
#include "runtime/plan/RankMemory.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/Words.h"

namespace sheaf {
namespace {

using mlir::failed;
using mlir::failure;
using mlir::FailureOr;

// Times that differ by less than this fraction count as equal; the candidate with fewer bytes is chosen.
constexpr double kSameTime = 1e-3;
// A step this close to its bound: other bucket sizes are not tried.
constexpr double kNearBound = 0.005;
// From this gap to the bound on, candidates with more free memory are tried.
constexpr double kWorthRoom = 0.02;
// Tries to find how many buckets may stay gathered.
constexpr int kRetentions = 4;
// Tries to lay a plan out within a limit that its live bytes respect.
constexpr int kLayouts = 3;
// Tries to find how much has to be moved to other spaces.
constexpr int kOffloads = 6;

// Ranks that share cores wait for each other in every collective, and while one waits, its core may have nothing to do.
// So a bucket has at least as many bytes as make its gather this many times as long as the gather of one element.
constexpr double kLatencies = 4;

int64_t leastBucketBytes(const profile::Profile& machine) {
  int64_t bytes = PipelineOptions().leastBucketBytes;
  if (machine.isOfGpus() || machine.ranks() < 2) return bytes;
  auto seconds = [&](int64_t size) {
    return machine.seconds(profile::Transfer{plan::ALL_GATHER, static_cast<uint64_t>(size), machine.ranks()});
  };
  while (bytes < zero::kMostBucketBytes && seconds(bytes) < kLatencies * seconds(1)) bytes *= 2;
  return bytes;
}

// A plan that only evaluates is judged by a batch of its evaluation, as if that were the step, while this exists.
class EvaluationAsStep {
 public:
  explicit EvaluationAsStep(plan::Plan& plan) : plan_(plan), swaps_(plan.body().empty()) { swap(); }
  ~EvaluationAsStep() { swap(); }
  EvaluationAsStep(const EvaluationAsStep&) = delete;
  EvaluationAsStep& operator=(const EvaluationAsStep&) = delete;

 private:
  void swap() {
    if (swaps_) plan_.mutable_body()->Swap(plan_.mutable_evaluation());
  }

  plan::Plan& plan_;
  const bool swaps_;
};

// Describes the bytes in other spaces and the updates on the host, for Candidate::text().
void describeMoved(const plan::Plan& plan, Candidate& candidate) {
  candidate.moved.clear();
  for (const auto& [space, where] :
       {std::pair{plan::Buffer::HOST, "in host memory"}, std::pair{plan::Buffer::FILE, "in files"}})
    if (plan::peakBytes(plan, space) > 0)
      for (const auto& [kind, bytes] : plan::memoryByKind(plan, space))
        if (bytes > 0)
          candidate.moved += cat(", ", bytesText(bytes), " of ",
                                 kind == plan::OPTIMIZER ? "optimizer state" : plan::word(kind), " ", where);
  size_t updates = 0, onHost = 0;
  for (const plan::Instruction& instruction : plan.body())
    updates += instruction.updates_bucket() > 0, onHost += plan::isOnHost(instruction);
  candidate.updatesOnHost = onHost > 0;
  if (onHost > 0)
    candidate.moved +=
        cat(", ", onHost == updates ? "all" : cat(onHost, " of ", updates), " buckets updated on the host");
}

// Time and bytes of the candidate's plan.
void measure(Candidate& candidate, const ChooseOptions& choices, const profile::Profile& machine) {
  const plan::Plan& plan = candidate.draft.plan;
  schedule::PlanLoop loop = schedule::loopOf(plan, machine);
  schedule::Timeline timeline = schedule::play(loop.loop);
  schedule::Bound bound = schedule::boundOf(loop.loop, schedule::dataDependences(plan, loop));
  candidate.seconds = timeline.period;
  candidate.exposed = timeline.exposed;
  candidate.bound = bound.seconds;
  candidate.boundBy = schedule::boundByName(bound.by);
  if (const std::optional<schedule::Floor> floor = schedule::floorOf(plan, machine))
    candidate.floor = floor->seconds, candidate.floorBy = schedule::floorByName(floor->by);
  candidate.bytes = plan.memory().peak_bytes();
  candidate.stateBytes = candidate.wholeBytes = 0;
  for (const plan::Bucket& bucket : plan.buckets())
    candidate.wholeBytes += bucket.elements() * plan::elementBytes(bucket.type());
  for (const plan::Buffer& buffer : plan.buffers())
    if (buffer.persistent() && buffer.space() == plan::Buffer::DEVICE) candidate.stateBytes += buffer.bytes();
  if (choices.wholeMemory) {
    // As sheaf-run starts ranks by default: a process for each GPU, one for all ranks of a CPU.
    const plan::RankMemory memory =
        machine.isOfGpus() ? plan::gpuRankMemory(plan, plan.ranks() > 1, true, machine.nodes(plan.ranks()) > 1)
                           : plan::cpuRankMemory(plan);
    candidate.besides = memory.total() - candidate.bytes;
  }
  candidate.hostBytes = plan::peakBytes(plan, plan::Buffer::HOST);
  candidate.fileBytes = plan::peakBytes(plan, plan::Buffer::FILE);
  describeMoved(plan, candidate);
}

// One candidate; an error has been reported where this fails. The module is the one that the phase `train` left.
FailureOr<Candidate> compileCandidate(mlir::ModuleOp trained, const PipelineOptions& options,
                                      const ChooseOptions& choices, const profile::Profile& machine) {
  const uint64_t memoryLimit = choices.memoryLimit;
  Candidate candidate;
  candidate.options = options;
  candidate.options.memoryLimit = memoryLimit;
  for (int layout = 0; layout < kLayouts; ++layout) {
    candidate.module = trained.clone();
    mlir::PassManager passes(trained.getContext());
    addZeroPasses(passes, candidate.options);
    addFusePasses(passes);
    if (failed(passes.run(*candidate.module))) return failure();
    FailureOr<plan_ir::Draft> draft = makePlan(*candidate.module, candidate.options);
    if (failed(draft)) return failure();
    candidate.draft = std::move(*draft);
    const EvaluationAsStep judged(candidate.draft.plan);
    measure(candidate, choices, machine);
    const uint64_t needed = candidate.bytes + candidate.besides;
    candidate.fits = memoryLimit == 0 || needed <= memoryLimit;
    if (!candidate.fits) {
      const plan::Plan& plan = candidate.draft.plan;
      const plan::MostBytes most = plan::mostBytes(plan);
      if (most.instruction)
        candidate.neediest = cat(plan::describe(plan, *most.instruction), " needs ", bytesText(most.bytes));
    }
    if ((choices.hostLimit > 0 && candidate.hostBytes > choices.hostLimit) ||
        (choices.fileLimit > 0 && candidate.fileBytes > choices.fileLimit)) {
      candidate.fits = false;
      break;
    }
    const uint64_t excess = candidate.fits ? 0 : needed - memoryLimit;
    if (candidate.fits || excess > memoryLimit / 20 + candidate.besides || excess >= candidate.options.memoryLimit)
      break;
    // A layout is a little larger than what is alive at once, and libraries are known only now: aim lower by as much.
    candidate.options.memoryLimit -= excess;
  }
  return candidate;
}

class Chooser {
 public:
  Chooser(mlir::ModuleOp trained, const PipelineOptions& options, const ChooseOptions& choices,
          const profile::Profile& machine)
      : trained_(trained), base_(options), choices_(choices), machine_(machine) {}

  FailureOr<Candidate> run() {
    int64_t ranks = zero::ranksOf(trained_);
    std::vector<int64_t> nodes{base_.ranksPerNode};
    if (choices_.ranksPerNode > 0) nodes.push_back(choices_.ranksPerNode);
    std::vector<Candidate> stages;
    for (int64_t ranksPerNode : nodes)
      for (const Stages& stage : tried(ranks, ranksPerNode)) {
        best_.reset();
        if (failed(tryStage(stage, ranksPerNode))) return failure();
        stages.push_back(std::move(*best_));
      }
    std::stable_sort(stages.begin(), stages.end(), better);
    // Buckets of another size may make stage 3 the best one: it needs the least memory, and gathers more.
    std::optional<Candidate> chosen;
    for (size_t i = 0; i < stages.size(); ++i) {
      if (i > 0 && (stages[i].options.stage < 3 || !stages[i].fits)) continue;
      best_ = std::move(stages[i]);
      if (!choices_.stage && ranks > 1 && failed(chooseBuckets())) return failure();
      // Secondary shards save less than buckets that stay gathered, but for the bytes of a node's part.
      if (isOpen(choices_.secondary) && ranks > 1 && failed(chooseSecondaryShards())) return failure();
      if (isOpen(choices_.retention) && ranks > 1 && failed(chooseRetention())) return failure();
      if (!chosen || better(*best_, *chosen)) chosen = std::move(best_);
    }
    best_ = std::move(chosen);
    // The error of a plan that does not fit states the least memory that was found. Where the state alone is too large,
    // recomputation was not tried before.
    if (!best_->fits && !choices_.recompute) {
      PipelineOptions options = best_->options;
      options.recompute = train::Recomputation::all;
      options.recomputeEvery = 1;
      options.recomputeSegments = -1;
      bool fits = false;
      if (failed(offer(options, fits))) return failure();
    }
    if (choices_.updateOn == UpdateOn::automatic && best_->updatesOnHost) {
      PipelineOptions options = best_->options;
      options.updateOnHost = false;
      bool fits = false;
      if (failed(offer(options, fits))) return failure();
    }
    if (best_->fits && choices_.memoryLimit > 0 && failed(boundByLimit())) return failure();
    return std::move(*best_);
  }

 private:
  // Takes the candidate if it is the best so far; `fits` says whether it fits.
  mlir::LogicalResult offer(const PipelineOptions& options, bool& fits) {
    if (choices_.onCandidate) choices_.onCandidate(cat("ZeRO-", options.stage, ", candidate ", ++candidates_));
    FailureOr<Candidate> candidate = compileCandidate(trained_, options, choices_, machine_);
    if (failed(candidate)) return failure();
    fits = candidate->fits;
    last_ = {candidate->bytes,
             candidate->stateBytes,
             candidate->seconds / candidate->bound - 1,
             candidate->bound,
             candidate->bytes + candidate->besides,
             candidate->hostBytes};
    segments_ = std::max(segments_, zero::moduleInteger(*candidate->module, "train.segments", 0));
    if (!best_ || better(*candidate, *best_)) best_ = std::move(*candidate);
    return mlir::success();
  }

  // The bound of what was chosen with what the limit forces.
  mlir::LogicalResult boundByLimit() {
    plan::Plan& plan = best_->draft.plan;
    const EvaluationAsStep judged(plan);
    schedule::PlanLoop loop = schedule::loopOf(plan, machine_);
    std::vector<schedule::Dependence> data = schedule::dataDependences(plan, loop);
    schedule::MemoryBound memory =
        schedule::memoryBoundOf(schedule::modelOf(plan, machine_), data, choices_.memoryLimit);
    schedule::Bound bound = schedule::boundOf(loop.loop, data, &memory);
    best_->bound = bound.seconds;
    best_->boundBy = schedule::boundByName(bound.by);
    return mlir::success();
  }

  bool hasTwoHops(int64_t ranksPerNode) const { return ranksPerNode > 1 && ranksPerNode < zero::ranksOf(trained_); }

  std::vector<Stages> tried(int64_t ranks, int64_t ranksPerNode) const {
    if (choices_.stage) return {*choices_.stage};
    if (ranks == 1) return {{0, 0}};
    std::vector<Stages> all{{0, 0}, {1, 1}, {2, 2}, {3, 3}};
    if (hasTwoHops(ranksPerNode)) all.insert(all.end(), {{3, 0}, {3, 1}});
    return all;
  }

  // As little recomputation as fits, and more where memory is all that keeps gathers from hiding.
  mlir::LogicalResult tryStage(const Stages& stage, int64_t ranksPerNode) {
    PipelineOptions options = base_;
    options.stage = stage.within;
    options.ranksPerNode = ranksPerNode;
    if (options.ranksPerNode > 0) options.networkStage = stage.between;
    using train::Recomputation;
    struct Level {
      Recomputation what;
      int64_t every;
    };
    std::vector<Level> levels{{Recomputation::none, 1},
                              {Recomputation::kernels, 1},
                              {Recomputation::all, 2},
                              {Recomputation::all, 4},
                              {Recomputation::all, 1}};
    if (choices_.recompute) {
      auto asked = [&](const Level& level) { return level.what == *choices_.recompute; };
      levels = {*std::find_if(levels.begin(), levels.end(), asked)};
    }
    const bool offloads = choices_.offload && choices_.memoryLimit > 0 && isWorthOffloading(ranks(), stage);
    bool fitted = false;
    double gap = 0;  // of the candidate before
    for (const Level& level : levels) {
      options.recompute = level.what;
      options.recomputeEvery = level.every;
      options.recomputeSegments = -1;
      bool fits = false;
      if (failed(offer(options, fits))) return failure();
      if (!fits && offloads && failed(offload(options))) return failure();
      if (choices_.recompute) return mlir::success();
      if (fits && !fitted && &level != &levels.front() && failed(fewestSegments(options))) return failure();
      if (!fits && !offloads && last_.stateBytes > choices_.memoryLimit) return mlir::success();  // nothing helps
      // Where it fits without, the limit leaves room; where it just fits, more room may hide what shows.
      bool tight = last_.bytes > choices_.memoryLimit - choices_.memoryLimit / 4;
      if (fits && (!tight || choices_.memoryLimit == 0 || last_.gap < kWorthRoom || (fitted && last_.gap >= gap)))
        return mlir::success();
      fitted |= fits;
      gap = last_.gap;
    }
    return mlir::success();
  }

  int64_t ranks() const { return zero::ranksOf(trained_); }

  // What stage 1 shards costs nothing, and so does what stage 3 shards besides stage 2's.
  bool isWorthOffloading(int64_t ranks, const Stages& stage) const {
    return choices_.stage || ranks == 1 || stage.within == 1 || stage.within == 3;
  }

  // What does not fit: so much of it elsewhere, by cost, that it does.
  mlir::LogicalResult offload(PipelineOptions options) {
    // It computes no less; so much cannot be won back.
    if (best_ && best_->fits && last_.bound > best_->seconds) return mlir::success();
    // The layout, and what is fetched ahead, take more than what is alive at once: aim lower by as much, in the end as
    // low as can be.
    const uint64_t limit = choices_.memoryLimit;
    uint64_t within = limit, host = choices_.hostLimit;
    // Where the device is the host's memory, what goes to host memory stays in what counts.
    const bool filesOnly = choices_.wholeMemory && !machine_.isOfGpus();
    bool fits = false;
    for (int tries = 1; tries <= kOffloads && !fits; ++tries) {
      options.offloadWithin = tries < kOffloads ? static_cast<int64_t>(within) : 0;
      options.offloadHost = filesOnly ? 0 : choices_.hostLimit > 0 ? static_cast<int64_t>(host) : -1;
      if (failed(offer(options, fits))) return failure();
      // More than asked for may be at the same time in host memory, by gaps and alignment.
      if (choices_.hostLimit > 0 && last_.hostBytes > choices_.hostLimit)
        host -= std::min(host, std::max(last_.hostBytes - choices_.hostLimit, choices_.hostLimit / 64));
      const uint64_t excess = last_.needed > limit ? last_.needed - limit : 0;
      if (!fits) within -= std::min(within, excess > 0 ? std::max(excess, limit / 64) : 0);
    }
    // With more room transfers and gathers may hide better.
    if (!fits || last_.gap < kWorthRoom) return mlir::success();
    options.offloadWithin -= options.offloadWithin / 4;
    return offer(options, fits);
  }

  // By halves, the fewest segments whose recomputation makes it fit.
  mlir::LogicalResult fewestSegments(PipelineOptions options) {
    int64_t enough = segments_, few = 0;
    for (int tries = 0; tries < 4 && enough - few > 1; ++tries) {
      options.recomputeSegments = (enough + few) / 2;
      bool fits = false;
      if (failed(offer(options, fits))) return failure();
      (fits ? enough : few) = options.recomputeSegments;
    }
    return mlir::success();
  }

  // Buckets may be changed only where the stage is open: with a given stage they are the same at every stage, and so
  // are the bits. Retention changes no bits. It spends memory that the stage saves, so a given stage without a limit
  // keeps it out.
  bool isOpen(bool choice) const { return choice && (!choices_.stage || choices_.memoryLimit > 0); }

  // Whether communication takes time: because computation waits for it, or because it slows computation down.
  bool isExposed() const { return best_->fits && best_->exposed > kSameTime * best_->seconds; }

  mlir::LogicalResult chooseBuckets() {
    bool fits = false;
    int64_t size = best_->options.bucketBytes ? best_->options.bucketBytes
                                              : zero::moduleInteger(*best_->module, "zero.bucket_bytes", 0);
    for (double factor : {0.5, 2.0, 4.0}) {
      if (base_.bucketBytes > 0 || !isExposed() || size == 0) break;
      PipelineOptions options = best_->options;
      options.bucketBytes = static_cast<int64_t>(size * factor);
      double before = best_->seconds;
      if (failed(offer(options, fits))) return failure();
      if (factor > 1 && best_->seconds == before && best_->seconds < best_->bound * (1 + kNearBound)) break;
    }
    // Other buckets may take fewer bytes, so that nothing needs to be recomputed.
    PipelineOptions options = best_->options;
    if (options.bucketBytes == base_.bucketBytes || options.recompute == base_.recompute || choices_.recompute)
      return mlir::success();
    options.recompute = base_.recompute;
    return offer(options, fits);
  }

  // At stage 3, as large a part of the buckets as fits stays gathered from the forward to the backward pass.
  mlir::LogicalResult chooseRetention() {
    if (best_->options.stage < 3 || !isExposed()) return mlir::success();
    return choosePart(&PipelineOptions::keepPart);
  }

  // So of the others: as large a part as fits keeps the shards that have come over the network.
  mlir::LogicalResult chooseSecondaryShards() {
    const PipelineOptions& options = best_->options;
    if (options.stage < 3 || options.networkStage < 3 || !hasTwoHops(options.ranksPerNode) || !isExposed())
      return mlir::success();
    return choosePart(&PipelineOptions::secondaryPart);
  }

  mlir::LogicalResult choosePart(double PipelineOptions::*which) {
    PipelineOptions options = best_->options;
    const double without = static_cast<double>(best_->bytes), limit = static_cast<double>(choices_.memoryLimit);
    double part = 1;
    for (int tries = 0; tries < kRetentions; ++tries) {
      options.*which = part;
      bool fits = false;
      if (failed(offer(options, fits))) return failure();
      if (fits) break;
      // Bytes grow with the part, but what is alive without retention may use the room, too.
      const double room = (limit - without) / (static_cast<double>(last_.bytes) - without);
      part *= std::clamp(room, 0.25, 0.75);
    }
    return mlir::success();
  }

  mlir::ModuleOp trained_;
  const PipelineOptions& base_;
  const ChooseOptions& choices_;
  const profile::Profile& machine_;
  std::optional<Candidate> best_;
  int64_t segments_ = 0;
  int64_t candidates_ = 0;  // compiled so far
  struct {
    uint64_t bytes = 0, stateBytes = 0;
    double gap = 0;  // to the bound
    double bound = 0;
    uint64_t needed = 0, hostBytes = 0;
  } last_;  // of the candidate offered last
};

}  // namespace

bool better(const Candidate& a, const Candidate& b) {
  if (a.fits != b.fits) return a.fits;
  if (!a.fits) return a.bytes + a.besides < b.bytes + b.besides;
  if (a.seconds < b.seconds * (1 - kSameTime)) return true;
  return a.seconds < b.seconds * (1 + kSameTime) && a.bytes < b.bytes;
}

std::string Candidate::text() const {
  std::string text = cat("ZeRO-", options.stage);
  if (options.ranksPerNode > 0 && options.networkStage >= 0 && options.networkStage != options.stage)
    text += cat(" within nodes and ", options.networkStage, " between them");
  if (options.ranksPerNode > 1) text += cat(", nodes of ", options.ranksPerNode, " ranks");
  if (options.recompute != train::Recomputation::none)
    text += cat(", recomputing ", options.recompute == train::Recomputation::all ? "everything" : "kernels", " in ",
                options.recomputeSegments < 0 ? "all" : cat("the first ", options.recomputeSegments), " segments");
  if (options.bucketBytes > 0) text += cat(", buckets of ", bytesText(options.bucketBytes));
  if (options.keepPart > 0)
    text += cat(", ", std::llround(100 * options.keepPart), " % of the buckets kept from forward to backward");
  if (options.secondaryPart > 0 && options.keepPart < 1)
    text += cat(", secondary shards of ", std::llround(100 * options.secondaryPart), " % of the other buckets");
  return text + moved;
}

FailureOr<Candidate> choose(mlir::ModuleOp trained, const PipelineOptions& options, const ChooseOptions& choices) {
  auto machine = schedule::loadProfile(options.profile);
  if (!machine.ok()) return trained.emitError(machine.status().message());
  auto scaled = machine->withRanks(zero::ranksOf(trained));
  if (!scaled.ok()) return trained.emitError(scaled.status().message());
  // Buckets have the same sizes on any number of ranks that share the same leaves.
  const int64_t leaves = zero::ranksOf(trained) * zero::moduleInteger(trained, "train.leaves", 1);
  auto spread = machine->withRanks(leaves);
  PipelineOptions base = options;
  base.leastBucketBytes = leastBucketBytes(spread.ok() ? *spread : *scaled);
  // Never automatically on CPU ranks: the host's processors are those that compute.
  base.updateOnHost = choices.updateOn == UpdateOn::host ||
                      (choices.updateOn == UpdateOn::automatic && scaled->isOfGpus() && scaled->knowsHostUpdates());
  FailureOr<Candidate> chosen = Chooser(trained, base, choices, *scaled).run();
  if (failed(chosen)) return failure();
  if (chosen->fits || base.leastBucketBytes <= options.leastBucketBytes) return chosen;
  base.leastBucketBytes = options.leastBucketBytes;
  FailureOr<Candidate> smaller = Chooser(trained, base, choices, *scaled).run();
  return failed(smaller) || smaller->fits ? std::move(smaller) : std::move(chosen);
}

}  // namespace sheaf
