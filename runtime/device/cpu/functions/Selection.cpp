// scatter and top_k.
#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "runtime/device/cpu/LibraryFunction.h"
#include "runtime/device/cpu/functions/Indices.h"

namespace sheaf::cpu {
namespace {

using plan::ScatterKind;

// What becomes of an element x that meets an update y. Integers wrap.
template <ScatterKind kind, typename T>
T combined(T x, T y) {
  if constexpr (kind == ScatterKind::kReplace)
    return y;
  else if constexpr (kind == ScatterKind::kMin)
    return x != x || x < y ? x : y;
  else if constexpr (kind == ScatterKind::kMax)
    return x != x || x > y ? x : y;
  else if constexpr (std::is_integral_v<T>) {
    const auto a = static_cast<std::make_unsigned_t<T>>(x), b = static_cast<std::make_unsigned_t<T>>(y);
    return static_cast<T>(kind == ScatterKind::kAdd ? a + b : a * b);
  } else
    return kind == ScatterKind::kAdd ? x + y : x * y;
}

// An item is a part of the result, of one outer entry: some of its columns and some of its rows. It reads all indices
// of these columns, in order, so that the bits are the same however the work is cut.
template <ScatterKind kind, typename T>
class Scatter : public LibraryFunction {
 public:
  using Call = plan::ScatterCall;

  explicit Scatter(const Call& call)
      : call_(call), columnBlocks_((call.inner + kColumns - 1) / kColumns), parts_(1), each_(1) {
    const int64_t width = std::min(call.inner, kColumns), items = call.outer * columnBlocks_,
                  work = (call.rows + call.count) * width;
    if (work > kItemElements) parts_ = std::clamp<int64_t>(kMostParts / items, 1, call.rows);
    each_ = std::max<int64_t>(kItemElements / work, 1);
  }

  Status run(const Invocation& invocation) const override {
    const Indices indices{invocation.operand<std::byte>(plan::kOperand<Call, "indices">), call_.indexBytes == 8,
                          call_.rows};
    if (Status status = indices.check(invocation.pool, plan::indexCount(call_)); !status.ok()) return status;
    const int64_t ofEntry = columnBlocks_ * parts_, entries = (call_.outer + each_ - 1) / each_;
    invocation.pool.run(entries * ofEntry, [&](int64_t item, int) {
      const int64_t block = item % ofEntry / parts_, part = item % parts_;
      const int64_t begin = part * call_.rows / parts_, end = (part + 1) * call_.rows / parts_;
      for (int64_t o = item / ofEntry * each_, last = std::min(o + each_, call_.outer); o < last; ++o)
        scatter(invocation, indices, o, block * kColumns, begin, end);
    });
    return Status();
  }

 private:
  static constexpr int64_t kColumns = 128, kMostParts = 16, kItemElements = 1 << 14;

  // Rows [begin, end) of columns from `column` on.
  void scatter(const Invocation& invocation, const Indices& indices, int64_t outer, int64_t column, int64_t begin,
               int64_t end) const {
    const int64_t inner = call_.inner, width = std::min(kColumns, inner - column), first = outer * call_.rows * inner;
    const T* update = invocation.operand<T>(plan::kOperand<Call, "update">) + outer * call_.count * inner + column;
    const T* data = invocation.operand<T>(plan::operandIndex<"data">(call_));
    T* result = invocation.operand<T>(plan::operandIndex<"result">(call_)) + first + column;
    for (int64_t row = begin; row < end; ++row) {
      if (data)
        std::memcpy(result + row * inner, data + first + row * inner + column, width * sizeof(T));
      else
        std::memset(result + row * inner, 0, width * sizeof(T));
    }
    const int64_t at = call_.indexOuter ? outer * call_.count : 0;
    for (int64_t i = 0; i < call_.count; ++i) {
      const T* from = update + i * inner;
      if (!call_.indexInner) {
        const int64_t row = indices.row(at + i);
        if (row < begin || row >= end) continue;
        T* to = result + row * inner;
        for (int64_t j = 0; j < width; ++j) to[j] = combined<kind>(to[j], from[j]);
        continue;
      }
      for (int64_t j = 0; j < width; ++j) {
        const int64_t row = indices.row((at + i) * inner + column + j);
        if (row < begin || row >= end) continue;
        T& to = result[row * inner + j];
        to = combined<kind>(to, from[j]);
      }
    }
  }

