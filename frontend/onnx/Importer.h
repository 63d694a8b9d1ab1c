// Shared by the files of the importer: the graph being imported, one node of it, and the table of operators.
#pragma once

#include "frontend/onnx/Emitter.h"
#include "frontend/onnx/Import.h"
#include "frontend/onnx/Model.h"
#include "frontend/onnx/Parameters.h"
#include "frontend/onnx/TrainingInfo.h"
#include "llvm/ADT/StringSet.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace sheaf::frontend {

using Shape = llvm::SmallVector<int64_t>;

// A value of the graph: a tensor, or a sequence of tensors.
struct GraphValue {
  Tensor tensor;
  std::optional<std::vector<Tensor>> sequence;
};

// The names that nodes of one graph or of one call of a function see.
struct Scope {
  Scope* parent = nullptr;  // of a subgraph, which also sees its surroundings; a function's body does not
  llvm::StringMap<GraphValue> values;
  llvm::StringMap<const onnx::AttributeProto*> attributes;  // a function's, as its caller gave them
  const onnx::FunctionProto* function = nullptr;            // whose opset imports hold
  bool root = false;                                        // the model's own graph: initializers are visible
};

class Importer;

// One node while its handler runs.
class Node {
 public:
  Node(Importer& importer, Scope& scope, const onnx::NodeProto& proto, int64_t opset);

  int64_t inputs() const { return proto.input_size(); }
  int64_t outputs() const { return proto.output_size(); }
  Tensor input(int64_t i) const { return i < int64_t(operands.size()) ? operands[i].tensor : Tensor(); }
  const std::optional<std::vector<Tensor>>& sequence(int64_t i) const { return operands[i].sequence; }
  std::vector<Tensor> tensors() const;  // all inputs
  bool uses(int64_t i) const { return i < outputs() && !proto.output(i).empty(); }

  // Sets a result; an absent tensor is a failure that has been reported.
  mlir::LogicalResult set(int64_t i, const Tensor& tensor);
  mlir::LogicalResult setSequence(int64_t i, std::vector<Tensor> tensors);

  const onnx::AttributeProto* attribute(llvm::StringRef name) const;
  bool has(llvm::StringRef name) const { return attribute(name); }
  int64_t integer(llvm::StringRef name, int64_t otherwise) const;
  double number(llvm::StringRef name, double otherwise) const;
  llvm::StringRef string(llvm::StringRef name, llvm::StringRef otherwise) const;
  std::optional<Shape> integers(llvm::StringRef name) const;

  // The elements of an input that must be known at import (a shape, axes); an error if it depends on the data.
  std::optional<std::vector<int64_t>> knownIntegers(int64_t i, llvm::StringRef what) const;
  // Axes from the attribute, or from input i since an opset; nothing if absent in both. Checked and made positive.
  mlir::FailureOr<std::optional<Shape>> axes(int64_t i, int64_t rank) const;

  mlir::InFlightDiagnostic error() const;

  Importer& importer;
  Emitter& emit;
  Scope& scope;
  const onnx::NodeProto& proto;
  int64_t opset;
  std::vector<GraphValue> operands;
};

using Handler = mlir::LogicalResult (*)(Node&);

// An operator from opset `since` to `last` (0: still current). Handlers may rely on the first `required` inputs.
struct Operator {
  llvm::StringRef name;
  int64_t since, last;
  int64_t required;
  Handler handler;
  bool sequences = false;  // whether inputs may be sequences
};

// One table per theme, all of ONNX's default domain.
llvm::ArrayRef<Operator> constantOperators();
llvm::ArrayRef<Operator> elementwiseOperators();
llvm::ArrayRef<Operator> shapeOperators();
llvm::ArrayRef<Operator> indexingOperators();
llvm::ArrayRef<Operator> reductionOperators();
llvm::ArrayRef<Operator> productOperators();
llvm::ArrayRef<Operator> normalizationOperators();
llvm::ArrayRef<Operator> lossOperators();
llvm::ArrayRef<Operator> attentionOperators();

