// Convolutions of images with their channels last: by oneDNN's primitives, and by matrix products where it has none for
// a shape, or for this processor.
#pragma once

#include "runtime/device/cpu/LibraryFunction.h"

namespace sheaf::cpu {

Function makeChannelsLast(const plan::ConvCall& call, const CallSite& site);
Function makeChannelsLast(const plan::ConvGradInputCall& call, const CallSite& site);
Function makeChannelsLast(const plan::ConvGradFilterCall& call, const CallSite& site);

// By matrix products with the unrolled input, in the scratch and the workspace of the call.
Function makeUnrolled(const plan::ConvCall& call, const CallSite& site);
Function makeUnrolled(const plan::ConvGradInputCall& call, const CallSite& site);
Function makeUnrolled(const plan::ConvGradFilterCall& call, const CallSite& site);

}  // namespace sheaf::cpu
