// Convolutions of images with their channels last by oneDNN's primitives, on pieces of the images and channels that our
// own pool hands out (plan::ConvTiles): the pieces, and so all sums, depend on the shape alone.
//
// oneDNN reads filters in a blocked layout. A call first copies its filter there, into workspace, and runs its pieces
// then. A filter is read by one call of the forward pass and by one of the backward pass, in other layouts, so that
// every copy is made once a step, after the filter was gathered.
#include "runtime/device/cpu/functions/ConvolutionChannelsLast.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "runtime/device/cpu/LibraryThreads.h"
#include "runtime/device/cpu/functions/OneDnn.h"
#include "runtime/device/cpu/functions/Sgemm.h"
#include "runtime/device/cpu/simd/Loops.h"
#include "runtime/plan/Types.h"

namespace sheaf::cpu {
namespace {

using plan::ConvKind, plan::ConvolutionShape, plan::ConvTiles;

const dnnl_memory_desc_t& describe(const_dnnl_primitive_desc_t primitive, dnnl_query_t what) {
  return *dnnl_primitive_desc_query_md(primitive, what, 0);
}

// `images` images of `channels` channels.
bool describeImages(dnnl_memory_desc_t& to, int64_t images, int64_t channels, int64_t rows, int64_t columns) {
  const dnnl_dims_t sizes = {images, channels, rows, columns};
  return dnnl_memory_desc_init_by_tag(&to, 4, sizes, dnnl_f32, dnnl_nhwc) == dnnl_success;
}

// Inputs and outputs are those of the piece.
struct Filter {
  int64_t groups, outputs, inputs, rows, columns;
  int64_t outputStride;  // in memory: elements from one output to the next

  // In oneDNN's order of dimensions, which has the groups first if there are several.
  int sizes(dnnl_dims_t& to) const {
    int count = 0;
    if (groups > 1) to[count++] = groups;
    for (int64_t size : {outputs / groups, inputs / groups, rows, columns}) to[count++] = size;
    return count;
  }
  bool anyLayout(dnnl_memory_desc_t& to) const {
    dnnl_dims_t all;
    const int count = sizes(all);
    return dnnl_memory_desc_init_by_tag(&to, count, all, dnnl_f32, dnnl_format_tag_any) == dnnl_success;
  }
  bool inMemory(dnnl_memory_desc_t& to) const {
    dnnl_dims_t all, strides;
    const int count = sizes(all);
    int at = 0;
    if (groups > 1) strides[at++] = outputs / groups * outputStride;
    for (int64_t stride : {outputStride, rows * columns, columns, int64_t{1}}) strides[at++] = stride;
    return dnnl_memory_desc_init_by_strides(&to, count, all, dnnl_f32, strides) == dnnl_success;
  }
};

// The convolution of some images and channels, in one of its kinds.
class Piece {
 public:
  // With `layout`, the filter has it. False if oneDNN has nothing better than what makeUnrolled does, or needs more.
  bool make(const ConvolutionShape& call, ConvKind kind, int64_t images, const Filter& filter,
            const dnnl_memory_desc_t* layout, size_t packedBytes, size_t scratchBytes) {
    dnnl_memory_desc_t from, any, to;
    if (!describeImages(from, images, filter.inputs, call.h, call.w) ||
        !describeImages(to, images, filter.outputs, call.oh, call.ow) || !filter.anyLayout(any))
      return false;
    const dnnl_memory_desc_t& weights = layout ? *layout : any;
    const dnnl_dims_t strides = {call.strideH, call.strideW}, dilations = {call.dilationH - 1, call.dilationW - 1},
                      before = {call.padTop, call.padLeft}, after = {call.padBottom, call.padRight};
    constexpr dnnl_alg_kind_t kDirect = dnnl_convolution_direct;
    dnnl_convolution_desc_t operation;
    if (dnnl_dilated_convolution_forward_desc_init(&operation, dnnl_forward_training, kDirect, &from,
                                                   kind == ConvKind::kForward ? &weights : &any, nullptr, &to, strides,
                                                   dilations, before, after) != dnnl_success)
      return false;
    const CallersScratch attributes;
    if (!attributes.get()) return false;
    if (kind == ConvKind::kForward)
      return choose(operation, attributes, nullptr, DNNL_ARG_SRC, from, DNNL_ARG_WEIGHTS, dnnl_query_weights_md,
                    DNNL_ARG_DST, to, packedBytes, scratchBytes);
    // The gradients' implementations are found from the convolution's.
    dnnl_primitive_desc_t forward = nullptr;
    if (dnnl_primitive_desc_create(&forward, &operation, attributes.get(), oneDnnEngine(), nullptr) != dnnl_success)
      return false;
    bool made = false;
    if (kind == ConvKind::kGradInput)
      made = dnnl_dilated_convolution_backward_data_desc_init(&operation, kDirect, &from, &weights, &to, strides,
                                                              dilations, before, after) == dnnl_success &&
             choose(operation, attributes, forward, DNNL_ARG_DIFF_SRC, from, DNNL_ARG_WEIGHTS, dnnl_query_weights_md,
                    DNNL_ARG_DIFF_DST, to, packedBytes, scratchBytes);
    else
      made = dnnl_dilated_convolution_backward_weights_desc_init(&operation, kDirect, &from, &weights, nullptr, &to,
                                                                 strides, dilations, before, after) == dnnl_success &&
             choose(operation, attributes, forward, DNNL_ARG_SRC, from, DNNL_ARG_DIFF_WEIGHTS,
                    dnnl_query_diff_weights_md, DNNL_ARG_DIFF_DST, to, packedBytes, scratchBytes);
    dnnl_primitive_desc_destroy(forward);
    return made;
  }

