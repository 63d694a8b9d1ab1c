// How constants are stored, made and read.
#include "ir/Train/Constant.h"

#include <atomic>
#include <cstring>

#include "ir/Train/ConstantDetail.h"

using namespace mlir;
using namespace sheaf::train;
using namespace sheaf::train::constants;

namespace {

std::atomic<int64_t> allBytes = 0;

// Whether `bytes` is one element of `width` bytes over and over.
bool isRepeated(const char* bytes, int64_t size, int64_t width) {
  return size > width && std::memcmp(bytes, bytes + width, size - width) == 0;
}

// Attributes hold booleans as bits.
bool bit(ArrayRef<char> raw, int64_t at) {
  return raw[at / 8] >> (at % 8) & 1;
}

// The elements of an attribute; one if it is a splat.
std::optional<Constant::Bytes> bytesOf(ElementsAttr attribute) {
  auto dense = dyn_cast<DenseElementsAttr>(attribute);
  if (!dense || !isa<RankedTensorType>(attribute.getShapedType())) return std::nullopt;
  ArrayRef<char> raw = dense.getRawData();
  if (!dense.getElementType().isInteger(1)) return Constant::Bytes(raw.begin(), raw.end());
  Constant::Bytes bytes(dense.isSplat() ? 1 : dense.getNumElements());
  for (size_t k = 0; k < bytes.size(); ++k) bytes[k] = bit(raw, k);
  return bytes;
}

Constant::Bytes bytesOf(const Tensor& tensor) {
  Type element = tensor.type.getElementType();
  Constant::Bytes bytes(tensor.size() * widthOf(element));
  withStorer(element, bytes.data(), [&](auto store) {
    for (int64_t k = 0; k < tensor.size(); ++k) store(k, tensor, k);
  });
  return bytes;
}

Tensor firstElement(const Constant& x) {
  Tensor result = Tensor::zeros(x.type.clone(ArrayRef<int64_t>{}));
  readElements(x, {}, {}, 0, result);
  return result;
}

// The shape that a type's elements are stored in, if all of them are or, as a splat, one.
SmallVector<int64_t> storedShape(ShapedType type, bool splat) {
  return splat ? SmallVector<int64_t>(type.getRank(), 1) : SmallVector<int64_t>(type.getShape());
}

}  // namespace

std::shared_ptr<const Constant::Bytes> constants::store(Constant::Bytes bytes) {
  int64_t size = bytes.size();
  allBytes += size;
  return std::shared_ptr<const Constant::Bytes>(new Constant::Bytes(std::move(bytes)),
                                                [size](const Constant::Bytes* stored) {
                                                  delete stored;
                                                  allBytes -= size;
                                                });
}

int64_t Constant::liveBytes() {
  return allBytes;
}

Constant constants::withoutRepetitions(RankedTensorType type, SmallVector<int64_t> stored, Constant::Bytes bytes) {
  int64_t width = widthOf(type.getElementType());
  if (isRepeated(bytes.data(), bytes.size(), width)) {
    bytes.resize(width);
    stored.assign(stored.size(), 1);
  }
  for (size_t d = 0; d < stored.size() && !bytes.empty(); ++d) {
    if (stored[d] == 1) continue;
    int64_t outer = evaluator::extent(stored, 0, d), inner = width * evaluator::extent(stored, d + 1, stored.size());
    int64_t slice = stored[d] * inner;
    bool same = true;
    for (int64_t o = 0; o < outer && same; ++o) same = isRepeated(bytes.data() + o * slice, slice, inner);
    if (!same) continue;
    for (int64_t o = 1; o < outer; ++o) std::memmove(bytes.data() + o * inner, bytes.data() + o * slice, inner);
    bytes.resize(outer * inner);
    stored[d] = 1;
  }
  bytes.shrink_to_fit();
  return {type, std::move(stored), store(std::move(bytes))};
}

