#include "codegen/fusion/KernelMemory.h"

#include "ir/Train/ElementTypes.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "mlir/IR/Matchers.h"

using namespace mlir;

namespace sheaf::codegen {

// The types that are widened: the type in memory, and conversions from and to f32. A bf16 is handled by its bits.
static Type inMemory(ArithBuilder& a, plan::Element<plan::BF16>) {
  return a.b.getIntegerType(16);
}
static Value widened(ArithBuilder& a, Value value, plan::Element<plan::BF16>) {
  return a.fromBf16Bits(value);
}
static Value narrowed(ArithBuilder& a, Value value, Type, plan::Element<plan::BF16>) {
  return a.toBf16Bits(value);
}

static Type inMemory(ArithBuilder& a, plan::Element<plan::F16>) {
  return a.b.getF16Type();
}
static Value widened(ArithBuilder& a, Value value, plan::Element<plan::F16>) {
  return arith::ExtFOp::create(a.b, a.loc, ArithBuilder::withElement(value.getType(), a.b.getF32Type()), value);
}
static Value narrowed(ArithBuilder& a, Value value, Type type, plan::Element<plan::F16>) {
  return arith::TruncFOp::create(a.b, a.loc, type, value);
}

template <typename Visit>
static auto visitWidened(Type element, Visit visit) {
  return plan::visitElement<&plan::ElementFacts::isWidened>(train::planType(element), visit);
}

// Returns the type of what lies in memory: bytes for booleans, otherwise the element itself or its bits.
Type KernelMemory::memoryType(Type element) {
  if (element.isInteger(1)) return a.b.getI8Type();
  if (train::isWidened(element)) return visitWidened(element, [&](auto known) { return inMemory(a, known); });
  // The element may be of another context than the kernel.
  if (isa<FloatType>(element)) return train::elementType(a.b.getContext(), train::planType(element));
  return a.b.getIntegerType(element.getIntOrFloatBitWidth());
}

static unsigned alignmentOf(Type memory) {
  return std::max(1u, memory.getIntOrFloatBitWidth() / 8);
}
unsigned KernelMemory::vectorAlignment(Type memory) {
  constexpr unsigned kMost = 16;
  return lanes.aligned ? std::min(alignmentOf(memory) * static_cast<unsigned>(lanes.count), kMost)
                       : alignmentOf(memory);
}

Value KernelMemory::address(const Buffer& buffer, Value index) {
  return LLVM::GEPOp::create(a.b, a.loc, buffer.pointer.getType(), memoryType(buffer.element), buffer.pointer,
                             ArrayRef<LLVM::GEPArg>{index});
}

Value KernelMemory::fromMemory(Value value, Type element) {
  if (element.isInteger(1)) return a.compare(arith::CmpIPredicate::ne, value, a.integer(value.getType(), 0));
  if (train::isWidened(element)) return visitWidened(element, [&](auto known) { return widened(a, value, known); });
  return value;
}

Value KernelMemory::toMemory(Value value, Type element) {
  Type type = ArithBuilder::withElement(value.getType(), memoryType(element));
  if (element.isInteger(1)) return arith::ExtUIOp::create(a.b, a.loc, type, value);
  if (train::isWidened(element))
    return visitWidened(element, [&](auto known) { return narrowed(a, value, type, known); });
  return value;
}

Value KernelMemory::loadScalar(const Buffer& buffer, Value index) {
  Type type = memoryType(buffer.element);
  Value loaded = LLVM::LoadOp::create(a.b, a.loc, type, address(buffer, index), alignmentOf(type),
                                      /*isVolatile=*/false, /*isNonTemporal=*/false, buffer.invariant);
  return fromMemory(loaded, buffer.element);
}

Value KernelMemory::loadVector(const Buffer& buffer, Value index, Value mask) {
  Type element = memoryType(buffer.element);
  Type type = VectorType::get({lanes.count}, element);
  Value pointer = address(buffer, index), loaded;
  if (mask) {
    Value zero = isa<FloatType>(element) ? a.constant(type, 0.0) : a.integer(type, 0);
    loaded = LLVM::MaskedLoadOp::create(a.b, a.loc, type, pointer, mask, zero, vectorAlignment(element));
  } else {
    loaded = LLVM::LoadOp::create(a.b, a.loc, type, pointer, vectorAlignment(element), /*isVolatile=*/false,
                                  /*isNonTemporal=*/false, buffer.invariant);
  }
  return fromMemory(loaded, buffer.element);
}

void KernelMemory::storeScalar(const Buffer& buffer, Value index, Value value) {
  Value stored = toMemory(value, buffer.element);
  LLVM::StoreOp::create(a.b, a.loc, stored, address(buffer, index), alignmentOf(stored.getType()));
}

// The only lane that a constant mask lets through.
static std::optional<int64_t> onlyLane(Value mask) {
  DenseElementsAttr bits;
  if (!mask || !matchPattern(mask, m_Constant(&bits))) return std::nullopt;
  auto values = bits.getValues<bool>();
  if (llvm::count(values, true) != 1) return std::nullopt;
  return llvm::find(values, true) - values.begin();
}

void KernelMemory::storeVector(const Buffer& buffer, Value index, Value value, Value mask) {
  Value stored = toMemory(value, buffer.element), pointer = address(buffer, index);
  // LLVM 22 stores 32 bits where a constant mask lets one lane of 8 or 16 bits through.
  if (auto lane = onlyLane(mask)) {
    Value one = vector::ExtractOp::create(a.b, a.loc, stored, ArrayRef<int64_t>{*lane});
    Value at = LLVM::GEPOp::create(a.b, a.loc, pointer.getType(), one.getType(), pointer,
                                   ArrayRef<LLVM::GEPArg>{static_cast<int32_t>(*lane)});
    LLVM::StoreOp::create(a.b, a.loc, one, at, alignmentOf(one.getType()));
    return;
  }
  unsigned alignment = vectorAlignment(getElementTypeOrSelf(stored.getType()));
  if (mask)
    LLVM::MaskedStoreOp::create(a.b, a.loc, stored, pointer, mask, alignment);
  else
    LLVM::StoreOp::create(a.b, a.loc, stored, pointer, alignment);
}

}  // namespace sheaf::codegen
