// Every collective of every type between ranks on GPUs, against sums on the host.
#pragma once

#include <gtest/gtest.h>

#include "runtime/comm/local/Reduce.h"
#include "test/runtime/CudaTesting.h"

namespace sheaf::testing {

// Three collectives of one type, each into a buffer of its own and then in place; and sums that go on.
struct CollectivePlan {
  CollectivePlan(plan::ElementType type, int64_t ranks, uint64_t count) : type(type), count(count) {
    const uint64_t width = plan::elementBytes(type), part = count * width, whole = part * static_cast<uint64_t>(ranks);
    builder.plan.set_ranks(ranks);
    // Terms are exact values of their type, copied from where steps leave them alone.
    terms = builder.buffer(whole);
    for (uint32_t* buffer : {&gathered, &gatheredInPlace, &scatteredInPlace}) *buffer = builder.buffer(whole);
    for (uint32_t* buffer : {&scattered, &reduced, &reducedInPlace, &before, &scatteredOn, &reducedOn})
      *buffer = builder.buffer(part);
    auto own = [&](uint32_t buffer) {
      plan::Operand operand = builder.operand(buffer, plan::READ_WRITE);
      operand.set_bytes(part);
      operand.set_shard_stride(part);
      return operand;
    };
    auto first = [&](uint32_t buffer) {
      plan::Operand operand = builder.operand(buffer, plan::READ_WRITE);
      operand.set_bytes(part);
      return operand;
    };
    auto all = [&](uint32_t buffer) { return builder.operand(buffer, plan::READ_WRITE); };
    copy(all(terms), all(gatheredInPlace));
    copy(all(terms), all(scatteredInPlace));
    copy(first(terms), first(reducedInPlace));
    for (uint32_t buffer : {scatteredOn, reducedOn}) copy(first(before), first(buffer));
    builder.record(0, 0);
    builder.wait(0, 1);
    builder.wait(0, 2);
    builder.collective(plan::ALL_GATHER, type, count, own(terms), all(gathered));
    builder.collective(plan::ALL_GATHER, type, count, own(gatheredInPlace), all(gatheredInPlace));
    // Another communicator, on another stream.
    builder.collective(plan::REDUCE_SCATTER, type, count, all(terms), first(scattered), 1, 2);
    builder.collective(plan::REDUCE_SCATTER, type, count, all(scatteredInPlace), own(scatteredInPlace), 1, 2);
    builder.collective(plan::ALL_REDUCE, type, count, first(terms), first(reduced), 1, 2);
    builder.collective(plan::ALL_REDUCE, type, count, first(reducedInPlace), first(reducedInPlace), 1, 2);
    builder.collective(plan::REDUCE_SCATTER, type, count, all(terms), first(scatteredOn), 1, 2, true);
    builder.collective(plan::ALL_REDUCE, type, count, first(terms), first(reducedOn), 1, 2, true);
    builder.record(1, 1);
    builder.record(2, 2);
    builder.wait(1, 0);
    builder.wait(2, 0);
  }

  void copy(const plan::Operand& from, const plan::Operand& to) {
    builder.call(plan::CopyCall{.elementBytes = 1, .dimensions = {{static_cast<int64_t>(from.bytes()), 1, 1}}},
                 {from, to}, "copy");
  }

  plan::ElementType type;
  uint64_t count;
  PlanBuilder builder;
  uint32_t terms = 0, gathered = 0, gatheredInPlace = 0, scattered = 0, scatteredInPlace = 0, reduced = 0,
           reducedInPlace = 0, before = 0, scatteredOn = 0, reducedOn = 0;
};

// Of six ranks in three nodes of two: their shards gathered in two hops, in place, their terms summed in two hops, and
// a sum over all ranks.
struct HopsPlan {
  static constexpr int64_t kRanks = 6, kPerNode = 2, kNodes = 3;
  static constexpr uint64_t kCount = 1000, kPart = kCount * sizeof(float), kPiece = kPart * kNodes;

