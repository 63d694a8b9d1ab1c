// Shared by the files of the importer: the graph being imported, one node of it, and the table of operators.
#pragma once

#include "frontend/onnx/importer/Detached.h"
#include "frontend/onnx/importer/Emitter.h"
#include "frontend/onnx/importer/Import.h"
#include "frontend/onnx/importer/Model.h"
#include "frontend/onnx/importer/Parameters.h"
#include "frontend/onnx/ops/Losses.h"
#include "frontend/onnx/training/TrainingInfo.h"
#include "ir/Train/Place.h"
#include "llvm/ADT/StringSet.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace sheaf::frontend {

using Shape = llvm::SmallVector<int64_t>;

// A value of the graph: a tensor, or a sequence of tensors; neither is an optional value that is empty.
struct GraphValue {
  Tensor tensor;
  std::optional<std::vector<Tensor>> sequence;
  bool unknown = false;  // in a survey: computed from what cannot be imported
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

// Names of values that a node reads, those of its subgraphs included.
void forEachInput(const onnx::NodeProto& node, llvm::function_ref<void(llvm::StringRef)> visit);

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
  void setValue(int64_t i, GraphValue value);

  const onnx::AttributeProto* attribute(llvm::StringRef name) const;
  bool has(llvm::StringRef name) const { return attribute(name); }
  int64_t integer(llvm::StringRef name, int64_t otherwise) const;
  double number(llvm::StringRef name, double otherwise) const;
  llvm::StringRef string(llvm::StringRef name, llvm::StringRef otherwise) const;
  std::optional<Shape> integers(llvm::StringRef name) const;

  // The elements of an input that must be known at import (a shape, axes); an error if it depends on the data.
  std::optional<std::vector<int64_t>> knownIntegers(int64_t i, llvm::StringRef what) const;
  // The same of floats. An exporter may keep them in an initializer of rank 1, which looks like a parameter.
  std::optional<std::vector<double>> knownFloats(int64_t i, llvm::StringRef what) const;
  // Axes from the attribute, or from input i since an opset; nothing if absent in both. Checked and made positive.
  mlir::FailureOr<std::optional<Shape>> axes(int64_t i, int64_t rank) const;

  // The expression of torch.export that the node was made from; empty if unknown.
  llvm::StringRef torchExpression() const;

  mlir::InFlightDiagnostic error() const;

  Importer& importer;
  Emitter& emit;
  Scope& scope;
  const onnx::NodeProto& proto;
  int64_t opset;
  std::vector<GraphValue> operands;
};

using Handler = mlir::LogicalResult (*)(Node&);

// Cases of ONNX's node tests, by a regular expression that matches the whole name, and why they are left out.
struct CasesLeftOut {
  llvm::StringRef cases = "", why = "";
};

// What is known of an operator apart from its handler. What can be derived is not here: tools/sheaf/OperatorFacts.h.
struct Facts {
  llvm::StringRef domain = "";  // ONNX's own
  bool sequences = false;       // whether inputs may be sequences
  // Operands and attributes of one node (Sample.cpp has the syntax); "": as many f32 [2, 3] as are required.
  llvm::StringRef sample = "";
  llvm::StringRef lowering = "";     // in words, where no sample can show it: what has bodies or sequences
  llvm::StringRef limits = "";       // what a user should know, apart from the reasons below
  CasesLeftOut leftOut = {};         // that fail, or are not tensors
  CasesLeftOut leftOutOfPlans = {};  // that the evaluator computes, but no plan
  CasesLeftOut noGradient = {};      // whose gradient is not the derivative
};

// An operator from opset `since` to `last` (0: still current). Handlers may rely on the first `required` inputs.
struct Operator {
  llvm::StringRef name;
  int64_t since, last;
  int64_t required;
  Handler handler;
  Facts facts = {};
};

// The row of an operator at an opset, or null; `other`: one of the same name at another opset.
const Operator* findOperator(llvm::StringRef domain, llvm::StringRef name, int64_t opset, const Operator*& other);
// Why ONNX's operator of that name is not supported; "" if nothing is known of it.
llvm::StringRef whyUnsupported(llvm::StringRef domain, llvm::StringRef name);