  const dnnl_memory_desc_t& layout() const { return layout_; }

  dnnl_status_t run(const float* input, const float* filter, const float* result, std::byte* scratch) const {
    return primitive_.run({input, filter, result, scratch});
  }

 private:
  bool choose(const dnnl_convolution_desc_t& operation, const CallersScratch& attributes,
              const_dnnl_primitive_desc_t forward, int inputArgument, const dnnl_memory_desc_t& input,
              int filterArgument, dnnl_query_t filterQuery, int resultArgument, const dnnl_memory_desc_t& result,
              size_t packedBytes, size_t scratchBytes) {
    return chooseImplementation(&operation, attributes.get(), forward,
                                [&](const_dnnl_primitive_desc_t candidate, std::string_view name) {
                                  // What multiplies the unrolled input, and the reference implementation, which is
                                  // slower still.
                                  if (name.find("gemm") != name.npos || name.starts_with("ref")) return false;
                                  layout_ = describe(candidate, filterQuery);
                                  const dnnl_memory_desc_t& scratch = describe(candidate, dnnl_query_scratchpad_md);
                                  return dnnl_memory_desc_get_size(&layout_) <= packedBytes &&
                                         dnnl_memory_desc_get_size(&scratch) <= scratchBytes &&
                                         primitive_.make(candidate, {{inputArgument, input},
                                                                     {filterArgument, layout_},
                                                                     {resultArgument, result},
                                                                     {DNNL_ARG_SCRATCHPAD, scratch}}) == dnnl_success;
                                });
  }

  Primitive primitive_;
  dnnl_memory_desc_t layout_{};
};

// Copies a filter into a blocked layout, or back. A filter of many outputs is copied by slices of them.
class FilterCopy {
 public:
  bool make(const Filter& filter, const dnnl_memory_desc_t& layout, bool back) {
    constexpr int64_t kOutputs = 64;
    Filter slice = filter;
    dnnl_memory_desc_t blocked = layout, next;
    if (filter.groups == 1 && filter.outputs % kOutputs == 0) {
      dnnl_dims_t sizes, begin = {}, second = {kOutputs};
      slice.outputs = kOutputs;
      slice.sizes(sizes);
      if (dnnl_memory_desc_init_submemory(&blocked, &layout, sizes, begin) != dnnl_success) {
        slice.outputs = filter.outputs;
        blocked = layout;
      } else if (filter.outputs > kOutputs) {
        if (dnnl_memory_desc_init_submemory(&next, &layout, sizes, second) != dnnl_success) return false;
        blockedStep_ = next.offset0 - blocked.offset0;
      }
    }
    slices_ = filter.outputs / slice.outputs;
    step_ = slice.outputs * filter.outputStride;
    dnnl_memory_desc_t plain;
    const CallersScratch attributes;
    dnnl_primitive_desc_t description = nullptr;
    if (!attributes.get() || !slice.inMemory(plain) ||
        dnnl_reorder_primitive_desc_create(&description, back ? &blocked : &plain, oneDnnEngine(),
                                           back ? &plain : &blocked, oneDnnEngine(), attributes.get()) != dnnl_success)
      return false;
    const dnnl_memory_desc_t& scratch = describe(description, dnnl_query_scratchpad_md);
    const bool made = dnnl_memory_desc_get_size(&scratch) == 0 &&
                      primitive_.make(description, {{DNNL_ARG_FROM, back ? blocked : plain},
                                                    {DNNL_ARG_TO, back ? plain : blocked}}) == dnnl_success;
    dnnl_primitive_desc_destroy(description);
    back_ = back;
    return made;
  }

