// Collectives between processes that share memory give the local communicator's bits, on one node and on several; who
// is missing is named, and nothing is left behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <mutex>
#include <thread>

#include "runtime/comm/process/SubGroup.h"
#include "runtime/comm/shared/MemoryId.h"
#include "runtime/comm/shared/SharedMemory.h"
#include "runtime/comm/socket/SocketTransport.h"
#include "runtime/comm/transport/ProcessCommunicator.h"
#include "test/runtime/Collectives.h"
#include "test/runtime/Processes.h"

namespace sheaf::testing {
namespace {

using comm::AbortSignal;
using comm::Communicator;
using comm::LocalCommunicator;
using comm::ProcessCommunicator;
using comm::Rendezvous;
using comm::SharedMemory;
using comm::SocketTransport;
using comm::SubGroup;
using comm::TcpProcessGroup;
using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr milliseconds kLimit(30000);
constexpr uint64_t kRankBytes = uint64_t{4} << 20;

// One process's part: `local` ranks with kRankBytes each, the state of the rendezvous after those of process 0.
struct Node {
  Node(comm::ProcessGroup& group, int64_t local, const AbortSignal& abort) : group(group), local(local) {
    const uint64_t state = group.rank() == 0 ? Rendezvous::stateBytes(local * group.size()) : 0;
    auto made = SharedMemory::create(group, uint64_t(local) * kRankBytes + state, abort);
    EXPECT_TRUE(made.ok()) << made.status().message();
    if (made.ok()) memory = std::move(*made);
  }
  std::byte* memoryOf(int64_t rank) const {
    return memory->block(rank / local).data() + uint64_t(rank % local) * kRankBytes;
  }
  Rendezvous::Shared shared() const {
    Rendezvous::Shared shared;
    shared.state = memory->block(0).data() + uint64_t(local) * kRankBytes;
    for (int64_t rank = 0; rank < local * group.size(); ++rank) shared.memory.push_back(memoryOf(rank));
    shared.limit = group.limit();
    shared.describe = [this](int64_t rank) { return group.describe(rank / local); };
    return shared;
  }