// One table per theme.
llvm::ArrayRef<Operator> constantOperators();
llvm::ArrayRef<Operator> elementwiseOperators();
llvm::ArrayRef<Operator> shapeOperators();
llvm::ArrayRef<Operator> indexingOperators();
llvm::ArrayRef<Operator> reductionOperators();
llvm::ArrayRef<Operator> productOperators();
llvm::ArrayRef<Operator> normalizationOperators();
llvm::ArrayRef<Operator> lossOperators();
llvm::ArrayRef<Operator> attentionOperators();
llvm::ArrayRef<Operator> microsoftOperators();  // of ONNX Runtime
llvm::ArrayRef<Operator> modeOperators();       // that differ between training and evaluation
llvm::ArrayRef<Operator> optimizerOperators();  // of ai.onnx.preview.training
llvm::ArrayRef<Operator> selectionOperators();
llvm::ArrayRef<Operator> randomOperators();
llvm::ArrayRef<Operator> transposedOperators();
llvm::ArrayRef<Operator> controlOperators();
llvm::ArrayRef<Operator> sequenceOperators();
llvm::ArrayRef<Operator> einsumOperators();
llvm::ArrayRef<Operator> recurrentOperators();
llvm::ArrayRef<Operator> resizeOperators();
llvm::ArrayRef<Operator> imageOperators();
llvm::ArrayRef<Operator> signalOperators();
llvm::ArrayRef<Operator> reorderOperators();

// The sizes of parts that fill a dimension of `size`; nothing after an error.
std::optional<std::vector<int64_t>> checkParts(Node& n, int64_t size, std::vector<int64_t> parts);

// |x|^p, and the p-th root of a sum of such; a root of zero has the gradient 0, not an infinite one.
Tensor absolutePower(Emitter& emit, const Tensor& x, int64_t p);
Tensor rootOfPowers(Emitter& emit, const Tensor& sum, int64_t p);

// Names of values a node reads, those of its subgraphs included.
void forEachInput(const onnx::NodeProto& node, llvm::function_ref<void(llvm::StringRef)> visit);

// A constant from a tensor whose bytes are in the model or its folder; absent after an error.
Tensor constantTensor(Emitter& emit, const Model& model, const onnx::TensorProto& tensor);

// A moment of the batch that a running statistic of a batch norm follows; `unbiased`: PyTorch's estimate of a variance.
struct RunningStatistic {
  train::ParameterOp parameter;
  Tensor moment;
  double momentum;  // the part of the old value that stays
  bool unbiased;
};

// True if any Dropout says that it is in training mode, false if all that have a mode say otherwise; nothing if none
// does.
std::optional<bool> statedDropoutMode(const Model& model, llvm::ArrayRef<const onnx::NodeProto*> nodes);
void warnOfIdleDropouts(const Importer& importer);

// The updates of all running statistics, at the end of the step.
void emitStatistics(Importer& importer, mlir::func::FuncOp step);

class Surveyor;

class Importer {
 public:
  Importer(mlir::MLIRContext& context, const Model& model, const ImportOptions& options);
  mlir::OwningOpRef<mlir::ModuleOp> run();
  // What becomes of the initializers, without importing the graph; null after an error.
  const Parameters* analyse();

