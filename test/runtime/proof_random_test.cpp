// What the proof says of any number of steps, against runs of many steps: random small plans, and an oracle that shares
// no code with the proof.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "runtime/plan/Dataflow.h"
#include "runtime/plan/InitialisedReads.h"
#include "runtime/plan/OperandOverlap.h"
#include "runtime/plan/Proof.h"
#include "runtime/plan/Unrolled.h"
#include "test/mutants/Oracle.h"
#include "test/runtime/SmallPlan.h"

namespace sheaf {
namespace {

using plan::Plan;
using Section = google::protobuf::RepeatedPtrField<plan::Instruction>;

constexpr int kSteps = 6;

// Two states, a constant and three buffers of 256 bytes that kernels read and write whole, in pieces, or each rank in a
// part of its own, and copies every second element of, on one or two streams, with events. With nodes ranks have parts
// that are shards, or all shards of their piece.
class RandomPlan {
 public:
  RandomPlan(uint32_t seed, int streams, bool nodes = false) : random_(seed), streams_(streams) {
    plan.set_ranks(1 << below(3));
    if (nodes) {
      plan.set_ranks(4 << below(2));
      plan.set_ranks_per_node(2 << below(2));
      plan.add_communicator_axes(plan::WORLD);
    }
    plan.set_communicators(1);
    plan.set_events(kEvents);
    for (int s = 0; s < streams; ++s) plan.add_streams(std::string(1, static_cast<char>('a' + s)));
    for (const char* name : {"s", "m", "c", "t", "u", "v"}) {
      plan::Buffer& buffer = *plan.add_buffers();
      buffer.set_name(name);
      buffer.set_kind(plan::ACTIVATIONS);
      buffer.set_bytes(256);
      buffer.set_persistent(plan.buffers_size() <= kKept);
      // Those that do not persist may share bytes.
      const int place = plan.buffers_size() <= kKept ? plan.buffers_size() - 1 : kKept + below(4);
      buffer.set_offset(static_cast<uint64_t>(place) * 256);
    }
    plan::Bucket& bucket = *plan.add_buckets();
    bucket.set_name("all");
    bucket.add_states()->set_name("m");
    bucket.mutable_states(0)->set_buffer(1);
    plan.add_constants()->set_buffer(2);
    fill(*plan.mutable_prologue(), below(4));
    fill(*plan.mutable_body(), 1 + below(6));
    fill(*plan.mutable_epilogue(), below(3));
  }

  Plan plan;

 private:
  static constexpr int kKept = 3, kEvents = 3;

  int below(int limit) { return static_cast<int>(random_() % static_cast<uint32_t>(limit)); }

  plan::Operand anywhere(plan::Access access) {
    plan::Operand operand;
    // Constants are read only.
    do operand.set_buffer(static_cast<uint32_t>(below(plan.buffers_size())));
    while (access != plan::READ && operand.buffer() == 2);
    operand.set_access(access);
    return operand;
  }

  void operand(plan::Instruction& launch, plan::Access access) {
    plan::Operand& operand = *launch.add_operands() = anywhere(access);
    const int part = 256 / static_cast<int>(plan.ranks());
    if (plan.ranks_per_node() > 0 && below(4) == 0) {
      operand.set_axis(below(8) ? plan::NODE : plan::NETWORK);
      operand.set_shard_stride(static_cast<uint64_t>(256 / plan::ranksOn(plan, operand.axis())));
      operand.set_bytes(operand.shard_stride() / (below(8) ? 1 : 2));
      return;
    }
    if (plan.ranks() > 1 && below(4) == 0) {
      operand.set_shard_stride(static_cast<uint64_t>(part));
      operand.set_bytes(static_cast<uint64_t>(below(3) ? part : part / 2));
      if (operand.bytes() < operand.shard_stride() && below(2)) operand.set_offset(operand.bytes());
      return;
    }
    const int bytes = below(4) ? 256 : 64 << below(2);
    operand.set_bytes(static_cast<uint64_t>(bytes));
    operand.set_offset(static_cast<uint64_t>(bytes * below(256 / bytes)));
  }

