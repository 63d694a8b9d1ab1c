// Collectives of every kind with their values, and their results on the local communicator.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "runtime/comm/local/LocalCommunicator.h"
#include "runtime/comm/local/Reduce.h"
#include "test/runtime/Numbers.h"

namespace sheaf::testing {

using Bytes = std::vector<std::byte>;

struct Collective {
  plan::CollectiveOp op;
  plan::ElementType type;
  uint64_t count;
  bool inPlace;
  bool continues = false;

  uint64_t bytes() const { return count * plan::elementBytes(type); }
  uint64_t sourceBytes(int64_t ranks) const { return op == plan::REDUCE_SCATTER ? bytes() * uint64_t(ranks) : bytes(); }
  uint64_t resultBytes(int64_t ranks) const { return op == plan::ALL_GATHER ? bytes() * uint64_t(ranks) : bytes(); }
};

// Finite values of every type.
inline Bytes valuesOf(const Collective& collective, int64_t ranks, int64_t rank) {
  Numbers numbers(uint64_t(rank) * 1000 + collective.count + 17);
  Bytes bytes(collective.sourceBytes(ranks));
  for (uint64_t i = 0; i + 1 <= bytes.size() / plan::elementBytes(collective.type); ++i) {
    float single = numbers.real() * float(numbers.below(1000));
    double twice = double(single) * 1.000000001;
    uint64_t bits = numbers.bits();
    _Float16 half = _Float16(single);
    const void* from = &bits;
    if (collective.type == plan::F32) from = &single;
    if (collective.type == plan::F64) from = &twice;
    if (collective.type == plan::F16) from = &half;
    if (collective.type == plan::BF16) from = reinterpret_cast<const char*>(&single) + 2;
    std::memcpy(bytes.data() + i * plan::elementBytes(collective.type), from, plan::elementBytes(collective.type));
  }
  return bytes;
}

// One rank's result. Operands lie in `memory`, which has room for them and 64 bytes more, if it is given.
inline Bytes runOne(comm::Communicator& communicator, const Collective& collective, int64_t ranks, int64_t rank,
                    Status& status, std::byte* memory = nullptr) {
  const Bytes values = valuesOf(collective, ranks, rank);
  const uint64_t resultBytes = collective.resultBytes(ranks);
  Bytes own;
  if (!memory) {
    own.resize(values.size() + resultBytes + 64);
    memory = own.data();
  }
  std::byte *source = memory, *result = memory + (values.size() + 63) / 64 * 64;
  std::copy(values.begin(), values.end(), source);
  comm::CollectiveBuffers buffers{collective.op, collective.type, collective.count,
                                  source,        result,          collective.continues};
  if (collective.continues) {
    // All ranks hold the same of an all-reduce.
    const Bytes before = valuesOf({plan::ALL_REDUCE, collective.type, collective.count, false}, ranks,
                                  ranks + (collective.op == plan::REDUCE_SCATTER ? rank : 0));
    std::copy(before.begin(), before.end(), result);
  }
  if (collective.inPlace) {
    const uint64_t place = uint64_t(rank) * collective.bytes();
    if (collective.op == plan::ALL_GATHER) {
      std::copy(values.begin(), values.end(), result + place);
      buffers.source = result + place;
    } else {
      buffers.destination = source + (collective.op == plan::REDUCE_SCATTER ? place : 0);
    }
  }
  status = communicator.run(rank, buffers);
  return Bytes(buffers.destination, buffers.destination + resultBytes);
}

// Every rank's results of all collectives.
using Results = std::vector<std::vector<Bytes>>;

inline Results locally(const std::vector<Collective>& collectives, int64_t ranks) {
  comm::AbortSignal abort;
  comm::LocalCommunicator communicator(ranks, abort, 8);
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

// All operations, types, places and some counts.
inline std::vector<Collective> everyCollective() {
  Numbers numbers(3);
  std::vector<Collective> collectives;
  for (plan::CollectiveOp op : {plan::ALL_GATHER, plan::REDUCE_SCATTER, plan::ALL_REDUCE})
    for (plan::ElementType type : {plan::F32, plan::F64, plan::BF16, plan::F16, plan::I64, plan::I32, plan::U8})
      for (bool inPlace : {false, true})
        for (uint64_t count : {uint64_t{0}, uint64_t{1}, uint64_t{3}, uint64_t(1 + numbers.below(100)),
                               uint64_t(1000 + numbers.below(9000))})
          if (op == plan::ALL_GATHER || comm::canSum(type)) {
            collectives.push_back({op, type, count, inPlace});
            if (op != plan::ALL_GATHER && !inPlace) collectives.push_back({op, type, count, false, true});
          }
  return collectives;
}

inline void expectEqual(const std::vector<Collective>& collectives, const Results& expected, const Results& results) {
  ASSERT_EQ(results.size(), expected.size());
  for (size_t rank = 0; rank < expected.size(); ++rank) {
    ASSERT_EQ(results[rank].size(), collectives.size());
    for (size_t i = 0; i < collectives.size(); ++i)
      EXPECT_TRUE(results[rank][i] == expected[rank][i])
          << expected.size() << " ranks, rank " << rank << ": op " << collectives[i].op << " type "
          << collectives[i].type << " count " << collectives[i].count << (collectives[i].inPlace ? " in place" : "");
  }
}

}  // namespace sheaf::testing
