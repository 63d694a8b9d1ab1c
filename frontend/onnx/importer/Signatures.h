// The signatures of ONNX's and ONNX Runtime's operators: their attributes, and how many inputs and outputs they have.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "llvm/ADT/StringRef.h"
#include "mlir/Support/LLVM.h"
#include "onnx/onnx-ml.pb.h"

namespace sheaf::frontend {

class Node;

struct AttributeSignature {
  llvm::StringRef name;
  onnx::AttributeProto::AttributeType type;
  bool required;
};

// An operator as opset `since` defines it. The definition holds until the operator's next one.
struct Signature {
  // No limit to the number of inputs or outputs.
  static constexpr int64_t kMany = std::numeric_limits<int64_t>::max();

  llvm::StringRef domain, name;  // ONNX's own domain is ""
  int64_t since;
  llvm::StringRef attributes;  // name:TYPE, separated by spaces; the letters are in Signatures.cpp
  int64_t minInputs, maxInputs, minOutputs, maxOutputs;

  std::vector<AttributeSignature> attributeList() const;  // sorted by name
  bool takesOtherAttributes() const { return attributes.ends_with("..."); }
};

// All of them, sorted by domain, name and opset.
llvm::ArrayRef<Signature> signatures();
// The signature that holds at an opset; null if none is known.
const Signature* findSignature(llvm::StringRef domain, llvm::StringRef name, int64_t opset);

// Fails after an error if the node's attributes or its numbers of inputs and outputs are not those of its operator at
// the node's opset, as onnx.checker does. Succeeds if the operator has no signature.
mlir::LogicalResult checkSignature(const Node& node);

}  // namespace sheaf::frontend
