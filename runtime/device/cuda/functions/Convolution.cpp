// Convolutions as matrix products of the filter with the unrolled input (one column per output pixel, one row per
// filter element of a channel), some images at a time; and pooling.
#include <algorithm>

#include "runtime/device/cuda/functions/Functions.h"
#include "runtime/device/cuda/kernels/Windows.h"
#include "runtime/plan/Tiles.h"

namespace sheaf::cuda {
namespace {

Window windowOf(const plan::LibraryCall& call) {
  auto get = [&](const char* name) { return plan::integer(call, name); };
  return {get("n"),       get("c"),        get("h"),          get("w"),         get("kh"),
          get("kw"),      get("oh"),       get("ow"),         get("stride_h"),  get("stride_w"),
          get("pad_top"), get("pad_left"), get("dilation_h"), get("dilation_w")};
}

struct Convolution {
  explicit Convolution(const plan::LibraryCall& call)
      : window(windowOf(call)),
        o(plan::integer(call, "o")),
        groups(plan::integer(call, "groups")),
        outputs(o / groups),
        patch(window.c / groups * window.kh * window.kw),
        pixels(window.oh * window.ow),
        image(window.c * window.h * window.w),
        columns(window.c * window.kh * window.kw * pixels),
        tf32(plan::integer(call, "tf32") != 0),
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

MadeFunction makeConv(const plan::LibraryCall& call, int64_t, Blas& blas) {
  const Convolution c(call);
  ProductShape shape = c.product(c.outputs, c.pixels, c.patch);
  shape.lda = c.patch, shape.ldb = shape.ldc = c.pixels;
  shape.strideA = c.outputs * c.patch, shape.strideB = c.patch * c.pixels, shape.strideC = c.outputs * c.pixels;
  auto made = blas.product(shape);
  if (!made.ok()) return made.status();
  return enqueues([c, product = std::shared_ptr<const Product>(std::move(*made))](const Invocation& invocation) {
    const float *input = invocation.operand<float>(0), *filter = invocation.operand<float>(1);
    float *result = invocation.operand<float>(2), *columns = c.columnsOf(invocation);
    return c.forImages([&](int64_t first, const Window& some) {
      SHEAF_RETURN_IF_ERROR(toStatus(unroll(invocation.stream, some, input + first * c.image, columns)));
      for (int64_t i = 0; i < some.n; ++i)
        SHEAF_RETURN_IF_ERROR(product->enqueue(invocation.stream, filter, columns + i * c.columns,
                                               result + (first + i) * c.o * c.pixels, c.workspaceOf(invocation)));
      return Status();
    });
  });
}

MadeFunction makeConvGradInput(const plan::LibraryCall& call, int64_t, Blas& blas) {
  const Convolution c(call);
  ProductShape shape = c.product(c.patch, c.pixels, c.outputs);
  shape.transposeA = true;
  shape.lda = c.patch, shape.ldb = shape.ldc = c.pixels;
  shape.strideA = c.outputs * c.patch, shape.strideB = c.outputs * c.pixels, shape.strideC = c.patch * c.pixels;
  auto made = blas.product(shape);
  if (!made.ok()) return made.status();
  return enqueues([c, product = std::shared_ptr<const Product>(std::move(*made))](const Invocation& invocation) {
    const float *gradient = invocation.operand<float>(0), *filter = invocation.operand<float>(1);
    float *result = invocation.operand<float>(2), *columns = c.columnsOf(invocation);
    return c.forImages([&](int64_t first, const Window& some) {
      for (int64_t i = 0; i < some.n; ++i)
        SHEAF_RETURN_IF_ERROR(product->enqueue(invocation.stream, filter, gradient + (first + i) * c.o * c.pixels,
                                               columns + i * c.columns, c.workspaceOf(invocation)));
      return toStatus(rollUp(invocation.stream, some, columns, result + first * c.image));
    });
  });
}

MadeFunction makeConvGradFilter(const plan::LibraryCall& call, int64_t, Blas& blas) {
  const Convolution c(call);
  ProductShape shape = c.product(c.outputs, c.patch, c.pixels);
  shape.transposeB = true;
  shape.lda = shape.ldb = c.pixels, shape.ldc = c.patch;
  shape.strideA = c.outputs * c.pixels, shape.strideB = c.patch * c.pixels, shape.strideC = c.outputs * c.patch;
  auto first = blas.product(shape);
  if (!first.ok()) return first.status();
  shape.add = true;  // images are added up in order
  auto others = blas.product(shape);
  if (!others.ok()) return others.status();
  return enqueues([c, first = std::shared_ptr<const Product>(std::move(*first)),
                   others = std::shared_ptr<const Product>(std::move(*others))](const Invocation& invocation) {
    const float *input = invocation.operand<float>(0), *gradient = invocation.operand<float>(1);
    float *result = invocation.operand<float>(2), *columns = c.columnsOf(invocation);
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

MadeFunction makeMaxPool(const plan::LibraryCall& call, int64_t, Blas&) {
  return enqueues([window = windowOf(call)](const Invocation& invocation) {
    return toStatus(maxPool(invocation.stream, window, invocation.operand<float>(0), invocation.operand<float>(1)));
  });
}

MadeFunction makeMaxPoolGrad(const plan::LibraryCall& call, int64_t, Blas&) {
  return enqueues([window = windowOf(call)](const Invocation& invocation) {
    return toStatus(maxPoolGrad(invocation.stream, window, invocation.operand<float>(0), invocation.operand<float>(1),
                                invocation.operand<float>(2)));
  });
}

}  // namespace sheaf::cuda