  const Call call_;
  int64_t columnBlocks_, parts_, each_;  // outer entries of an item
};

template <typename T>
Function makeScatter(const plan::ScatterCall& call) {
  switch (call.kind) {
    case ScatterKind::kReplace:
      return std::make_unique<Scatter<ScatterKind::kReplace, T>>(call);
    case ScatterKind::kAdd:
      return std::make_unique<Scatter<ScatterKind::kAdd, T>>(call);
    case ScatterKind::kMul:
      return std::make_unique<Scatter<ScatterKind::kMul, T>>(call);
    case ScatterKind::kMin:
      return std::make_unique<Scatter<ScatterKind::kMin, T>>(call);
    case ScatterKind::kMax:
      return std::make_unique<Scatter<ScatterKind::kMax, T>>(call);
  }
  return nullptr;
}

// An unsigned number whose order is that of the elements: zeros of both signs are one, and all NaN are the greatest.
template <typename T>
auto keyOf(T value, bool largest) {
  using Key = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  constexpr Key kSign = Key(1) << (8 * sizeof(T) - 1);
  Key key;
  if constexpr (std::is_integral_v<T>) {
    key = static_cast<Key>(value) ^ kSign;
  } else if (value != value) {
    key = ~Key(0);
  } else {
    value += T(0);  // -0 becomes 0
    std::memcpy(&key, &value, sizeof key);
    key = key & kSign ? ~key : key | kSign;
  }
  return largest ? static_cast<Key>(~key) : key;
}

template <typename T>
class TopK : public LibraryFunction {
 public:
  using Call = plan::TopKCall;

  TopK(const Call& call, const CallSite& site) : call_(call), scratchBytes_(site.scratchPerThread()) {}

  Status run(const Invocation& invocation) const override {
    const T* source = invocation.operand<T>(plan::kOperand<Call, "source">);
    int64_t* result = invocation.operand<int64_t>(plan::kOperand<Call, "result">);
    const int64_t lines = call_.outer * call_.inner, each = std::max<int64_t>(kItemElements / call_.n, 1);
    invocation.pool.run((lines + each - 1) / each, [&](int64_t item, int thread) {
      Entry* entries = reinterpret_cast<Entry*>(invocation.scratch + thread * scratchBytes_);
      for (int64_t line = item * each, end = std::min(line + each, lines); line < end; ++line) {
        const int64_t outer = line / call_.inner, j = line - outer * call_.inner;
        const T* from = source + outer * call_.n * call_.inner + j;
        int64_t* to = result + outer * call_.k * call_.inner + j;
        call_.k == 1 ? findFirst(from, to) : select(from, to, entries);
      }
    });
    return Status();
  }

 private:
  static constexpr int64_t kItemElements = 1 << 12;
  using Key = decltype(keyOf(T(), false));
  // In the order of keys, then of indices; of 32-bit elements both fit into one number.
  using Entry = std::conditional_t<sizeof(T) == 4, uint64_t, std::pair<uint64_t, uint64_t>>;

  static Entry entryOf(Key key, int64_t index) {
    if constexpr (sizeof(T) == 4)
      return uint64_t(key) << 32 | static_cast<uint64_t>(index);
    else
      return {key, static_cast<uint64_t>(index)};
  }
  static int64_t indexOf(const Entry& entry) {
    if constexpr (sizeof(T) == 4)
      return static_cast<int64_t>(entry & UINT32_MAX);
    else
      return static_cast<int64_t>(entry.second);
  }

  void findFirst(const T* from, int64_t* to) const {
    int64_t best = 0;
    Key least = keyOf(from[0], call_.largest);
    for (int64_t i = 1; i < call_.n; ++i)
      if (const Key key = keyOf(from[i * call_.inner], call_.largest); key < least) best = i, least = key;
    *to = best;
  }

  void select(const T* from, int64_t* to, Entry* entries) const {
    for (int64_t i = 0; i < call_.n; ++i) entries[i] = entryOf(keyOf(from[i * call_.inner], call_.largest), i);
    if (call_.k < call_.n) std::nth_element(entries, entries + call_.k, entries + call_.n);
    std::sort(entries, entries + call_.k);
    for (int64_t i = 0; i < call_.k; ++i) to[i * call_.inner] = indexOf(entries[i]);
  }

  const Call call_;
  int64_t scratchBytes_;
};

}  // namespace

Function makeFunction(const plan::ScatterCall& call, const CallSite&) {
  // What replaces is moved, whatever it is.
  if (call.kind == ScatterKind::kReplace) switch (plan::elementBytes(call.type)) {
      case 1:
        return std::make_unique<Scatter<ScatterKind::kReplace, uint8_t>>(call);
      case 2:
        return std::make_unique<Scatter<ScatterKind::kReplace, uint16_t>>(call);
      case 4:
        return std::make_unique<Scatter<ScatterKind::kReplace, uint32_t>>(call);
      default:
        return std::make_unique<Scatter<ScatterKind::kReplace, uint64_t>>(call);
    }
  return plan::visitElement<&plan::ElementFacts::arithmetic>(
      call.type, [&](auto element) { return makeScatter<typename decltype(element)::Stored>(call); });
}

Function makeFunction(const plan::TopKCall& call, const CallSite& site) {
  return plan::visitElement<&plan::ElementFacts::arithmetic>(call.type, [&](auto element) -> Function {
    return std::make_unique<TopK<typename decltype(element)::Stored>>(call, site);
  });
}

}  // namespace sheaf::cpu
