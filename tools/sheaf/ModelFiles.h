// The files of an ONNX model, which no command may replace: plans read their initial weights from them.
#pragma once

#include <string>

#include "runtime/base/Status.h"

namespace sheaf::tool {

// Refuses an output whose file, or the file PATH.data next to it, is the model or holds its external data.
Status keepModelFiles(const std::string& model, const std::string& output);

}  // namespace sheaf::tool
