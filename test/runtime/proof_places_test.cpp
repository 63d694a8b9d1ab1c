// What the proof knows of the bytes in a buffer: parts of ranks, and gaps that strided writes leave.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/plan/Digests.h"
#include "test/runtime/SmallPlan.h"

namespace sheaf {
namespace {

using plan::READ, plan::WRITE;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::SmallPlan;

TEST(Proof, ARanksOwnPartIsWrittenForThatRankOnly) {
  SmallPlan p;
  p.call(p.body, "own part", 0, {{0, WRITE}}, 128);
  p.call(p.body, "own part again", 0, {{0, READ}}, 128);
  EXPECT_EQ(p.proof(), "");
  p.call(p.body, "all of it", 0, {{0, READ}});
  EXPECT_THAT(p.proof(), AllOf(HasSubstr("'all of it'"), HasSubstr("has written in part")));
}

TEST(Proof, ARanksOwnPartStaysInIt) {
  SmallPlan p;
  p.call(p.body, "own part", 0, {{0, WRITE}}, 64);
  EXPECT_EQ(p.proof(), "");
  p.body->Mutable(0)->mutable_operands(0)->set_offset(8);
  EXPECT_THAT(p.proof(),
              AllOf(HasSubstr("'own part'"), HasSubstr("operand 0 is not within the rank's own part of buffer 'x'"),
                    HasSubstr("64 bytes at 8 + rank * 64 reach into the next rank's part")));
  SmallPlan q;
  q.call(q.body, "halves", 0, {{0, WRITE}}, 128);
  q.call(q.body, "quarters", 0, {{0, WRITE}}, 64);
  EXPECT_THAT(q.proof(),
              AllOf(HasSubstr("'quarters'"), HasSubstr("parts of 64 bytes, another operand into parts of 128")));
}

// The first and the last rank write their parts again, those between do not.
TEST(Proof, RanksInTheMiddleCount) {
  SmallPlan p;
  p.plan.set_ranks(4);
  p.plan.add_buckets()->set_parameter_buffer(2);
  auto part = [&](const char* label, uint64_t begin, uint64_t end) {
    p.kernel(p.body, label, {{0, WRITE}});
    p.body->rbegin()->mutable_operands(0)->set_offset(begin);
    p.body->rbegin()->mutable_operands(0)->set_bytes(end - begin);
  };
  part("middle", 64, 192);
  part("first", 0, 64);
  part("last", 192, 256);
  p.kernel(p.body, "state", {{0, READ}, {2, WRITE}});
  plan::redigest(p.plan);
  EXPECT_EQ(p.proof(), "");
  p.call(p.body, "zero", 0, {{0, WRITE}}, 64);
  p.body->rbegin()->mutable_call()->set_function("zero");
  p.body->SwapElements(4, 3), p.body->SwapElements(3, 2), p.body->SwapElements(2, 1);
  EXPECT_THAT(p.proof(), HasSubstr("(table dataflow, entry 3) is computed by other operations"));
  p.body->SwapElements(1, 0);  // before all of them it changes nothing
  EXPECT_EQ(p.proof(), "");
}

TEST(Proof, AStridedWriteLeavesItsGapsAsTheyWere) {
  SmallPlan p;
  p.plan.add_constants()->set_buffer(1);
  p.alternate(p.body, "even", 1, 0, false);
  p.alternate(p.body, "odd", 1, 0, true);
  p.kernel(p.body, "reader", {{0, READ}, {2, WRITE}});
  EXPECT_EQ(p.proof(), "");
  p.body->Mutable(2)->mutable_operands(0)->set_bytes(240);
  SmallPlan late(p), early(p);
  late.body->SwapElements(1, 2);  // what it reads the step before has written, but nothing before the first
  EXPECT_THAT(late.proof(), AllOf(HasSubstr("body instruction 1 (kernel 'reader' on stream a) reads bytes [8, 16)"),
                                  HasSubstr("buffer 'x'"), HasSubstr("as operand 0"), HasSubstr("'even'"),
                                  HasSubstr("has written in part")));
  // Another buffer takes the bytes, and what the first copy has written there stays lost.
  plan::Buffer& thief = *early.plan.add_buffers();
  thief.set_name("thief");
  thief.set_bytes(128);
  early.kernel(early.body, "thief", {{3, WRITE}});
  early.body->rbegin()->mutable_operands(0)->set_bytes(128);
  early.body->SwapElements(3, 2), early.body->SwapElements(2, 1);
  early.body->Mutable(3)->mutable_operands(0)->set_offset(8);
  EXPECT_THAT(early.proof(), AllOf(HasSubstr("'reader' on stream a) reads bytes [16, 24) of buffer 'x'"),
                                   HasSubstr("'odd' on stream a) has written in part")));
}

// The reader's last bytes have another writer, which has left nothing out.
TEST(Proof, AGapNamesTheInstructionThatLeftIt) {
  SmallPlan p;
  p.plan.add_constants()->set_buffer(1);
  p.alternate(p.body, "even", 1, 0, false);
  p.kernel(p.body, "second half", {{0, WRITE}});
  p.body->rbegin()->mutable_operands(0)->set_offset(128);
  p.body->rbegin()->mutable_operands(0)->set_bytes(128);
  p.kernel(p.body, "reader", {{0, READ}, {2, WRITE}});
  EXPECT_THAT(p.proof(), AllOf(HasSubstr("'reader' on stream a) reads bytes [8, 16) of buffer 'x'"),
                               HasSubstr("'even' on stream a) has written in part")));
}

// Two calls share a buffer where their runs do not meet, and not where they do.
TEST(Proof, OneCallsResultsMayTakeTurnsInABuffer) {
  SmallPlan p;
  p.call(p.body, "attention", 0,
         {{2, READ}, {2, READ}, {2, READ}, {2, READ}, {2, READ}, {2, READ}, {0, WRITE}, {0, WRITE}, {0, WRITE}});
  p.plan.add_constants()->set_buffer(2);
  plan::LibraryCall& call = *p.body->Mutable(0)->mutable_call();
  call.set_function("attention_grad");
  testing::addIntegers(call, {{"b", 1},
                              {"s", 4},
                              {"t", 4},
                              {"h", 1},
                              {"g", 1},
                              {"d", 1},
                              {"e", 1},
                              {"query_row", 1},
                              {"key_row", 1},
                              {"value_row", 1},
                              {"result_row", 1},
                              {"gradient_row", 1},
                              {"query_gradient_row", 3},
                              {"key_gradient_row", 3},
                              {"value_gradient_row", 3}});
  call.add_attributes()->set_name("scale");
  call.mutable_attributes()->rbegin()->set_real(1);
  for (int i = 0; i < 3; ++i) {
    p.body->Mutable(0)->mutable_operands(6 + i)->set_offset(static_cast<uint64_t>(4 * i));
    p.body->Mutable(0)->mutable_operands(6 + i)->set_bytes(40);
  }
  EXPECT_EQ(p.proof(), "");
  p.body->Mutable(0)->mutable_operands(8)->set_offset(4);
  EXPECT_THAT(p.proof(), AllOf(HasSubstr("writes operand 8 (value_gradient)"), HasSubstr("operand 7 (key_gradient)")));
}

}  // namespace
}  // namespace sheaf
