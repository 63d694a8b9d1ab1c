// Every transport moves bytes in order and ends its waits; collectives over it give the local communicator's bits;
// broken, late and different peers are errors.
#include "runtime/comm/transport/Transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <optional>
#include <span>
#include <thread>

#include "runtime/comm/transport/ExchangeBytes.h"
#include "runtime/comm/transport/ProcessCommunicator.h"
#include "test/runtime/Collectives.h"
#include "test/runtime/Transports.h"

namespace sheaf::testing {
namespace {

using comm::AbortSignal;
using comm::Channel;
using comm::Communicator;
using comm::ConnectTransport;
using comm::ProcessCommunicator;
using comm::ProcessGroup;
using comm::SocketTransport;
using comm::TcpProcessGroup;
using comm::Transport;
using comm::TransportOptions;
using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

using Clock = std::chrono::steady_clock;

constexpr milliseconds kLimit(30000);

// One process's part of a job: connects, runs the body, and leaves together with the others.
void onTransport(ProcessGroup& group, ConnectTransport connect, const TransportOptions& options,
                 const std::function<void(Transport&, AbortSignal&)>& body) {
  AbortSignal abort;
  auto transport = connect(group, options, abort);
  ASSERT_TRUE(transport.ok()) << transport.status().message();
  body(**transport, abort);
  if (std::getenv("SHEAF_CHECK") && !::testing::UnitTest::GetInstance()->Failed()) std::printf("%s\n", kPassed);
  std::fflush(stdout);
  EXPECT_TRUE(group.leave().ok());
}

Status reduceOne(Communicator& communicator, int64_t rank, std::span<float> values) {
  std::byte* bytes = reinterpret_cast<std::byte*>(values.data());
  return communicator.run(rank, {plan::ALL_REDUCE, plan::F32, values.size(), bytes, bytes});
}

Status reduceOne(Communicator& communicator, int64_t rank, uint64_t count) {
  std::vector<float> values(count, 1);
  return reduceOne(communicator, rank, values);
}

// The collectives by this process's `local` ranks, over a communicator of the plan for each number of bytes that are
// summed at once.
void compareWithLocal(ProcessGroup& group, ConnectTransport connect, int64_t local, uint64_t messageBytes,
                      const std::vector<Collective>& collectives, const std::vector<uint64_t>& slotBytes) {
  const int64_t ranks = group.size() * local;
  const Results expected = locally(collectives, ranks);
  const TransportOptions options{
      .communicators = int64_t(slotBytes.size()), .rails = local, .messageBytes = messageBytes};
  onTransport(group, connect, options, [&](Transport& transport, AbortSignal& abort) {
    for (size_t number = 0; number < slotBytes.size(); ++number) {
      ProcessCommunicator communicator(group, {local, 0, local}, int64_t(number), transport,
                                       slotBytes[number] * uint64_t((group.size() - 1) * local), abort, 8);
      std::vector<std::thread> threads;
      for (int64_t i = 0; i < local; ++i)
        threads.emplace_back([&, rank = group.rank() * local + i] {
          for (size_t at = 0; at < collectives.size(); ++at) {
            Status status;
            const Bytes result = runOne(communicator, collectives[at], ranks, rank, status);
            EXPECT_TRUE(status.ok()) << status.message();
            EXPECT_TRUE(result == expected[size_t(rank)][at])
                << ranks << " ranks, rank " << rank << ": op " << collectives[at].op << " type " << collectives[at].type
                << " count " << collectives[at].count;
          }
        });
      for (std::thread& thread : threads) thread.join();
    }
  });
}

template <int64_t local>
void theBitsOfTheLocalOne(ProcessGroup& group, ConnectTransport connect) {
  // At once, and in pieces.
  compareWithLocal(group, connect, local, uint64_t{1} << 30, everyCollective(), {uint64_t{1} << 18, 1024});
}

// More than buffers below hold, so no rank may wait to be read before it reads; in several messages, where there are
// such.
void largeMessagesFlowBothWays(ProcessGroup& group, ConnectTransport connect) {
  const std::vector<Collective> collectives{{plan::ALL_GATHER, plan::F32, 2000000, false},
                                            {plan::REDUCE_SCATTER, plan::F32, 1000000, false},
                                            {plan::ALL_REDUCE, plan::F32, 1000001, true}};
  compareWithLocal(group, connect, 1, 1000003, collectives, {uint64_t{1} << 20});
}

uint8_t byteOf(int64_t from, int64_t to, uint64_t at) {
  return static_cast<uint8_t>(mixBits(uint64_t(from * 100 + to) << 40 | at));
}

// Pieces of all sizes between all processes, several under way at a time.
void piecesArriveInOrder(ProcessGroup& group, ConnectTransport connect) {
  const TransportOptions options{.messageBytes = 5000};
  onTransport(group, connect, options, [&](Transport& transport, AbortSignal&) {
    Channel& channel = transport.channel(0, 0);
    const int64_t mine = group.rank(), size = group.size();
    Numbers numbers(5);  // the same in all processes
    std::vector<uint64_t> sizes;
    uint64_t whole = 0;
    for (int i = 0; i < 60; ++i) sizes.push_back(i % 7 == 0 ? 1 + numbers.below(200000) : 1 + numbers.below(100));
    for (uint64_t bytes : sizes) whole += bytes;
    std::vector<Bytes> out(static_cast<size_t>(size), Bytes(whole)), in = out;
    for (int64_t other = 0; other < size; ++other)
      for (uint64_t at = 0; at < whole; ++at) out[size_t(other)][at] = std::byte{byteOf(mine, other, at)};
    uint64_t place = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      for (int64_t other = 0; other < size; ++other) {
        if (other == mine) continue;
        channel.send(other, {out[size_t(other)].data() + place, sizes[i]});
        channel.receive(other, {in[size_t(other)].data() + place, sizes[i]});
        EXPECT_FALSE(channel.idle(other));
      }
      place += sizes[i];
      if (i % 10 == 3) {
        auto moved = channel.poll(milliseconds(0));
        ASSERT_TRUE(moved.ok()) << moved.status().message();
      }
    }
    for (const auto deadline = Clock::now() + kLimit; Clock::now() < deadline;) {
      auto moved = channel.poll(milliseconds(100));
      ASSERT_TRUE(moved.ok()) << moved.status().message();
      bool idle = true;
      for (int64_t other = 0; other < size; ++other) idle &= other == mine || channel.idle(other);
      if (idle) break;
    }
    for (int64_t other = 0; other < size; ++other) {
      if (other == mine) continue;
      EXPECT_TRUE(channel.idle(other));
      EXPECT_EQ(channel.received(other), sizes.size());
      for (uint64_t at = 0; at < whole; ++at)
        ASSERT_EQ(in[size_t(other)][at], std::byte{byteOf(other, mine, at)}) << "byte " << at << " from " << other;
    }
    EXPECT_FALSE(*channel.poll(milliseconds(0)));
  });
}

void communicatorsDoNotHoldEachOtherUp(ProcessGroup& group, ConnectTransport connect) {
  onTransport(group, connect, {.communicators = 2}, [&](Transport& transport, AbortSignal& abort) {
    ProcessCommunicator first(group, {}, 0, transport, 1 << 16, abort, 8),
        second(group, {}, 1, transport, 1 << 16, abort, 8);
    // In the other order on the other process: the first waits for the second's end.
    std::thread other([&] {
      std::this_thread::sleep_for(milliseconds(group.rank() == 0 ? 50 : 0));
      EXPECT_TRUE(reduceOne(first, group.rank(), 1000).ok());
    });
    std::this_thread::sleep_for(milliseconds(group.rank() == 0 ? 0 : 50));
    EXPECT_TRUE(reduceOne(second, group.rank(), 2000).ok());
    other.join();
  });
}

void differentCollectivesAreNoticed(ProcessGroup& group, ConnectTransport connect) {
  // Pieces that were queued before the error may still come: their memory lives as long as the transport.
  std::optional<ProcessCommunicator> communicator;
  std::vector<float> values(6, 1);
  onTransport(group, connect, {}, [&](Transport& transport, AbortSignal& abort) {
    communicator.emplace(group, ProcessCommunicator::NodeRanks{}, 0, transport, 1 << 16, abort, 8);
    EXPECT_THAT(reduceOne(*communicator, group.rank(), std::span(values).first(group.rank() == 0 ? 5 : 6)).message(),
                HasSubstr("met in different collectives"));
    EXPECT_TRUE(group.barrier("both have seen it").ok());
  });
}

constexpr milliseconds kPatience(2000);

void aStalledProcessIsNamed(ProcessGroup& group, ConnectTransport connect) {
  onTransport(group, connect, {}, [&](Transport& transport, AbortSignal& abort) {
    ProcessCommunicator communicator(group, {}, 0, transport, 1 << 16, abort, 8);
    if (group.rank() == 1) std::this_thread::sleep_for(kPatience * 3 / 2);
    if (group.rank() == 0) {
      EXPECT_THAT(reduceOne(communicator, 0, 100).message(),
                  AllOf(HasSubstr("nothing has come from process 1 ("), HasSubstr("SHEAF_TIMEOUT")));
    }
  });
}

// A wait ends with the transport, now and later, though nothing has come.
void anAbortEndsWaiting(ProcessGroup& group, ConnectTransport connect) {
  onTransport(group, connect, {.communicators = 2}, [&](Transport& transport, AbortSignal& abort) {
    abort.listen([&] { transport.abort(); });
    ProcessCommunicator communicator(group, {}, 0, transport, 1 << 16, abort, 8);
    if (group.rank() == 0) {
      const auto begin = Clock::now();
      std::thread other([&] {
        std::this_thread::sleep_for(milliseconds(100));
        abort.raise(Status::error("no more"));
      });
      std::byte never[100];
      transport.channel(1, 0).receive(1, never);
      for (int i = 0; i < 2; ++i) {
        auto moved = transport.channel(1, 0).poll(std::chrono::seconds(20));
        EXPECT_FALSE(moved.ok() && *moved);
      }
      EXPECT_EQ(reduceOne(communicator, 0, 100).message(), "no more");
      EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
      other.join();
    }
    EXPECT_TRUE(group.barrier("the wait is over").ok());
  });
}

// Two processes of two ranks: what each sends to the other, by communicator. What ranks exchange within their process
// is not counted.
void countsWhatItSends(ProcessGroup& group, ConnectTransport connect) {
  auto traffic = std::make_shared<comm::Traffic>();
  const TransportOptions options{.communicators = 2, .rails = 2, .traffic = traffic};
  onTransport(group, connect, options, [&](Transport& transport, AbortSignal& abort) {
    const int64_t other = 1 - group.rank();
    auto collectives = [&](int64_t number, const std::vector<Collective>& all) {
      ProcessCommunicator communicator(group, {2, 0, 2}, number, transport, 1 << 20, abort, 8);
      std::vector<std::thread> threads;
      for (int64_t rank : {2 * group.rank(), 2 * group.rank() + 1})
        threads.emplace_back([&, rank] {
          for (const Collective& collective : all) {
            Status status;
            runOne(communicator, collective, 4, rank, status);
            EXPECT_TRUE(status.ok()) << status.message();
          }
        });
      for (std::thread& thread : threads) thread.join();
    };
    // Of 4,000 bytes a rank: each sends its own once.
    collectives(0, {{plan::ALL_GATHER, plan::F32, 1000, false}});
    EXPECT_EQ(traffic->of(0, other).values(), 2 * 4000u);
    const uint64_t header = traffic->of(0, other).headers / 2;
    EXPECT_GT(header, 0u);
    // Each sends the values of both ranks for the part of its counterpart.
    collectives(1, {{plan::REDUCE_SCATTER, plan::F32, 1000, false}});
    EXPECT_EQ(traffic->of(1, other).values(), 2 * 2 * 4000u);
    // The same with quarters of 20,000 bytes, and then each the sum of its quarter.
    collectives(0, {{plan::ALL_REDUCE, plan::F32, 5000, false}});
    EXPECT_EQ(traffic->of(0, other).values(), 2 * 4000u + 2 * (2 * 5000 + 5000u));
    // Few bytes: one rank sends the values of both.
    collectives(1, {{plan::ALL_REDUCE, plan::F32, 100, false}});
    EXPECT_EQ(traffic->of(1, other).values(), 2 * 2 * 4000u + 2 * 400u);
    EXPECT_EQ(traffic->of(0, other).headers, 3 * 2 * header);
    EXPECT_EQ(traffic->of(0, group.rank()).bytes, 0u);
  });
}

double threadSeconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return double(time.tv_sec) + double(time.tv_nsec) * 1e-9;
}

