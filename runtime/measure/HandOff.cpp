#include "runtime/measure/HandOff.h"

#include <algorithm>
#include <utility>

#include "runtime/measure/MeasuredCalls.h"

namespace sheaf::measure {
namespace {

constexpr int kHandOffs = 16;

}  // namespace

HandOff::HandOff(InstructionTimer& timer, uint32_t stream, const std::function<void()>& add) : timer_(timer) {
  const plan::GemmCall product = gemmCall(plan::F32, 128, 128, 128, false, false);
  const uint64_t footprint = std::max(uint64_t{1} << 20, 2 * (operandBytes(product) + gpuScratch(product)));
  for (bool handing : {false, true}) {
    (handing ? handing_ : computing_) = timer.group(footprint);
    for (int i = 0; i < kHandOffs; ++i) {
      timer.add(product);
      if (!handing) continue;
      timer.order(InstructionTimer::kCompute, stream);
      add();
      timer.order(stream, InstructionTimer::kCompute);
    }
  }
}

Expected<double> HandOff::seconds() const {
  double difference = 0;
  for (const auto& [group, sign] : {std::pair{handing_, 1}, std::pair{computing_, -1}}) {
    Expected<double> seconds = timer_.secondsOfAll(group, kTypical);
    if (!seconds.ok()) return seconds;
    difference += sign * *seconds * timer_.instructions(group) / kHandOffs;
  }
  return difference;
}

}  // namespace sheaf::measure
