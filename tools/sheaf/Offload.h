// The option --offload.
#pragma once

#include <string>

#include "passes/Pipeline.h"
#include "runtime/base/Status.h"

namespace sheaf::tool {

// Reads "none", "optimizer=host,activations=file".
Expected<OffloadSpaces> parseOffload(const std::string& text);

}  // namespace sheaf::tool
