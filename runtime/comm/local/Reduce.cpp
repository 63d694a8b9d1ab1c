#include "runtime/comm/local/Reduce.h"

#include <algorithm>
#include <cstring>

namespace sheaf::comm {
namespace {

// Elements summed at a time: the block of partial sums stays in the first-level cache while the ranks pass by.
constexpr uint64_t kBlock = 2048;

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
  _Float16 half;
  std::memcpy(&half, &value.bits, sizeof half);
  return float(half);
}

// Rounds to nearest, ties to even; a NaN stays one.
void narrow(float value, Bf16& result) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  result.bits = value != value ? uint16_t((bits >> 16) | 0x40) : uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

void narrow(float value, F16& result) {
  _Float16 half = _Float16(value);
  std::memcpy(&result.bits, &half, sizeof half);
}

// Unsigned for integers: their sum wraps.
template <typename T>
void sum(std::span<const std::byte* const> sources, std::byte* destination, uint64_t count) {
  alignas(64) T block[kBlock];
  for (uint64_t begin = 0; begin < count; begin += kBlock) {
    uint64_t size = std::min(kBlock, count - begin);
    const T* first = reinterpret_cast<const T*>(sources[0]) + begin;
    std::copy(first, first + size, block);
    for (size_t rank = 1; rank < sources.size(); ++rank) {
      const T* source = reinterpret_cast<const T*>(sources[rank]) + begin;
      for (uint64_t i = 0; i < size; ++i) block[i] += source[i];
    }
    std::copy(block, block + size, reinterpret_cast<T*>(destination) + begin);
  }
}

template <typename T>
void sumWidened(std::span<const std::byte* const> sources, std::byte* destination, uint64_t count) {
  alignas(64) float block[kBlock];
  for (uint64_t begin = 0; begin < count; begin += kBlock) {
    uint64_t size = std::min(kBlock, count - begin);
    const T* first = reinterpret_cast<const T*>(sources[0]) + begin;
    for (uint64_t i = 0; i < size; ++i) block[i] = widen(first[i]);
    for (size_t rank = 1; rank < sources.size(); ++rank) {
      const T* source = reinterpret_cast<const T*>(sources[rank]) + begin;
      for (uint64_t i = 0; i < size; ++i) block[i] += widen(source[i]);
    }
    T* result = reinterpret_cast<T*>(destination) + begin;
    for (uint64_t i = 0; i < size; ++i) narrow(block[i], result[i]);
  }
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

void sumInRankOrder(plan::ElementType type, std::span<const std::byte* const> sources, std::byte* destination,
                    uint64_t count) {
  switch (type) {
    case plan::F32:
      return sum<float>(sources, destination, count);
    case plan::F64:
      return sum<double>(sources, destination, count);
    case plan::I64:
      return sum<uint64_t>(sources, destination, count);
    case plan::I32:
      return sum<uint32_t>(sources, destination, count);
    case plan::BF16:
      return sumWidened<Bf16>(sources, destination, count);
    default:
      return sumWidened<F16>(sources, destination, count);
  }
}

}  // namespace sheaf::comm
