// The indices of a call, for the kernels.
#pragma once

#include "runtime/device/cuda/functions/Functions.h"
#include "runtime/device/cuda/kernels/Indexing.h"

namespace sheaf::cuda {

template <typename Call>
Indices indicesOf(const Call& call, const Invocation& invocation) {
  Indices indices = {};
  indices.wide = call.indexBytes == 8;
  indices.count = call.count;
  indices.rows = call.rows;
  indices.outer = indices.inner = 1;
  if constexpr (requires { call.indexOuter; }) {
    if (call.indexOuter) indices.outer = call.outer;
    if (call.indexInner) indices.inner = call.inner;
  }
  indices.data = invocation.operand<void>(plan::kOperand<Call, "indices">);
  indices.finding = invocation.finding;
  indices.outOfRange =
      static_cast<uint64_t>(invocation.instruction) << 32 | static_cast<uint64_t>(Finding::kIndexOutOfRange);
  return indices;
}

}  // namespace sheaf::cuda
