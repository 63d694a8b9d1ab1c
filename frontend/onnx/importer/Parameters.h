// Which initializers are trainable, and under which names.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "frontend/onnx/importer/Import.h"
#include "frontend/onnx/importer/TorchExport.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/ADT/StringSet.h"

namespace sheaf::frontend {

// What becomes of one initializer.
struct ParameterRole {
  bool parameter = false;    // else a constant
  bool trainable = false;    // if a gradient reaches it
  std::string name;          // the parameter's
  std::string reason;        // for the list of decisions
  bool mayBeBuffer = false;  // trained, but the file does not say that it is a parameter: see mayBeBuffer()
  // The parameter's own shape; the graph reads it reshaped to the initializer's.
  llvm::SmallVector<int64_t> shape;
  // Set where the exporter folded a transposition: dimension i is the named tensor's permutation[i].
  std::optional<llvm::SmallVector<int64_t>> permutation;
  // The graph sees the transposed parameter: its tie to an initializer that was not folded is restored.
  bool viewTransposed = false;
  // Set where the exporter folded a look-up of rows: row i of the initializer, a matrix, is the parameter's rows[i].
  std::optional<llvm::SmallVector<int64_t>> rows;
  // Other names in the module of a table that modules share: of each module's own.
  std::vector<std::string> aliases;
  // The initializer that holds the parameter, where that is another one.
  const onnx::TensorProto* holder = nullptr;
};

inline constexpr llvm::StringRef kStatistics = "running statistics";
inline constexpr char kNamedByFreeze[] = "named by --freeze", kNotNamedByTrain[] = "not named by --train";
void markRunningStatistics(ParameterRole& role);

// Decides from the exporter's metadata (see docs/onnx.md), or, where there is none, from types and ranks alone.
class Parameters {
 public:
  // Looks at all initializers and their users; null-safe to copy after `analyse`.
  mlir::LogicalResult analyse(const Model& model, const std::vector<const onnx::NodeProto*>& nodes,
                              const llvm::StringMap<const onnx::TensorProto*>& initializers,
                              const ImportOptions& options);

  // The role of an initializer as one operand of a node sees it (merged initializers differ by use).
  const ParameterRole& role(const onnx::TensorProto& tensor, const onnx::NodeProto* user, int operand) const;

  // True if weights of the module have the tensor under the name of its role: it is a parameter or a persistent buffer,
  // or no node uses it, so that the exporter did not make it for the graph.
  std::string suggestionFor(const std::string& text) const;
  bool isOfModule(const Model& model, const onnx::TensorProto& tensor, bool used) const;

  // True if uses of the initializer differ in their roles.
  bool isMerged(const onnx::TensorProto& tensor) const { return mergedTensors.contains(tensor.name()); }

  bool isUsed(const onnx::TensorProto& tensor) const { return uses.contains(tensor.name()); }

  // True for a parameter that is not used or named as parameters are.
  bool mayBeBuffer(llvm::StringRef parameter) const { return mayBeBufferNames.contains(parameter); }
  // Suppresses the buffer note: a warning names it already.
  void suppressBufferWarning(llvm::StringRef parameter) { mayBeBufferNames.erase(parameter); }

  // Restricts training to these names, as a Gradient operator's `xs` do.
  void trainOnly(llvm::ArrayRef<std::string> names);

 private:
  struct Use {
    const onnx::NodeProto* node;
    int operand;
  };
  // Gives a use of a merged initializer a role of its own.
  void separate(const Use& use, const std::string& name, bool trainable, bool parameter);
  void unmergeByModules(const onnx::TensorProto& tensor);
  void unmergeByExpressions(const Model& model, llvm::ArrayRef<const onnx::NodeProto*> nodes,
                            const GraphSignature& signature);
  bool isFoldedNorm(const onnx::TensorProto& tensor) const;
  void findStatistics();
  void findSettings(const Model& model, llvm::ArrayRef<const onnx::NodeProto*> nodes, bool signature);
  bool isFoldedParameter(const Model& model, const onnx::TensorProto& tensor, ParameterRole& role);
  bool findRows(const Model& model, const onnx::TensorProto& tensor, ParameterRole& role) const;
  void restoreTies(const Model& model, llvm::ArrayRef<const onnx::NodeProto*> nodes);
  void nameTied();
  mlir::LogicalResult applyPatterns(const Model& model, const ImportOptions& options);

  llvm::StringMap<llvm::SmallVector<Use, 2>> uses;
  llvm::StringMap<ParameterRole> roles;                                            // by initializer
  llvm::DenseMap<std::pair<const onnx::NodeProto*, int>, ParameterRole> unmerged;  // by use
  llvm::StringMap<std::string> owner;  // parameter's name to its initializer
  llvm::StringMap<const onnx::TensorProto*> tensors;
  std::vector<std::string> folded, foldedArithmetic, unmergedNames, removedInNodes, unreferenced,
      norms;                           // for the warnings
  llvm::StringSet<> mayBeBufferNames;  // names of parameters
  llvm::StringSet<> mergedTensors;     // names of initializers
  bool optimizedExport = false;
};

// Warns of what exporters change without a word, with the option that avoids it.
void warnOfTraps(const Model& model, llvm::ArrayRef<const onnx::NodeProto*> nodes, Parameters& parameters);

// Patterns of --freeze that match these names of parameters and none of the others.
std::string freezePattern(llvm::ArrayRef<std::string> names, llvm::ArrayRef<std::string> others);

}  // namespace sheaf::frontend
