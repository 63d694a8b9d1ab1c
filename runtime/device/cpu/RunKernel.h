// Running a kernel of the plan on the processor, its rows shared among threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "runtime/device/cpu/ComputePool.h"
#include "runtime/device/cpu/KernelImages.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::cpu {

// All rows of a launch, whose operands lie at these addresses. What is computed does not depend on the pool: ranges of
// rows begin at multiples of the launch's block.
inline void runKernel(KernelEntry kernel, void* const* operands, const plan::Instruction& instruction,
                      ComputePool& pool) {
  // Operand bytes below which a kernel is not worth sharing: waking a thread costs some 5 us.
  constexpr uint64_t kSharedBytes = 128 << 10;
  // Ranges of rows that a kernel is cut into, for each thread.
  constexpr int64_t kRangesPerThread = 4;
  uint64_t bytes = 0;
  for (const plan::Operand& operand : instruction.operands()) bytes += operand.bytes();
  const plan::KernelLaunch& launch = instruction.kernel();
  const int64_t rows = launch.rows(), block = std::max<int64_t>(launch.block(), 1);
  const int64_t blocks = (rows + block - 1) / block;
  int64_t ranges = bytes < kSharedBytes || pool.threads() == 1 ? 1 : pool.threads() * kRangesPerThread;
  ranges = std::min(ranges, blocks);
  pool.run(ranges, [&](int64_t range, int) {
    int64_t begin = blocks * range / ranges * block, end = std::min(blocks * (range + 1) / ranges * block, rows);
    kernel(const_cast<void**>(operands), begin, end);
  });
}

}  // namespace sheaf::cpu
