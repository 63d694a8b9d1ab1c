// What the proof knows of ranks that have nodes: shards within pieces within buffers, hops between some of the ranks,
// and a stage on each axis.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "runtime/plan/Digests.h"
#include "runtime/plan/Types.h"
#include "test/runtime/SmallPlan.h"

namespace sheaf {
namespace {

using plan::NETWORK, plan::NODE, plan::READ, plan::WORLD, plan::WRITE;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::SmallPlan;

// Six ranks in three nodes of two: the buffers' 256 bytes have six shards of 32 and two pieces of 96.
struct NodesPlan : SmallPlan {
  NodesPlan() {
    plan.set_ranks(6);
    plan.set_ranks_per_node(2);
    plan.set_communicators(3);
    for (plan::Axis axis : {WORLD, NODE, NETWORK}) plan.add_communicator_axes(axis);
    plan.add_buckets()->set_parameter_buffer(2);
  }
  static void set(plan::Operand& operand, plan::Axis axis, uint64_t stride, uint64_t bytes, plan::Access access) {
    operand.set_axis(axis), operand.set_shard_stride(stride), operand.set_bytes(bytes), operand.set_access(access);
  }
  void part(const char* label, plan::Access access, plan::Axis axis, uint64_t stride, uint64_t bytes,
            uint64_t offset = 0) {
    kernel(body, label, {{0, access}});
    plan::Operand& operand = *body->rbegin()->mutable_operands(0);
    set(operand, axis, stride, bytes, access);
    operand.set_offset(offset);
  }
  void shard(const char* label, plan::Access access) { part(label, access, WORLD, 32, 32); }
  void piece(const char* label, plan::Access access) { part(label, access, NODE, 96, 96); }
  void whole(const char* label, plan::Access access) { part(label, access, WORLD, 0, 192); }
  // Of the buffer's shards, in place.
  void hop(const char* label, plan::Axis axis) {
    Instruction& instruction = *body->Add();
    instruction.set_label(label);
    plan::Collective& collective = *instruction.mutable_collective();
    collective.set_op(plan::ALL_GATHER);
    collective.set_communicator(static_cast<uint32_t>(axis));
    collective.set_type(plan::F32);
    collective.set_count(axis == NODE ? 24 : 8);
    const bool network = axis == NETWORK;
    set(*instruction.add_operands(), network ? WORLD : NODE, network ? 32 : 96, network ? 32 : 96, READ);
    set(*instruction.add_operands(), network ? NODE : WORLD, network ? 96 : 0, network ? 96 : 192, WRITE);
  }
  void stateFromBuffer() {
    whole("reader", READ);
    plan::Operand& state = *body->rbegin()->add_operands();
    state.set_buffer(2), state.set_bytes(256), state.set_access(WRITE);
  }
};

TEST(Nodes, TheShardsOfRanksWithOneLocalNumberLieSideBySide) {
  const NodesPlan p;
  std::set<int64_t> indices;
  for (int64_t rank = 0; rank < 6; ++rank) {
    const int64_t index = plan::shardIndex(p.plan, rank);
    indices.insert(index);
    EXPECT_EQ(plan::rankOfShard(p.plan, index), rank);
    EXPECT_EQ(index / 3, rank % 2);  // the piece is that of the local number
    EXPECT_EQ(index % 3, rank / 2);  // and the shard in it that of the node
    EXPECT_EQ(plan::groupOn(p.plan, NODE, rank), rank / 2);
    EXPECT_EQ(plan::placeOn(p.plan, NETWORK, rank), rank / 2);
  }
  EXPECT_EQ(indices.size(), 6u);
  EXPECT_EQ(plan::partsFrom(p.plan, 1), 2);  // no stage between nodes
}

TEST(Nodes, EveryHopWritesOneMoreLevel) {
  NodesPlan p;
  p.shard("own shard", WRITE);
  p.shard("shard", READ);
  EXPECT_EQ(p.proof(), "");
  NodesPlan early(p);
  early.piece("piece", READ);
  EXPECT_THAT(early.proof(), AllOf(HasSubstr("'piece'"), HasSubstr("'own shard'"), HasSubstr("has written in part")));
  p.hop("over the network", NETWORK);
  p.piece("piece", READ);
  EXPECT_EQ(p.proof(), "");
  NodesPlan half(p);
  half.whole("whole", READ);
  EXPECT_THAT(half.proof(), AllOf(HasSubstr("'whole'"), HasSubstr("has written in part")));
  p.hop("in the node", NODE);
  p.whole("whole", READ);
  EXPECT_EQ(p.proof(), "");
  // The other way round the hop in the node reads what the hop between nodes has not written yet.
  p.body->SwapElements(2, 4);
  EXPECT_THAT(p.proof(), AllOf(HasSubstr("'in the node'"), HasSubstr("has written in part")));
}

// What a rank finds in the shards of its piece is not what it finds in its own shard, nor in other pieces.
TEST(Nodes, ValuesAreFollowedOnThreeLevels) {
  for (int changed = 0; changed < 3; ++changed) {
    NodesPlan p;
    p.plan.add_constants()->set_buffer(1);
    p.whole("whole", WRITE);
    p.piece("piece", WRITE);
    p.shard("own shard", WRITE);
    p.stateFromBuffer();
    plan::redigest(p.plan);
    ASSERT_EQ(p.proof(), "");
    NodesPlan q(p);
    // Without one of the writes the reader finds something else at that level; of the first, nothing.
    q.body->DeleteSubrange(changed, 1);
    EXPECT_NE(q.proof(), "") << changed;
    NodesPlan r(p);  // the order decides, too
    r.body->SwapElements(changed, (changed + 1) % 3);
    EXPECT_NE(r.proof(), "") << changed;
  }
}

TEST(Nodes, TheRanksOfAHopAreInTheDigest) {
  NodesPlan p;
  p.shard("own shard", WRITE);
  p.hop("over the network", NETWORK);
  p.hop("in the node", NODE);
  p.stateFromBuffer();
  plan::redigest(p.plan);
  ASSERT_EQ(p.proof(), "");
  for (int hop : {1, 2})
    for (uint32_t communicator : {0, 1, 2}) {
      NodesPlan q(p);
      plan::Collective& collective = *q.body->Mutable(hop)->mutable_collective();
      if (collective.communicator() == communicator) continue;
      collective.set_communicator(communicator);
      EXPECT_THAT(q.proof(), HasSubstr("(table dataflow, entry 3) is computed by other operations"));
    }
  p.plan.set_ranks_per_node(1);
  EXPECT_NE(p.proof(), "");
}

TEST(Nodes, APieceIsAllOfItsShards) {
  struct Wrong {
    plan::Axis axis;
    uint64_t stride, bytes, offset;
  };
  for (const Wrong& wrong : {Wrong{NODE, 96, 64, 0}, Wrong{NODE, 96, 64, 32}, Wrong{NODE, 64, 64, 0},
                             Wrong{NETWORK, 32, 32, 0}, Wrong{WORLD, 16, 16, 0}}) {
    NodesPlan p;
    p.shard("own shard", WRITE);
    p.part("piece", WRITE, wrong.axis, wrong.stride, wrong.bytes, wrong.offset);
    EXPECT_THAT(p.proof(), AllOf(HasSubstr("'piece'"), HasSubstr("another operand into parts of 32")))
        << wrong.axis << ' ' << wrong.stride << ' ' << wrong.bytes;
  }
  // Alone in a buffer parts of any axis may be smaller than the stride.
  NodesPlan p;
  p.part("of the node", WRITE, NETWORK, 64, 16, 8);
  p.part("again", READ, NETWORK, 64, 16, 8);
  EXPECT_EQ(p.proof(), "");
  p.part("more", READ, NETWORK, 64, 32, 8);
  EXPECT_THAT(p.proof(), HasSubstr("reads what was not written"));
}

}  // namespace
}  // namespace sheaf