  // Imports nodes in order; a body of a function or a subgraph.
  mlir::LogicalResult importNodes(const google::protobuf::RepeatedPtrField<onnx::NodeProto>& nodes, Scope& scope);
  mlir::LogicalResult importNode(const onnx::NodeProto& node, Scope& scope, int64_t ordinal);
  // The value a name stands for as an operand of `user` sees it; null after an error.
  GraphValue* lookup(llvm::StringRef name, Scope& scope, const onnx::NodeProto* user, int operand = -1);
  // Counts `nodes` that a function or a loop expands to; failure after an error: they are too many.
  mlir::LogicalResult countNodes(int64_t nodes);
  // Counts the nodes that would take as long as reading or computing elements of known tensors, or as copying tensors
  // of a sequence.
  mlir::LogicalResult countElements(int64_t elements);
  mlir::LogicalResult countCopies(int64_t tensors);
  // Counts the nodes of an operator that becomes ops for each of many parts, such as steps of a recurrence.
  mlir::LogicalResult countParts(int64_t parts);
  const onnx::TensorProto* initializer(llvm::StringRef name) const { return initializers.lookup(name); }
  // The parameter that a tensor is, unchanged; null for anything else.
  train::ParameterOp parameterOf(const Tensor& tensor);
  // An initializer's value before the first step: that of training_info's initialization, else what the model holds;
  // absent after an error.
  Tensor initialValue(const onnx::TensorProto& tensor);
  void setInitial(llvm::StringRef initializer, const Tensor& constant) { initials[initializer] = constant; }
  void decide(const llvm::Twine& text) { decisions.push_back(text.str()); }

  const Model& model;
  const ImportOptions& options;
  mlir::OpBuilder builder;
  Emitter emit;
  int64_t dropouts = 0;  // numbers the random nodes
  std::vector<RunningStatistic> statistics;
  // The mode of a Dropout that has no training_mode is that of the others; nothing if there are none.
  std::optional<bool> statedDropout;
  std::vector<std::string> idleDropouts;  // nodes that drop nothing, and perhaps should
  bool warnedBatchNorm = false, warnedLocal = false;
  llvm::StringSet<> warned;      // which traps were reported
  Surveyor* surveyor = nullptr;  // goes on after errors; null: the first error ends the import
  bool evaluates() const { return options.form != Form::kTraining; }
  // The leaves that the batch is divided into.
  int64_t leaves() const { return oneRow ? batch : options.shares(); }
  // The graph is fixed to one row: each row of the batch is a leaf.
  bool takesOneRow() const { return oneRow; }

 private:
  mlir::LogicalResult readTrainingForm();
  mlir::LogicalResult prepare();  // what the step consists of: nodes, initializers, inputs
  mlir::LogicalResult chooseLoss();
  bool isMadeByNode(llvm::StringRef name) const;
  std::vector<std::string> namesOfValues() const;  // outputs first, then all that nodes make
  // Fails with an error if the step reads a value of the graph that is not an input, an initializer or an output of a
  // node.
  mlir::LogicalResult checkMade() const;
  // "nothing makes 'Loss'; did you mean 'loss'?", or nothing if something does.
  std::string whyUnmade(llvm::StringRef name) const;
  bool isTaken(llvm::StringRef name);
  std::string remedyForShape(int64_t rank);
  mlir::LogicalResult bindDimensions();  // data inputs become arguments
  mlir::LogicalResult bindConstant(const onnx::ValueInfoProto& input, const KnownInput& known);
  mlir::FailureOr<Tensor> importLoss();
  mlir::LogicalResult applyGradients();  // that the model itself computes
  mlir::LogicalResult finish(const Tensor& loss);
  mlir::LogicalResult finishEvaluation(const Tensor& loss);  // an absent one in the form kOutputs
  // Lists the tensors of the module's weights that the step does not hold as parameters: as train.copied.
  mlir::LogicalResult listCopied();
  // The bytes of a parameter before the first step: where they lie, or their values; neither if there are none.
  struct Initial {
    train::SourceAttr source;
    mlir::ElementsAttr value;
  };
  mlir::FailureOr<Initial> initialOf(const ParameterRole& role, const onnx::TensorProto& tensor);
  bool isUnstored(const onnx::TensorProto& tensor) const {
    return model.artifacts() && model.artifacts()->unstored.contains(tensor.name());
  }
  void markNeeded(const std::vector<std::string>& outputs);
  std::vector<std::string> results() const;               // values of the graph that the form needs
  std::vector<std::string> outputs() const;               // of the graph, that an evaluation hands over
  bool isWhole(const onnx::ValueInfoProto& input) const;  // the same for all rows
  mlir::LogicalResult bindInput(const onnx::ValueInfoProto& input);
  mlir::LogicalResult splitBatch();
  std::string divisorsOf(int64_t rows) const;
  std::string batchOf(int64_t rows) const;
  int64_t fixedRows(const onnx::ValueInfoProto& input) const;
  bool isRead(llvm::StringRef name) const;  // by a node that is needed
  const onnx::ValueInfoProto* otherBatch(const onnx::ValueInfoProto& input) const;
  // The dimension of an input that holds the rows.
  int64_t rowDimension(const onnx::ValueInfoProto& input) const;
  // The place of the rows in an output to which --loss adds a target. A run of 0: no dimension holds them.
  std::optional<train::Place> placeOfOutput(llvm::StringRef output, const Tensor& value);
  mlir::LogicalResult findRows(const llvm::StringSet<>& read);
  mlir::LogicalResult bindRows(const onnx::ValueInfoProto& input, llvm::StringRef orConstant);
  // Inputs of the model, inputs or outputs of a node, and operands of an op. A plan, its proof and its schedule take
  // time for each pair of operands.
  static constexpr int64_t kMaxOperands = 1 << 12;
  mlir::Value addArgument(llvm::StringRef name, mlir::RankedTensorType type);
  mlir::LogicalResult importOne(const onnx::NodeProto& node, Scope& scope, int64_t ordinal);
  int64_t opsetOf(const onnx::NodeProto& node, const Scope& scope) const;
  bool inTable(const onnx::NodeProto& node, int64_t opset) const;
  const onnx::FunctionProto* functionOf(const onnx::NodeProto& node) const;
  mlir::LogicalResult callFunction(const onnx::NodeProto& node, const onnx::FunctionProto& function, Scope& scope);
  Tensor importInitializer(const onnx::TensorProto& tensor, const onnx::NodeProto* user, int operand);
  Tensor parameter(ParameterRole role, const onnx::TensorProto& tensor);
  void stopGradients(Node& node);
  void listPossibleBuffers();
  mlir::ElementsAttr firstRows(const onnx::TensorProto& tensor, const ParameterRole& role);
  mlir::Location locationOf(const onnx::NodeProto& node, int64_t ordinal) const;