// Channels share the rate, wait without computing, and lose nothing by waking late.
void sendsAtTheRate(ProcessGroup& group, ConnectTransport connect) {
  constexpr double kRate = 8e6;
  constexpr uint64_t kBytes = 2000000;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr double kSlower = 4;  // of what is instrumented
#else
  constexpr double kSlower = 1;
#endif
  onTransport(group, connect, {.communicators = 2, .sendRate = kRate}, [&](Transport& transport, AbortSignal&) {
    EXPECT_TRUE(group.barrier("the begin").ok());
    const auto begin = Clock::now();
    std::vector<std::thread> threads;
    for (int64_t communicator : {0, 1})
      threads.emplace_back([&, communicator] {
        Channel& channel = transport.channel(communicator, 0);
        const int64_t other = 1 - group.rank();
        const double before = threadSeconds();
        // Received memory is that of this thread.
        Bytes out(kBytes / 2, std::byte(communicator)), in(kBytes / 2, std::byte{9});
        for (uint64_t half : {uint64_t{0}, kBytes / 4}) {
          channel.send(other, std::span(out).subspan(half, kBytes / 4));
          channel.receive(other, std::span(in).subspan(half, kBytes / 4));
        }
        while (!channel.idle(other)) {
          auto moved = channel.poll(milliseconds(100));
          ASSERT_TRUE(moved.ok()) << moved.status().message();
        }
        EXPECT_TRUE(in == out);
        EXPECT_LT(threadSeconds() - before, kSlower * 0.25 * kBytes / kRate);
      });
    for (std::thread& thread : threads) thread.join();
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    EXPECT_GE(seconds, 0.99 * kBytes / kRate);
    EXPECT_LT(seconds, kSlower * 1.5 * kBytes / kRate);
  });
}