// Mean cross entropy as PyTorch computes it, of logits [..., C] and integer labels [...]; a scalar.
Tensor meanCrossEntropy(Emitter& emit, const Tensor& logits, const Tensor& labels, int64_t ignoreIndex);

// A constant from a tensor whose bytes are in the model or its folder; absent after an error.
Tensor constantTensor(Emitter& emit, const Model& model, const onnx::TensorProto& tensor);

class Importer {
 public:
  Importer(mlir::MLIRContext& context, const Model& model, const ImportOptions& options);
  mlir::OwningOpRef<mlir::ModuleOp> run();

  // Imports nodes in order; a body of a function or a subgraph.
  mlir::LogicalResult importNodes(const google::protobuf::RepeatedPtrField<onnx::NodeProto>& nodes, Scope& scope);
  mlir::LogicalResult importNode(const onnx::NodeProto& node, Scope& scope, int64_t ordinal);
  // The value a name stands for as `user` sees it; null after an error.
  GraphValue* lookup(llvm::StringRef name, Scope& scope, const onnx::NodeProto* user);
  const onnx::TensorProto* initializer(llvm::StringRef name) const { return initializers.lookup(name); }
  void decide(const llvm::Twine& text) { decisions.push_back(text.str()); }

  const Model& model;
  const ImportOptions& options;
  mlir::OpBuilder builder;
  Emitter emit;
  int64_t dropouts = 0;  // numbers the random nodes
  bool warnedDropout = false;
  bool evaluates() const { return options.form != Form::kTraining; }
  // Whether the first dimension of a value is the batch, of which the rank has its rows.
  bool hasRows(mlir::Value value) const {
    auto argument = llvm::dyn_cast_or_null<mlir::BlockArgument>(value);
    return argument && !whole.contains(argument);
  }

 private:
  mlir::LogicalResult prepare();  // what the step consists of: nodes, initializers, inputs
  mlir::LogicalResult chooseLoss();
  mlir::LogicalResult bindDimensions();  // data inputs become arguments
  mlir::FailureOr<Tensor> importLoss();
  mlir::LogicalResult finish(const Tensor& loss);
  mlir::LogicalResult finishEvaluation(const Tensor& loss);  // an absent one in the form kOutputs
  std::vector<std::string> wantedOutputs() const;            // the loss's, and in an evaluation all outputs
  bool isWhole(const onnx::ValueInfoProto& input) const;     // the same for all rows
  void markNeeded(const std::vector<std::string>& outputs);
  mlir::Value addArgument(llvm::StringRef name, mlir::RankedTensorType type);
  mlir::LogicalResult callFunction(const onnx::NodeProto& node, const onnx::FunctionProto& function, Scope& scope);
  Tensor importInitializer(const onnx::TensorProto& tensor, const onnx::NodeProto* user);
  Tensor parameter(const ParameterRole& role, const onnx::TensorProto& tensor);
  mlir::Location locationOf(const onnx::NodeProto& node, int64_t ordinal) const;

  mlir::OwningOpRef<mlir::ModuleOp> module;
  mlir::func::FuncOp step;
  Parameters parameters;
  std::unique_ptr<TrainingForm> training;  // null: the forward graph alone counts
  Scope root;
  std::vector<const onnx::NodeProto*> nodes;  // the graph's, then the training algorithm's
  std::vector<bool> needed;                   // by index of nodes
  llvm::StringMap<const onnx::TensorProto*> initializers;
  std::vector<const onnx::ValueInfoProto*> dataInputs;
  llvm::DenseSet<mlir::Value> whole;                      // arguments that are the same for all rows
  llvm::StringMap<const onnx::FunctionProto*> functions;  // by domain, name and overload
  llvm::SmallVector<const onnx::FunctionProto*> calls;    // being inlined
  llvm::StringMap<GraphValue> reads;                      // parameters read so far, and their views
  std::string lossName, logitsName;
  int64_t batch = 0, rows = 0;  // global and of one rank
  int64_t inlined = 0;          // nodes imported so far, to bound what functions may expand to
  std::vector<std::string> decisions;
};

}  // namespace sheaf::frontend
