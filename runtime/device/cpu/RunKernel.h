// Running a kernel of the plan on the processor, its rows shared among threads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "runtime/device/cpu/ComputePool.h"
#include "runtime/device/cpu/KernelImages.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::cpu {

// A launch says what is computed, wherever its operands lie.
struct KernelLaunch {
  KernelEntry entry = nullptr;
  int64_t rows = 0, block = 1, blocks = 0;  // `blocks` of `block` rows each, the last one shorter
  bool shared = false;                      // among threads

  KernelLaunch() = default;
  KernelLaunch(KernelEntry kernel, const plan::Instruction& instruction)
      : entry(kernel), rows(instruction.kernel().rows()), block(std::max<int64_t>(instruction.kernel().block(), 1)) {
    // Operand bytes below which a kernel is not worth sharing: waking a thread costs some 5 us.
    constexpr uint64_t kSharedBytes = 128 << 10;
    blocks = (rows + block - 1) / block;
    uint64_t bytes = 0;
    for (const plan::Operand& operand : instruction.operands()) bytes += operand.bytes();
    shared = bytes >= kSharedBytes;
  }
};

// All rows of a launch, whose operands lie at these addresses. What is computed does not depend on the pool: ranges of
// rows begin at multiples of the launch's block.
inline void runKernel(const KernelLaunch& launch, std::byte* const* operands, ComputePool& pool) {
  // Ranges of rows that a kernel is cut into, for each thread.
  constexpr int64_t kRangesPerThread = 4;
  const int64_t wanted = launch.shared && pool.threads() > 1 ? pool.threads() * kRangesPerThread : 1;
  const int64_t ranges = std::min(wanted, launch.blocks);
  pool.run(ranges, [&](int64_t range, int) {
    const int64_t begin = launch.blocks * range / ranges * launch.block;
    const int64_t end = std::min(launch.blocks * (range + 1) / ranges * launch.block, launch.rows);
    launch.entry(reinterpret_cast<void**>(const_cast<std::byte**>(operands)), begin, end);
  });
}

}  // namespace sheaf::cpu