  HopsPlan() {
    builder.plan.set_ranks(kRanks);
    builder.plan.set_ranks_per_node(kPerNode);
    for (plan::Axis axis : {plan::NETWORK, plan::NODE, plan::NODE, plan::NETWORK, plan::WORLD})
      builder.plan.add_communicator_axes(axis);
    builder.plan.set_communicators(5);
    for (uint32_t* buffer : {&shard, &scattered, &reduced}) *buffer = builder.buffer(kPart);
    for (uint32_t* buffer : {&gathered, &terms, &left}) *buffer = builder.buffer(kPart * kRanks);
    auto all = [&](uint32_t buffer) { return builder.operand(buffer, plan::READ_WRITE); };
    auto piece = [&](uint32_t buffer) {
      plan::Operand operand = all(buffer);
      operand.set_bytes(kPiece), operand.set_shard_stride(kPiece), operand.set_axis(plan::NODE);
      return operand;
    };
    builder.call(plan::CopyCall{.elementBytes = 4, .dimensions = {{static_cast<int64_t>(kCount) * kRanks, 1, 1}}},
                 {all(terms), all(left)}, "copy");
    builder.record(0, 0);
    builder.wait(0, 1);
    builder.wait(0, 2);
    builder.collective(plan::ALL_GATHER, plan::F32, kCount, all(shard), piece(gathered), 0, 2);
    builder.record(1, 2);
    builder.wait(1, 1);
    builder.collective(plan::ALL_GATHER, plan::F32, kCount * kNodes, piece(gathered), all(gathered), 1, 1);
    builder.collective(plan::REDUCE_SCATTER, plan::F32, kCount * kNodes, all(left), piece(left), 2, 1);
    builder.record(2, 1);
    builder.wait(2, 2);
    builder.collective(plan::REDUCE_SCATTER, plan::F32, kCount, piece(left), all(scattered), 3, 2);
    builder.collective(plan::ALL_REDUCE, plan::F32, kCount, all(shard), all(reduced), 4, 1);
    builder.record(3, 1);
    builder.record(4, 2);
    builder.wait(3, 0);
    builder.wait(4, 0);
  }

