// Collectives over sockets give the local communicator's bits; broken, late and different peers are errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <thread>

#include "runtime/comm/socket/SocketCommunicator.h"
#include "test/runtime/Collectives.h"
#include "test/runtime/Processes.h"

namespace sheaf::testing {
namespace {

using comm::AbortSignal;
using comm::Communicator;
using comm::PeerSockets;
using comm::SocketCommunicator;
using comm::TcpProcessGroup;
using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr milliseconds kLimit(30000);

Results overSockets(const std::vector<Collective>& collectives, int64_t processes, int64_t local, uint64_t slotBytes) {
  const int64_t ranks = processes * local;
  Results results(static_cast<size_t>(ranks));
  onProcesses(processes, kLimit, [&](TcpProcessGroup& group) {
    AbortSignal abort;
    auto sockets = PeerSockets::connect(group, 1, local, abort);
    ASSERT_TRUE(sockets.ok()) << sockets.status().message();
    SocketCommunicator communicator(group, {local, 0, local}, 0, *sockets,
                                    slotBytes * uint64_t((processes - 1) * local), abort, 8);
    std::vector<std::thread> threads;
    for (int64_t i = 0; i < local; ++i)
      threads.emplace_back([&, rank = group.rank() * local + i] {
        for (const Collective& collective : collectives) {
          Status status;
          results[size_t(rank)].push_back(runOne(communicator, collective, ranks, rank, status));
          EXPECT_TRUE(status.ok()) << status.message();
        }
      });
    for (std::thread& thread : threads) thread.join();
    EXPECT_TRUE(group.leave().ok());
  });
  return results;
}

TEST(SocketCommunicator, TheBitsOfTheLocalOne) {
  const std::vector<Collective> collectives = everyCollective();
  for (auto [processes, local] : {std::pair<int64_t, int64_t>(2, 1), {2, 2}, {3, 1}, {3, 2}, {2, 3}, {4, 1}}) {
    Results expected = locally(collectives, processes * local);
    // One that takes everything at once, and one that takes it in pieces.
    for (uint64_t slotBytes : {uint64_t{1} << 18, uint64_t{1024}})
      expectEqual(collectives, expected, overSockets(collectives, processes, local, slotBytes));
  }
}

TEST(SocketCommunicator, LargeMessagesFlowBothWays) {
  // More than the sockets' buffers hold: no rank waits to be read before it reads.
  std::vector<Collective> collectives{{plan::ALL_GATHER, plan::F32, 2000000, false},
                                      {plan::REDUCE_SCATTER, plan::F32, 1000000, false},
                                      {plan::ALL_REDUCE, plan::F32, 1000001, true}};
  EXPECT_TRUE(overSockets(collectives, 2, 1, 1 << 20) == locally(collectives, 2));
}

// Two processes of one rank each; returns the errors.
template <typename Body>
std::vector<std::string> errorsOf(milliseconds limit, Body body) {
  std::vector<std::string> errors(2);
  onProcesses(2, limit, [&](TcpProcessGroup& group) {
    auto abort = std::make_shared<AbortSignal>();
    auto sockets = PeerSockets::connect(group, 1, 1, *abort);
    ASSERT_TRUE(sockets.ok()) << sockets.status().message();
    SocketCommunicator communicator(group, {}, 0, *sockets, 1 << 16, *abort, 8);
    // The group outlives what listens to the signal, and may call when that is gone.
    struct Watching {
      std::mutex mutex;
      bool alive = true;
    };
    auto watching = std::make_shared<Watching>();
    group.watch([watching, abort](const Status& why) {
      std::lock_guard lock(watching->mutex);
      if (watching->alive) abort->raise(why);
    });
    errors[size_t(group.rank())] = body(communicator, group).message();
    std::lock_guard lock(watching->mutex);
    watching->alive = false;
    if (group.rank() == 0) group.fail("over");
  });
  return errors;
}

Status reduceOne(Communicator& communicator, int64_t rank, uint64_t count) {
  std::vector<float> values(count, 1);
  std::byte* bytes = reinterpret_cast<std::byte*>(values.data());
  return communicator.run(rank, {plan::ALL_REDUCE, plan::F32, count, bytes, bytes});
}

TEST(SocketCommunicator, DifferentCollectivesAreNoticed) {
  auto errors = errorsOf(kLimit, [](Communicator& communicator, TcpProcessGroup& group) {
    return reduceOne(communicator, group.rank(), group.rank() == 0 ? 5 : 6);
  });
  EXPECT_THAT(errors[0] + errors[1], HasSubstr("met in different collectives"));
}

TEST(SocketCommunicator, AStalledProcessIsNamed) {
  auto errors = errorsOf(milliseconds(1000), [](Communicator& communicator, TcpProcessGroup& group) {
    if (group.rank() == 1) std::this_thread::sleep_for(milliseconds(2500));
    return group.rank() == 1 ? Status() : reduceOne(communicator, 0, 100);
  });
  EXPECT_THAT(errors[0], AllOf(HasSubstr("nothing has come from process 1 ("), HasSubstr("SHEAF_TIMEOUT")));
}

TEST(SocketCommunicator, AFailureElsewhereEndsTheWaiting) {
  auto begin = comm::Clock::now();
  auto errors = errorsOf(kLimit, [](Communicator& communicator, TcpProcessGroup& group) {
    if (group.rank() == 0) return reduceOne(communicator, 0, 100);
    group.fail("no more");
    return Status();
  });
  EXPECT_THAT(errors[0], AllOf(HasSubstr("process 1 ("), HasSubstr("no more")));
  EXPECT_LT(comm::Clock::now() - begin, std::chrono::seconds(10));
}

TEST(SocketCommunicator, CommunicatorsDoNotHoldEachOtherUp) {
  onProcesses(2, kLimit, [&](TcpProcessGroup& group) {
    AbortSignal abort;
    auto sockets = PeerSockets::connect(group, 2, 1, abort);
    ASSERT_TRUE(sockets.ok()) << sockets.status().message();
    SocketCommunicator first(group, {}, 0, *sockets, 1 << 16, abort, 8),
        second(group, {}, 1, *sockets, 1 << 16, abort, 8);
    // In the other order on the other process: the first waits for the second's end.
    std::thread other([&] {
      std::this_thread::sleep_for(milliseconds(group.rank() == 0 ? 50 : 0));
      EXPECT_TRUE(reduceOne(first, group.rank(), 1000).ok());
    });
    std::this_thread::sleep_for(milliseconds(group.rank() == 0 ? 0 : 50));
    EXPECT_TRUE(reduceOne(second, group.rank(), 1000).ok());
    other.join();
    EXPECT_TRUE(group.leave().ok());
  });
}

TEST(SocketCommunicator, ExchangeMemoryIsWhatThePlanNeeds) {
  plan::Plan plan;
  plan.set_ranks(4);
  plan.set_communicators(2);
  auto add = [&](plan::CollectiveOp op, uint32_t communicator, uint64_t count) {
    plan::Collective* collective = plan.add_body()->mutable_collective();
    collective->set_op(op);
    collective->set_communicator(communicator);
    collective->set_type(plan::F32);
    collective->set_count(count);
  };
  add(plan::ALL_GATHER, 0, 1 << 20);
  EXPECT_EQ(comm::exchangeBytes(plan, 2), 0u);
  add(plan::ALL_REDUCE, 1, 1);
  EXPECT_EQ(comm::exchangeBytes(plan, 1, 2), 2 * 128u);
  add(plan::REDUCE_SCATTER, 1, 1000);
  EXPECT_EQ(comm::exchangeBytes(plan, 1, 2), 2 * 4096u);
  EXPECT_EQ(comm::exchangeBytes(plan, 2), 2 * 4096u);
  add(plan::REDUCE_SCATTER, 1, 1 << 24);
  EXPECT_EQ(comm::exchangeBytes(plan, 1, 2), uint64_t{4} << 20);
}

}  // namespace
}  // namespace sheaf::testing
