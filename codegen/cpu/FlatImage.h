// From a relocatable object to bytes that run wherever they are mapped.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "llvm/ADT/StringRef.h"
#include "mlir/Support/LLVM.h"

namespace sheaf::codegen {

// Text and read-only data of an object, sections aligned to 64 bytes, all references between them resolved.
struct FlatImage {
  std::string code;
  std::map<std::string, uint64_t> entries;  // offset of each global function
};

// An undefined symbol, writable data or a relocation that depends on where the image is mapped is an error: a kernel
// calls nothing and keeps nothing.
mlir::FailureOr<FlatImage> flattenObject(llvm::StringRef object, std::string& error);

}  // namespace sheaf::codegen
