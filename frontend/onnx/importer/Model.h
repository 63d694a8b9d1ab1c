// An ONNX file: parsed, checked, and its weights located but not read.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "frontend/onnx/importer/WireFormat.h"
#include "frontend/onnx/training/TrainingArtifacts.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/ADT/StringRef.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Diagnostics.h"
#include "onnx/onnx-ml.pb.h"
#include "runtime/base/MappedFile.h"

namespace sheaf::frontend {

// The maximum number of elements of a tensor in a file. No product or byte count below can then overflow.
inline constexpr int64_t kMaxElements = int64_t(1) << 42;
// The maximum number of elements of a value, which has the rows of all ranks. train-partition limits those of a leaf.
inline constexpr int64_t kMaxGlobalElements = int64_t(1) << 56;
// The maximum number of dimensions of a tensor. Those that a plan computes have at most train::kMaxPlanRank.
inline constexpr int64_t kMaxRank = 64;

inline bool isDefaultDomain(llvm::StringRef domain) {
  return domain.empty() || domain == "ai.onnx";
}

// The product of dimensions, or nothing if one is negative, the product exceeds kMaxGlobalElements, or there are more
// than kMaxRank.
std::optional<int64_t> elementCount(llvm::ArrayRef<int64_t> shape);

// The MLIR type of an ONNX TensorProto.DataType; null if `train` has none.
mlir::Type elementType(mlir::MLIRContext* context, int32_t dataType);
llvm::StringRef dataTypeName(int32_t dataType);
bool isFloatType(int32_t dataType);
// Its name, type and shape, as a message shows them.
std::string describe(const onnx::ValueInfoProto& value);
// "'a', 'b' and 3 more": so many names, quoted.
std::string listNames(llvm::ArrayRef<std::string> names, size_t most = 4);
// "; did you mean 'loss'?", or nothing if none of the names is near.
std::string didYouMean(const std::vector<std::string>& names, llvm::StringRef name);

// Of a node: the expression of torch.export that it was made from.
constexpr llvm::StringRef kFxNode = "pkg.torch.onnx.fx_node";

class Model {
 public:
  // Maps, parses and checks a file; null after an error.
  static std::unique_ptr<Model> load(mlir::MLIRContext& context, llvm::StringRef path);
  // A model that is in no file; `name` stands for the path in errors.
  static std::unique_ptr<Model> of(mlir::MLIRContext& context, onnx::ModelProto proto, llvm::StringRef name);

  const onnx::ModelProto& proto() const { return model; }
  const onnx::GraphProto& graph() const { return model.graph(); }
  // Names of the initializers that lie in Constant nodes of the file, in the place of weights.
  std::vector<std::string> constantWeights() const;
  // Makes Constant nodes of them again, in a copy of the graph.
  void restoreConstants(onnx::GraphProto& graph) const;
  // What ONNX Runtime's training tools have added to the graph; null for other models.
  const TrainingArtifacts* artifacts() const { return trainingArtifacts.get(); }
  llvm::StringRef path() const { return filePath; }
  llvm::StringRef fileName() const { return name; }
  mlir::Location location() const;

  // The bytes of a tensor that are stored raw in the model file, wherever they are kept in memory.
  llvm::StringRef rawBytes(const onnx::TensorProto& tensor) const;
  // Where the raw bytes of a graph initializer lie: file (relative to the model's folder), offset, length. Nothing if
  // they are in typed fields. Fails after an error (external data outside the model's folder, a wrong length).
  struct Source {
    std::string file;
    int64_t offset = 0, length = 0;
  };
  mlir::FailureOr<std::optional<Source>> source(const onnx::TensorProto& tensor) const;
  // The raw bytes of a tensor, external ones included; empty if it has none. An error names the file of external ones
  // that is not there, cannot be read, or ends before. They live as long as the model.
  Expected<llvm::StringRef> bytes(const onnx::TensorProto& tensor) const;
  // Fails with an error if an initializer's external data do not lie within their file. A missing file is not an error,
  // since weights may be made later; one that is too short is damaged.
  mlir::LogicalResult checkFiles() const;
  // The path of a file that `location` of external data names.
  std::string pathOf(llvm::StringRef externalFile) const;

  // Opset version of a domain ("" is ONNX's own); 0 if the model does not import it.
  int64_t opset(llvm::StringRef domain) const;

  // What the model says of a value's type; null if nothing.
  const onnx::ValueInfoProto* valueType(llvm::StringRef value) const { return valueInfo.lookup(value); }

  // Value of a metadata entry of a value or a node; empty if absent.
  llvm::StringRef valueMetadata(llvm::StringRef value, llvm::StringRef key) const;
  static llvm::StringRef metadata(const google::protobuf::RepeatedPtrField<onnx::StringStringEntryProto>& entries,
                                  llvm::StringRef key);

 private:
  explicit Model(mlir::MLIRContext& context) : context(&context) {}
  mlir::LogicalResult parse();
  mlir::LogicalResult check();
  llvm::StringRef contents() const;
  mlir::LogicalResult checkRanks() const;
  mlir::LogicalResult checkNames() const;
  void noteLinks() const;
  void indexValues();
  void separateMerged();
  mlir::LogicalResult hoistWeights();
  mlir::LogicalResult checkTensor(const onnx::TensorProto& tensor) const;

  mlir::MLIRContext* context;
  std::string filePath, name;
  MappedFile file;
  onnx::ModelProto model;
  std::unique_ptr<TrainingArtifacts> trainingArtifacts;
  std::vector<RawSpan> spans;  // by index of graph.initializer: cut out before parsing, so never copied
  llvm::DenseMap<const onnx::TensorProto*, unsigned> spanOf;  // graph initializers only
  llvm::StringMap<const onnx::ValueInfoProto*> valueInfo;
  struct Hoisted {
    int index;  // position of the node in the file's graph
    onnx::NodeProto node;
    std::string tensorName;
  };
  std::vector<Hoisted> hoisted;
  mutable std::map<std::string, MappedFile> externalFiles;  // by their names in the model, each mapped at its first use
};

}  // namespace sheaf::frontend
