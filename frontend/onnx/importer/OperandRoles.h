// Gives each operand of ONNX's operators its role: weight, setting or value. From that follows how a tensor of the
// graph is used, also where nodes that only move or convert it lie between.
#pragma once

#include "frontend/onnx/importer/Model.h"
#include "llvm/ADT/StringSet.h"

namespace sheaf::frontend {

enum class OperandRole {
  value,    // a factor of the computation like any other
  weight,   // operand of a product, convolution, look-up or normalization
  setting,  // fixed by the operator's definition, without a gradient: class weights, scales of a Resize
  bound,    // limit of Clip: a setting unless the export calls it a parameter
  state,    // running statistics
  moved,    // only moved or converted: the result has the operand's elements
};
OperandRole operandRole(const onnx::NodeProto& node, int operand);

// The part of a name after its last dot or slash: of the module's member, where PyTorch made the name.
llvm::StringRef memberName(llvm::StringRef name);

// The uses of a graph's values.
class ValueUses {
 public:
  ValueUses(const Model& model, llvm::ArrayRef<const onnx::NodeProto*> nodes);

  struct Summary {
    bool weight = false, value = false;
    const onnx::NodeProto* setting = nullptr;  // a node that takes it as a setting
    const onnx::NodeProto* bound = nullptr;
  };
  // Sums up the uses of a tensor of so many dimensions larger than 1, also in functions and subgraphs.
  Summary summary(llvm::StringRef value, int64_t dimensions) const;

 private:
  struct Use {
    const onnx::NodeProto* node;
    int operand;
  };
  using Index = llvm::StringMap<llvm::SmallVector<Use, 2>>;
  void add(const onnx::NodeProto& node, Index& index);
  OperandRole roleOf(const Use& use, int64_t dimensions) const;
  llvm::StringRef rootOf(llvm::StringRef value) const;
  bool comesFromIntegers(llvm::StringRef value) const;
  void findLabels();

  const onnx::NodeProto* producer(llvm::StringRef value) const { return producers.lookup(value); }
  bool isKnown(llvm::StringRef value) const;
  using ChainCache = llvm::StringMap<llvm::StringRef>;
  static llvm::StringRef followChain(llvm::StringRef value, ChainCache& ends,
                                     llvm::function_ref<std::optional<llvm::StringRef>(llvm::StringRef)> next);

  Index uses;
  llvm::StringMap<const onnx::NodeProto*> producers;
  bool addsBiases = false;                 // the exporter's names do not tell biases: what is added to a product is one
  llvm::StringSet<> integers;              // inputs and initializers
  llvm::StringSet<> initializers, labels;  // labels: values that a loss takes as such, before any move
  struct Body {
    const onnx::FunctionProto* proto = nullptr;
    Index uses;
  };
  llvm::StringMap<Body> functions;      // by domain and name
  mutable ChainCache roots, viewRoots;  // results of rootOf() and isKnown(), by value
};

}  // namespace sheaf::frontend
