// Local collectives: every operation, type, place and number of ranks against sums in the order of the tree.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <thread>
#include <type_traits>

#include "runtime/comm/local/LocalCommunicator.h"
#include "runtime/comm/local/Reduce.h"
#include "test/runtime/Numbers.h"

namespace sheaf::testing {
namespace {

using comm::AbortSignal;
using comm::CollectiveBuffers;
using comm::LocalCommunicator;

// Runs body(rank) on a thread for each rank.
template <typename Body>
void onRanks(int64_t ranks, Body body) {
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < ranks; ++rank) threads.emplace_back([&body, rank] { body(rank); });
  for (std::thread& thread : threads) thread.join();
}

template <typename T>
T number(Numbers& numbers) {
  if constexpr (std::is_floating_point_v<T>)
    return T(numbers.real()) * T(numbers.below(1000));
  else
    return T(numbers.bits());
}

// Unsigned for integers, whose sum wraps. An even number of ranks is added as pairs first, whose sums are the terms of
// the next round; an odd number from left to right.
template <typename T>
std::vector<T> sumOfTree(std::vector<std::vector<T>> terms) {
  auto add = [](std::vector<T>& sum, const std::vector<T>& term) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] = T(sum[i] + term[i]);
  };
  for (; terms.size() % 2 == 0; terms.resize(terms.size() / 2))
    for (size_t pair = 0; pair < terms.size() / 2; ++pair) {
      add(terms[2 * pair], terms[2 * pair + 1]);
      terms[pair] = terms[2 * pair];
    }
  for (size_t rank = 1; rank < terms.size(); ++rank) add(terms[0], terms[rank]);
  return terms[0];
}

template <typename T>
void expectCollectives(plan::ElementType type, int64_t ranks, uint64_t count) {
  SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::to_string(count) + " elements of type " +
               std::to_string(type));
  AbortSignal abort;
  LocalCommunicator communicator(ranks, abort, 8);
  Numbers numbers(ranks + count);
  std::vector<std::vector<T>> whole(ranks), parts(ranks), sums(ranks);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    for (uint64_t i = 0; i < count * ranks; ++i) whole[rank].push_back(number<T>(numbers));
    for (uint64_t i = 0; i < count; ++i) sums[rank].push_back(number<T>(numbers));
    parts[rank].assign(whole[rank].begin() + rank * count, whole[rank].begin() + (rank + 1) * count);
  }
  std::vector<T> gathered;
  for (const std::vector<T>& part : parts) gathered.insert(gathered.end(), part.begin(), part.end());
  const std::vector<T> scattered = sumOfTree(whole), reduced = sumOfTree(sums);

  auto run = [&](int64_t rank, plan::CollectiveOp op, const T* source, T* destination) {
    Status status = communicator.run(
        rank, {op, type, count, reinterpret_cast<const std::byte*>(source), reinterpret_cast<std::byte*>(destination)});
    EXPECT_TRUE(status.ok()) << status.message();
  };
  auto equal = [](const std::vector<T>& a, const T* b) { return std::memcmp(a.data(), b, a.size() * sizeof(T)) == 0; };
  onRanks(ranks, [&](int64_t rank) {
    for (int round = 0; round < 3; ++round) {
      std::vector<T> all(count * ranks), part(count), source = sums[rank], mine = whole[rank];
      run(rank, plan::ALL_GATHER, parts[rank].data(), all.data());
      EXPECT_TRUE(equal(gathered, all.data()));
      run(rank, plan::ALL_GATHER, mine.data() + rank * count, mine.data());
      EXPECT_TRUE(equal(gathered, mine.data()));

      const std::vector<T> expected(scattered.begin() + rank * count, scattered.begin() + (rank + 1) * count);
      mine = whole[rank];
      run(rank, plan::REDUCE_SCATTER, mine.data(), part.data());
      EXPECT_TRUE(equal(expected, part.data()));
      EXPECT_TRUE(equal(whole[rank], mine.data()));
      run(rank, plan::REDUCE_SCATTER, mine.data(), mine.data() + rank * count);
      EXPECT_TRUE(equal(expected, mine.data() + rank * count));

      run(rank, plan::ALL_REDUCE, source.data(), part.data());
      EXPECT_TRUE(equal(reduced, part.data()));
      EXPECT_TRUE(equal(sums[rank], source.data()));
      run(rank, plan::ALL_REDUCE, source.data(), source.data());
      EXPECT_TRUE(equal(reduced, source.data()));
    }
  });
}

