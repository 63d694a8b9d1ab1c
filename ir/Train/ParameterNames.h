// Parameters are symbols of the module under the model's names for them; those that the module itself takes get a mark.
#pragma once

#include <string>

#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringRef.h"

namespace sheaf::train {

// Marks a `train.parameter` that is a large constant of the model, such as a table of positions, and not a weight.
inline constexpr llvm::StringLiteral kLargeConstantAttr = "train.large_constant";
// The element type that memory holds of a `train.parameter`, where the training step has decided it for the evaluation.
inline constexpr llvm::StringLiteral kHeldTypeAttr = "train.held_type";

// Whether passes give the name to a function, an optimizer or a bucket.
inline bool isReserved(llvm::StringRef name) {
  if (name == "step" || name == "evaluation") return true;
  if (!name.consume_front("optimizer") && !name.consume_front("bucket") && !name.consume_front("statistics"))
    return false;
  return llvm::all_of(name, [](char c) { return llvm::isDigit(c) || c == '.'; });
}

inline std::string symbolOf(llvm::StringRef parameter) {
  return isReserved(parameter) ? (parameter + " ").str() : parameter.str();
}

inline llvm::StringRef nameOf(llvm::StringRef symbol) {
  llvm::StringRef name = symbol;
  return name.consume_back(" ") && isReserved(name) ? name : symbol;
}

}  // namespace sheaf::train
