#include "runtime/profile/Profile.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/Text.h"
#include "runtime/plan/Types.h"

namespace sheaf::profile {
namespace {

// What an element of Adam in f32 reads and writes: weight and moments both, the gradient read.
constexpr double kUpdateBytes = 7 * sizeof(float);

// The best entry: of this type, else of f32, else any; among equals one that `matches`.
template <typename Cost, typename Matches>
const Cost* find(const std::vector<Cost>& costs, plan::ElementType type, Matches matches) {
  const Cost* best = nullptr;
  int bestFit = -1;
  for (const Cost& cost : costs) {
    const int fit = (cost.type == type ? 4 : cost.type == plan::F32 ? 2 : 0) + (matches(cost) ? 1 : 0);
    if (fit > bestFit) best = &cost, bestFit = fit;
  }
  return best;
}

// Interpolates the factors of the nearest shapes by their distance in log2 of the sizes. A shape has full weight at
// distance 0 and none from distance 1 (twice the size) on.
double factorOf(const std::vector<GemmFactor>& shapes, const Work& work) {
  auto distance = [](int64_t a, int64_t b) {
    return std::log2(static_cast<double>(std::max<int64_t>(a, 1)) / static_cast<double>(std::max<int64_t>(b, 1)));
  };
  double sum = 0, weights = 1;
  for (const GemmFactor& shape : shapes) {
    const double m = distance(work.m, shape.m), n = distance(work.n, shape.n), k = distance(work.k, shape.k);
    const double squared = m * m + n * n + k * k;
    if (squared >= 1) continue;
    constexpr double kSame = 1e-6;
    const double weight = (1 - std::sqrt(squared)) * (1 - std::sqrt(squared)) / (squared + kSame);
    sum += weight * std::log(shape.factor);
    weights += weight;
  }
  return std::exp(sum / weights);
}

const GemmCost* gemmCost(const ComputeCost& compute, const Work& work) {
  return find(compute.gemm, work.type, [&](const GemmCost& c) {
    return c.tf32 == work.tf32 && (c.anyLayout || (c.transposeA == work.transposeA && c.transposeB == work.transposeB));
  });
}

const AttentionCost* attentionCost(const ComputeCost& compute, plan::ElementType type, bool gradient) {
  return find(compute.attention, type, [&](const AttentionCost& c) { return c.gradient == gradient; });
}

double gemmSeconds(const ComputeCost& compute, const Work& work) {
  const GemmCost* cost = gemmCost(compute, work);
  if (!cost) return 0;
  auto per = [](double half, int64_t size) { return half / static_cast<double>(std::max<int64_t>(size, 1)); };
  return work.flops / cost->rate *
         (1 + per(cost->halfM, work.m) + per(cost->halfN, work.n) + per(cost->halfK, work.k) +
          per(cost->halfResults, work.m) / static_cast<double>(std::max<int64_t>(work.n * work.batch, 1))) *
         factorOf(cost->shapes, work);
}

double attentionSeconds(const ComputeCost& compute, const Work& work) {
  const AttentionCost* cost = attentionCost(compute, work.type, work.gradient);
  if (!cost) return 0;
  const double keys = static_cast<double>(std::max<int64_t>(work.n, 1));
  const double width = static_cast<double>(std::max<int64_t>(work.k, 1));
  const double queries =
      static_cast<double>(std::max<int64_t>(work.m, 1)) * static_cast<double>(std::max<int64_t>(work.batch, 1));
  return work.flops / cost->rate *
         ((1 + cost->halfWidth / width) * (1 + cost->halfKeys / keys) + cost->halfQueries / queries) *
         (work.causal ? 1 + std::min(cost->block / keys, 1.0) : 1);
}

// Bytes that a rank sends and receives per byte of the array.
double sentOf(plan::CollectiveOp op, int64_t ranks) {
  return (op == plan::ALL_REDUCE ? 2 : 1) * static_cast<double>(ranks - 1) / static_cast<double>(ranks);
}

// How many times as long the bytes of each of so many ranks take that transfer at once, as one rank's.
double waitFor(const TransferCost& cost, double ranks) {
  const double part = std::log(ranks) / std::log(static_cast<double>(std::max<int64_t>(cost.atOnce.ranks, 2)));
  return ranks / std::pow(cost.atOnce.times, std::min(part, 1.0));
}

}  // namespace

double seconds(const ComputeCost& costs, const Work& work) {
  double seconds = 0;
  switch (work.kind) {
    case Work::Kind::kNone:
      return 0;
    case Work::Kind::kKernel:
      seconds = std::max(work.bytes / costs.kernels.at(work.bytes), work.flops / costs.operations);
      break;
    case Work::Kind::kGemm:
      seconds = gemmSeconds(costs, work) + (costs.epilogues > 0 ? work.epilogueBytes / costs.epilogues : 0);
      break;
    case Work::Kind::kAttention:
      seconds = attentionSeconds(costs, work);
      break;
    case Work::Kind::kConvolution:
      seconds = gemmSeconds(costs, work) / costs.convolution;
      break;
    case Work::Kind::kOther:
      seconds = work.bytes / costs.moves.at(work.bytes);
      break;
  }
  return costs.overhead + seconds;
}

double Curve::at(double size) const {
  auto above = std::lower_bound(points.begin(), points.end(), size,
                                [](const auto& point, double value) { return point.first < value; });
  if (above == points.begin()) return points.front().second;
  if (above == points.end()) return points.back().second;
  const auto& [x0, y0] = above[-1];
  const auto& [x1, y1] = *above;
  return y0 + (y1 - y0) * std::log(size / x0) / std::log(x1 / x0);
}

Expected<Profile> Profile::withRanks(int64_t ranks) const {
  Profile other = *this;
  other.data_.ranks = ranks;
  if (ranks > 1 && data_.links.empty())
    return Status::error(cat("profile ", data_.name, " is of one rank: it has no \"collectives\" and cannot say what ",
                             ranks, " ranks do; measure one with as many ranks (--ranks ", ranks, ")"));
  const bool network =
      std::any_of(data_.links.begin(), data_.links.end(), [](const LinkCost& link) { return link.network; });
  if (nodes(ranks) > 1 && !network)
    return Status::error(cat("profile ", data_.name, " is one node of ", data_.ranksPerNode,
                             " ranks and knows no network, so it cannot say what ", ranks,
                             " ranks do; take one with a network, such as h100"));
  return other;
}

const ComputeCost& Profile::compute() const {
  // Ranks divide the cores evenly, as sheaf-run does by default.
  const int64_t threads = data_.cores > 0 ? std::max<int64_t>(data_.cores / std::max<int64_t>(data_.ranks, 1), 1) : 1;
  size_t best = 0;
  while (best + 1 < data_.compute.size() && data_.compute[best + 1].threads <= threads) ++best;
  return data_.compute[best];
}

double Profile::share() const {
  if (data_.cores == 0) return 1;
  return std::max(1.0, static_cast<double>(data_.ranks * compute().threads) / static_cast<double>(data_.cores));
}

double Profile::slowdown() const {
  if (data_.cores == 0) return data_.slowdown;
  // Each rank's collectives run on a thread of their own. With cores left for those threads, computation is slowed down
  // as measured. Otherwise it gets the cores that remain, or none.
  const double computing = static_cast<double>(std::min(data_.cores, data_.ranks * compute().threads));
  const double remaining = static_cast<double>(std::max<int64_t>(data_.cores - data_.ranks, 0));
  if (computing <= remaining) return data_.slowdown;
  constexpr double kStandstill = 1e3;
  if (remaining == 0) return kStandstill;
  return (1 + data_.slowdown) * computing / remaining - 1;
}

bool Profile::knows(plan::Transfer::Kind kind) const {
  const bool copies = kind == plan::Transfer::TO_DEVICE || kind == plan::Transfer::TO_HOST;
  return (copies && !isOfGpus()) || costOf(kind);
}

const TransferCost* Profile::costOf(plan::Transfer::Kind kind) const {
  for (const TransferCost& cost : data_.transfers)
    if (cost.kind == kind) return &cost;
  return nullptr;
}

double Profile::seconds(plan::Transfer::Kind kind, uint64_t bytes) const {
  const double size = static_cast<double>(bytes);
  const TransferCost* cost = costOf(kind);
  if (!cost) {
    if (!knows(kind)) return 0;
    // A copy reads the bytes and writes them.
    return (compute().overhead + 2 * size / compute().moves.at(2 * size)) * share();
  }
  const bool ofFiles = kind == plan::Transfer::READ_FILE || kind == plan::Transfer::WRITE_FILE;
  const double sharing = ofFiles ? waitFor(*cost, static_cast<double>(std::min(data_.ranks, data_.ranksPerNode))) : 1;
  return cost->latency + size / cost->bandwidth.at(size) * sharing;
}

double Profile::hostLoad(plan::Transfer::Kind kind, uint64_t bytes) const {
  const double time = seconds(kind, bytes), ranks = static_cast<double>(std::min(data_.ranks, data_.ranksPerNode));
  // Where the device is the host's memory, too, bytes are read and written there.
  // Copies by the ranks of a machine are measured while all of them copy.
  if (!isOfGpus() && !costOf(kind)) return 1;
  if (data_.hostBandwidth == 0 || time == 0) return 0;
  return static_cast<double>(bytes) / time * ranks / data_.hostBandwidth;
}

double Profile::hostUpdateSeconds(const Work& work) const {
  if (!isOfGpus()) return seconds(work) * static_cast<double>(compute().threads);
  const double sharing = static_cast<double>(std::min(data_.ranks, data_.ranksPerNode));
  return work.bytes / (kUpdateBytes * data_.hostUpdates) * sharing;
}

double Profile::hostUpdateLoad() const {
  if (!isOfGpus()) return 1;
  return data_.hostBandwidth > 0 ? std::min(1.0, kUpdateBytes * data_.hostUpdates / data_.hostBandwidth) : 0;
}

std::optional<double> Profile::persistSeconds() const {
  if (!data_.persist) return std::nullopt;
  const double vote = data_.ranks > 1 ? seconds(Transfer{plan::ALL_REDUCE, sizeof(float), data_.ranks}) : 0;
  return data_.persist->seconds + vote;
}

double Profile::fileSlowdown(uint64_t bytes) const {
  const Curve& curve = compute().fileSlowdown;
  if (isOfGpus() || curve.points.empty()) return 0;
  const bool spare = data_.ranks * compute().threads < data_.cores;
  return spare ? 0 : curve.at(static_cast<double>(bytes));
}

double Profile::seconds(const Work& work) const {
  return profile::seconds(compute(), work) * share();
}

double Profile::bestProductRate(plan::ElementType type, bool tf32) const {
  const ComputeCost& costs = compute();
  double best = 0;
  for (const bool transposeA : {false, true})
    for (const bool transposeB : {false, true}) {
      Work work;
      work.type = type, work.tf32 = tf32;
      work.transposeA = transposeA, work.transposeB = transposeB;
      const GemmCost* cost = gemmCost(costs, work);
      if (!cost) continue;
      // Interpolated factors lie between 1 and the measured ones.
      double least = 1;
      for (const GemmFactor& shape : cost->shapes) least = std::min(least, shape.factor);
      best = std::max(best, cost->rate / least * std::max(costs.convolution, 1.0));
    }
  for (const bool gradient : {false, true})
    if (const AttentionCost* cost = attentionCost(costs, type, gradient)) best = std::max(best, cost->rate);
  return best / share();
}

double Profile::bestMemoryBandwidth() const {
  double best = 0;
  for (const Curve* curve : {&compute().kernels, &compute().moves})
    for (const auto& [size, bandwidth] : curve->points) best = std::max(best, bandwidth);
  return best / share();
}

template <typename Visit>
void Profile::forEachLink(const Transfer& transfer, Visit visit) const {
  const bool network = nodes(transfer) > 1;
  auto fits = [&](const LinkCost& link) {
    return link.network == network && (link.op == transfer.op || link.op == plan::COLLECTIVE_OP_UNSPECIFIED);
  };
  // All ranks that take part in one of the groups of neighbours.
  const double ranks = static_cast<double>(transfer.ranks * transfer.stride);
  const double all = std::max(ranks, static_cast<double>(data_.ranks));
  // Uses the entries measured with the nearest number of ranks.
  auto distance = [&](const LinkCost& link) {
    return link.ranks == 0 ? 0 : std::abs(std::log(static_cast<double>(link.ranks) / ranks));
  };
  double nearest = HUGE_VAL;
  for (const LinkCost& link : data_.links)
    if (fits(link)) nearest = std::min(nearest, distance(link));
  for (const LinkCost& link : data_.links)
    if (fits(link) && distance(link) <= nearest)
      // Ranks that share a memory share its bandwidth, those of all groups.
      visit(link, data_.cores > 0 && link.ranks > 0 ? static_cast<double>(link.ranks) / all : 1);
}

double Profile::latencyOf(const LinkCost& link, const Transfer& transfer) const {
  const double between = static_cast<double>(nodes(transfer) - 1);
  const double within = static_cast<double>(transfer.ranks - 1) - between;
  return link.latency + (transfer.op == plan::ALL_REDUCE ? 2 : 1) * (within * link.hop + between * link.networkHop);
}

double Profile::networkShareOf(const LinkCost& link, double part) const {
  if (!link.networkShare.points.empty()) return link.networkShare.at(part);
  return link.bandwidth.at(part) / static_cast<double>(data_.ranksPerNode);
}

double Profile::bandwidthOf(const LinkCost& link, const Transfer& transfer) const {
  const double part = static_cast<double>(transfer.bytes) / static_cast<double>(transfer.ranks);
  const double bandwidth = link.bandwidth.at(part);
  if (!link.network) return bandwidth;
  const double members = std::max(static_cast<double>(data_.ranksPerNode) / static_cast<double>(transfer.stride), 1.0);
  return std::min(bandwidth, members * networkShareOf(link, part));
}

double Profile::seconds(const Transfer& transfer) const {
  if (transfer.ranks <= 1) return compute().overhead;
  const double sent = sentOf(transfer.op, transfer.ranks) * static_cast<double>(transfer.bytes);
  double least = HUGE_VAL;
  forEachLink(transfer, [&](const LinkCost& link, double scale) {
    least = std::min(least, latencyOf(link, transfer) + sent / (bandwidthOf(link, transfer) * scale));
  });
  return least;
}

double Profile::bestLinkBandwidth(int64_t ranks) const {
  double best = 0;
  for (const plan::CollectiveOp op : {plan::ALL_GATHER, plan::REDUCE_SCATTER, plan::ALL_REDUCE})
    forEachLink({op, 0, ranks}, [&](const LinkCost& link, double scale) {
      for (const auto& [size, bandwidth] : link.bandwidth.points) best = std::max(best, bandwidth * scale);
    });
  return best;
}

double Profile::bestNetworkBandwidth() const {
  const double ranks = static_cast<double>(data_.ranksPerNode);
  double best = 0;
  for (const LinkCost& link : data_.links) {
    if (!link.network) continue;
    for (const auto& [size, bandwidth] : link.bandwidth.points) best = std::max(best, bandwidth);
    for (const auto& [size, share] : link.networkShare.points) best = std::max(best, share * ranks);
  }
  return best;
}

}  // namespace sheaf::profile