const std::map<std::string, Check> kChecks{{"bits-1", theBitsOfTheLocalOne<1>},
                                           {"bits-2", theBitsOfTheLocalOne<2>},
                                           {"bits-3", theBitsOfTheLocalOne<3>},
                                           {"large", largeMessagesFlowBothWays},
                                           {"pieces", piecesArriveInOrder},
                                           {"counts", countsWhatItSends},
                                           {"rate", sendsAtTheRate},
                                           {"communicators", communicatorsDoNotHoldEachOtherUp},
                                           {"different", differentCollectivesAreNoticed},
                                           {"stalled", aStalledProcessIsNamed},
                                           {"aborted", anAbortEndsWaiting}};

class Transports : public ::testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    if (*GetParam().library && libraryOf(GetParam()).empty())
      GTEST_SKIP() << "this build has no " << GetParam().library << ": its MPI was not found";
    checks() = kChecks;
  }
  void run(const std::string& check, int64_t size, milliseconds limit = kLimit, Ends ends = Ends::kInOrder) {
    SCOPED_TRACE(check + " in " + std::to_string(size) + " processes");
    everywhere(GetParam(), check, size, limit, ends);
  }
};

TEST_P(Transports, TheBitsOfTheLocalCommunicator) {
  for (auto [processes, check] :
       {std::pair(2, "bits-1"), {3, "bits-1"}, {4, "bits-1"}, {2, "bits-2"}, {3, "bits-2"}, {2, "bits-3"}})
    run(check, processes);
}
TEST_P(Transports, LargeMessagesFlowBothWays) {
  run("large", 2);
}
TEST_P(Transports, PiecesArriveInOrder) {
  run("pieces", 3);
}
TEST_P(Transports, CountsWhatItSends) {
  run("counts", 2);
}
TEST_P(Transports, SendsAtTheRate) {
  run("rate", 2);
}
TEST_P(Transports, CommunicatorsDoNotHoldEachOtherUp) {
  run("communicators", 2);
}
TEST_P(Transports, DifferentCollectivesAreNoticed) {
  run("different", 2);
}
TEST_P(Transports, AStalledProcessIsNamed) {
  run("stalled", 2, kPatience);
}
TEST_P(Transports, AnAbortEndsWaiting) {
  run("aborted", 2, kLimit, Ends::kAborted);
}

