// gather and scatter_add.
#include <algorithm>
#include <cstring>

#include "runtime/device/cpu/LibraryFunction.h"
#include "runtime/device/cpu/functions/Indices.h"
#include "runtime/device/cpu/simd/Halves.h"

namespace sheaf::cpu {
namespace {

// Bytes that one item of work moves, at least.
constexpr int64_t kItemBytes = 64 << 10;

class Gather : public LibraryFunction {
 public:
  using Call = plan::GatherCall;

  explicit Gather(const Call& call) : call_(call), slice_(call.inner * call.elementBytes) {}

  Status run(const Invocation& invocation) const override {
    const std::byte* data = invocation.operand<std::byte>(plan::kOperand<Call, "data">);
    Indices indices{invocation.operand<std::byte>(plan::kOperand<Call, "indices">), call_.indexBytes == 8, call_.rows};
    std::byte* result = invocation.operand<std::byte>(plan::kOperand<Call, "result">);
    if (Status status = indices.check(invocation.pool, plan::indexCount(call_)); !status.ok()) return status;
    const int64_t slices = call_.outer * call_.count,
                  each = std::max<int64_t>(kItemBytes / std::max<int64_t>(slice_, 1), 1);
    invocation.pool.run((slices + each - 1) / each, [&](int64_t item, int) {
      for (int64_t i = item * each, end = std::min(i + each, slices); i < end; ++i) {
        const int64_t outer = i / call_.count, at = call_.indexOuter ? i : i - outer * call_.count;
        const std::byte* rows = data + outer * call_.rows * slice_;
        if (call_.indexInner) {
          take(indices, at * call_.inner, rows, result + i * slice_);
          continue;
        }
        const std::byte* source = rows + indices.row(at) * slice_;
        // One element at a time is what gathers of labels do.
        if (slice_ == 4)
          std::memcpy(result + i * 4, source, 4);
        else
          std::memcpy(result + i * slice_, source, slice_);
      }
    });
    return Status();
  }

 private:
  // A slice whose elements have indices of their own, from `first` on.
  void take(const Indices& indices, int64_t first, const std::byte* rows, std::byte* to) const {
    auto as = [&]<typename T>(T) {
      for (int64_t j = 0; j < call_.inner; ++j)
        reinterpret_cast<T*>(to)[j] = reinterpret_cast<const T*>(rows)[indices.row(first + j) * call_.inner + j];
    };
    switch (call_.elementBytes) {
      case 1:
        return as(uint8_t());
      case 2:
        return as(uint16_t());
      case 4:
        return as(uint32_t());
      default:
        return as(uint64_t());
    }
  }

  const Call call_;
  int64_t slice_;
};

// Threads own disjoint columns of the result, so the order of summation is that of the indices.
class ScatterAdd : public LibraryFunction {
 public:
  using Call = plan::ScatterAddCall;

  explicit ScatterAdd(const Call& call)
      : outer_(call.outer), rows_(call.rows), inner_(call.inner), count_(call.count), wide_(call.indexBytes == 8) {}

  Status run(const Invocation& invocation) const override {
    const float* update = invocation.operand<float>(plan::kOperand<Call, "update">);
    Indices indices{invocation.operand<std::byte>(plan::kOperand<Call, "indices">), wide_, rows_};
    float* result = invocation.operand<float>(plan::kOperand<Call, "result">);
    if (Status status = indices.check(invocation.pool, count_); !status.ok()) return status;

    const int64_t bytes = outer_ * rows_ * inner_ * int64_t(sizeof(float));
    constexpr int64_t kZeroBytes = 1 << 20;
    invocation.pool.run((bytes + kZeroBytes - 1) / kZeroBytes, [&](int64_t item, int) {
      std::memset(reinterpret_cast<char*>(result) + item * kZeroBytes, 0,
                  std::min(kZeroBytes, bytes - item * kZeroBytes));
    });

    constexpr int64_t kColumns = 128;
    const int64_t columnItems = (inner_ + kColumns - 1) / kColumns;
    // Where slices are short there are many outer entries: several of them make one item.
    const int64_t each =
        std::max<int64_t>(kItemBytes / 4 / std::max<int64_t>(count_ * std::min(inner_, kColumns), 1), 1);
    const int64_t outerItems = (outer_ + each - 1) / each;
    const auto addRow = loops().add;
    invocation.pool.run(outerItems * columnItems, [&](int64_t item, int) {
      const int64_t column = item % columnItems * kColumns, width = std::min(kColumns, inner_ - column);
      for (int64_t o = item / columnItems * each, end = std::min(o + each, outer_); o < end; ++o) {
        for (int64_t i = 0; i < count_; ++i) {
          float* to = result + (o * rows_ + indices.row(i)) * inner_ + column;
          const float* from = update + (o * count_ + i) * inner_ + column;
          if (width == 1)
            *to += *from;
          else
            addRow(to, from, width);
        }
      }
    });
    return Status();
  }

