#include "test/emulation/WarpOrder.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string_view>

namespace sheaf::emulation {
namespace {

constexpr std::string_view kNames[] = {"turns", "ahead", "reversed"};

}  // namespace

WarpOrder::WarpOrder() {
  const char* wanted = std::getenv("SHEAF_EMULATED_ORDER");
  if (!wanted || !*wanted) return;
  fixed_ = true;
  const auto* name = std::find(std::begin(kNames), std::end(kNames), wanted);
  kind_ = static_cast<Kind>(name - kNames);
  if (kind_ != kRandom) return;
  char* end = nullptr;
  state_ = std::strtoull(wanted, &end, 10);
  if (*end == '\0') return;
  std::fprintf(stderr, "SHEAF_EMULATED_ORDER is '%s'; it takes turns, ahead, reversed or a seed\n", wanted);
  std::abort();
}

void WarpOrder::nextBlock() {
  if (!fixed_) kind_ = static_cast<Kind>((kind_ + 1) % kKinds);
}

const std::vector<int>& WarpOrder::arrange(int count, std::vector<int>& buffer) {
  buffer.resize(static_cast<size_t>(count));
  std::iota(buffer.begin(), buffer.end(), 0);
  if (kind_ == kReversed) std::reverse(buffer.begin(), buffer.end());
  if (kind_ == kRandom)
    for (size_t left = buffer.size(); left > 1; --left) std::swap(buffer[left - 1], buffer[random() % left]);
  return buffer;
}

bool WarpOrder::runsAhead() {
  return kind_ == kAhead || (kind_ == kRandom && random() % 2 == 0);
}

// SplitMix64.
uint64_t WarpOrder::random() {
  uint64_t bits = state_ += 0x9e3779b97f4a7c15;
  bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9;
  bits = (bits ^ bits >> 27) * 0x94d049bb133111eb;
  return bits ^ bits >> 31;
}

}  // namespace sheaf::emulation
