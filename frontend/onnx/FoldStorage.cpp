// How constants are stored, made and read.
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include "frontend/onnx/Fold.h"
#include "frontend/onnx/FoldDetail.h"
#include "llvm/ADT/APFloat.h"

using namespace mlir;

namespace sheaf::frontend {
namespace fold {

static const llvm::fltSemantics& semantics(Type type) {
  return cast<FloatType>(type).getFloatSemantics();
}

float toType(float value, Type type) {
  if (type.isF32()) return value;
  llvm::APFloat x(value);
  bool lost;
  x.convert(semantics(type), llvm::APFloat::rmNearestTiesToEven, &lost);
  return x.convertToFloat();
}
float toType(double value, Type type, float) {
  return toType(float(value), type);
}
int64_t toType(int64_t value, Type type) {
  unsigned width = type.getIntOrFloatBitWidth();
  if (width == 64) return value;
  uint64_t mask = (uint64_t(1) << width) - 1, bits = uint64_t(value) & mask;
  bool negative = !type.isUnsignedInteger() && (bits >> (width - 1) & 1);
  return int64_t(negative ? bits | ~mask : bits);
}

int64_t fromDouble(double value, Type type) {
  if (!(value > -9.3e18 && value < 9.2e18)) return value > 0 ? INT64_MAX : INT64_MIN;
  return toType(int64_t(value), type);
}

// Bytes of all constants of the process.
static std::atomic<int64_t> liveBytes = 0;

std::shared_ptr<const Storage> store(Storage data) {
  int64_t bytes = std::visit([](auto& v) { return int64_t(v.size() * sizeof(v[0])); }, data);
  liveBytes += bytes;
  return std::shared_ptr<const Storage>(new Storage(std::move(data)), [bytes](const Storage* s) {
    delete s;
    liveBytes -= bytes;
  });
}

std::optional<int64_t> foldable(ArrayRef<int64_t> stored, Type type) {
  auto count = elementCount(stored);
  if (!count || *count > kMaxFolded) return std::nullopt;
  int64_t size = dispatch(type, [](auto sample) { return int64_t(sizeof(sample)); });
  return liveBytes + *count * size <= kMaxBytes ? count : std::nullopt;
}

Constant splat(Type type, ArrayRef<int64_t> shape, double value) {
  Shape stored(shape.size(), 1);
  bool empty = llvm::is_contained(shape, 0);
  if (empty) stored.assign(shape.begin(), shape.end());
  Storage data = dispatch(type, [&](auto sample) -> Storage {
    using T = decltype(sample);
    T element;
    if constexpr (std::is_same_v<T, uint8_t>)
      element = value != 0;
    else if constexpr (std::is_same_v<T, int64_t>)
      element = fromDouble(value, type);
    else
      element = toType(value, type, T());
    return std::vector<T>(empty ? 0 : 1, element);
  });
  return {type, Shape(shape), stored, store(std::move(data))};
}

Constant integers(Type type, ArrayRef<int64_t> shape, std::vector<int64_t> data) {
  if (isBool(type)) {
    std::vector<uint8_t> bytes;
    for (int64_t v : data) bytes.push_back(v != 0);
    return finish(type, shape, shape, std::move(bytes));
  }
  for (int64_t& v : data) v = toType(v, type);
  return finish(type, shape, shape, std::move(data));
}

Result fromBytes(Type type, ArrayRef<int64_t> shape, StringRef bytes) {
  auto count = foldable(shape, type);
  unsigned width = type.getIntOrFloatBitWidth();
  if (!count || int64_t(bytes.size()) != *count * ((width + 7) / 8)) return {};
  const char* from = bytes.data();
  auto load = [&](auto sample, int64_t i) {
    std::memcpy(&sample, from + i * sizeof(sample), sizeof(sample));
    return sample;
  };
  Storage data = dispatch(type, [&](auto sample) -> Storage {
    using T = decltype(sample);
    std::vector<T> out(*count);
    for (int64_t i = 0; i < *count; ++i) {
      if constexpr (std::is_same_v<T, uint8_t>)
        out[i] = from[i] != 0;
      else if constexpr (std::is_same_v<T, double>)
        out[i] = load(double(), i);
      else if constexpr (std::is_same_v<T, float>)
        out[i] = width == 32 ? load(float(), i)
                             : llvm::APFloat(semantics(type), llvm::APInt(16, load(uint16_t(), i))).convertToFloat();
      else
        out[i] = toType(width == 64   ? load(int64_t(), i)
                        : width == 32 ? int64_t(load(int32_t(), i))
                        : width == 16 ? int64_t(load(int16_t(), i))
                                      : int64_t(load(int8_t(), i)),
                        type);
    }
    return out;
  });
  return finish(type, shape, shape, std::move(data));
}

Result iota(Type type, int64_t count, double start, double step) {
  if (!foldable({count}, type) || isBool(type)) return {};
  // Beyond 2^53 a double does not count in ones.
  if (isa<IntegerType>(type) && !(std::fabs(start) <= 0x1p53 && std::fabs(step) <= 0x1p53)) return {};
  Storage data = dispatch(type, [&](auto sample) -> Storage {
    using T = decltype(sample);
    std::vector<T> out(count);
    for (int64_t i = 0; i < count; ++i) {
      if constexpr (std::is_same_v<T, int64_t>)
        out[i] = toType(int64_t(uint64_t(int64_t(start)) + uint64_t(i) * uint64_t(int64_t(step))), type);
      else if constexpr (std::is_same_v<T, uint8_t>)
        out[i] = 0;
      else
        out[i] = toType(start + double(i) * step, type, T());
    }
    return out;
  });
  return finish(type, {count}, {count}, std::move(data));
}

}  // namespace fold

bool Constant::isSplat() const {
  return llvm::all_of(stored, [](int64_t size) { return size == 1; });
}

std::vector<int64_t> Constant::integers() const {
  SmallVector<bool> all(shape.size(), true);
  fold::Result whole = fold::expand(*this, all);
  if (!whole) return {};
  if (fold::isBool(type)) {
    const auto& bytes = fold::values<uint8_t>(*whole);
    return std::vector<int64_t>(bytes.begin(), bytes.end());
  }
  return fold::values<int64_t>(*whole);
}

double Constant::splatValue() const {
  return fold::dispatch(type, [&](auto sample) {
    const auto& data = fold::values<decltype(sample)>(*this);
    return data.empty() ? 0.0 : double(data[0]);
  });
}

int64_t Constant::splatInteger() const {
  if (isa<FloatType>(type)) return fold::fromDouble(splatValue(), IntegerType::get(type.getContext(), 64));
  if (fold::isBool(type)) return splatValue() != 0;
  const auto& data = fold::values<int64_t>(*this);
  return data.empty() ? 0 : data[0];
}

DenseElementsAttr Constant::attribute() const {
  auto tensor = RankedTensorType::get(isSplat() ? shape : stored, type);
  return fold::dispatch(type, [&](auto sample) -> DenseElementsAttr {
    using T = decltype(sample);
    const auto& data = fold::values<T>(*this);
    if constexpr (std::is_same_v<T, uint8_t>)
      return DenseElementsAttr::get(tensor, ArrayRef<bool>(reinterpret_cast<const bool*>(data.data()), data.size()));
    else if constexpr (std::is_same_v<T, int64_t>) {
      if (type.isInteger(64)) return DenseElementsAttr::get(tensor, ArrayRef<int64_t>(data));
      SmallVector<APInt> narrow;
      for (int64_t v : data) narrow.push_back(APInt(type.getIntOrFloatBitWidth(), uint64_t(v), false, true));
      return DenseElementsAttr::get(tensor, narrow);
    } else if constexpr (std::is_same_v<T, float>) {
      if (type.isF32()) return DenseElementsAttr::get(tensor, ArrayRef<float>(data));
      SmallVector<APFloat> narrow;
      for (float v : data) {
        bool lost;
        narrow.emplace_back(v).convert(fold::semantics(type), APFloat::rmNearestTiesToEven, &lost);
      }
      return DenseElementsAttr::get(tensor, narrow);
    } else
      return DenseElementsAttr::get(tensor, ArrayRef<double>(data));
  });
}

}  // namespace sheaf::frontend
