#include <gtest/gtest.h>

#include <random>
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

// Compared with the definition: two accesses conflict where they share a byte and one of them writes.
TEST(AccessHistory, OrdersAllConflictsAndNothingElse) {
  std::mt19937 random(1);
  size_t found = 0;
  for (int round = 0; round < 2000; ++round) {
    const std::vector<Instruction> instructions = randomInstructions(random);
    const size_t count = instructions.size();
    std::vector<std::vector<bool>> ordered(count, std::vector<bool>(count));
    auto conflicts = [&](size_t earlier, size_t later) {
      for (const Access& a : instructions[earlier].accesses)
        for (const Access& b : instructions[later].accesses)
          if (conflict(a, b)) return true;
      return false;
    };
    plan::AccessHistory history;
    std::vector<int> writer(kBytes, -1);  // the last instruction that wrote each byte
    for (size_t i = 0; i < count; ++i) {
      for (size_t j = 0; j < i; ++j)
        if (instructions[j].stream == instructions[i].stream) ordered[j][i] = true;
      for (const Access& access : instructions[i].accesses)
        history.add(access.begin, access.end, i, instructions[i].stream, access.access,
                    [&](size_t earlier, uint64_t begin, uint64_t end, Conflict kind) {
                      ASSERT_LT(earlier, i);
                      ASSERT_TRUE(access.begin <= begin && begin < end && end <= access.end);
                      ASSERT_TRUE(conflicts(earlier, i));
                      ASSERT_TRUE(kind == Conflict::kOutput ? access.access == WRITE
                                  : kind == Conflict::kTrue ? access.access != WRITE
                                                            : access.access != READ);
                      for (uint64_t byte = begin; byte < end; ++byte)
                        ASSERT_TRUE(kind == Conflict::kAnti || writer[byte] == int(earlier));
                      ordered[earlier][i] = true;
                      ++found;
                    });
      // Only after all: what an instruction has written is not what it comes after.
      for (const Access& access : instructions[i].accesses)
        for (uint64_t byte = access.begin; byte < access.end && access.access != READ; ++byte) writer[byte] = int(i);
    }
    for (size_t k = 0; k < count; ++k)
      for (size_t i = 0; i < count; ++i)
        for (size_t j = 0; j < count; ++j)
          if (ordered[i][k] && ordered[k][j]) ordered[i][j] = true;
    for (size_t i = 0; i < count; ++i)
      for (size_t j = 0; j < i; ++j)
        ASSERT_TRUE(ordered[j][i] || !conflicts(j, i)) << "round " << round << ": " << j << " and " << i;
  }
  EXPECT_GT(found, 10000u);
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
