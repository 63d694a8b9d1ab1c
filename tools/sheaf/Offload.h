// The option --offload.
#pragma once

#include <string>

#include "passes/Pipeline.h"
#include "runtime/base/Status.h"

namespace sheaf::tool {

struct OffloadChoice {
  OffloadSpaces spaces;
  bool automatic = false;  // the compiler chooses them
  bool operator==(const OffloadChoice&) const = default;
};

// Reads "auto", "none", "optimizer=host,activations=file".
Expected<OffloadChoice> parseOffload(const std::string& text);

}  // namespace sheaf::tool
