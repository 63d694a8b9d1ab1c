// The scheduler against the exact optimum, the lower bound and the baselines, on random small steps.
#include "passes/schedule/Scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "passes/schedule/Bound.h"
#include "passes/schedule/Construct.h"
#include "passes/schedule/Fsdp2.h"
#include "test/passes/schedule/ExactSchedule.h"

namespace sheaf::schedule {
namespace {

// A step of some layers, each a bucket, with ZeRO-3: what the scheduler sees and what a baseline sees.
struct Instance {
  StepModel model;
  BaselineStep baseline;
  uint64_t limit = 0;  // of gathered bytes: the largest bucket always fits
};

class Builder {
 public:
  explicit Builder(uint64_t seed) : random_(seed) {}

  Instance build() {
    layers_ = 2 + random_() % 3;
    std::vector<double> forward, backward, weight, gather, reduce, update;
    double busy = std::uniform_real_distribution<>(0.25, 1.3)(random_);  // of the link, relative to computation
    for (int k = 0; k < layers_; ++k) {
      double size = uniform(1, 6);
      forward.push_back(size * uniform(0.7, 1.3));
      backward.push_back(size * uniform(0.7, 1.3));
      weight.push_back(size * uniform(0.7, 1.3));
      update.push_back(size * uniform(0.05, 0.4));
      double bytes = size * uniform(0.5, 2) * busy;
      gather.push_back(bytes), reduce.push_back(bytes);
    }
    std::vector<uint32_t> f(layers_), b(layers_), w(layers_), g(layers_), h(layers_), r(layers_), u(layers_);
    for (int k = 0; k < layers_; ++k) {
      g[k] = addGather(gather[k]);
      f[k] = add(Node::Kind::kCompute, forward[k]);
      uses(f[k], g[k]);
      if (k > 0) after(f[k - 1], f[k]);
    }
    uint32_t loss = f[layers_ - 1];
    for (int k = layers_ - 1; k >= 0; --k) {
      // The last layer stays gathered.
      h[k] = k == layers_ - 1 || k == 0 ? g[k] : addGather(gather[k]);
      uint32_t incoming = k == layers_ - 1 ? loss : b[k + 1];
      if (k > 0) {
        b[k] = add(Node::Kind::kCompute, backward[k]);
        after(incoming, b[k]), uses(b[k], h[k]);
      }
      w[k] = add(Node::Kind::kCompute, weight[k]);
      after(incoming, w[k]);
      r[k] = add(Node::Kind::kReduce, reduce[k]);
      after(w[k], r[k]), after(r[k], w[k], 1);
      u[k] = add(Node::Kind::kAfterReduction, update[k]);
      after(r[k], u[k]), after(u[k], g[k], 1), after(g[k], u[k]);
      if (h[k] != g[k]) after(u[k], h[k], 1), after(h[k], u[k]);
    }
    // The baselines' view: the same computation without updates, in the same order; each layer a block.
    Instance instance;
    std::vector<uint32_t> place(model_.nodes.size(), kNone);
    for (uint32_t i = 0; i < model_.nodes.size(); ++i) {
      if (model_.nodes[i].kind != Node::Kind::kCompute) continue;
      place[i] = instance.baseline.compute.size();
      instance.baseline.compute.push_back(model_.nodes[i].seconds);
    }
    instance.baseline.liveBytes.assign(instance.baseline.compute.size(), 0);
    instance.baseline.backward = layers_;
    instance.baseline.ranks = 2;
    instance.baseline.updateSecondsPerElement = 2 / kUnits;
    instance.baseline.transferSeconds = [](const profile::Transfer& t) {
      return static_cast<double>(t.bytes) / kUnits;
    };
    for (int k = 0; k < layers_; ++k) {
      BaselineParameter parameter;
      parameter.block = parameter.module = k;
      parameter.elements = static_cast<uint64_t>(update[k] * kUnits);
      parameter.bytes = static_cast<uint64_t>(gather[k] * kUnits);
      parameter.gradientBytes = static_cast<uint64_t>(reduce[k] * kUnits);
      parameter.uses.push_back(place[f[k]]);
      if (k > 0) parameter.uses.push_back(place[b[k]]);
      parameter.firstGradient = parameter.gradientComplete = place[w[k]];
      instance.baseline.parameters.push_back(parameter);
    }
    uint64_t largest = 0;
    for (const Storage& buffer : model_.buffers) largest = std::max(largest, buffer.bytes);
    instance.limit = static_cast<uint64_t>(static_cast<double>(largest) * uniform(1, 2.2));
    instance.model = std::move(model_);
    return instance;
  }

 private:
  static constexpr double kUnits = 1e6;  // bytes and elements a second

