// Locates and cuts out the raw bytes of a model's initializers without parsing them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "llvm/ADT/StringRef.h"

namespace sheaf::frontend {

struct RawSpan {
  int64_t offset = 0, length = -1;  // in the file; -1: no raw_data field
};

// Copies a serialized ModelProto without the raw_data of graph.initializer[i], whose place goes to spans[i]. False if
// the bytes are not a well-formed message down to the initializers, or hold two graphs.
bool cutRawData(llvm::StringRef model, std::string& rest, std::vector<RawSpan>& spans);

// Finds the raw_data of the tensor that is an attribute of graph.node[i]: its place goes to spans[i]. False as above.
bool locateConstants(llvm::StringRef model, std::vector<RawSpan>& spans);

}  // namespace sheaf::frontend
