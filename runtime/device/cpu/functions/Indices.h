// The indices of gather, scatter_add and scatter.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>

#include "runtime/base/Status.h"
#include "runtime/device/cpu/ComputePool.h"

namespace sheaf::cpu {

// Of 4 or 8 bytes, each in [-rows, rows).
struct Indices {
  const std::byte* data;
  bool wide;
  int64_t rows;

  int64_t raw(int64_t i) const {
    if (wide) {
      int64_t value;
      std::memcpy(&value, data + i * sizeof value, sizeof value);
      return value;
    }
    int32_t value;
    std::memcpy(&value, data + i * sizeof value, sizeof value);
    return value;
  }
  // The row that index i names; -1 if it is out of range.
  int64_t row(int64_t i) const {
    int64_t value = raw(i);
    if (value < -rows || value >= rows) return -1;
    return value < 0 ? value + rows : value;
  }
  // An error that names the first of `count` indices that is out of range.
  Status check(ComputePool& pool, int64_t count) const {
    constexpr int64_t kItem = 1 << 16;
    std::atomic<int64_t> first = count;
    pool.run((count + kItem - 1) / kItem, [&](int64_t item, int) {
      for (int64_t i = item * kItem, end = std::min(i + kItem, count); i < end; ++i) {
        if (row(i) >= 0) continue;
        for (int64_t before = first; i < before && !first.compare_exchange_weak(before, i);) {
        }
        return;
      }
    });
    if (first == count) return Status();
    return Status::error("index " + std::to_string(raw(first)) + " at position " + std::to_string(first) +
                         " is outside [-" + std::to_string(rows) + ", " + std::to_string(rows) + ")");
  }
};

}  // namespace sheaf::cpu