  int64_t slices() const { return slices_; }

  dnnl_status_t run(const float* plain, const float* blocked, int64_t slice) const {
    plain += slice * step_;
    blocked += slice * blockedStep_;
    return back_ ? primitive_.run({blocked, plain}) : primitive_.run({plain, blocked});
  }

 private:
  Primitive primitive_;
  int64_t slices_ = 1, step_ = 0, blockedStep_ = 0;
  bool back_ = false;
};

// What the three kinds share: pieces and copies for all images and channels but the last, and for the last, which may
// be fewer.
class ChannelsLast : public LibraryFunction {
 public:
  ChannelsLast(const ConvolutionShape& call, ConvKind kind, const ConvTiles& tiles, const CallSite& site)
      : call_(call),
        tiles_(tiles),
        all_(kind == ConvKind::kGradInput ? call.c : call.o),
        partImages_((call.n + tiles.parts - 1) / tiles.parts),
        perThread_(site.scratchPerThread()),
        pieceScratch_(plan::aligned(tiles.scratchBytes)) {
    // oneDNN fixes the number of threads of a primitive when it is made.
    useOneLibraryThread();
    made_ = oneDnnEngine() && make(kind);
  }

  bool made() const { return made_; }

 protected:
  int64_t channelsOf(int64_t piece) const { return std::min(tiles_.channels, all_ - piece * tiles_.channels); }
  int lastChannels(int64_t piece) const { return channelsOf(piece) < tiles_.channels; }
  const Piece& pieceOf(int64_t images, int64_t piece) const {
    for (int i = 0; i < kSizes; ++i)
      if (sizes_[i] == images) return pieces_[i][lastChannels(piece)];
    return pieces_[0][lastChannels(piece)];
  }
  const FilterCopy& copyOf(int64_t piece) const { return copies_[lastChannels(piece)]; }
  float* packed(const Invocation& invocation, int64_t part, int64_t piece) const {
    return reinterpret_cast<float*>(invocation.operands[kPacked] + (part * tiles_.pieces + piece) * tiles_.packedBytes);
  }
  std::byte* scratch(const Invocation& invocation, int thread) const {
    return invocation.scratch + thread * perThread_;
  }
  // oneDNN's own, after that of the piece.
  std::byte* libraryScratch(const Invocation& invocation, int thread) const {
    return scratch(invocation, thread) + pieceScratch_;
  }

  // Copies the piece's channels of `pixels` pixels between the whole and scratch.
  void take(const float* whole, int64_t piece, int64_t pixels, float* to) const {
    const int64_t channels = channelsOf(piece);
    whole += piece * tiles_.channels;
    for (int64_t pixel = 0; pixel < pixels; ++pixel)
      std::memcpy(to + pixel * channels, whole + pixel * all_, channels * sizeof(float));
  }
  void put(const float* from, int64_t piece, int64_t pixels, float* whole) const {
    const int64_t channels = channelsOf(piece);
    whole += piece * tiles_.channels;
    for (int64_t pixel = 0; pixel < pixels; ++pixel)
      std::memcpy(whole + pixel * all_, from + pixel * channels, channels * sizeof(float));
  }

