#include "codegen/cuda/ThreadGroups.h"

#include "codegen/fusion/Reductions.h"
#include "mlir/Dialect/GPU/IR/GPUDialect.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"
#include "mlir/Dialect/SCF/IR/SCF.h"

using namespace mlir;
using namespace sheaf::train;

namespace sheaf::codegen {
namespace {

constexpr int64_t kWarp = 32;
// Of shared memory for sums over groups: any block may have 48 KiB.
constexpr int64_t kMostSumBytes = 32 << 10;
constexpr int64_t kPlace = 8;  // bytes of a scalar in shared memory, whatever its type

int64_t lanesOf(Value value) {
  auto vector = dyn_cast<VectorType>(value.getType());
  return vector ? vector.getNumElements() : 1;
}
int64_t bytesOf(Value value) {
  return lanesOf(value) * std::max(8u, ArithBuilder::elementOf(value.getType()).getIntOrFloatBitWidth()) / 8;
}

}  // namespace

Value ThreadGroups::integer(int64_t value) {
  return a.integer(a.b.getI64Type(), value);
}

Buffer ThreadGroups::sharedBuffer(int64_t offset, Type element) {
  Value base = LLVM::GEPOp::create(a.b, a.loc, shared.getType(), a.b.getI8Type(), shared,
                                   ArrayRef<LLVM::GEPArg>{static_cast<int32_t>(offset)});
  return {base, element};
}

void ThreadGroups::when(Value condition, function_ref<void()> body) {
  auto branch = scf::IfOp::create(a.b, a.loc, condition, /*withElseRegion=*/false);
  OpBuilder::InsertionGuard guard(a.b);
  a.b.setInsertionPointToStart(branch.thenBlock());
  body();
}

// Registers are exchanged in words of 32 bits.
Value ThreadGroups::exchange(Value value, int64_t distance) {
  auto word = [&](Value x) -> Value {
    return gpu::ShuffleOp::create(a.b, a.loc, x, static_cast<int32_t>(distance), static_cast<int32_t>(kWarp),
                                  gpu::ShuffleMode::XOR)
        .getShuffleResult();
  };
  Type type = value.getType(), i32 = a.b.getI32Type();
  unsigned width = type.getIntOrFloatBitWidth();
  Type bits = a.b.getIntegerType(width);
  if (isa<FloatType>(type)) value = a.bitcast(bits, value);
  if (width < 32) {
    value = arith::TruncIOp::create(a.b, a.loc, bits, word(arith::ExtUIOp::create(a.b, a.loc, i32, value)));
  } else if (width == 32) {
    value = word(value);
  } else {
    Value low = word(arith::TruncIOp::create(a.b, a.loc, i32, value));
    Value high = word(arith::TruncIOp::create(a.b, a.loc, i32, a.shiftRightLogical(value, 32)));
    low = arith::ExtUIOp::create(a.b, a.loc, bits, low);
    high = arith::ExtUIOp::create(a.b, a.loc, bits, high);
    value = a.bitOr(low, a.shiftLeft(high, 32));
  }
  return isa<FloatType>(type) ? a.bitcast(type, value) : value;
}

void ThreadGroups::barrier() {
  gpu::BarrierOp::create(a.b, a.loc);
}

void ThreadGroups::barrierOfGroup() {
  if (mapping.perRow > kWarp) return barrier();
  if (mapping.perRow > 1) NVVM::SyncWarpOp::create(a.b, a.loc, a.integer(a.b.getI32Type(), -1));
}

void ThreadGroups::reduce(ArrayRef<ReduceOp> reductions, MutableArrayRef<Value> values) {
  auto overWarp = [&](int64_t threads) {
    for (int64_t distance = threads / 2; distance >= 1; distance /= 2)
      for (auto [reduce, value] : llvm::zip(reductions, values))
        value = emitCombine(a, reduce, value, exchange(value, distance));
  };
  overWarp(std::min(mapping.perRow, kWarp));
  const int64_t warps = mapping.perRow / kWarp;
  if (warps <= 1 || values.empty()) return;

  // The first lane of each warp leaves the warp's value, and every warp combines what all have left.
  KernelMemory memory(a, {1, true});
  SmallVector<Buffer> places;
  for (Value value : values) {
    places.push_back(sharedBuffer(reserved, value.getType()));
    reserved += mapping.groups * warps * kPlace;
  }
  bytes = std::max(bytes, reserved);
  Value warp = a.shiftRightLogical(thread, llvm::Log2_64(kWarp));
  Value lane = a.bitAnd(thread, integer(kWarp - 1));
  auto indexOf = [&](Value place, const Buffer& buffer) {
    return a.mul(place, integer(kPlace * 8 / std::max(8u, buffer.element.getIntOrFloatBitWidth())));
  };
  when(a.compare(arith::CmpIPredicate::eq, lane, integer(0)), [&] {
    for (auto [buffer, value] : llvm::zip(places, values)) memory.storeScalar(buffer, indexOf(warp, buffer), value);
  });
  barrier();
  Value first = a.bitAnd(warp, integer(-warps)), source = a.add(first, a.bitAnd(lane, integer(warps - 1)));
  for (auto [buffer, value] : llvm::zip(places, values)) value = memory.loadScalar(buffer, indexOf(source, buffer));
  overWarp(warps);
}

void ThreadGroups::sumOverGroups(MutableArrayRef<Value> values) {
  if (mapping.groups == 1) return;
  // As many at a time as there is memory for: with each step half of the groups hand their values on.
  for (size_t first = 0; first < values.size();) {
    size_t count = 0;
    for (int64_t total = 0; first + count < values.size(); ++count) {
      total += bytesOf(values[first + count]) * mapping.threads() / 2;
      if (count > 0 && total > kMostSumBytes) break;
    }
    sumBatch(values.slice(first, count), llvm::alignTo(reserved, 128));
    first += count;
  }
}

void ThreadGroups::sumBatch(MutableArrayRef<Value> values, int64_t offset) {
  for (int64_t half = mapping.groups / 2; half >= 1; half /= 2) {
    const int64_t givers = half * mapping.perRow;
    Value place = a.bitAnd(thread, integer(givers - 1));
    int64_t at = offset;
    SmallVector<Buffer> buffers;
    for (Value value : values) {
      buffers.push_back(sharedBuffer(at, ArithBuilder::elementOf(value.getType())));
      at += bytesOf(value) * mapping.threads() / 2;
    }
    bytes = std::max(bytes, at);
    Value part = a.shiftRightLogical(thread, llvm::Log2_64(givers));
    when(a.compare(arith::CmpIPredicate::eq, part, integer(1)), [&] {
      for (auto [buffer, value] : llvm::zip(buffers, values)) {
        KernelMemory memory(a, {lanesOf(value), true});
        Value index = a.mul(place, integer(lanesOf(value)));
        if (isa<VectorType>(value.getType()))
          memory.storeVector(buffer, index, value, {});
        else
          memory.storeScalar(buffer, index, value);
      }
    });
    barrier();
    for (auto [buffer, value] : llvm::zip(buffers, values)) {
      KernelMemory memory(a, {lanesOf(value), true});
      Value index = a.mul(place, integer(lanesOf(value)));
      value = a.add(value, isa<VectorType>(value.getType()) ? memory.loadVector(buffer, index, {})
                                                            : memory.loadScalar(buffer, index));
    }
    barrier();
  }
}

}  // namespace sheaf::codegen
