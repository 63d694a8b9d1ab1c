// The exact search, the lower bound and the scheduler against every order of tiny steps.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <random>

#include "passes/schedule/Bound.h"
#include "passes/schedule/Scheduler.h"
#include "test/passes/schedule/ExactSchedule.h"
#include "test/passes/schedule/ExhaustiveSchedule.h"

namespace sheaf::schedule {
namespace {

constexpr double kExact = 3e-4;  // the precision of the exact search, and of a period that is an average over rounds

struct Tiny {
  StepModel model;
  uint64_t limit = 0;  // of what gathers hold: the largest always fits
};

// A random step: computation, gathers that computation reads, reductions, and dependences within and across rounds.
class Builder {
 public:
  Builder(uint64_t seed, size_t mostNodes) : random_(seed) {
    const size_t count = 4 + random_() % (mostNodes - 3);
    for (size_t i = 0; i < count; ++i) addNode(i + 1 == count);
    for (uint32_t to = 0; to < count; ++to)
      for (uint32_t from = 0; from < count; ++from) {
        if (from < to && one(0.3)) after(from, to, 0);
        if (from != to && one(0.12)) after(from, to, 1);
      }
    for (uint32_t gather = 0; gather < count; ++gather) addReaders(gather);
    for (uint32_t transfer = 0; transfer < count; ++transfer) connect(transfer);
    uint64_t largest = 0, sum = 0;
    for (const Storage& buffer : tiny_.model.buffers) largest = std::max(largest, buffer.bytes), sum += buffer.bytes;
    tiny_.limit = largest + static_cast<uint64_t>(static_cast<double>(sum - largest) * uniform(0, 1));
  }
  Tiny build() { return std::move(tiny_); }

 private:
  double uniform(double low, double high) { return std::uniform_real_distribution<>(low, high)(random_); }
  bool one(double probability) { return uniform(0, 1) < probability; }
  void after(uint32_t from, uint32_t to, uint32_t distance) { tiny_.model.dependences.push_back({from, to, distance}); }

  // Three transfers at most, for the oracle's sake, two of which are gathers; and some computation.
  void addNode(bool last) {
    Node node;
    node.seconds = std::round(uniform(1, 8) * 4) / 4;
    const bool transfer = transfers_ < 3 && !(last && transfers_ == tiny_.model.nodes.size()) && one(0.5);
    if (transfer) {
      ++transfers_;
      node.kind = gathers_ < 2 && one(0.6) ? Node::Kind::kGather : Node::Kind::kReduce;
      node.unit = Unit::kLink, node.stream = 1;
    }
    if (node.kind == Node::Kind::kGather) {
      ++gathers_;
      tiny_.model.buffers.push_back({uint64_t{128} * (1 + random_() % 50)});
      node.accesses.push_back(
          {static_cast<uint32_t>(tiny_.model.buffers.size() - 1), 0, tiny_.model.buffers.back().bytes, {}, 0, true});
    }
    tiny_.model.nodes.push_back(std::move(node));
  }

  // A gather may overwrite its buffer when those that read it are done with it.
  void addReaders(uint32_t gather) {
    std::vector<Node>& nodes = tiny_.model.nodes;
    if (nodes[gather].kind != Node::Kind::kGather) return;
    const Access written = nodes[gather].accesses.front();
    for (uint32_t reader = gather + 1; reader < nodes.size(); ++reader) {
      if (nodes[reader].unit != Unit::kCompute || !one(0.6)) continue;
      nodes[reader].accesses.push_back({written.buffer, 0, written.end, {}, 0, false});
      after(gather, reader, 0);
      after(reader, gather, 1);
    }
  }

  // A transfer takes what some computation made, in its round or the one before, and some computation needs it.
  void connect(uint32_t transfer) {
    const std::vector<Node>& nodes = tiny_.model.nodes;
    if (nodes[transfer].unit != Unit::kLink) return;
    std::vector<uint32_t> computations;
    for (uint32_t i = 0; i < nodes.size(); ++i)
      if (nodes[i].unit == Unit::kCompute) computations.push_back(i);
    const uint32_t source = computations[random_() % computations.size()];
    const uint32_t user = computations[random_() % computations.size()];
    after(source, transfer, source > transfer);
    after(transfer, user, user < transfer);
  }

  std::mt19937_64 random_;
  size_t transfers_ = 0, gathers_ = 0;
  Tiny tiny_;
};

double boundOf(const StepModel& model, uint64_t limit) {
  Loop loop;
  loop.slowdown = model.slowdown;
  for (const Node& node : model.nodes) loop.ops.push_back({node.unit, node.stream, node.seconds});
  const MemoryBound memory = limit > 0 ? memoryBoundOf(model, model.dependences, limit) : MemoryBound{};
  return schedule::boundOf(loop, model.dependences, limit > 0 ? &memory : nullptr).seconds;
}

struct Gaps {
  std::vector<double> scheduler, bound;
  int64_t orders = 0, nodes = 0;