TEST(LocalCommunicator, EveryOperationInTheTreesOrder) {
  for (int64_t ranks : {1, 2, 3, 4, 6, 8, 12})
    for (uint64_t count : {1, 3, 17, 5000}) {
      expectCollectives<float>(plan::F32, ranks, count);
      expectCollectives<double>(plan::F64, ranks, count);
      expectCollectives<uint64_t>(plan::I64, ranks, count);
      expectCollectives<uint32_t>(plan::I32, ranks, count);
    }
}

// As the root of the tree adds its subtrees: of three, six or twelve ranks after those of another three, six or twelve.
TEST(LocalCommunicator, SumsGoOn) {
  for (int64_t ranks : {1, 3, 4, 6, 12})
    for (uint64_t count : {1, 700, 9000}) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::to_string(count) + " elements");
      const int64_t groups = 3, subtree = ranks & -ranks;
      Numbers numbers(ranks + count);
      std::vector<std::vector<float>> terms(groups * ranks);
      for (std::vector<float>& term : terms)
        for (uint64_t i = 0; i < count * ranks; ++i) term.push_back(number<float>(numbers));
      std::vector<float> expected;
      for (size_t first = 0; first < terms.size(); first += subtree) {
        const std::vector<float> sum = sumOfTree(std::vector(terms.begin() + first, terms.begin() + first + subtree));
        for (size_t i = 0; i < sum.size(); ++i)
          if (first == 0)
            expected.push_back(sum[i]);
          else
            expected[i] += sum[i];
      }
      AbortSignal abort;
      LocalCommunicator communicator(ranks, abort, 8);
      onRanks(ranks, [&](int64_t rank) {
        std::vector<float> part(count), all(count);
        for (int64_t group = 0; group < groups; ++group) {
          const auto* source = reinterpret_cast<const std::byte*>(terms[group * ranks + rank].data());
          for (auto [op, destination] : {std::pair(plan::REDUCE_SCATTER, &part), std::pair(plan::ALL_REDUCE, &all)})
            EXPECT_TRUE(communicator
                            .run(rank, {op, plan::F32, count, source, reinterpret_cast<std::byte*>(destination->data()),
                                        group > 0})
                            .ok());
        }
        const auto own = expected.begin() + rank * static_cast<int64_t>(count);
        EXPECT_TRUE(part == std::vector<float>(own, own + static_cast<int64_t>(count)));
        EXPECT_TRUE(all == std::vector<float>(expected.begin(), expected.begin() + static_cast<int64_t>(count)));
      });
    }
}

TEST(LocalCommunicator, HalvesAreRoundedAtEveryAddition) {
  // (1 + e) + (e + e) with e half a unit in 1's last place: 1 + e is a tie and rounds to 1, e + e is exact. One
  // rounding at the end would give 1 + 4e, and rank order 1. Three ranks add (1 + e) + e: one rounding at the end would
  // give 1 + 2e.
  const uint16_t one = 0x3F80, tiny = 0x3B80, sum = 0x3F81;                     // bf16: e is 2^-8
  const uint16_t half[4] = {0x3C00, 0x1000, 0x1000, 0x1000}, halfSum = 0x3C01;  // f16: e is 2^-11
  for (auto [type, values, expected] : {std::tuple{plan::BF16, std::vector<uint16_t>{one, tiny, tiny, tiny}, sum},
                                        std::tuple{plan::F16, std::vector<uint16_t>(half, half + 4), halfSum}}) {
    std::vector<const std::byte*> sources;
    for (const uint16_t& value : values) sources.push_back(reinterpret_cast<const std::byte*>(&value));
    uint16_t result = 0;
    comm::sumOverRanks(type, sources, reinterpret_cast<std::byte*>(&result), 1);
    EXPECT_EQ(result, expected);
    sources.pop_back();
    comm::sumOverRanks(type, sources, reinterpret_cast<std::byte*>(&result), 1);
    EXPECT_EQ(result, values[0]);
  }
}

