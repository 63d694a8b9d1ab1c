// What the processor can do, by the names LLVM gives its features.
#pragma once

#include <string>

#include "runtime/base/Status.h"

namespace sheaf::cpu {

// An error that names the feature if this processor (or its operating system) lacks it, or if we do not know it.
Status requireFeature(const std::string& feature);

// Highest level of the x86-64 ABI (2, 3 or 4) this processor offers.
int abiLevel();

}  // namespace sheaf::cpu