  double uniform(double low, double high) { return std::uniform_real_distribution<>(low, high)(random_); }
  uint32_t add(Node::Kind kind, double seconds) {
    Node node;
    node.kind = kind;
    node.seconds = seconds;
    bool link = kind == Node::Kind::kGather || kind == Node::Kind::kReduce;
    node.unit = link ? Unit::kLink : Unit::kCompute;
    node.stream = link;
    model_.nodes.push_back(node);
    return model_.nodes.size() - 1;
  }
  uint32_t addGather(double seconds) {
    uint32_t gather = add(Node::Kind::kGather, seconds);
    model_.buffers.push_back({uint64_t{128} * static_cast<uint64_t>(1 + 1000 * seconds)});
    access(gather, model_.buffers.size() - 1, true);
    return gather;
  }
  void uses(uint32_t node, uint32_t gather) {
    access(node, model_.nodes[gather].accesses[0].buffer, false);
    after(gather, node), after(node, gather, 1);
  }
  void access(uint32_t node, uint32_t buffer, bool write) {
    model_.nodes[node].accesses.push_back({buffer, 0, model_.buffers[buffer].bytes, {}, 0, write});
  }
  void after(uint32_t from, uint32_t to, uint32_t distance = 0) { model_.dependences.push_back({from, to, distance}); }

