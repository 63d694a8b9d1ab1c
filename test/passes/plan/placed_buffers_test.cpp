// The first place where a buffer fits, against a search that looks at every buffer: in arenas of several blocks.
#include "passes/plan/PlacedBuffers.h"

#include <gtest/gtest.h>

#include <random>

namespace sheaf::plan_ir {
namespace {

constexpr int64_t kRound = 1000;

// Stands for the comparison of accesses: buffers of two streams that overlap conflict now and then.
bool conflict(const LiveRange& a, const LiveRange& b) {
  return a.overlaps(b) && (a.sameStream(b) || (a.begin + b.begin) % 3 != 0);
}

int64_t searched(const std::vector<PlacedBuffers::Buffer>& placed, int64_t at, int64_t size, const LiveRange& alive,
                 int64_t alignment) {
  for (bool moved = true; moved;) {
    moved = false;
    for (const PlacedBuffers::Buffer& other : placed) {
      if (other.begin >= at + size || other.end <= at || !conflict(other.alive, alive)) continue;
      at = (other.end + alignment - 1) / alignment * alignment;
      moved = true;
    }
  }
  return at;
}

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  int64_t below(int64_t limit) { return std::uniform_int_distribution<int64_t>(0, limit - 1)(engine_); }

  // `longest`: of a life. Long lives make blocks whose buffers are all alive at once.
  LiveRange alive(int64_t longest) {
    if (below(20) == 0) return {};
    LiveRange alive;
    alive.begin = below(kRound - 1);
    const int64_t last = std::min(kRound, alive.begin + 1 + below(longest));
    alive.end = std::min(kRound, last + below(30));
    if (below(4) == 0) return alive;
    alive.stream = below(10) == 0, alive.lastAccessEnd = last;
    return alive;
  }

 private:
  std::mt19937 engine_;
};

TEST(PlacedBuffers, FindTheFirstPlaceThatIsFree) {
  for (uint32_t seed = 0; seed < 12; ++seed) {
    Random random(seed);
    const int64_t longest = seed % 3 == 0 ? 4 : seed % 3 == 1 ? 60 : kRound;
    const int64_t sizes = seed % 2 ? 1 : 8;
    PlacedBuffers buffers;
    std::vector<PlacedBuffers::Buffer> placed;
    for (size_t id = 0; id < 1600; ++id) {
      const LiveRange alive = random.alive(longest);
      const int64_t size = 128 * (1 + random.below(sizes)), alignment = random.below(8) ? 128 : 512;
      auto aligned = [&](int64_t at) { return (at + alignment - 1) / alignment * alignment; };
      const int64_t at = buffers.find(
          aligned(256), size, alive, [&](size_t other) { return conflict(placed[other].alive, alive); }, aligned);
      ASSERT_EQ(at, searched(placed, aligned(256), size, alive, alignment)) << "seed " << seed << ", buffer " << id;
      placed.push_back({at, at + size, alive, id});
      buffers.insert(placed.back());
    }
  }
}

}  // namespace
}  // namespace sheaf::plan_ir
