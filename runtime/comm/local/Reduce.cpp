#include "runtime/comm/local/Reduce.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/Float16.h"

namespace sheaf::comm {
namespace {

// Elements summed at a time: the blocks of partial sums stay in the first-level cache while the ranks pass by.
constexpr uint64_t kBlock = 512;

struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

float widen(Bf16 value) {
  uint32_t bits = uint32_t(value.bits) << 16;
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

float widen(F16 value) {
  return floatOfF16(value.bits);
}

// Rounds to nearest, ties to even; a NaN stays one.
void narrow(float value, Bf16& result) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  result.bits = value != value ? uint16_t((bits >> 16) | 0x40) : uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

void narrow(float value, F16& result) {
  result.bits = f16OfFloat(value);
}

// How elements of a type are read, added and written. Unsigned for integers: their sum wraps.
template <typename T>
struct Plain {
  using Stored = T;
  using Sum = T;
  static Sum load(Stored value) { return value; }
  static Sum rounded(Sum value) { return value; }
  static void store(Sum value, Stored& result) { result = value; }
};

template <typename T>
struct Half {
  using Stored = T;
  using Sum = float;
  static Sum load(Stored value) { return widen(value); }
  static Sum rounded(Sum value) {
    T half;
    narrow(value, half);
    return widen(half);
  }
  static void store(Sum value, Stored& result) { narrow(value, result); }
};

template <typename Element>
class Tree {
 public:
  using Stored = typename Element::Stored;
  using Sum = typename Element::Sum;

  explicit Tree(std::span<const std::byte* const> sources) : sources_(sources) {}

  void sum(std::byte* destination, uint64_t count, bool continues) {
    const size_t ranks = sources_.size(), subtree = ranks & -ranks;  // 2^k
    alignas(64) Sum total[kBlock], term[kBlock];
    for (begin_ = 0; begin_ < count; begin_ += kBlock) {
      size_ = std::min(kBlock, count - begin_);
      Stored* result = reinterpret_cast<Stored*>(destination) + begin_;
      if (continues)
        for (uint64_t i = 0; i < size_; ++i) total[i] = Element::load(result[i]);
      else
        add(0, subtree, total);
      for (size_t first = continues ? 0 : subtree; first < ranks; first += subtree) {
        add(first, subtree, term);
        addTo(total, term);
      }
      for (uint64_t i = 0; i < size_; ++i) Element::store(total[i], result[i]);
    }
  }

 private:
  const Stored* source(size_t rank) const { return reinterpret_cast<const Stored*>(sources_[rank]) + begin_; }

  void addTo(Sum* sum, const Sum* term) const {
    for (uint64_t i = 0; i < size_; ++i) sum[i] = Element::rounded(sum[i] + term[i]);
  }

  // The block's sum over 2^k ranks.
  void add(size_t first, size_t ranks, Sum* sum) const {
    if (ranks == 1) {
      const Stored* only = source(first);
      for (uint64_t i = 0; i < size_; ++i) sum[i] = Element::load(only[i]);
    } else if (ranks == 2) {
      const Stored *left = source(first), *right = source(first + 1);
      for (uint64_t i = 0; i < size_; ++i) sum[i] = Element::rounded(Element::load(left[i]) + Element::load(right[i]));
    } else {
      alignas(64) Sum term[kBlock];
      add(first, ranks / 2, sum);
      add(first + ranks / 2, ranks / 2, term);
      addTo(sum, term);
    }
  }

  const std::span<const std::byte* const> sources_;
  uint64_t begin_ = 0, size_ = 0;
};

template <typename Element>
void sum(std::span<const std::byte* const> sources, std::byte* destination, uint64_t count, bool continues) {
  Tree<Element>(sources).sum(destination, count, continues);
}

}  // namespace

size_t elementBytes(plan::ElementType type) {
  switch (type) {
    case plan::F64:
    case plan::I64:
      return 8;
    case plan::F32:
    case plan::I32:
      return 4;
    case plan::BF16:
    case plan::F16:
    case plan::I16:
      return 2;
    case plan::I8:
    case plan::U8:
    case plan::BOOL:
      return 1;
    default:
      return 0;
  }
}

bool canSum(plan::ElementType type) {
  return type == plan::F32 || type == plan::F64 || type == plan::BF16 || type == plan::F16 || type == plan::I64 ||
         type == plan::I32;
}

void sumOverRanks(plan::ElementType type, std::span<const std::byte* const> sources, std::byte* destination,
                  uint64_t count, bool continues) {
  switch (type) {
    case plan::F32:
      return sum<Plain<float>>(sources, destination, count, continues);
    case plan::F64:
      return sum<Plain<double>>(sources, destination, count, continues);
    case plan::I64:
      return sum<Plain<uint64_t>>(sources, destination, count, continues);
    case plan::I32:
      return sum<Plain<uint32_t>>(sources, destination, count, continues);
    case plan::BF16:
      return sum<Half<Bf16>>(sources, destination, count, continues);
    default:
      return sum<Half<F16>>(sources, destination, count, continues);
  }
}

}  // namespace sheaf::comm
