// In which module of the source program each node of a model was made: "transformer.h.3.attn".
#pragma once

#include <map>
#include <string>

#include "llvm/ADT/StringRef.h"

namespace sheaf::frontend {

// By a node's name, or its first output's where it has none: the names that ops have as locations. From PyTorch's
// metadata (pkg.torch.onnx.name_scopes, or namespace), or from paths as node names ("/h.3/attn/MatMul"), as PyTorch's
// older exporter writes them. Nodes of which neither says anything are left out; a file that cannot be read has none.
std::map<std::string, std::string> moduleScopes(llvm::StringRef path);

}  // namespace sheaf::frontend