  void print(const char* what) const {
    auto at = [](std::vector<double> values, double part) {
      std::sort(values.begin(), values.end());
      return values[static_cast<size_t>(part * static_cast<double>(values.size() - 1))];
    };
    std::cout << what << ": scheduler above the optimum by " << at(scheduler, 0.5) << " in the median, "
              << at(scheduler, 1) << " at most, optimal " << optimal() << " of " << scheduler.size()
              << "; bound below it by " << at(bound, 0.5) << " in the median; " << orders << " orders played, " << nodes
              << " nodes searched\n";
  }
  int64_t optimal() const {
    return std::count_if(scheduler.begin(), scheduler.end(), [](double gap) { return gap < kExact; });
  }
  // These steps are unlike training: gathers wait for reductions, transfers for each other. schedule_test has steps
  // that are like it.
  bool mostAreOptimal() const { return optimal() * 10 >= static_cast<int64_t>(scheduler.size()) * 9; }
};

TEST(Oracle, TheExactSearchFindsTheBestOfAllOrders) {
  Gaps gaps;
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    const Tiny tiny = Builder(seed, 7).build();
    const double optimum = exhaustivePeriod(tiny.model, 0, gaps.orders);
    ASSERT_TRUE(std::isfinite(optimum)) << "instance " << seed;
    EXPECT_NEAR(exactPeriod(tiny.model, 0, gaps.nodes), optimum, kExact * optimum) << "instance " << seed;
    const double bound = boundOf(tiny.model, 0), period = schedule(tiny.model, {}).timeline.period;
    EXPECT_LE(bound, optimum * (1 + kExact)) << "instance " << seed;
    EXPECT_GE(period, optimum * (1 - kExact)) << "instance " << seed;
    gaps.bound.push_back(1 - bound / optimum);
    gaps.scheduler.push_back(period / optimum - 1);
  }
  gaps.print("no limit");
  EXPECT_TRUE(gaps.mostAreOptimal());
}

TEST(Oracle, TheExactSearchFindsTheBestWithinAMemoryLimit) {
  Gaps gaps;
  for (uint64_t seed = 1; seed <= 240; ++seed) {
    const Tiny tiny = Builder(seed, 6).build();
    const double optimum = exhaustivePeriod(tiny.model, tiny.limit, gaps.orders);
    const double exact = exactPeriod(tiny.model, tiny.limit, gaps.nodes);
    ASSERT_EQ(std::isfinite(exact), std::isfinite(optimum)) << "instance " << seed;
    if (!std::isfinite(optimum)) continue;
    EXPECT_NEAR(exact, optimum, kExact * optimum) << "instance " << seed;
    const double bound = boundOf(tiny.model, tiny.limit);
    EXPECT_LE(bound, optimum * (1 + kExact)) << "instance " << seed;
    SchedulerOptions options;
    options.memoryLimit = tiny.limit;
    const Scheduled scheduled = schedule(tiny.model, options);
    if (scheduled.bytes > tiny.limit) continue;
    EXPECT_GE(scheduled.timeline.period, optimum * (1 - kExact)) << "instance " << seed;
    gaps.bound.push_back(1 - bound / optimum);
    gaps.scheduler.push_back(scheduled.timeline.period / optimum - 1);
  }
  gaps.print("memory limit");
  EXPECT_TRUE(gaps.mostAreOptimal());
}

// While a transfer runs, computation is slower; the exact search does not model that.
TEST(Oracle, TheBoundHoldsUnderSlowdown) {
  Gaps gaps;
  for (uint64_t seed = 1; seed <= 240; ++seed) {
    Tiny tiny = Builder(seed, 7).build();
    tiny.model.slowdown = 0.1 + 0.1 * static_cast<double>(seed % 5);
    const double optimum = exhaustivePeriod(tiny.model, 0, gaps.orders);
    const double bound = boundOf(tiny.model, 0), period = schedule(tiny.model, {}).timeline.period;
    EXPECT_LE(bound, optimum * (1 + kExact)) << "instance " << seed;
    gaps.bound.push_back(1 - bound / optimum);
    gaps.scheduler.push_back(period / optimum - 1);
  }
  gaps.print("slowdown");
  EXPECT_TRUE(gaps.mostAreOptimal());
}

}  // namespace
}  // namespace sheaf::schedule