  PlanBuilder builder;
  uint32_t shard = 0, scattered = 0, reduced = 0, gathered = 0, terms = 0, left = 0;
};

// Fills shards and terms, runs the plan with `run` and compares. contexts[r] is rank r's.
template <typename Run>
void expectHops(const HopsPlan& plan, std::vector<RankContext*> contexts, Run run) {
  const plan::Plan& made = plan.builder.plan;
  Numbers numbers(5);
  std::vector<std::vector<float>> shards, terms;
  for (RankContext* context : contexts) {
    for (auto [values, count] : {std::pair(&shards, HopsPlan::kCount), std::pair(&terms, HopsPlan::kCount * 6)}) {
      values->emplace_back(count);
      for (float& value : values->back()) value = numbers.real() * static_cast<float>(1 + numbers.below(1000));
    }
    writeBuffer(*context, made, plan.shard, shards.back());
    writeBuffer(*context, made, plan.terms, terms.back());
  }
  run();
  auto sumOf = [](const std::vector<std::vector<float>>& of, uint64_t begin) {
    std::vector<const std::byte*> sources;
    for (const auto& each : of) sources.push_back(reinterpret_cast<const std::byte*>(each.data() + begin));
    std::vector<float> sum(HopsPlan::kCount);
    comm::sumOverRanks(plan::F32, sources, reinterpret_cast<std::byte*>(sum.data()), sum.size());
    return sum;
  };
  std::vector<float> gathered;
  for (int64_t index = 0; index < HopsPlan::kRanks; ++index) {
    const std::vector<float>& shard = shards[static_cast<size_t>(plan::rankOfShard(made, index))];
    gathered.insert(gathered.end(), shard.begin(), shard.end());
  }
  for (int64_t rank = 0; rank < HopsPlan::kRanks; ++rank) {
    SCOPED_TRACE("rank " + std::to_string(rank));
    auto read = [&](uint32_t buffer) { return readBuffer<float>(*contexts[static_cast<size_t>(rank)], made, buffer); };
    EXPECT_TRUE(read(plan.gathered) == gathered);
    EXPECT_TRUE(read(plan.scattered) ==
                sumOf(terms, static_cast<uint64_t>(plan::shardIndex(made, rank)) * HopsPlan::kCount));
    EXPECT_TRUE(read(plan.reduced) == sumOf(shards, 0));
  }
}

// Terms of a rank: numbers whose sum depends on its order, as far as the type allows.
inline std::vector<std::byte> collectiveTerms(plan::ElementType type, uint64_t count, Numbers& numbers) {
  std::vector<std::byte> bytes(count * plan::elementBytes(type));
  for (uint64_t i = 0; i < count; ++i) {
    const float value = numbers.real() * static_cast<float>(1 + numbers.below(1000));
    uint64_t bits = numbers.bits();
    if (type == plan::F64) {
      const double wide = value;
      std::memcpy(&bits, &wide, sizeof wide);
    } else if (type == plan::F32) {
      std::memcpy(&bits, &value, sizeof value);
    } else if (type == plan::BF16) {
      uint32_t single;
      std::memcpy(&single, &value, sizeof single);
      bits = single >> 16;
    } else if (type == plan::F16) {
      bits = (bits & 0x83FF) | 0x4000;  // between 2 and 4, of either sign
    }
    std::memcpy(bytes.data() + i * plan::elementBytes(type), &bits, plan::elementBytes(type));
  }
  return bytes;
}

// Fills the ranks' terms, runs the plan with `run` and compares. contexts[r] is rank r's.
template <typename Run>
void expectCollectives(CollectivePlan& plan, std::vector<RankContext*> contexts, Run run) {
  const uint64_t ranks = contexts.size(), part = plan.count * plan::elementBytes(plan.type);
  SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::to_string(plan.count) + " elements of type " +
               std::to_string(plan.type));
  Numbers numbers(ranks + plan.count);
  std::vector<std::vector<std::byte>> terms;
  const std::vector<std::byte> before = collectiveTerms(plan.type, plan.count, numbers);
  for (RankContext* context : contexts) {
    terms.push_back(collectiveTerms(plan.type, plan.count * ranks, numbers));
    writeBuffer(*context, plan.builder.plan, plan.before, before);
    writeBuffer(*context, plan.builder.plan, plan.terms, terms.back());
  }
  run();
  auto sumOf = [&](uint64_t begin, bool continues = false) {
    std::vector<const std::byte*> sources;
    for (const auto& each : terms) sources.push_back(each.data() + begin);
    std::vector<std::byte> sum = before;
    comm::sumOverRanks(plan.type, sources, sum.data(), plan.count, continues);
    return sum;
  };
  std::vector<std::byte> gathered;
  for (uint64_t rank = 0; rank < ranks; ++rank)
    gathered.insert(gathered.end(), terms[rank].begin() + static_cast<int64_t>(rank * part),
                    terms[rank].begin() + static_cast<int64_t>((rank + 1) * part));
  for (uint64_t rank = 0; rank < ranks; ++rank) {
    SCOPED_TRACE("rank " + std::to_string(rank));
    auto read = [&](uint32_t buffer) { return readBuffer<std::byte>(*contexts[rank], plan.builder.plan, buffer); };
    EXPECT_TRUE(read(plan.gathered) == gathered);
    EXPECT_TRUE(read(plan.gatheredInPlace) == gathered);
    EXPECT_TRUE(read(plan.scattered) == sumOf(rank * part));
    std::vector<std::byte> inPlace = read(plan.scatteredInPlace);
    EXPECT_TRUE(std::vector<std::byte>(inPlace.begin() + static_cast<int64_t>(rank * part),
                                       inPlace.begin() + static_cast<int64_t>((rank + 1) * part)) ==
                sumOf(rank * part));
    EXPECT_TRUE(read(plan.reduced) == sumOf(0));
    EXPECT_TRUE(read(plan.reducedInPlace) == sumOf(0));
    EXPECT_TRUE(read(plan.scatteredOn) == sumOf(rank * part, true));
    EXPECT_TRUE(read(plan.reducedOn) == sumOf(0, true));
  }
}

}  // namespace sheaf::testing