  // The forward pass and the gradient of the input, from images of `fromImage` elements to images of `toPixels` pixels,
  // with the pieces' channels in the latter; `filterStride`: elements of the filter from one piece's to the next.
  template <bool kForward>
  Status runPieces(const Invocation& invocation, const float* from, int64_t fromImage, const float* filter,
                   int64_t filterStride, float* to, int64_t toPixels) const {
    SgemmFailure failure;
    auto pack = [&](int64_t piece, int64_t slice) {
      failure.note(copyOf(piece).run(filter + piece * filterStride, packed(invocation, 0, piece), slice));
    };
    auto compute = [&](int64_t piece, int64_t first, int thread) {
      const int64_t images = std::min(tiles_.images, call_.n - first);
      const float* read = from + first * fromImage;
      float* whole = to + first * toPixels * all_;
      float* written = tiles_.pieces > 1 ? reinterpret_cast<float*>(scratch(invocation, thread)) : whole;
      const float* weights = packed(invocation, 0, piece);
      failure.note(kForward ? pieceOf(images, piece).run(read, weights, written, libraryScratch(invocation, thread))
                            : pieceOf(images, piece).run(written, weights, read, libraryScratch(invocation, thread)));
      if (tiles_.pieces > 1) put(written, piece, images * toPixels, whole);
    };
    if (tiles_.pieces > 1) {
      // A large filter: a thread computes with the piece that it has just copied, while it is in its caches.
      invocation.pool.run(tiles_.pieces, [&](int64_t piece, int thread) {
        for (int64_t slice = 0; slice < copyOf(piece).slices(); ++slice) pack(piece, slice);
        for (int64_t first = 0; first < call_.n; first += tiles_.images) compute(piece, first, thread);
      });
    } else {
      invocation.pool.run(copyOf(0).slices(), [&](int64_t slice, int) { pack(0, slice); });
      invocation.pool.run((call_.n + tiles_.images - 1) / tiles_.images,
                          [&](int64_t item, int thread) { compute(0, item * tiles_.images, thread); });
    }
    return failure.status();
  }

  static constexpr int kPacked = 3;  // the operand after input, filter and result, in whichever order
  const ConvolutionShape call_;
  const ConvTiles tiles_;
  const int64_t all_, partImages_, perThread_, pieceScratch_;

 private:
  // Images of a piece: all but the last, the last of a part, the last of the last part.
  static constexpr int kSizes = 3;

  Filter filterOf(ConvKind kind, int64_t channels) const {
    const bool input = kind == ConvKind::kGradInput;
    return {call_.groups, input ? call_.o : channels, input ? channels : call_.c, call_.kh, call_.kw, call_.patch()};
  }

  bool make(ConvKind kind) {
    const int64_t lastPart = call_.n - (call_.n - 1) / partImages_ * partImages_;
    sizes_[0] = std::min(tiles_.images, call_.n);
    sizes_[1] = partImages_ % tiles_.images;
    sizes_[2] = lastPart % tiles_.images;
    if (perThread_ <= pieceScratch_) return false;
    const size_t scratch = static_cast<size_t>(perThread_ - pieceScratch_);
    const int64_t channels[] = {tiles_.channels, all_ % tiles_.channels};
    for (int last = 0; last < 2; ++last) {
      if (channels[last] == 0) continue;
      const Filter filter = filterOf(kind, channels[last]);
      for (int i = 0; i < kSizes; ++i) {
        if (sizes_[i] == 0 || std::find(sizes_, sizes_ + i, sizes_[i]) != sizes_ + i) continue;
        if (!pieces_[i][last].make(call_, kind, sizes_[i], filter, i ? &pieces_[0][last].layout() : nullptr,
                                   static_cast<size_t>(tiles_.packedBytes), scratch))
          return false;
      }
      if (!copies_[last].make(filter, pieces_[0][last].layout(), kind == ConvKind::kGradFilter)) return false;
    }
    return true;
  }

  int64_t sizes_[kSizes] = {};
  Piece pieces_[kSizes][2];  // by images, and by whether the channels are the last
  FilterCopy copies_[2];
  bool made_ = false;
};

class Forward : public ChannelsLast {
 public:
  using Call = plan::ConvCall;
  Forward(const Call& call, const CallSite& site) : ChannelsLast(call, ConvKind::kForward, call.tiles(), site) {}

  Status run(const Invocation& invocation) const override {
    return runPieces<true>(invocation, invocation.operand<float>(plan::kOperand<Call, "input">),
                           call_.h * call_.w * call_.c, invocation.operand<float>(plan::kOperand<Call, "filter">),
                           tiles_.channels * call_.patch(), invocation.operand<float>(plan::kOperand<Call, "result">),
                           call_.oh * call_.ow);
  }
};

class GradInput : public ChannelsLast {
 public:
  using Call = plan::ConvGradInputCall;
  GradInput(const Call& call, const CallSite& site) : ChannelsLast(call, ConvKind::kGradInput, call.tiles(), site) {}

