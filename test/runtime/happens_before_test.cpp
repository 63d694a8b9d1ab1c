// Vector clocks over records and waits.
#include "runtime/plan/HappensBefore.h"

#include <gtest/gtest.h>

namespace sheaf::plan {
namespace {

using I = IssuedInstruction;

TEST(HappensBefore, StreamsAreOrderedWithinAndByEvents) {
  std::vector<I> sequence{{0, I::kOther, 0}, {0, I::kRecord, 0}, {0, I::kOther, 0},
                          {1, I::kOther, 0}, {1, I::kWait, 0},   {1, I::kOther, 0}};
  HappensBefore order(sequence, 2, 1);
  EXPECT_TRUE(order.ordered(0, 2));
  EXPECT_FALSE(order.ordered(2, 0));
  EXPECT_FALSE(order.ordered(0, 3));  // before the wait
  EXPECT_TRUE(order.ordered(0, 5));
  EXPECT_FALSE(order.ordered(2, 5));  // after the record
  EXPECT_TRUE(order.needed(4));
}

TEST(HappensBefore, WaitsForTheLatestRecordBeforeIt) {
  std::vector<I> sequence{{1, I::kWait, 0},  {0, I::kOther, 0},  {0, I::kRecord, 0}, {1, I::kOther, 0},
                          {0, I::kOther, 0}, {0, I::kRecord, 0}, {1, I::kWait, 0},   {1, I::kOther, 0}};
  HappensBefore order(sequence, 2, 1);
  EXPECT_FALSE(order.needed(0));  // nothing recorded yet: it does not wait
  EXPECT_FALSE(order.ordered(1, 3));
  EXPECT_TRUE(order.ordered(4, 7));
}

TEST(HappensBefore, IsTransitiveThroughAThirdStream) {
  std::vector<I> sequence{{0, I::kOther, 0}, {0, I::kRecord, 0}, {1, I::kWait, 0}, {1, I::kRecord, 1},
                          {2, I::kWait, 1},  {2, I::kOther, 0},  {2, I::kWait, 0}};
  HappensBefore order(sequence, 3, 2);
  EXPECT_TRUE(order.ordered(0, 5));
  EXPECT_FALSE(order.needed(6));  // implied
}

TEST(HappensBefore, OfWaitsBetweenTheSameInstructionsTheLaterRecordIsNeeded) {
  std::vector<I> sequence{{0, I::kOther, 0}, {0, I::kRecord, 0}, {0, I::kOther, 0}, {0, I::kRecord, 1},
                          {1, I::kWait, 0},  {1, I::kWait, 1},   {1, I::kOther, 0}, {1, I::kWait, 1}};
  HappensBefore order(sequence, 2, 2);
  EXPECT_FALSE(order.needed(4));
  EXPECT_TRUE(order.needed(5));
  EXPECT_FALSE(order.needed(7));
  sequence[5].event = 0;  // twice the same: one stays
  HappensBefore twice(sequence, 2, 2);
  EXPECT_TRUE(twice.needed(4));
  EXPECT_FALSE(twice.needed(5));
}

// What the second wait is for has waited for the first one's record, which is its stream's last.
TEST(HappensBefore, AWaitIsImpliedByALaterOneForAThirdStream) {
  std::vector<I> sequence{{0, I::kOther, 0},  {0, I::kRecord, 0}, {1, I::kWait, 0}, {1, I::kOther, 0},
                          {1, I::kRecord, 1}, {2, I::kWait, 0},   {2, I::kWait, 1}, {2, I::kOther, 0}};
  HappensBefore order(sequence, 3, 2);
  EXPECT_FALSE(order.needed(5));
  EXPECT_TRUE(order.needed(6));
  EXPECT_TRUE(order.ordered(0, 7));
}

TEST(HappensBefore, TheHostStartsAfterTheFirstStreamAndEndsAfterAll) {
  std::vector<I> sequence{{0, I::kOther, 0}, {1, I::kOther, 0}, {0, I::kHost, 0}, {1, I::kOther, 0}};
  HappensBefore order(sequence, 2, 0);
  EXPECT_TRUE(order.ordered(0, 2));
  EXPECT_FALSE(order.ordered(1, 2));
  EXPECT_TRUE(order.ordered(2, 3));
  EXPECT_TRUE(order.ordered(0, 3));
}

}  // namespace
}  // namespace sheaf::plan