  comm::ProcessGroup& group;
  int64_t local;
  std::unique_ptr<SharedMemory> memory;
};

// `nodes` nodes of `processes` processes with `local` ranks each.
Results overNodes(const std::vector<Collective>& collectives, int64_t nodes, int64_t processes, int64_t local) {
  const int64_t ranks = nodes * processes * local;
  Results results(static_cast<size_t>(ranks));
  onProcesses(nodes * processes, kLimit, [&](TcpProcessGroup& job) {
    AbortSignal abort;
    SubGroup group(job, processes), counterparts(job, nodes, processes);
    Node node(group, local, abort);
    ASSERT_TRUE(node.memory);
    std::unique_ptr<comm::Transport> transport;
    std::unique_ptr<Communicator> communicator;
    if (nodes == 1) {
      communicator = std::make_unique<LocalCommunicator>(ranks, abort, 8, node.shared());
    } else {
      auto connected = SocketTransport::connect(counterparts, {.rails = local}, abort);
      ASSERT_TRUE(connected.ok()) << connected.status().message();
      transport = std::move(*connected);
      communicator = std::make_unique<ProcessCommunicator>(
          counterparts, ProcessCommunicator::NodeRanks{processes * local, group.rank() * local, local}, 0, *transport,
          4096 * uint64_t((nodes - 1) * processes * local), abort, 8, node.shared());
    }
    std::vector<std::thread> threads;
    for (int64_t i = 0; i < local; ++i)
      threads.emplace_back([&, i] {
        const int64_t rank = job.rank() * local + i;
        for (const Collective& collective : collectives) {
          Status status;
          results[size_t(rank)].push_back(
              runOne(*communicator, collective, ranks, rank, status, node.memoryOf(group.rank() * local + i)));
          EXPECT_TRUE(status.ok()) << status.message();
        }
      });
    for (std::thread& thread : threads) thread.join();
    EXPECT_TRUE(job.leave().ok());
  });
  return results;
}

TEST(SharedMemory, CollectivesHaveTheBitsOfTheLocalOnes) {
  const std::vector<Collective> collectives = everyCollective();
  struct Layout {
    int64_t nodes, processes, local;
  };
  for (auto [nodes, processes, local] : {Layout{1, 2, 1}, {1, 4, 1}, {1, 2, 3}, {2, 2, 1}, {2, 2, 2}, {3, 2, 1}}) {
    SCOPED_TRACE(std::to_string(nodes) + " nodes of " + std::to_string(processes) + " processes");
    expectEqual(collectives, locally(collectives, nodes * processes * local),
                overNodes(collectives, nodes, processes, local));
  }
}

TEST(SharedMemory, EveryProcessSeesEveryBlock) {
  onProcesses(3, kLimit, [](TcpProcessGroup& group) {
    AbortSignal abort;
    // Blocks of different sizes, one with huge pages.
    const uint64_t bytes[] = {100, uint64_t{10} << 20, 5000};
    auto memory = SharedMemory::create(group, bytes[group.rank()], abort);
    ASSERT_TRUE(memory.ok()) << memory.status().message();
    for (int64_t process = 0; process < 3; ++process) {
      ASSERT_EQ((*memory)->block(process).size(), bytes[process]);
      EXPECT_EQ((*memory)->block(process)[bytes[process] - 1], std::byte{0});
    }
    ASSERT_TRUE(group.barrier("all have looked").ok());
    (*memory)->block((group.rank() + 1) % 3)[99] = std::byte(group.rank() + 1);
    ASSERT_TRUE(group.barrier("all have written").ok());
    for (int64_t process = 0; process < 3; ++process)
      EXPECT_EQ((*memory)->block(process)[99], std::byte((process + 2) % 3 + 1));
    EXPECT_TRUE(group.leave().ok());
  });
}

TEST(SharedMemory, NothingIsLeftBehind) {
  auto count = [](const char* folder) {
    return std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator());
  };
  const auto files = count("/dev/shm"), descriptors = count("/proc/self/fd");
  onProcesses(2, kLimit, [&](TcpProcessGroup& group) {
    AbortSignal abort;
    auto memory = SharedMemory::create(group, 1 << 20, abort);
    ASSERT_TRUE(memory.ok()) << memory.status().message();
    // Also while it is in use: that is what a killed process leaves.
    EXPECT_EQ(count("/dev/shm"), files);
    EXPECT_TRUE(group.leave().ok());
  });
  EXPECT_EQ(count("/proc/self/fd"), descriptors);
}

// Two processes of one rank each; returns the errors.
template <typename Body>
std::vector<std::string> errorsOf(milliseconds limit, Body body) {
  std::vector<std::string> errors(2);
  onProcesses(2, limit, [&](TcpProcessGroup& group) {
    // The group outlives what listens to the signal, and may call when that is gone.
    struct Watching {
      std::mutex mutex;
      bool alive = true;
    };
    auto abort = std::make_shared<AbortSignal>();
    auto watching = std::make_shared<Watching>();
    Node node(group, 1, *abort);
    LocalCommunicator communicator(2, *abort, 8, node.shared());
    group.watch([watching, abort](const Status& why) {
      std::lock_guard lock(watching->mutex);
      if (watching->alive) abort->raise(why);
    });
    errors[size_t(group.rank())] = body(communicator, group, node.memoryOf(group.rank())).message();
    std::lock_guard lock(watching->mutex);
    watching->alive = false;
    if (group.rank() == 0) group.fail("over");
  });
  return errors;
}

Status reduceOne(Communicator& communicator, int64_t rank, uint64_t count, std::byte* bytes) {
  return communicator.run(rank, {plan::ALL_REDUCE, plan::F32, count, bytes, bytes});
}

TEST(SharedMemory, DifferentCollectivesAreNoticed) {
  auto errors = errorsOf(kLimit, [](Communicator& communicator, TcpProcessGroup& group, std::byte* memory) {
    return reduceOne(communicator, group.rank(), group.rank() == 0 ? 5 : 6, memory);
  });
  // Who notices first ends the job for the other.
  EXPECT_THAT(errors[0] + errors[1], HasSubstr("ranks met in different collectives"));
}

TEST(SharedMemory, AStalledProcessIsNamed) {
  auto errors = errorsOf(milliseconds(1000), [](Communicator& communicator, TcpProcessGroup& group, std::byte* memory) {
    if (group.rank() == 1) std::this_thread::sleep_for(milliseconds(2500));
    return group.rank() == 1 ? Status() : reduceOne(communicator, 0, 100, memory);
  });
  EXPECT_THAT(errors[0], AllOf(HasSubstr("nothing has come from process 1 ("), HasSubstr("SHEAF_TIMEOUT")));
}

TEST(SharedMemory, AFailureElsewhereEndsTheWaiting) {
  auto begin = comm::Clock::now();
  auto errors = errorsOf(kLimit, [](Communicator& communicator, TcpProcessGroup& group, std::byte* memory) {
    if (group.rank() == 0) return reduceOne(communicator, 0, 100, memory);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // until process 0 no longer spins, but sleeps
    group.fail("no more");
    return Status();
  });
  EXPECT_THAT(errors[0], AllOf(HasSubstr("process 1 ("), HasSubstr("no more")));
  EXPECT_LT(comm::Clock::now() - begin, std::chrono::seconds(10));
}

TEST(SharedMemory, NodesAreBlocksOfNeighboursOnOneHost) {
  auto perNode = [](const std::string& hosts) {
    std::vector<std::string> ids;
    for (char host : hosts) ids.emplace_back(1, host);
    return comm::processesPerNode(ids);
  };
  EXPECT_EQ(perNode("a"), 1);
  EXPECT_EQ(perNode("aaaa"), 4);
  EXPECT_EQ(perNode("aabb"), 2);
  EXPECT_EQ(perNode("aaaabb"), 2);
  EXPECT_EQ(perNode("abab"), 1);
  EXPECT_EQ(perNode("aaab"), 1);
  EXPECT_EQ(perNode("aaaaaabbb"), 3);
  EXPECT_EQ(comm::memoryId(nullptr), comm::memoryId(""));
  EXPECT_NE(comm::memoryId(nullptr), comm::memoryId("other"));
  EXPECT_EQ(comm::memoryId("other"), comm::memoryId("other"));
}

}  // namespace
}  // namespace sheaf::testing