Constant Constant::splat(RankedTensorType type, double value) {
  if (type.getNumElements() == 0) return {type, storedShape(type, false), store({})};
  Tensor one = Tensor::zeros(type.clone(ArrayRef<int64_t>{}));
  if (one.isFloat())
    one.f[0] = value;
  else
    one.i[0] = evaluator::toInteger(value, cast<IntegerType>(type.getElementType()));
  evaluator::normalize(one, /*round=*/true);
  return {type, storedShape(type, true), store(bytesOf(one))};
}

Constant Constant::integers(RankedTensorType type, ArrayRef<int64_t> values) {
  Tensor tensor{type, {}, values.vec()};
  evaluator::normalize(tensor, /*round=*/true);
  return fromTensor(tensor);
}

std::optional<Constant> Constant::fromBytes(RankedTensorType type, StringRef bytes) {
  if (int64_t(bytes.size()) != type.getNumElements() * widthOf(type.getElementType())) return std::nullopt;
  Bytes copy(bytes.begin(), bytes.end());
  if (type.getElementType().isInteger(1))
    for (char& value : copy) value = value != 0;
  return withoutRepetitions(type, storedShape(type, false), std::move(copy));
}

std::optional<Constant> Constant::fromAttribute(ElementsAttr attribute) {
  std::optional<Bytes> bytes = bytesOf(attribute);
  if (!bytes) return std::nullopt;
  auto type = cast<RankedTensorType>(attribute.getShapedType());
  return withoutRepetitions(type, storedShape(type, attribute.isSplat()), std::move(*bytes));
}

Constant Constant::fromTensor(const Tensor& tensor) {
  return withoutRepetitions(tensor.type, storedShape(tensor.type, false), bytesOf(tensor));
}

bool Constant::isSplat() const {
  return llvm::all_of(stored, [](int64_t size) { return size == 1; });
}

Tensor Constant::storedElements() const {
  return read(*this, stored);
}

Tensor Constant::elements() const {
  return read(*this, shape());
}

double Constant::splatValue() const {
  Tensor first = firstElement(*this);
  return first.isFloat() ? first.f[0] : double(first.i[0]);
}

int64_t Constant::splatInteger() const {
  Tensor first = firstElement(*this);
  return first.isFloat() ? evaluator::toInteger(first.f[0], IntegerType::get(type.getContext(), 64)) : first.i[0];
}

DenseElementsAttr Constant::attribute() const {
  RankedTensorType to = isSplat() ? type : type.clone(stored);
  if (!element().isInteger(1)) return DenseElementsAttr::getFromRawBuffer(to, *data);
  return DenseElementsAttr::get(to, ArrayRef<bool>(reinterpret_cast<const bool*>(data->data()), data->size()));
}

Constant Constant::written() const {
  return isSplat() ? *this : storedIn(*this, shape());
}

bool Constant::repeats(int64_t dimension, int64_t part) const {
  if (stored[dimension] == 1 || stored[dimension] == part || data->empty()) return true;
  const int64_t outer = evaluator::extent(stored, 0, dimension);
  const int64_t inner = widthOf(element()) * evaluator::extent(stored, dimension + 1, stored.size());
  const int64_t slice = stored[dimension] * inner;
  for (int64_t o = 0; o < outer; ++o)
    if (stored[dimension] % part || !isRepeated(data->data() + o * slice, slice, part * inner)) return false;
  return true;
}

Constant Constant::first(int64_t dimension, int64_t size) const {
  SmallVector<int64_t> shape(this->shape()), kept(stored);
  shape[dimension] = size;
  if (stored[dimension] == 1) return {type.clone(shape), kept, data};
  kept[dimension] = size;
  const int64_t outer = evaluator::extent(stored, 0, dimension);
  const int64_t inner = widthOf(element()) * evaluator::extent(stored, dimension + 1, stored.size());
  Bytes bytes;
  for (int64_t o = 0; o < outer; ++o) {
    const char* from = data->data() + o * stored[dimension] * inner;
    bytes.insert(bytes.end(), from, from + size * inner);
  }
  return withoutRepetitions(type.clone(shape), std::move(kept), std::move(bytes));
}

