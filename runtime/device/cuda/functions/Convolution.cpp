// Convolutions as matrix products of the filter with the unrolled input (one column per output pixel, one row per
// filter element of a channel), some images at a time; and pooling.
#include <algorithm>

#include "runtime/device/cuda/functions/Functions.h"
#include "runtime/device/cuda/kernels/Windows.h"
#include "runtime/plan/Tiles.h"

namespace sheaf::cuda {
namespace {

Window windowOf(const plan::WindowShape& call) {
  return {call.n,  call.c,       call.h,       call.w,      call.kh,      call.kw,        call.oh,
          call.ow, call.strideH, call.strideW, call.padTop, call.padLeft, call.dilationH, call.dilationW};
}

struct Convolution {
  explicit Convolution(const plan::ConvolutionShape& call)
      : window(windowOf(call)),
        o(call.o),
        groups(call.groups),
        outputs(o / groups),
        patch(call.patch()),
        pixels(window.oh * window.ow),
        image(window.c * window.h * window.w),
        columns(window.c * window.kh * window.kw * pixels),
        tf32(call.tf32),
        scratch(plan::convScratch(window.n, window.c * window.kh * window.kw, pixels)) {}

  // A product for all groups of an image.
  ProductShape product(int64_t m, int64_t n, int64_t k) const {
    ProductShape shape;
    shape.m = m, shape.n = n, shape.k = k, shape.batch = groups;
    shape.workspace = scratch.workspaceBytes;
    shape.tf32 = tf32;
    shape.alignments = {sizeof(float), sizeof(float), sizeof(float)};
    return shape;
  }
  float* columnsOf(const Invocation& invocation) const { return reinterpret_cast<float*>(invocation.scratch); }
  std::byte* workspaceOf(const Invocation& invocation) const { return invocation.scratch + scratch.columnBytes; }

  // Calls run(first, window) for as many images at a time as the scratch has columns for.
  template <typename Run>
  Status forImages(Run run) const {
    for (int64_t first = 0; first < window.n; first += scratch.images) {
      Window some = window;
      some.n = std::min(scratch.images, window.n - first);
      SHEAF_RETURN_IF_ERROR(run(first, some));
    }
    return Status();
  }