 private:
  int64_t outer_, rows_, inner_, count_;
  bool wide_;
};

// The same in 16 bits: a row of the result is summed in f32 and rounded once. An item is a range of rows of the result;
// it finds the updates of each row by a chain through their positions, in order.
class ScatterAddHalf : public LibraryFunction {
 public:
  using Call = plan::ScatterAddCall;

  ScatterAddHalf(const Call& call, const CallSite& site)
      : outer_(call.outer),
        rows_(call.rows),
        inner_(call.inner),
        count_(call.count),
        scratchBytes_(site.scratchPerThread()),
        wide_(call.indexBytes == 8),
        loops_(halves(call.type)) {}

  Status run(const Invocation& invocation) const override {
    Indices indices{invocation.operand<std::byte>(plan::kOperand<Call, "indices">), wide_, rows_};
    if (Status status = indices.check(invocation.pool, count_); !status.ok()) return status;
    const int64_t blocks = (rows_ + kRows - 1) / kRows;
    invocation.pool.run(outer_ * blocks, [&](int64_t item, int thread) {
      int32_t* next = reinterpret_cast<int32_t*>(invocation.scratch + thread * scratchBytes_);
      addRows(invocation, indices, item / blocks, item % blocks * kRows, next);
    });
    return Status();
  }

 private:
  static constexpr int64_t kRows = 512, kColumns = 1024;

  void addRows(const Invocation& invocation, const Indices& indices, int64_t outer, int64_t first,
               int32_t* next) const {
    const uint16_t* update = invocation.operand<uint16_t>(plan::kOperand<Call, "update">) + outer * count_ * inner_;
    uint16_t* result = invocation.operand<uint16_t>(plan::kOperand<Call, "result">) + outer * rows_ * inner_;
    const int64_t rows = std::min(kRows, rows_ - first);
    int32_t head[kRows];
    std::fill_n(head, rows, -1);
    for (int64_t i = count_; i-- > 0;) {
      const int64_t row = indices.row(i) - first;
      if (row < 0 || row >= rows) continue;
      next[i] = head[row];
      head[row] = static_cast<int32_t>(i);
    }
    for (int64_t row = 0; row < rows; ++row) {
      uint16_t* to = result + (first + row) * inner_;
      if (head[row] < 0) {
        std::memset(to, 0, inner_ * sizeof *to);
        continue;
      }
      for (int64_t column = 0; column < inner_; column += kColumns) {
        const int64_t width = std::min(kColumns, inner_ - column);
        float sum[kColumns];
        std::fill_n(sum, width, 0.0f);
        for (int32_t i = head[row]; i >= 0; i = next[i]) loops_.add(sum, update + i * inner_ + column, width);
        loops_.narrow(sum, to + column, width);
      }
    }
  }

  int64_t outer_, rows_, inner_, count_, scratchBytes_;
  bool wide_;
  const simd::Halves& loops_;
};

}  // namespace

Function makeFunction(const plan::GatherCall& call, const CallSite&) {
  return std::make_unique<Gather>(call);
}

Function makeFunction(const plan::ScatterAddCall& call, const CallSite& site) {
  if (plan::isWidened(call.type)) return std::make_unique<ScatterAddHalf>(call, site);
  return std::make_unique<ScatterAdd>(call);
}

}  // namespace sheaf::cpu