Value sheaf::train::materialize(OpBuilder& builder, Location location, const Constant& constant) {
  Value value = ConstantOp::create(builder, location, constant.attribute());
  return value.getType() == constant.type ? value : Value(BroadcastOp::create(builder, location, constant.type, value));
}

std::optional<Constant> sheaf::train::knownConstant(Value v) {
  Operation* op = v.getDefiningOp();
  auto broadcast = dyn_cast_or_null<BroadcastOp>(op);
  auto constant = broadcast ? broadcast.getOperand().getDefiningOp<ConstantOp>() : dyn_cast_or_null<ConstantOp>(op);
  std::optional<Constant> known = constant ? Constant::fromAttribute(constant.getValue()) : std::nullopt;
  if (known) known->type = cast<RankedTensorType>(v.getType());
  return known;
}

// --- bytes and tensors ---

int64_t constants::widthOf(Type element) {
  return (element.getIntOrFloatBitWidth() + 7) / 8;
}

SmallVector<int64_t> constants::stridesOf(const Constant& x) {
  SmallVector<int64_t> strides = evaluator::stridesOf(x.stored);
  for (auto [size, stride] : llvm::zip(x.stored, strides))
    if (size == 1) stride = 0;
  return strides;
}

void constants::readElements(const Constant& x, ArrayRef<int64_t> shape, ArrayRef<int64_t> strides, int64_t offset,
                             Tensor& out) {
  withLoader(x.element(), x.data->data(), [&](auto load) {
    evaluator::forEach(shape, strides, offset, [&](int64_t index, int64_t at) { load(at, out, index); });
  });
}

Tensor constants::read(const Constant& x, ArrayRef<int64_t> shape) {
  Tensor result = Tensor::zeros(x.type.clone(shape));
  readElements(x, shape, stridesOf(x), 0, result);
  return result;
}

Constant constants::storedIn(const Constant& x, ArrayRef<int64_t> stored) {
  if (ArrayRef<int64_t>(x.stored) == stored) return x;
  int64_t width = widthOf(x.element());
  Constant::Bytes bytes(evaluator::extent(stored, 0, stored.size()) * width);
  evaluator::forEach(stored, stridesOf(x), 0, [&](int64_t index, int64_t at) {
    std::memcpy(bytes.data() + index * width, x.data->data() + at * width, width);
  });
  return {x.type, SmallVector<int64_t>(stored), store(std::move(bytes))};
}

Tensor sheaf::train::readAttribute(DenseElementsAttr attribute, int64_t start, int64_t stride, int64_t count) {
  Tensor result = Tensor::zeros(RankedTensorType::get({count}, attribute.getElementType()));
  ArrayRef<char> raw = attribute.getRawData();
  if (attribute.getElementType().isInteger(1))
    for (int64_t k = 0; k < count; ++k) result.i[k] = bit(raw, start + k * stride);
  else
    withLoader(attribute.getElementType(), raw.data(), [&](auto load) {
      for (int64_t k = 0; k < count; ++k) load(start + k * stride, result, k);
    });
  return result;
}

FailureOr<Tensor> sheaf::train::toTensor(ElementsAttr attribute) {
  std::optional<Constant::Bytes> bytes = bytesOf(attribute);
  if (!bytes) return failure();
  auto type = cast<RankedTensorType>(attribute.getShapedType());
  return Constant{type, storedShape(type, attribute.isSplat()), store(std::move(*bytes))}.elements();
}

DenseElementsAttr sheaf::train::toAttribute(const Tensor& tensor) {
  Constant::Bytes bytes = bytesOf(tensor);
  int64_t width = widthOf(tensor.type.getElementType());
  bool splat = isRepeated(bytes.data(), bytes.size(), width);
  if (splat) bytes.resize(width);
  return Constant{tensor.type, storedShape(tensor.type, splat), store(std::move(bytes))}.attribute();
}
