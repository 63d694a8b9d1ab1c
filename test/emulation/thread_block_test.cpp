// The emulation's own promises: what a wrong kernel does in it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "test/emulation/ThreadBlock.h"

namespace sheaf::emulation {
namespace {

constexpr int kThreads = 3 * kWarp + 5;

// In a thread of its own, because the order is read when a thread runs its first block.
template <typename Function>
void inOrder(const char* order, Function function) {
  setenv("SHEAF_EMULATED_ORDER", order, 1);
  std::thread(function).join();
  unsetenv("SHEAF_EMULATED_ORDER");
}

constexpr const char* kOrders[] = {"turns", "ahead", "reversed", "1", "2", ""};

// Every thread leaves its number for the one at the block's other end, a few times in the same place.
std::vector<unsigned> mirrored(bool barriers) {
  std::vector<unsigned> result(kThreads, 0);
  runBlock(kThreads, kThreads * sizeof(unsigned), [&](int thread) {
    unsigned* shared = reinterpret_cast<unsigned*>(sharedMemory());
    for (unsigned round = 0; round < 3; ++round) {
      shared[thread] = 1000 * round + static_cast<unsigned>(thread);
      if (barriers) blockBarrier();
      result[static_cast<size_t>(thread)] += shared[kThreads - 1 - thread];
      if (barriers) blockBarrier();
    }
  });
  return result;
}

TEST(ThreadBlock, BarriersOrderTheBlock) {
  std::vector<unsigned> expected(kThreads);
  for (unsigned i = 0; i < kThreads; ++i) expected[i] = 3000 + 3 * (kThreads - 1 - i);
  for (const char* order : kOrders)
    inOrder(order, [&] {
      for (int block = 0; block < 5; ++block) EXPECT_EQ(mirrored(true), expected) << order;
    });
}

TEST(ThreadBlock, WarpsExchangeAndMeet) {
  for (const char* order : kOrders)
    inOrder(order, [&] {
      std::vector<uint64_t> sums(4 * kWarp), pairs(4 * kWarp);
      runBlock(4 * kWarp, 4 * kWarp * sizeof(int), [&](int thread) {
        uint64_t sum = static_cast<uint64_t>(thread);
        for (int distance = 1; distance < kWarp; distance *= 2) sum += warpExchange(sum, thread % kWarp ^ distance);
        sums[static_cast<size_t>(thread)] = sum;
        int* shared = reinterpret_cast<int*>(sharedMemory());
        shared[thread] = thread;
        warpBarrier();
        pairs[static_cast<size_t>(thread)] = static_cast<uint64_t>(shared[thread ^ 1]);
      });
      for (int i = 0; i < 4 * kWarp; ++i) {
        const uint64_t first = static_cast<uint64_t>(i / kWarp * kWarp);
        EXPECT_EQ(sums[static_cast<size_t>(i)], kWarp * first + kWarp * (kWarp - 1) / 2) << order;
        EXPECT_EQ(pairs[static_cast<size_t>(i)], static_cast<uint64_t>(i ^ 1)) << order;
      }
    });
}

TEST(ThreadBlock, SharedMemoryBeginsAsGarbage) {
  for (int block = 0; block < 2; ++block)
    runBlock(1, 16, [](int) {
      EXPECT_NE(sharedMemory()[3], std::byte{0});
      sharedMemory()[3] = std::byte{0};
    });
}

// Sixteen bytes of a warp's copies: two groups of one copy a thread, and one that is not closed.
struct Copied {
  alignas(16) std::array<uint8_t, 16> bytes[3][kWarp];
};

TEST(ThreadBlock, CopiesDeliverGarbageUntilTheyAreAwaited) {
  Copied source;
  for (int i = 0; i < 3; ++i)
    for (int thread = 0; thread < kWarp; ++thread)
      source.bytes[i][thread].fill(static_cast<uint8_t>(16 * i + thread % 16));
  std::array<uint8_t, 16> garbage, zeros{};
  garbage.fill(0xCB);
  for (int block = 0; block < 2; ++block)  // what one block leaves under way is not the next one's
    runBlock(kWarp, sizeof(Copied), [&](int thread) {
      Copied& shared = *reinterpret_cast<Copied*>(sharedMemory());
      auto expect = [&](int i, const std::array<uint8_t, 16>& bytes) {
        EXPECT_EQ(shared.bytes[i][thread], bytes) << i;
      };
      copyAsync(&shared.bytes[0][thread], &source.bytes[0][thread]);
      commitCopies();
      copyAsync(&shared.bytes[1][thread], thread % 2 ? &source.bytes[1][thread] : nullptr);
      commitCopies();
      copyAsync(&shared.bytes[2][thread], &source.bytes[2][thread]);
      for (int i = 0; i < 3; ++i) expect(i, garbage);
      awaitCopies(2);
      expect(0, garbage);
      awaitCopies(1);
      expect(0, source.bytes[0][thread]);
      expect(1, garbage);
      awaitCopies(0);
      expect(1, thread % 2 ? source.bytes[1][thread] : zeros);
      expect(2, garbage);
    });
}

TEST(ThreadBlock, CopiesReadTheirSourceWhenTheyAreAwaited) {
  alignas(16) std::array<uint8_t, 16> source{1}, seen{};
  runBlock(1, 16, [&](int) {
    copyAsync(sharedMemory(), source.data());
    commitCopies();
    source[0] = 2;
    awaitCopies(0);
    std::memcpy(seen.data(), sharedMemory(), seen.size());
  });
  EXPECT_EQ(seen[0], 2);
}

#ifdef __SANITIZE_THREAD__
// In whichever order the threads run: even if it is the right one.
TEST(ThreadBlockDeath, AMissingBarrierIsARace) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(mirrored(false), "data race");
}
#else
TEST(ThreadBlock, AMissingBarrierShowsInTheResult) {
  const std::vector<unsigned> expected = mirrored(true);
  for (const char* order : kOrders) inOrder(order, [&] { EXPECT_NE(mirrored(false), expected) << order; });

  // Right as long as the first warp runs first.
  auto copied = [] {
    std::vector<int> result(2 * kWarp, 0);
    runBlock(2 * kWarp, kWarp * sizeof(int), [&](int thread) {
      int* shared = reinterpret_cast<int*>(sharedMemory());
      if (thread < kWarp) shared[thread] = thread;
      result[static_cast<size_t>(thread)] = shared[thread % kWarp];
    });
    return result;
  };
  std::vector<int> right(2 * kWarp);
  for (int i = 0; i < 2 * kWarp; ++i) right[static_cast<size_t>(i)] = i % kWarp;
  inOrder("turns", [&] { EXPECT_EQ(copied(), right); });
  inOrder("reversed", [&] { EXPECT_NE(copied(), right); });
  inOrder("", [&] {
    int wrong = 0;
    for (int block = 0; block < 4; ++block) wrong += copied() != right;
    EXPECT_GT(wrong, 0) << "blocks take orders in turn";
  });
}
#endif

TEST(ThreadBlockDeath, ThreadsThatDoNotMeet) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  auto someMeet = [](int thread) {
    if (thread < 32) blockBarrier();
  };
  auto oneIsMissing = [](int thread) {
    if (thread != 40) warpBarrier();
  };
  auto apart = [](int thread) {
    if (thread == 40)
      blockBarrier();
    else
      blockBarrier();
  };
  EXPECT_DEATH(runBlock(64, 0, someMeet), "threads wait for others that have ended or wait elsewhere");
  EXPECT_DEATH(runBlock(64, 0, oneIsMissing), "threads wait for others");
  EXPECT_DEATH(runBlock(64, 0, apart),
               "threads meet at different places: .*thread_block_test.cpp:[0-9]+ and .*thread_block_test.cpp:[0-9]+");
  EXPECT_DEATH(blockBarrier(), "a barrier outside of a block");
  EXPECT_DEATH(runBlock(1, 32, [](int) { copyAsync(sharedMemory() + 8, nullptr); }), "not aligned to its 16 bytes");
  EXPECT_DEATH(awaitCopies(0), "an asynchronous copy outside of a block");
  EXPECT_DEATH(inOrder("sideways", [] { mirrored(true); }), "it takes turns, ahead, reversed or a seed");
}

}  // namespace
}  // namespace sheaf::emulation