  std::mt19937_64 random_;
  int layers_ = 0;
  StepModel model_;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Bound boundOf(const StepModel& model, uint64_t limit) {
  Loop loop;
  for (const Node& node : model.nodes) loop.ops.push_back({node.unit, node.stream, node.seconds});
  const MemoryBound memory = limit > 0 ? memoryBoundOf(model, model.dependences, limit) : MemoryBound{};
  return schedule::boundOf(loop, model.dependences, limit > 0 ? &memory : nullptr);
}

// The precision of the exact search.
constexpr double kExact = 1e-4;

// How far our schedules of so many random steps are from their optima.
struct Gaps {
  std::vector<double> ours, baselines, bounds;
  int64_t boundByMemory = 0;
};

Gaps gapsOf(int64_t instances, bool limited) {
  Gaps gaps;
  int64_t nodes = 0;
  for (int64_t seed = 1; seed <= instances; ++seed) {
    Instance instance = Builder(seed).build();
    const StepModel& model = instance.model;
    const uint64_t limit = limited ? instance.limit : 0;
    SchedulerOptions options;
    options.memoryLimit = limit;
    Scheduled ours = schedule(model, options);
    EXPECT_TRUE(respects(model, ours.order)) << "instance " << seed;
    EXPECT_LE(limited ? ours.bytes : 0, limit) << "instance " << seed;
    double period = ours.timeline.period;
    double optimum = exactPeriod(model, limit, nodes);
    Bound bound = boundOf(model, limit);
    EXPECT_LE(bound.seconds, optimum * (1 + 1e-9)) << "instance " << seed;
    EXPECT_LE(optimum, period * (1 + kExact)) << "instance " << seed;
    gaps.bounds.push_back(1 - bound.seconds / optimum);
    gaps.boundByMemory += bound.by == BoundBy::kMemory;
    gaps.ours.push_back(period / optimum - 1);
    EXPECT_LE(gaps.ours.back(), 0.05) << "instance " << seed << ": " << period << " against " << optimum;
    if (limited) continue;
    // As the model does, it keeps the last layer gathered.
    Fsdp2Knobs knobs;
    knobs.reshardTo = instance.baseline.ranks;
    knobs.keptGroups = 1;
    const BaselineSchedule fsdp2 = fsdp2Schedule(instance.baseline, knobs);
    gaps.baselines.push_back(playBaselineSchedule(instance.baseline, fsdp2).seconds / optimum - 1);
    EXPECT_GE(gaps.baselines.back(), -1e-3) << "instance " << seed;
  }
  std::cout << "gap to the optimum: median " << median(gaps.ours) << ", worst "
            << *std::max_element(gaps.ours.begin(), gaps.ours.end()) << ", optimal "
            << std::count_if(gaps.ours.begin(), gaps.ours.end(), [](double g) { return g < 2e-4; }) << " of "
            << instances << "; bound below the optimum by " << median(gaps.bounds) << ", by memory "
            << gaps.boundByMemory << "; " << nodes << " nodes searched\n";
  return gaps;
}

TEST(Schedule, IsNearTheOptimumOfSmallSteps) {
  Gaps gaps = gapsOf(240, false);
  std::cout << "FSDP2's schedule is above the optimum by " << median(gaps.baselines) << " in the median\n";
  EXPECT_LE(median(gaps.ours), 2e-4);
  EXPECT_EQ(gaps.boundByMemory, 0);
  EXPECT_GE(median(gaps.baselines), 0.10);
}

// The most gathers that are issued, and whose first use is not, at any place of the order.
int64_t mostAhead(const StepModel& model, const Order& order) {
  std::vector<bool> waiting = order.carried;
  int64_t ahead = std::count(waiting.begin(), waiting.end(), true), most = ahead;
  for (uint32_t i : order.nodes) {
    const Node& node = model.nodes[i];
    for (const Access& access : node.accesses)
      for (uint32_t gather = 0; gather < model.nodes.size(); ++gather)
        if (node.kind == Node::Kind::kCompute && waiting[gather] &&
            model.nodes[gather].accesses[0].buffer == access.buffer)
          waiting[gather] = false, --ahead;
    if (node.kind == Node::Kind::kGather) waiting[i] = true, most = std::max(most, ++ahead);
  }
  return most;
}

TEST(Schedule, GathersNoFurtherAheadThanAsked) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    const StepModel model = Builder(seed).build().model;
    const Constructor constructor(model);
    for (int64_t ahead = 0; ahead < 3; ++ahead) {
      const Order order = constructor.construct({.maxGathersAhead = ahead});
      ASSERT_TRUE(respects(model, order)) << "instance " << seed;
      // The one in use next counts besides.
      EXPECT_LE(mostAhead(model, order), ahead + 1) << "instance " << seed;
    }
  }
}

TEST(Schedule, IsNearTheOptimumUnderAMemoryLimit) {
  Gaps gaps = gapsOf(120, true);
  EXPECT_LE(median(gaps.ours), 2e-4);
  EXPECT_GE(gaps.boundByMemory, 25);
}

// Parameters that are gathered for the forward pass and again for the backward pass, and computation between the two
// that needs the room.
StepModel gatheredTwice() {
  StepModel model;
  model.buffers = {{0, true}, {100}, {100}, {100}, {10}};  // shard, two gathered buckets, scratch, activation
  auto add = [&](Node::Kind kind, double seconds, std::vector<Access> accesses) {
    Node node;
    node.kind = kind, node.seconds = seconds, node.accesses = std::move(accesses);
    const bool link = kind == Node::Kind::kGather || kind == Node::Kind::kReduce;
    node.unit = link ? Unit::kLink : Unit::kCompute, node.stream = link;
    model.nodes.push_back(std::move(node));
  };
  auto read = [](uint32_t buffer) { return Access{buffer, 0, 100, {}, 0, false}; };
  auto write = [](uint32_t buffer) { return Access{buffer, 0, 100, {}, 0, true}; };
  add(Node::Kind::kGather, 2, {read(0), write(1)});
  add(Node::Kind::kCompute, 1, {read(1), write(4)});
  add(Node::Kind::kCompute, 1, {read(4), write(3)});
  add(Node::Kind::kGather, 2, {read(0), write(2)});
  add(Node::Kind::kCompute, 1, {read(2), read(4)});
  add(Node::Kind::kReduce, 1, {});
  add(Node::Kind::kAfterReduction, 0.5, {write(0)});
  model.dependences = {{0, 1, 0}, {1, 2, 0}, {2, 4, 0}, {3, 4, 0}, {4, 5, 0}, {5, 6, 0}, {6, 0, 1}, {6, 3, 1}};
  return model;
}

TEST(Bound, UnderALimitCountsWhatItForces) {
  const StepModel model = gatheredTwice();
  // With 110 bytes in use only 40 of the first gather's 100 bytes can stay, and the second's do not fit.
  const MemoryBound memory = memoryBoundOf(model, model.dependences, 150);
  EXPECT_DOUBLE_EQ(memory.forced[3], 1.2);
  EXPECT_EQ(memory.forced[0], 0);
  ASSERT_FALSE(memory.excluded[3].empty());
  EXPECT_TRUE(memory.excluded[3][1] && memory.excluded[3][2]);
  EXPECT_FALSE(memory.excluded[3][4]);
  const Bound bound = boundOf(model, 150);
  EXPECT_STREQ(boundByName(bound.by), "memory");
  EXPECT_DOUBLE_EQ(bound.seconds, 8.5);  // one after the other
  // With room for both nothing is forced, and the second gather runs under the forward pass.
  const Bound free = boundOf(model, 210);
  EXPECT_STRNE(boundByName(free.by), "memory");
  EXPECT_LT(free.seconds, 8);
  EXPECT_DOUBLE_EQ(free.seconds, boundOf(model, 0).seconds);
  // What no order keeps tells nothing.
  EXPECT_EQ(memoryBoundOf(model, model.dependences, 100).forced[3], 0);
  // What is read into the host's memory for an update there is no second gather to the device.
  StepModel onHost = model;
  onHost.buffers[2].onDevice = false;
  EXPECT_EQ(memoryBoundOf(onHost, onHost.dependences, 150).forced[3], 0);
}

}  // namespace
}  // namespace sheaf::schedule
