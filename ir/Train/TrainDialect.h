// The `train` dialect: see TrainBase.td and TrainOps.td.
#pragma once

#include "mlir/Bytecode/BytecodeOpInterface.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Dialect.h"
#include "mlir/IR/OpDefinition.h"
#include "mlir/IR/OpImplementation.h"
#include "mlir/IR/SymbolTable.h"
#include "mlir/Interfaces/InferTypeOpInterface.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"

namespace sheaf::train {

inline mlir::Type elementTypeOf(mlir::Value tensor) {
  return mlir::cast<mlir::RankedTensorType>(tensor.getType()).getElementType();
}

// The tensor type of the same shape that holds booleans.
inline mlir::Type booleansLike(mlir::Type tensor) {
  return mlir::cast<mlir::RankedTensorType>(tensor).clone(mlir::IntegerType::get(tensor.getContext(), 1));
}

// Dimensions of a batch of images, [N, C, H, W] or [N, H, W, C]: of the channels, and of the rows, before the columns.
struct ImageLayout {
  explicit ImageLayout(bool channelsLast) : channels(channelsLast ? 3 : 1), rows(channelsLast ? 1 : 2) {}
  unsigned channels, rows;
};

}  // namespace sheaf::train

#include "ir/Train/TrainDialect.h.inc"
#include "ir/Train/TrainEnums.h.inc"
#include "ir/Train/TrainInterfaces.h.inc"
#define GET_ATTRDEF_CLASSES
#include "ir/Train/TrainAttrs.h.inc"
#define GET_OP_CLASSES
#include "ir/Train/TrainOps.h.inc"

namespace sheaf::train {

// Of a product or convolution of f32: its operands may be rounded to TF32.
inline constexpr llvm::StringLiteral kTf32Attr = "train.tf32";

// On a module until train-partition: the step is that of one row of the batch, and each row is a leaf.
inline constexpr llvm::StringLiteral kOneRowAttr = "train.one_row";
// Names the model's inputs on a module, also those that the step does not read.
inline constexpr llvm::StringLiteral kModelInputsAttr = "train.model_inputs";
// Names a parameter by its other names in the module that was exported.
inline constexpr llvm::StringLiteral kAliasesAttr = "train.aliases";

// The words of one of the dialect's enumerations, in order.
template <typename Enum>
std::vector<std::string> enumWords() {
  constexpr uint32_t kMost = 32;
  std::vector<std::string> words;
  for (uint32_t value = 0; value < kMost; ++value)
    if (llvm::StringRef word = stringifyEnum(static_cast<Enum>(value)); !word.empty()) words.push_back(word.str());
  return words;
}

}  // namespace sheaf::train