  Status run(const Invocation& invocation) const override {
    return runPieces<false>(invocation, invocation.operand<float>(plan::kOperand<Call, "gradient">),
                            call_.oh * call_.ow * call_.o, invocation.operand<float>(plan::kOperand<Call, "filter">),
                            tiles_.channels * call_.kh * call_.kw,
                            invocation.operand<float>(plan::kOperand<Call, "result">), call_.h * call_.w);
  }
};

class GradFilter : public ChannelsLast {
 public:
  using Call = plan::ConvGradFilterCall;
  GradFilter(const Call& call, const CallSite& site) : ChannelsLast(call, ConvKind::kGradFilter, call.tiles(), site) {}

  Status run(const Invocation& invocation) const override {
    const float *input = invocation.operand<float>(plan::kOperand<Call, "input">),
                *gradient = invocation.operand<float>(plan::kOperand<Call, "gradient">);
    float* result = invocation.operand<float>(plan::kOperand<Call, "result">);
    const int64_t inputImage = call_.h * call_.w * call_.c, pixels = call_.oh * call_.ow;
    const int64_t parts = (call_.n + partImages_ - 1) / partImages_, floats = tiles_.packedBytes / sizeof(float);
    SgemmFailure failure;
    auto unpack = [&](int64_t piece, int64_t slice) {
      failure.note(
          copyOf(piece).run(result + piece * tiles_.channels * call_.patch(), packed(invocation, 0, piece), slice));
    };
    invocation.pool.run(tiles_.pieces * parts, [&](int64_t item, int thread) {
      const int64_t piece = item % tiles_.pieces, part = item / tiles_.pieces;
      const int64_t end = std::min((part + 1) * partImages_, call_.n);
      float *slice = reinterpret_cast<float*>(scratch(invocation, thread)), *sums = packed(invocation, part, piece);
      float* added = reinterpret_cast<float*>(libraryScratch(invocation, thread)) - floats;
      for (int64_t first = part * partImages_; first < end; first += tiles_.images) {
        const int64_t images = std::min(tiles_.images, end - first);
        const float* read = gradient + first * pixels * call_.o;
        if (tiles_.pieces > 1) {
          take(read, piece, images * pixels, slice);
          read = slice;
        }
        const bool more = first > part * partImages_;
        failure.note(
            pieceOf(images, piece)
                .run(input + first * inputImage, more ? added : sums, read, libraryScratch(invocation, thread)));
        if (more) loops().add(sums, added, floats);
      }
      if (parts == 1)
        for (int64_t slice = 0; slice < copyOf(piece).slices(); ++slice) unpack(piece, slice);
    });
    if (parts == 1) return failure.status();
    // The parts are added in order, a range of elements at a time.
    constexpr int64_t kRange = 4096;
    const int64_t ranges = (floats + kRange - 1) / kRange;
    invocation.pool.run(tiles_.pieces * ranges, [&](int64_t item, int) {
      const int64_t first = item % ranges * kRange, count = std::min(kRange, floats - first);
      for (int64_t part = 1; part < parts; ++part)
        loops().add(packed(invocation, 0, item / ranges) + first, packed(invocation, part, item / ranges) + first,
                    count);
    });
    const int64_t slices = std::max(copyOf(0).slices(), copyOf(tiles_.pieces - 1).slices());
    invocation.pool.run(tiles_.pieces * slices, [&](int64_t item, int) {
      if (item % slices < copyOf(item / slices).slices()) unpack(item / slices, item % slices);
    });
    return failure.status();
  }
};

template <typename Primitives, typename Call>
Function choose(const Call& call, const CallSite& site) {
  if (auto made = std::make_unique<Primitives>(call, site); made->made()) return made;
  return makeUnrolled(call, site);
}

}  // namespace

Function makeChannelsLast(const plan::ConvCall& call, const CallSite& site) {
  return choose<Forward>(call, site);
}

Function makeChannelsLast(const plan::ConvGradInputCall& call, const CallSite& site) {
  return choose<GradInput>(call, site);
}

Function makeChannelsLast(const plan::ConvGradFilterCall& call, const CallSite& site) {
  return choose<GradFilter>(call, site);
}

}  // namespace sheaf::cpu
