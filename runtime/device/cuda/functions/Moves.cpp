// What moves elements: gather, scatter_add, copy, zero, dropout.
#include <cmath>

#include "runtime/device/cuda/functions/Functions.h"
#include "runtime/device/cuda/kernels/Copy.h"
#include "runtime/device/cuda/kernels/Dropout.h"
#include "runtime/device/cuda/kernels/Indexing.h"

namespace sheaf::cuda {
namespace {

Indices indicesOf(const plan::LibraryCall& call) {
  Indices indices = {};
  indices.wide = plan::integer(call, "index_bytes") == 8;
  indices.count = plan::integer(call, "count");
  indices.rows = plan::integer(call, "rows");
  return indices;
}

Indices at(Indices indices, const Invocation& invocation) {
  indices.data = invocation.operand<void>(1);
  indices.finding = invocation.finding;
  indices.outOfRange =
      static_cast<uint64_t>(invocation.instruction) << 32 | static_cast<uint64_t>(Finding::kIndexOutOfRange);
  return indices;
}

}  // namespace

MadeFunction makeGather(const plan::LibraryCall& call, int64_t, Blas&) {
  GatherProblem problem = {};
  problem.outer = plan::integer(call, "outer");
  problem.slice = plan::integer(call, "inner") * plan::integer(call, "element_bytes");
  return enqueues([problem, indices = indicesOf(call)](const Invocation& invocation) {
    GatherProblem p = problem;
    p.data = invocation.operand<std::byte>(0);
    p.result = invocation.operand<std::byte>(2);
    return toStatus(gather(invocation.stream, at(indices, invocation), p));
  });
}

MadeFunction makeScatterAdd(const plan::LibraryCall& call, int64_t, Blas&) {
  ScatterProblem problem = {};
  problem.outer = plan::integer(call, "outer");
  problem.inner = plan::integer(call, "inner");
  problem.half = plan::elementType(call) == plan::BF16;
  return enqueues([problem, indices = indicesOf(call)](const Invocation& invocation) {
    ScatterProblem p = problem;
    p.update = invocation.operand<void>(0);
    p.result = invocation.operand<void>(2);
    p.scratch = invocation.scratch;
    return toStatus(scatterAdd(invocation.stream, at(indices, invocation), p));
  });
}

MadeFunction makeCopy(const plan::LibraryCall& call, int64_t, Blas&) {
  const int64_t width = plan::integer(call, "element_bytes"), offset = plan::integer(call, "source_offset") * width;
  const uint64_t zeroed = plan::integer(call, "zero") ? call.operands(1).bytes() : 0;
  return enqueues([=, dimensions = plan::copyDimensions(call)](const Invocation& invocation) {
    std::byte* destination = invocation.operand<std::byte>(1);
    if (zeroed > 0) SHEAF_RETURN_IF_ERROR(toStatus(cudaMemsetAsync(destination, 0, zeroed, invocation.stream)));
    return toStatus(
        copyStrided(invocation.stream, invocation.operand<std::byte>(0) + offset, destination, width, dimensions));
  });
}

MadeFunction makeZero(const plan::LibraryCall& call, int64_t, Blas&) {
  return enqueues([bytes = call.operands(0).bytes()](const Invocation& invocation) {
    return toStatus(cudaMemsetAsync(invocation.operands[0], 0, bytes, invocation.stream));
  });
}

MadeFunction makeDropout(const plan::LibraryCall& call, int64_t seed, Blas&) {
  const double ratio = plan::real(call, "ratio");
  DropoutProblem problem = {};
  problem.count = plan::integer(call, "count");
  problem.seed = static_cast<uint64_t>(seed);
  problem.node = static_cast<uint32_t>(plan::integer(call, "node"));
  // Kept iff word * 2^-32 >= ratio, which is word >= ceil(ratio * 2^32): the product is exact.
  problem.threshold = static_cast<uint64_t>(std::ceil(ratio * 4294967296.0));
  problem.scale = ratio < 1 ? static_cast<float>(1 / (1 - ratio)) : 0.0f;
  return enqueues([problem](const Invocation& invocation) {
    DropoutProblem p = problem;
    p.source = invocation.operand<float>(0);
    p.destination = invocation.operand<float>(1);
    p.first = static_cast<uint64_t>(invocation.rank) * static_cast<uint64_t>(p.count);
    p.step = invocation.step;
    return toStatus(dropout(invocation.stream, p));
  });
}

}  // namespace sheaf::cuda
