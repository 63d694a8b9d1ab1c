// Transfers between spaces in the simulator, the bound and the scheduler.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "passes/schedule/Bound.h"
#include "passes/schedule/PlanLoop.h"
#include "passes/schedule/Scheduler.h"
#include "passes/schedule/ShippedProfiles.h"

namespace sheaf::schedule {
namespace {

using ::testing::HasSubstr;

Loop loopFor(std::initializer_list<Op> ops) {
  Loop loop;
  loop.ops = ops;
  return loop;
}

TEST(Transfers, EachKindIsAResource) {
  const Loop loop = loopFor({{Unit::kCompute, 0, 1},
                             {Unit::kToDevice, 1, 2},
                             {Unit::kToHost, 2, 3},
                             {Unit::kFileIn, 3, 4},
                             {Unit::kFileOut, 4, 5},
                             {Unit::kLink, 5, 1}});
  EXPECT_DOUBLE_EQ(play(loop).period, 5);
  const Bound bound = boundOf(loop, {});
  EXPECT_DOUBLE_EQ(bound.toDevice, 2);
  EXPECT_DOUBLE_EQ(bound.toHost, 3);
  EXPECT_DOUBLE_EQ(bound.fileIn, 4);
  EXPECT_DOUBLE_EQ(bound.fileOut, 5);
  EXPECT_DOUBLE_EQ(bound.seconds, 5);
  EXPECT_STREQ(boundByName(bound.by), "file_out");
  EXPECT_DOUBLE_EQ(play(loop).unitSeconds[size_t(Unit::kFileIn)], 4);
  // Two streams of one kind share it.
  EXPECT_DOUBLE_EQ(play(loopFor({{Unit::kToHost, 1, 2}, {Unit::kToHost, 2, 2}})).period, 4);
}

TEST(Transfers, UpdatesOnTheHostAreAResource) {
  Loop loop = loopFor({{Unit::kCompute, 0, 1}, {Unit::kHostCompute, 1, 2, 0.75}, {Unit::kToHost, 2, 1, 0.5}});
  EXPECT_DOUBLE_EQ(boundOf(loop, {}).hostCompute, 2);
  EXPECT_STREQ(boundByName(boundOf(loop, {}).by), "host compute");
  // They share the host's memory with transfers.
  EXPECT_DOUBLE_EQ(boundOf(loop, {}).hostMemory, 2);
  EXPECT_DOUBLE_EQ(play(loop).period, 2.25);
  // And on CPU ranks the processors with computation.
  loop = loopFor({{Unit::kCompute, 0, 4}, {Unit::kHostCompute, 1, 2}});
  loop.copySlowdown = 1;
  EXPECT_DOUBLE_EQ(play(loop).period, 5);
  EXPECT_DOUBLE_EQ(boundOf(loop, {}).compute, 5);
}

// A shipped profile that lacks these keys.
profile::Profile without(const char* name, const std::vector<std::string>& keys) {
  const json::Value written = loadProfile(name)->toJson();
  json::Object root;
  for (const json::Member& member : written.object()->members())
    if (std::find(keys.begin(), keys.end(), member.first) == keys.end()) root.set(member.first, member.second);
  return *profile::Profile::parse(json::write(root), name);
}

TEST(Transfers, UpdatesOnTheHostTakeItsRate) {
  const profile::Profile h100 = *loadProfile("h100");
  profile::Work adam;
  adam.bytes = 28e9;  // of 10^9 elements
  EXPECT_TRUE(h100.knowsHostUpdates());
  const profile::Profile one = *h100.withRanks(1), eight = *h100.withRanks(8);
  EXPECT_NEAR(one.hostUpdateSeconds(adam), 1e9 / h100.hostUpdates(), 1e-9);
  EXPECT_NEAR(eight.hostUpdateSeconds(adam), 8e9 / h100.hostUpdates(), 1e-9);
  EXPECT_GT(one.hostUpdateLoad(), 0.9);
  EXPECT_FALSE(without("h100", {"host_updates"}).knowsHostUpdates());
  const profile::Profile cpu = *loadProfile("cpu");
  EXPECT_TRUE(cpu.knowsHostUpdates());
  EXPECT_DOUBLE_EQ(cpu.hostUpdateLoad(), 1);
}

TEST(Transfers, ShareTheHostsMemory) {
  // Each uses two thirds of it alone: together they need four thirds.
  Loop loop = loopFor({{Unit::kToDevice, 1, 3, 2.0 / 3}, {Unit::kToHost, 2, 3, 2.0 / 3}, {Unit::kCompute, 0, 1}});
  EXPECT_DOUBLE_EQ(play(loop).period, 4);
  const Bound bound = boundOf(loop, {});
  EXPECT_DOUBLE_EQ(bound.hostMemory, 4);
  EXPECT_STREQ(boundByName(bound.by), "host memory");
  loop.ops[1].hostLoad = 1.0 / 3;
  EXPECT_DOUBLE_EQ(play(loop).period, 3);
}

TEST(Transfers, SlowComputationDownByTheirKind) {
  Loop loop = loopFor({{Unit::kCompute, 0, 4}, {Unit::kToHost, 1, 2}});
  EXPECT_DOUBLE_EQ(play(loop).period, 4);
  loop.copySlowdown = 1;
  EXPECT_DOUBLE_EQ(play(loop).period, 5);
  EXPECT_DOUBLE_EQ(boundOf(loop, {}).compute, 5);
  loop.ops[1].unit = Unit::kFileOut;
  EXPECT_DOUBLE_EQ(play(loop).period, 4);
  loop.fileSlowdown = 1;
  EXPECT_DOUBLE_EQ(play(loop).period, 5);
}

// Buckets, each fetched, updated and stored; 100 bytes on the device while it is there.
StepModel updates(int count) {
  StepModel model;
  auto add = [&](Node::Kind kind, Unit unit, uint32_t stream, double seconds, std::vector<Access> accesses) {
    Node node;
    node.kind = kind, node.unit = unit, node.stream = stream, node.seconds = seconds;
    node.instruction = static_cast<uint32_t>(model.nodes.size());
    node.accesses = std::move(accesses);
    model.nodes.push_back(std::move(node));
    return static_cast<uint32_t>(model.nodes.size() - 1);
  };
  for (int i = 0; i < count; ++i) {
    const uint32_t home = static_cast<uint32_t>(model.buffers.size()), image = home + 1;
    model.buffers.push_back({1280, true, false});
    model.buffers.push_back({1280, false, true});
    const uint32_t fetch =
        add(Node::Kind::kGather, Unit::kToDevice, 1, 1, {{home, 0, 1280, {}, 0, false}, {image, 0, 1280, {}, 0, true}});
    const uint32_t update = add(Node::Kind::kCompute, Unit::kCompute, 0, 2, {{image, 0, 1280, {}, 0, true}});
    const uint32_t store =
        add(Node::Kind::kStore, Unit::kToHost, 2, 1, {{image, 0, 1280, {}, 0, false}, {home, 0, 1280, {}, 0, true}});
    model.dependences.push_back({store, fetch, 1});   // what was stored
    model.dependences.push_back({update, fetch, 1});  // the image's bytes
    model.dependences.push_back({fetch, update, 0});
    model.dependences.push_back({store, update, 1});
    model.dependences.push_back({update, store, 0});
  }
  return model;
}

// Computation waits for a store once the next one has been issued, and then its bytes are free.
TEST(Transfers, StoresFreeTheirBytes) {
  const StepModel model = updates(6);
  const Scheduled scheduled = schedule(model, {});
  EXPECT_TRUE(respects(model, scheduled.order));
  // Hidden under computation, but for what nothing can hide.
  EXPECT_NEAR(scheduled.timeline.period, 12, 1e-6);
  // One is in use, one or two come, one or two go; homes do not count.
  EXPECT_LE(scheduled.bytes, 5 * 1280u);
  EXPECT_GE(scheduled.bytes, 2 * 1280u);
  // Under a limit no more than it allows are there.
  const Scheduled tight = schedule(model, {.memoryLimit = 3 * 1280});
  EXPECT_LE(tight.bytes, 3 * 1280u);
  // Without the stores' guards the image of every bucket would be in use until the end.
  StepModel unguarded = model;
  for (Node& node : unguarded.nodes)
    if (node.kind == Node::Kind::kStore) node.kind = Node::Kind::kOther;
  EXPECT_GT(liveBytes(unguarded, scheduled.order), scheduled.bytes);
  const Loop loop = loopOf(model, scheduled.order);
  EXPECT_GT(loop.dependences.size(), loopOf(unguarded, scheduled.order).dependences.size());
}

TEST(Transfers, CostsAreKnownOrRefused) {
  auto cpu = loadProfile("cpu");
  ASSERT_TRUE(cpu.ok());
  using plan::Transfer;
  for (Transfer::Kind kind : {Transfer::TO_DEVICE, Transfer::TO_HOST, Transfer::READ_FILE, Transfer::WRITE_FILE}) {
    ASSERT_TRUE(cpu->knows(kind));
    EXPECT_GT(cpu->seconds(kind, 1 << 20), 0);
    EXPECT_GT(cpu->seconds(kind, 2 << 20), cpu->seconds(kind, 1 << 20));
    EXPECT_GT(cpu->hostLoad(kind, 1 << 20), 0);
  }
  // The ranks of a machine share its disk; four at once move 1.6 times as much as one.
  auto one = cpu->withRanks(1);
  ASSERT_TRUE(one.ok());
  EXPECT_NEAR(cpu->seconds(Transfer::READ_FILE, 1 << 24) / one->seconds(Transfer::READ_FILE, 1 << 24), 4 / 1.6, 0.1);
  const profile::Profile unknown = without("gb200", {"transfers"});
  plan::Plan plan;
  plan.set_ranks(1);
  plan.add_streams("compute");
  for (plan::Buffer::Space space : {plan::Buffer::DEVICE, plan::Buffer::HOST}) {
    plan.add_buffers()->set_space(space);
    plan.mutable_buffers()->rbegin()->set_bytes(128);
  }
  EXPECT_TRUE(checkCosts(plan, unknown).ok());
  plan::Instruction& transfer = *plan.add_body();
  transfer.mutable_transfer()->set_kind(Transfer::TO_DEVICE);
  for (uint32_t buffer : {1u, 0u}) {
    plan::Operand& operand = *transfer.add_operands();
    operand.set_buffer(buffer);
    operand.set_bytes(128);
  }
  EXPECT_TRUE(checkCosts(plan, *cpu).ok());
  EXPECT_THAT(checkCosts(plan, unknown).message(),
              HasSubstr("profile gb200 does not say what the plan's transfers of kind to_device cost"));
  // What it is in the model: fetched like a gather; the home does not count.
  const StepModel model = modelOf(plan, *one);
  ASSERT_EQ(model.nodes.size(), 1u);
  EXPECT_EQ(model.nodes[0].kind, Node::Kind::kGather);
  EXPECT_EQ(model.nodes[0].unit, Unit::kToDevice);
  EXPECT_EQ(liveBytes(model, orderOf(model)), 128u);
}

TEST(Transfers, MakingAStepDurableTakesWhatTheProfileSays) {
  auto cpu = loadProfile("cpu");
  ASSERT_TRUE(cpu.ok());
  const json::Value written = cpu->toJson();
  json::Object root = *written.object();
  root.set("persist", json::Object{{"seconds", 0.002}, {"source", "test"}});
  auto known = profile::Profile::parse(json::write(root), "known");
  ASSERT_TRUE(known.ok()) << known.status().message();
  const std::string text = json::write(known->toJson());
  EXPECT_EQ(json::write(profile::Profile::parse(text, "again")->toJson()), text);
  for (int64_t ranks : {1, 2}) {
    plan::Plan plan;
    plan.set_ranks(ranks);
    plan.add_streams("compute");
    plan.add_streams("file_out");
    plan::Instruction& persist = *plan.add_body();
    persist.set_stream(1);
    persist.mutable_persist();
    auto without = cpu->withRanks(ranks), with = known->withRanks(ranks);
    EXPECT_FALSE(without->persistSeconds());
    const PlanLoop unpriced = loopOf(plan, *without), priced = loopOf(plan, *with);
    ASSERT_EQ(priced.loop.ops.size(), 1u);
    EXPECT_EQ(unpriced.loop.ops[0].seconds, 0);
    // The vote is an all-reduce of a number.
    const double vote = ranks > 1 ? with->seconds(profile::Transfer{plan::ALL_REDUCE, 4, ranks}) : 0;
    EXPECT_EQ(ranks > 1, vote > 0);
    EXPECT_DOUBLE_EQ(priced.loop.ops[0].seconds, 0.002 + vote);
    // No order of a step's instructions beats it.
    EXPECT_DOUBLE_EQ(boundOf(priced.loop, {}).fileOut, 0.002 + vote);
    EXPECT_DOUBLE_EQ(play(priced.loop).period, 0.002 + vote);
  }
}

// A loop has one slowdown for all transfers of files, by which computation loses as much as to each by itself.
TEST(Transfers, OfFilesSlowComputationDownByTheirSizes) {
  const json::Value written = loadProfile("cpu")->toJson();
  // The first entry is that of one thread a rank.
  json::Object entry, root;
  for (const auto& [key, value] : written.object()->find("compute")->array()->front().object()->members())
    if (key != "files") entry.set(key, value);
  entry.set("files", json::Object{{"slowdown", json::Array{json::Array{65536, 2.0}, json::Array{1048576, 0.5}}},
                                  {"source", "test"}});
  for (const auto& [key, value] : written.object()->members())
    root.set(key, key == "compute" ? json::Value(json::Array{entry}) : value);
  const profile::Profile profile = *profile::Profile::parse(json::write(root), "test");
  plan::Plan plan;
  plan.set_ranks(profile.ranks());
  plan.add_streams("file_in");
  plan.add_buffers()->set_bytes(1 << 20);
  auto slowdown = [&] { return loopOf(plan, profile).loop.fileSlowdown; };
  EXPECT_EQ(slowdown(), 0);
  double seconds = 0, lost = 0;
  for (const auto& [bytes, value] : {std::pair{65536, 2.0}, std::pair{1048576, 0.5}}) {
    plan::Instruction& transfer = *plan.add_body();
    transfer.mutable_transfer()->set_kind(plan::Transfer::READ_FILE);
    for (int i = 0; i < 2; ++i) transfer.add_operands()->set_bytes(static_cast<uint64_t>(bytes));
    const double each = profile.seconds(plan::Transfer::READ_FILE, static_cast<uint64_t>(bytes));
    seconds += each, lost += each * value / (1 + value);
    EXPECT_NEAR(slowdown(), lost / (seconds - lost), 1e-9);
  }
  EXPECT_EQ(loopOf(plan, *loadProfile("h100")).loop.fileSlowdown, 0);
}

}  // namespace
}  // namespace sheaf::schedule