  mlir::OwningOpRef<mlir::ModuleOp> module;
  mlir::func::FuncOp step;
  Parameters parameters;
  Detached detached;
  std::unique_ptr<TrainingForm> training;  // null: the forward graph alone counts
  Scope root;
  std::vector<const onnx::NodeProto*> nodes;  // the graph's, then the training algorithm's
  std::vector<bool> needed;                   // by index of nodes
  llvm::StringMap<const onnx::TensorProto*> initializers;
  llvm::StringMap<Tensor> initials;  // values that training_info's initialization gives
  std::vector<const onnx::ValueInfoProto*> dataInputs;
  llvm::DenseSet<mlir::Value> whole;                      // arguments that are the same for all rows
  llvm::StringMap<const onnx::FunctionProto*> functions;  // by domain, name and overload
  llvm::SmallVector<const onnx::FunctionProto*> calls;    // being countedNodes
  llvm::StringMap<GraphValue> reads;                      // parameters read so far, and their views
  std::string lossName;                                   // the output that the loss is, or is made of
  std::optional<LossRequest> request;                     // how it is made of it
  int64_t batch = 0, rows = 0;  // of the batch, and of the step: the same, or one (takesOneRow)
  bool oneRow = false;
  int64_t exportedRows = 0;                // the batch that is fixed in the file; 0 if it is dynamic, or one row
  llvm::StringMap<int64_t> rowDimensions;  // by input, where it is not 0
  llvm::StringMap<int64_t> sizes;          // of symbolic dimensions, for one rank
  int64_t countedNodes = 0;                // nodes imported so far, to bound what functions and loops may expand to
  // Counts the ops that the builder inserts, and the most operands of one.
  struct OpCounter : mlir::OpBuilder::Listener {
    void notifyOperationInserted(mlir::Operation* op, mlir::OpBuilder::InsertPoint) override;
    int64_t ops = 0, operands = 0;
  } counter;
  bool isTooLarge() const;
  std::vector<std::string> decisions;

  friend class Surveyor;
};

}  // namespace sheaf::frontend