TEST(LocalCommunicator, NanPropagates) {
  for (plan::ElementType type : {plan::F32, plan::BF16, plan::F16}) {
    const float single[2] = {NAN, 1};
    const uint16_t brain[2] = {0x7FC0, 0x3F80}, half[2] = {0x7E00, 0x3C00};
    const void* values = type == plan::F32 ? static_cast<const void*>(single) : type == plan::BF16 ? brain : half;
    std::vector<const std::byte*> sources;
    for (int i = 0; i < 2; ++i) sources.push_back(static_cast<const std::byte*>(values) + i * plan::elementBytes(type));
    uint32_t bits = 0;
    comm::sumOverRanks(type, sources, reinterpret_cast<std::byte*>(&bits), 1);
    if (type == plan::F32)
      EXPECT_EQ(bits & 0x7FC00000, 0x7FC00000u);
    else
      EXPECT_GT(bits & 0x7FFF, type == plan::BF16 ? 0x7F80u : 0x7C00u);
  }
}

TEST(LocalCommunicator, RanksThatDisagreeAreNamed) {
  AbortSignal abort;
  LocalCommunicator communicator(2, abort, 8);
  float values[2][4] = {};
  onRanks(2, [&](int64_t rank) {
    Status status = communicator.run(
        rank, {plan::ALL_REDUCE, plan::F32, uint64_t(rank + 1), reinterpret_cast<std::byte*>(values[rank]),
               reinterpret_cast<std::byte*>(values[rank])});
    EXPECT_THAT(status.message(), ::testing::HasSubstr("different collectives"));
  });
}

TEST(Rendezvous, PartsOfALateRankAreDoneByTheOthers) {
  constexpr int64_t kRanks = 3;
  AbortSignal abort;
  comm::Rendezvous rendezvous(kRanks, abort, 8);
  for (int round = 0; round < 20; ++round) {
    std::array<std::atomic<int>, kRanks> done{}, doers{};
    auto share = [&](int64_t rank) {
      EXPECT_TRUE(rendezvous
                      .share(rank, kRanks,
                             [&](int64_t part) {
                               ++done[static_cast<size_t>(part)];
                               ++doers[static_cast<size_t>(rank)];
                             })
                      .ok());
    };
    onRanks(kRanks - 1, share);  // returns though the last rank is not here
    for (const std::atomic<int>& times : done) EXPECT_EQ(times, 1);
    share(kRanks - 1);
    for (const std::atomic<int>& times : done) EXPECT_EQ(times, 1);
    EXPECT_EQ(doers[kRanks - 1], 0);
  }
}

TEST(LocalCommunicator, AbortEndsEveryRendezvous) {
  for (int64_t ranks : {2, 5}) {
    AbortSignal abort;
    LocalCommunicator communicator(ranks, abort, 8);
    std::vector<float> values(ranks * 4);
    onRanks(ranks, [&](int64_t rank) {
      if (rank == 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        abort.raise(Status::error("first"));
        abort.raise(Status::error("second"));
        return;
      }
      std::byte* mine = reinterpret_cast<std::byte*>(values.data() + rank * 4);
      EXPECT_EQ(communicator.run(rank, {plan::ALL_REDUCE, plan::F32, 4, mine, mine}).message(), "first");
    });
    EXPECT_EQ(abort.status().message(), "first");
  }
}

TEST(LocalCommunicator, CommunicatorsAreIndependent) {
  // Each rank uses both from a thread of its own, in opposite order.
  AbortSignal abort;
  LocalCommunicator first(2, abort, 8), second(2, abort, 8);
  onRanks(4, [&](int64_t thread) {
    LocalCommunicator& communicator = thread < 2 ? first : second;
    float value = float(thread);
    std::byte* bytes = reinterpret_cast<std::byte*>(&value);
    for (int round = 0; round < 50; ++round)
      ASSERT_TRUE(communicator.run(thread % 2, {plan::ALL_REDUCE, plan::F32, 1, bytes, bytes}).ok());
    EXPECT_EQ(value, std::ldexp(thread < 2 ? 1.0f : 5.0f, 49));
  });
}

}  // namespace
}  // namespace sheaf::testing