  const Window window;
  const int64_t o, groups, outputs, patch, pixels;
  const int64_t image, columns;  // elements of one image, and of its columns
  const bool tf32;
  const plan::ConvScratch scratch;
};

}  // namespace

MadeFunction makeFunction(const plan::ConvCall& call, const CallSite& site) {
  using Call = plan::ConvCall;
  const Convolution c(call);
  ProductShape shape = c.product(c.outputs, c.pixels, c.patch);
  shape.lda = c.patch, shape.ldb = shape.ldc = c.pixels;
  shape.strideA = c.outputs * c.patch, shape.strideB = c.patch * c.pixels, shape.strideC = c.outputs * c.pixels;
  auto made = site.blas.product(shape);
  if (!made.ok()) return made.status();
  return enqueues([c, product = std::shared_ptr<const Product>(std::move(*made))](const Invocation& invocation) {
    const float *input = invocation.operand<float>(plan::kOperand<Call, "input">),
                *filter = invocation.operand<float>(plan::kOperand<Call, "filter">);
    float *result = invocation.operand<float>(plan::kOperand<Call, "result">), *columns = c.columnsOf(invocation);
    return c.forImages([&](int64_t first, const Window& some) {
      SHEAF_RETURN_IF_ERROR(toStatus(unroll(invocation.stream, some, input + first * c.image, columns)));
      for (int64_t i = 0; i < some.n; ++i)
        SHEAF_RETURN_IF_ERROR(product->enqueue(invocation.stream, filter, columns + i * c.columns,
                                               result + (first + i) * c.o * c.pixels, c.workspaceOf(invocation)));
      return Status();
    });
  });
}

MadeFunction makeFunction(const plan::ConvGradInputCall& call, const CallSite& site) {
  using Call = plan::ConvGradInputCall;
  const Convolution c(call);
  ProductShape shape = c.product(c.patch, c.pixels, c.outputs);
  shape.transposeA = true;
  shape.lda = c.patch, shape.ldb = shape.ldc = c.pixels;
  shape.strideA = c.outputs * c.patch, shape.strideB = c.outputs * c.pixels, shape.strideC = c.patch * c.pixels;
  auto made = site.blas.product(shape);
  if (!made.ok()) return made.status();
  return enqueues([c, product = std::shared_ptr<const Product>(std::move(*made))](const Invocation& invocation) {
    const float *gradient = invocation.operand<float>(plan::kOperand<Call, "gradient">),
                *filter = invocation.operand<float>(plan::kOperand<Call, "filter">);
    float *result = invocation.operand<float>(plan::kOperand<Call, "result">), *columns = c.columnsOf(invocation);
    return c.forImages([&](int64_t first, const Window& some) {
      for (int64_t i = 0; i < some.n; ++i)
        SHEAF_RETURN_IF_ERROR(product->enqueue(invocation.stream, filter, gradient + (first + i) * c.o * c.pixels,
                                               columns + i * c.columns, c.workspaceOf(invocation)));
      return toStatus(rollUp(invocation.stream, some, columns, result + first * c.image));
    });
  });
}

MadeFunction makeFunction(const plan::ConvGradFilterCall& call, const CallSite& site) {
  using Call = plan::ConvGradFilterCall;
  const Convolution c(call);
  ProductShape shape = c.product(c.outputs, c.patch, c.pixels);
  shape.transposeB = true;
  shape.lda = shape.ldb = c.pixels, shape.ldc = c.patch;
  shape.strideA = c.outputs * c.pixels, shape.strideB = c.patch * c.pixels, shape.strideC = c.outputs * c.patch;
  auto first = site.blas.product(shape);
  if (!first.ok()) return first.status();
  shape.add = true;  // images are added up in order
  auto others = site.blas.product(shape);
  if (!others.ok()) return others.status();
  return enqueues([c, first = std::shared_ptr<const Product>(std::move(*first)),
                   others = std::shared_ptr<const Product>(std::move(*others))](const Invocation& invocation) {
    const float *input = invocation.operand<float>(plan::kOperand<Call, "input">),
                *gradient = invocation.operand<float>(plan::kOperand<Call, "gradient">);
    float *result = invocation.operand<float>(plan::kOperand<Call, "result">), *columns = c.columnsOf(invocation);
    return c.forImages([&](int64_t begin, const Window& some) {
      SHEAF_RETURN_IF_ERROR(toStatus(unroll(invocation.stream, some, input + begin * c.image, columns)));
      for (int64_t i = 0; i < some.n; ++i) {
        const Product& product = begin + i == 0 ? *first : *others;
        SHEAF_RETURN_IF_ERROR(product.enqueue(invocation.stream, gradient + (begin + i) * c.o * c.pixels,
                                              columns + i * c.columns, result, c.workspaceOf(invocation)));
      }
      return Status();
    });
  });
}

MadeFunction makeFunction(const plan::MaxPoolCall& call, const CallSite&) {
  using Call = plan::MaxPoolCall;
  return enqueues([window = windowOf(call)](const Invocation& invocation) {
    return toStatus(maxPool(invocation.stream, window, invocation.operand<float>(plan::kOperand<Call, "input">),
                            invocation.operand<float>(plan::kOperand<Call, "result">)));
  });
}

MadeFunction makeFunction(const plan::MaxPoolIndicesCall& call, const CallSite&) {
  using Call = plan::MaxPoolIndicesCall;
  return enqueues([window = windowOf(call)](const Invocation& invocation) {
    return toStatus(maxPoolIndices(invocation.stream, window, invocation.operand<float>(plan::kOperand<Call, "input">),
                                   invocation.operand<int64_t>(plan::kOperand<Call, "result">)));
  });
}

MadeFunction makeFunction(const plan::MaxPoolGradCall& call, const CallSite&) {
  using Call = plan::MaxPoolGradCall;
  return enqueues([window = windowOf(call)](const Invocation& invocation) {
    return toStatus(maxPoolGrad(invocation.stream, window, invocation.operand<float>(plan::kOperand<Call, "input">),
                                invocation.operand<float>(plan::kOperand<Call, "gradient">),
                                invocation.operand<float>(plan::kOperand<Call, "result">)));
  });
}

}  // namespace sheaf::cuda