INSTANTIATE_TEST_SUITE_P(Over, Transports, ::testing::ValuesIn(kWays),
                         [](const auto& info) { return std::string(info.param.name); });

// The group outlives what listens to the signal, and may call when that is gone.
struct Watching {
  std::mutex mutex;
  bool alive = true;
};

TEST(SocketTransport, AFailureElsewhereEndsTheWaiting) {
  const auto begin = Clock::now();
  onProcesses(2, kLimit, [&](TcpProcessGroup& group) {
    auto abort = std::make_shared<AbortSignal>();
    auto transport = SocketTransport::connect(group, {}, *abort);
    ASSERT_TRUE(transport.ok()) << transport.status().message();
    abort->listen([&transport] { (*transport)->abort(); });
    ProcessCommunicator communicator(group, {}, 0, **transport, 1 << 16, *abort, 8);
    auto watching = std::make_shared<Watching>();
    group.watch([watching, abort](const Status& why) {
      std::lock_guard lock(watching->mutex);
      if (watching->alive) abort->raise(why);
    });
    if (group.rank() == 0) {
      EXPECT_THAT(reduceOne(communicator, 0, 100).message(), AllOf(HasSubstr("process 1 ("), HasSubstr("no more")));
    } else {
      group.fail("no more");
    }
    std::lock_guard lock(watching->mutex);
    watching->alive = false;
  });
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(10));
}

TEST(ProcessCommunicator, ExchangeMemoryIsWhatThePlanNeeds) {
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

// With SHEAF_CHECK it is one process of a job that `everywhere` has started by mpirun.
int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const char* check = std::getenv("SHEAF_CHECK");
  if (!check) return RUN_ALL_TESTS();
  sheaf::testing::checks() = sheaf::testing::kChecks;
  return sheaf::testing::runCheck(check);
}