  // A copy of 128 bytes to every second element of 8 bytes.
  void alternate(plan::Instruction& call) {
    call.mutable_call()->set_function("copy");
    testing::setAlternate(*call.mutable_call());
    (*call.add_operands() = anywhere(plan::READ)).set_bytes(128);
    plan::Operand& destination = *call.add_operands() = anywhere(plan::WRITE);
    destination.set_bytes(248);
    destination.set_offset(below(2) ? 8 : 0);
  }

  void fill(Section& section, int kernels) {
    auto event = [&](bool record, int stream, int number) {
      plan::Instruction& instruction = *section.Add();
      instruction.set_stream(static_cast<uint32_t>(stream));
      if (record)
        instruction.mutable_record()->set_event(static_cast<uint32_t>(number));
      else
        instruction.mutable_wait()->set_event(static_cast<uint32_t>(number));
    };
    // A wait for what the other stream has recorded last, here or in the step before.
    auto order = [&](int stream) {
      const int number = below(kEvents);
      if (below(3)) event(true, 1 - stream, number);
      event(false, stream, number);
      if (!below(3)) event(true, 1 - stream, number);
    };
    while (kernels-- > 0) {
      const int stream = below(streams_);
      if (streams_ > 1 && below(3)) order(stream);
      plan::Instruction& instruction = *section.Add();
      instruction.set_stream(static_cast<uint32_t>(stream));
      if (below(5) == 0) {
        alternate(instruction);
        continue;
      }
      instruction.mutable_kernel()->set_kernel(static_cast<uint32_t>(below(2)));
      for (int i = 1 + below(2); i > 0; --i) operand(instruction, plan::READ);
      operand(instruction, below(5) ? plan::WRITE : plan::READ_WRITE);
    }
    if (streams_ > 1) order(below(2));
  }

  std::mt19937 random_;
  const int streams_;
};

bool carries(const Plan& plan) {
  for (const plan::Instruction& instruction : plan.prologue())
    if (instruction.has_kernel()) return true;
  return false;
}

// Whatever is accepted computes in six steps at once what it computes in six runs of one step, without races and
// without reads of what was not written.
TEST(RandomPlans, WhatIsProvedHoldsInManySteps) {
  for (int streams : {1, 2}) {
    int accepted = 0, carrying = 0;
    for (uint32_t seed = 0; seed < 90000; ++seed) {
      const Plan plan = RandomPlan(seed, streams).plan;
      if (!plan::provePlan(plan).ok()) continue;
      ++accepted;
      carrying += carries(plan);
      EXPECT_EQ(mutants::faultOfManySteps(plan, kSteps), "") << "seed " << seed << ", streams " << streams;
    }
    EXPECT_GT(accepted, 300);
    EXPECT_GT(carrying, 100);
  }
}

// So it is where ranks have nodes: for every single rank.
TEST(RandomPlans, WhatIsProvedOfNodesHoldsOnEveryRank) {
  int accepted = 0, nested = 0;
  for (uint32_t seed = 0; seed < 60000; ++seed) {
    const Plan plan = RandomPlan(seed, 1, true).plan;
    if (!plan::provePlan(plan).ok()) continue;
    ++accepted;
    const plan::Places places(plan);
    for (uint32_t buffer = 0; buffer < 6; ++buffer)
      if (places.spacesOf(buffer).end - places.spacesOf(buffer).begin == 3) ++nested, buffer = 6;
    EXPECT_EQ(mutants::faultOfManySteps(plan, kSteps), "") << "seed " << seed;
  }
  EXPECT_GT(accepted, 150);
  EXPECT_GT(nested, 30);
}

// The induction refuses little that is right: mostly the many steps do leave another value. (It does not look whether
// anything comes of what a live byte is read for.)
TEST(RandomPlans, WhatTheInductionRefusesIsMostlyWrong) {
  int refused = 0, confirmed = 0;
  for (uint32_t seed = 0; seed < 90000; ++seed) {
    const Plan plan = RandomPlan(seed, 1).plan;
    const plan::Places places(plan);
    if (!plan::checkOperandOverlap(places).ok() || !plan::checkInitialisedReads(plan::Unrolled(plan), places).ok())
      continue;
    if (plan::followDataflow(places).induction.ok()) continue;
    ++refused;
    confirmed += !mutants::faultOfManySteps(plan, kSteps).empty();
  }
  EXPECT_GT(refused, 200);
  EXPECT_GT(confirmed, refused * 2 / 3) << "of " << refused;
}

}  // namespace
}  // namespace sheaf
