#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <tuple>
#include <vector>

#include "runtime/plan/AccessHistory.h"

namespace sheaf {
namespace {

using plan::Conflict, plan::READ, plan::READ_WRITE, plan::WRITE;

constexpr uint64_t kBytes = 12;
constexpr uint32_t kStreams = 3;

struct Access {
  uint64_t begin, end;
  plan::Access access;
};
struct Instruction {
  uint32_t stream;
  std::vector<Access> accesses;
};

std::vector<Instruction> randomInstructions(std::mt19937& random) {
  auto below = [&](uint64_t n) { return random() % n; };
  std::vector<Instruction> instructions(2 + below(14));
  for (Instruction& instruction : instructions) {
    instruction.stream = static_cast<uint32_t>(below(kStreams));
    for (size_t count = 1 + below(3); count-- > 0;) {
      const uint64_t begin = below(kBytes), end = begin + 1 + below(kBytes - begin);
      const plan::Access kinds[] = {READ, WRITE, READ_WRITE};
      instruction.accesses.push_back({begin, end, kinds[below(3)]});
    }
  }
  return instructions;
}

bool conflict(const Access& a, const Access& b) {
  return (a.access != READ || b.access != READ) && a.begin < b.end && b.begin < a.end;
}

// The last write of a byte, and each stream's last read since.
struct Byte {
  int writer = -1;
  std::map<uint32_t, int> readers;  // by stream
};
using Found = std::set<std::tuple<size_t, uint64_t, Conflict>>;  // earlier instruction, byte, kind

// Byte by byte, as the header says. Marks the access as one of instruction `i`.
Found expected(std::vector<Byte>& bytes, const Access& access, int i, uint32_t stream) {
  Found found;
  for (uint64_t at = access.begin; at < access.end; ++at) {
    Byte& byte = bytes[at];
    if (byte.writer >= 0 && byte.writer != i)
      found.emplace(byte.writer, at, access.access == WRITE ? Conflict::kOutput : Conflict::kTrue);
    if (access.access == READ) {
      byte.readers[stream] = i;
      continue;
    }
    for (const auto& [ofStream, reader] : byte.readers)
      if (reader != i) found.emplace(reader, at, Conflict::kAnti);
    byte = {i, {}};
  }
  return found;
}

TEST(AccessHistory, FindsTheLastWriteAndTheLastReadOfEachStream) {
  std::mt19937 random(1);
  size_t count = 0;
  for (int round = 0; round < 2000; ++round) {
    const std::vector<Instruction> instructions = randomInstructions(random);
    plan::AccessHistory history;
    std::vector<Byte> bytes(kBytes);
    for (size_t i = 0; i < instructions.size(); ++i)
      for (const Access& access : instructions[i].accesses) {
        Found found;
        auto conflict = [&](size_t earlier, uint64_t begin, uint64_t end, Conflict kind) {
          for (uint64_t at = begin; at < end; ++at)
            EXPECT_TRUE(found.emplace(earlier, at, kind).second) << "byte " << at << " is reported twice";
        };
        const uint32_t stream = instructions[i].stream;
        history.add(access.begin, access.end, i, stream, access.access, conflict);
        ASSERT_EQ(found, expected(bytes, access, static_cast<int>(i), stream)) << "round " << round;
        count += found.size();
      }
  }
  EXPECT_GT(count, 10000u);
}

// The definition: two accesses conflict where they share a byte and one of them writes. What is reported, with the
// order within streams, orders all of them.
TEST(AccessHistory, OrdersAllConflicts) {
  std::mt19937 random(2);
  for (int round = 0; round < 2000; ++round) {
    const std::vector<Instruction> instructions = randomInstructions(random);
    const size_t count = instructions.size();
    std::vector<std::vector<bool>> ordered(count, std::vector<bool>(count));
    plan::AccessHistory history;
    for (size_t i = 0; i < count; ++i) {
      for (size_t j = 0; j < i; ++j) ordered[j][i] = instructions[j].stream == instructions[i].stream;
      auto conflict = [&](size_t earlier, uint64_t, uint64_t, Conflict) { ordered[earlier][i] = true; };
      for (const Access& access : instructions[i].accesses)
        history.add(access.begin, access.end, i, instructions[i].stream, access.access, conflict);
    }
    for (size_t k = 0; k < count; ++k)
      for (size_t i = 0; i < count; ++i)
        for (size_t j = 0; j < count; ++j)
          if (ordered[i][k] && ordered[k][j]) ordered[i][j] = true;
    for (size_t i = 0; i < count; ++i)
      for (size_t j = 0; j < i; ++j)
        for (const Access& a : instructions[j].accesses)
          for (const Access& b : instructions[i].accesses)
            ASSERT_TRUE(ordered[j][i] || !conflict(a, b)) << "round " << round << ": " << j << " and " << i;
  }
}

TEST(AccessHistory, NothingConflictsWithWhatIsForgotten) {
  plan::AccessHistory history;
  auto none = [](size_t, uint64_t, uint64_t, Conflict) { FAIL(); };
  history.add(0, 4, 0, 0, WRITE, none);
  history.forget();
  history.add(0, 4, 1, 1, WRITE, none);
}

}  // namespace
}  // namespace sheaf
