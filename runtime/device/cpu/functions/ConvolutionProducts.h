// What convolutions that are matrix products of the unrolled input share, wherever the channels are.
#pragma once

#include "runtime/device/cpu/LibraryFunction.h"
#include "runtime/device/cpu/functions/Window.h"
#include "runtime/plan/Tiles.h"

namespace sheaf::cpu {

// The input is unrolled for a range of the result's pixels at a time, in a thread's scratch.
class ConvolutionProducts : public LibraryFunction {
 public:
  ConvolutionProducts(const plan::ConvolutionShape& call, const CallSite& site)
      : window_(call),
        o_(call.o),
        groups_(call.groups),
        scratchBytes_(site.scratchPerThread()),
        groupInputs_(window_.c / groups_),
        groupOutputs_(o_ / groups_),
        taps_(window_.kh * window_.kw),
        patch_(call.patch()),
        pixels_(window_.oh * window_.ow),
        rangePixels_(plan::convPixels(patch_, pixels_)),
        ranges_((pixels_ + rangePixels_ - 1) / rangePixels_) {}

 protected:
  float* scratch(const Invocation& invocation, int thread) const {
    return reinterpret_cast<float*>(invocation.scratch + thread * scratchBytes_);
  }

  const Window window_;
  // Outputs; elements of a filter of one channel (taps_) and of all of a group's (patch_); pixels of a result's
  // channel.
  const int64_t o_, groups_, scratchBytes_, groupInputs_, groupOutputs_, taps_, patch_, pixels_, rangePixels_, ranges_;
};

}  // namespace sheaf::cpu
