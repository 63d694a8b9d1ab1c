// Collectives over sockets give the local communicator's bits; broken, late and different peers are errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <thread>

#include "runtime/comm/local/LocalCommunicator.h"
#include "runtime/comm/local/Reduce.h"
#include "runtime/comm/socket/SocketCommunicator.h"
#include "test/runtime/Processes.h"

namespace sheaf::testing {
namespace {

using comm::AbortSignal;
using comm::Communicator;
using comm::LocalCommunicator;
using comm::PeerSockets;
using comm::SocketCommunicator;
using comm::TcpProcessGroup;
using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

constexpr milliseconds kLimit(30000);

struct Collective {
  plan::CollectiveOp op;
  plan::ElementType type;
  uint64_t count;
  bool inPlace;

  uint64_t bytes() const { return count * comm::elementBytes(type); }
  uint64_t sourceBytes(int64_t ranks) const { return op == plan::REDUCE_SCATTER ? bytes() * uint64_t(ranks) : bytes(); }
  uint64_t resultBytes(int64_t ranks) const { return op == plan::ALL_GATHER ? bytes() * uint64_t(ranks) : bytes(); }
};

// Finite values of every type.
Bytes valuesOf(const Collective& collective, int64_t ranks, int64_t rank) {
  Numbers numbers(uint64_t(rank) * 1000 + collective.count + 17);
  Bytes bytes(collective.sourceBytes(ranks));
  for (uint64_t i = 0; i + 1 <= bytes.size() / comm::elementBytes(collective.type); ++i) {
    float single = numbers.real() * float(numbers.below(1000));
    double twice = double(single) * 1.000000001;
    uint64_t bits = numbers.bits();
    _Float16 half = _Float16(single);
    const void* from = &bits;
    if (collective.type == plan::F32) from = &single;
    if (collective.type == plan::F64) from = &twice;
    if (collective.type == plan::F16) from = &half;
    if (collective.type == plan::BF16) from = reinterpret_cast<const char*>(&single) + 2;
    std::memcpy(bytes.data() + i * comm::elementBytes(collective.type), from, comm::elementBytes(collective.type));
  }
  return bytes;
}

// One rank's result.
Bytes runOne(Communicator& communicator, const Collective& collective, int64_t ranks, int64_t rank, Status& status) {
  Bytes source = valuesOf(collective, ranks, rank), result(collective.resultBytes(ranks));
  comm::CollectiveBuffers buffers{collective.op, collective.type, collective.count, source.data(), result.data()};
  if (collective.inPlace) {
    uint64_t own = uint64_t(rank) * collective.bytes();
    if (collective.op == plan::ALL_GATHER) {
      std::copy(source.begin(), source.end(), result.begin() + static_cast<std::ptrdiff_t>(own));
      buffers.source = result.data() + own;
    } else {
      buffers.destination = source.data() + (collective.op == plan::REDUCE_SCATTER ? own : 0);
    }
  }
  status = communicator.run(rank, buffers);
  return Bytes(buffers.destination, buffers.destination + result.size());
}

// Every rank's results of all collectives.
using Results = std::vector<std::vector<Bytes>>;

Results locally(const std::vector<Collective>& collectives, int64_t ranks) {
  AbortSignal abort;
  LocalCommunicator communicator(ranks, abort, 8);
  Results results(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      for (const Collective& collective : collectives) {
        Status status;
        results[size_t(rank)].push_back(runOne(communicator, collective, ranks, rank, status));
        EXPECT_TRUE(status.ok()) << status.message();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return results;
}

Results overSockets(const std::vector<Collective>& collectives, int64_t processes, int64_t local, uint64_t slotBytes) {
  const int64_t ranks = processes * local;
  Results results(static_cast<size_t>(ranks));
  onProcesses(processes, kLimit, [&](TcpProcessGroup& group) {
    AbortSignal abort;
    auto sockets = PeerSockets::connect(group, 1, local, abort);
    ASSERT_TRUE(sockets.ok()) << sockets.status().message();
    SocketCommunicator communicator(group, local, 0, *sockets, slotBytes * uint64_t((processes - 1) * local), abort, 8);
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
  Numbers numbers(3);
  std::vector<Collective> collectives;
  for (plan::CollectiveOp op : {plan::ALL_GATHER, plan::REDUCE_SCATTER, plan::ALL_REDUCE})
    for (plan::ElementType type : {plan::F32, plan::F64, plan::BF16, plan::F16, plan::I64, plan::I32, plan::U8})
      for (bool inPlace : {false, true})
        for (uint64_t count : {uint64_t{0}, uint64_t{1}, uint64_t{3}, uint64_t(1 + numbers.below(100)),
                               uint64_t(1000 + numbers.below(9000))})
          if (op == plan::ALL_GATHER || comm::canSum(type)) collectives.push_back({op, type, count, inPlace});
  for (auto [processes, local] : {std::pair<int64_t, int64_t>(2, 1), {2, 2}, {3, 1}, {3, 2}, {2, 3}, {4, 1}}) {
    Results expected = locally(collectives, processes * local);
    // One that takes everything at once, and one that takes it in pieces.
    for (uint64_t slotBytes : {uint64_t{1} << 18, uint64_t{1024}}) {
      Results results = overSockets(collectives, processes, local, slotBytes);
      for (size_t rank = 0; rank < expected.size(); ++rank) {
        ASSERT_EQ(results[rank].size(), collectives.size());
        for (size_t i = 0; i < collectives.size(); ++i)
          EXPECT_TRUE(results[rank][i] == expected[rank][i])
              << processes << " x " << local << ", rank " << rank << ": op " << collectives[i].op << " type "
              << collectives[i].type << " count " << collectives[i].count
              << (collectives[i].inPlace ? " in place" : "");
      }
    }
  }
}

TEST(SocketCommunicator, LargeMessagesFlowBothWays) {
  // More than the sockets' buffers hold: nobody waits to be read before reading.
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
    SocketCommunicator communicator(group, 1, 0, *sockets, 1 << 16, *abort, 8);
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
    SocketCommunicator first(group, 1, 0, *sockets, 1 << 16, abort, 8),
        second(group, 1, 1, *sockets, 1 << 16, abort, 8);
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
  EXPECT_EQ(comm::exchangeBytes(plan, 2), 2 * 2 * 4096u);
  add(plan::REDUCE_SCATTER, 1, 1 << 24);
  EXPECT_EQ(comm::exchangeBytes(plan, 1, 2), uint64_t{4} << 20);
}

}  // namespace
}  // namespace sheaf::testing
