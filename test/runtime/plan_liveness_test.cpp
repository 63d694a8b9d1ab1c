#include "runtime/plan/Liveness.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "runtime/plan/plan.pb.h"

namespace sheaf {
namespace {

using plan::READ, plan::READ_WRITE, plan::WRITE;
using testing::ElementsAre;

struct Access {
  uint32_t buffer;
  plan::Access access;
  uint64_t begin = 0, end = 8;
};

// Buffers of 8 bytes, of which buffer 2 is persistent.
class LivenessTest : public testing::Test {
 protected:
  static plan::Plan threeBuffers() {
    plan::Plan plan;
    for (bool persistent : {false, false, true}) {
      plan::Buffer& buffer = *plan.add_buffers();
      buffer.set_bytes(8);
      buffer.set_persistent(persistent);
    }
    return plan;
  }

  // With `scratch`, the last operand is that of a library call.
  static plan::Instruction instruction(const std::vector<Access>& accesses, bool scratch = false) {
    plan::Instruction result;
    if (scratch)
      result.mutable_call()->set_device_scratch(8);
    else
      result.mutable_kernel();
    for (const Access& access : accesses) {
      plan::Operand& operand = *result.add_operands();
      operand.set_buffer(access.buffer);
      operand.set_offset(access.begin);
      operand.set_bytes(access.end - access.begin);
      operand.set_access(access.access);
    }
    return result;
  }

  // Returns what the instruction is to each buffer: "0 first", if it begins a life, or "1 last", if it ends one.
  std::vector<std::string> visit(const plan::Instruction& instruction) {
    std::vector<std::string> texts;
    for (const plan::Liveness::Touched& each : liveness_.visit(instruction))
      texts.push_back(std::to_string(each.buffer) + (each.liveBefore ? "" : " first") +
                      (each.liveAfter ? "" : " last"));
    return texts;
  }

  const plan::Plan plan_ = threeBuffers();
  plan::Liveness liveness_{plan_};
};

TEST_F(LivenessTest, ABufferLivesFromItsWriteToItsLastRead) {
  EXPECT_THAT(visit(instruction({{0, READ}})), ElementsAre("0 last"));
  EXPECT_THAT(visit(instruction({{0, READ}, {1, WRITE}})), ElementsAre("0", "1 first last"));
  EXPECT_THAT(visit(instruction({{0, READ_WRITE}})), ElementsAre("0"));
  EXPECT_TRUE(liveness_.isLive(0));
  EXPECT_THAT(visit(instruction({{0, WRITE}})), ElementsAre("0 first"));
  EXPECT_FALSE(liveness_.isLive(0));
  EXPECT_THAT(visit(instruction({{0, READ}})), ElementsAre("0 last"));  // here an earlier life of it ends
}

TEST_F(LivenessTest, WritesEndALifeByteByByte) {
  visit(instruction({{0, READ}}));
  EXPECT_THAT(visit(instruction({{0, WRITE, 2, 5}})), ElementsAre("0"));
  EXPECT_THAT(visit(instruction({{0, WRITE, 0, 2}, {0, WRITE, 5, 7}})), ElementsAre("0"));
  EXPECT_THAT(visit(instruction({{0, WRITE, 7, 8}})), ElementsAre("0 first"));
}

TEST_F(LivenessTest, AnInstructionReadsWhatItOverwrites) {
  EXPECT_THAT(visit(instruction({{0, WRITE}, {0, READ, 3, 4}})), ElementsAre("0 last"));
  EXPECT_THAT(visit(instruction({{0, WRITE, 0, 3}, {0, WRITE, 4, 8}})), ElementsAre("0"));
  EXPECT_THAT(visit(instruction({{0, WRITE, 3, 4}})), ElementsAre("0 first"));
}

TEST_F(LivenessTest, ScratchHoldsNothingBeforeAndAfter) {
  EXPECT_THAT(visit(instruction({{0, READ}, {1, READ_WRITE}}, true)), ElementsAre("0 last", "1 first last"));
}

TEST_F(LivenessTest, BuffersAreListedOnceInAscendingOrder) {
  EXPECT_THAT(visit(instruction({{1, READ, 0, 2}, {0, READ}, {1, READ, 4, 6}, {0, READ}})),
              ElementsAre("0 last", "1 last"));
}

// Compared with the definition: a byte is live before an instruction if a later one, or this one, reads it before any
// writes it.
TEST_F(LivenessTest, IsThatOfTheDefinition) {
  std::mt19937 random(1);
  for (int round = 0; round < 500; ++round) {
    std::vector<std::vector<Access>> all(1 + random() % 12);
    for (std::vector<Access>& accesses : all)
      for (size_t count = 1 + random() % 3; count-- > 0;) {
        const uint64_t begin = random() % 8;
        const plan::Access kinds[] = {READ, WRITE, READ_WRITE};
        accesses.push_back(
            {static_cast<uint32_t>(random() % 2), kinds[random() % 3], begin, begin + 1 + random() % (8 - begin)});
      }
    auto isLive = [&](uint32_t buffer, size_t from) {
      bool live = false;
      for (uint64_t byte = 0; byte < 8; ++byte)
        for (size_t i = from, over = false; i < all.size() && !over; ++i) {
          bool reads = false;
          for (const Access& access : all[i]) {
            if (access.buffer != buffer || byte < access.begin || access.end <= byte) continue;
            reads |= access.access != WRITE, over = true;
          }
          live |= reads;
        }
      return live;
    };
    plan::Liveness liveness(plan_);
    for (size_t i = all.size(); i-- > 0;)
      for (const plan::Liveness::Touched& each : liveness.visit(instruction(all[i]))) {
        ASSERT_EQ(each.liveBefore, isLive(each.buffer, i)) << "round " << round << ", instruction " << i;
        ASSERT_EQ(each.liveAfter, isLive(each.buffer, i + 1)) << "round " << round << ", instruction " << i;
      }
  }
}

TEST_F(LivenessTest, PersistentBuffersAreNotListed) {
  EXPECT_THAT(visit(instruction({{2, READ}, {1, WRITE}})), ElementsAre("1 first last"));
}

}  // namespace
}  // namespace sheaf
