// From an ONNX model to a module of the `train` dialect.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "llvm/ADT/StringRef.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"

namespace sheaf::frontend {

// What is made of the graph. kEvaluation: its outputs and the loss, with dropout off and running statistics; kOutputs:
// the same without a loss.
enum class Form { kTraining, kEvaluation, kOutputs };

// An input whose values are known when the graph is compiled: integers that decide shapes.
struct KnownInput {
  std::string name;
  std::vector<int64_t> shape, values;  // row-major
};

struct ImportOptions {
  Form form = Form::kTraining;
  int64_t ranks = 1;   // ranks that share the batch
  int64_t leaves = 0;  // pieces of the batch whose sums are added by a tree, a multiple of the pieces; 0: one each
  int64_t microBatches = 1;  // pieces of the batch that a rank computes one after the other
  int64_t pieces() const { return ranks * microBatches; }
  int64_t shares() const { return leaves ? leaves : pieces(); }
  int64_t batch = 0;  // global batch; binds the leading symbolic dimension of the data inputs (0: not given)
  std::vector<std::pair<std::string, int64_t>> bind;  // other symbolic dimensions, by name
  std::vector<std::pair<std::string, int64_t>>
      rows;                           // the dimension of an input that holds the batch, by the input's name
  std::vector<KnownInput> constants;  // integer or boolean inputs that are not data
  // What to minimise: "" for the only scalar float output, an output's name, or KIND(OUTPUT, KEY=VALUE, ...) of
  // supportedLosses(), which adds an input: `labels` (int64, the output's shape without the classes) or `targets` (f32,
  // the output's shape).
  std::string loss;
  std::vector<std::string> train, freeze;  // regular expressions over parameter names; freeze wins
  // "" if not given: then a model with training_info uses its own, and ONNX Runtime's artifacts use that of
  // optimizer_model.onnx.
  std::string optimizer;
  // What BatchNormalization does: normalize by the moments of all ranks' rows or of each rank's own, or by the stored
  // statistics. Automatic: what the graph or PyTorch's metadata say, sync for training; where they say nothing, sync if
  // the scale is trained.
  enum class BatchNorm { automatic, sync, local, eval } batchNorm = BatchNorm::automatic;
};

// The forward step of the global batch: `train.parameter` symbols and a `func.func @step` that ends in `train.loss`.
// Shapes are all static; nothing of ONNX is left; weights are named, never read. A graph that is fixed to one row takes
// any batch: its step is that of one row (module attribute `train.one_row`), and each row of the batch is a leaf.
// Module attributes: `train.ranks` (the leaves), `train.widen_to` (the pieces, if they are fewer),
// `train.micro_batches` (if there are several) and `train.batch` (i64), `train.decisions` (strings), `train.model` (the
// path as given). Arguments have the rows first: an input that has them in another dimension, which `rows` names or the
// symbol that all inputs share, is transposed. A model with its own optimizer (training_info) also yields
// `train.optimizer` symbols, named by an attribute `train.optimizer` of the parameters they update. On failure the
// result is null and one error has been emitted.
//
// In the forms kEvaluation and kOutputs @step has a `train.output` for each output of the graph, kEvaluation also the
// loss. Inputs may have any rank: one of rank 0, or whose first dimension is fixed and not the batch's, is the same for
// all rows (argument attribute `train.whole`). Labels.h has the attributes of labels. A last argument,
// `train.row_mask`, is 1 for each row that counts.
mlir::OwningOpRef<mlir::ModuleOp> importOnnx(mlir::MLIRContext& context, llvm::StringRef path,
                                             const ImportOptions& options);

// What `sheaf check` says of a model: everything that keeps it from being trained, and what would be.
struct Survey {
  // An operator of the graph and how many nodes have it.
  struct Operator {
    std::string name;
    int64_t opset = 0, count = 0;
    std::string node;  // the first of them
    std::string why;   // what is not supported about them
  };
  struct Parameters {
    int64_t count = 0, elements = 0, bytes = 0;
  };
  // A file of weights that is not there, or too short.
  struct File {
    std::string name;                    // relative to the model's folder
    int64_t parameters = 0, needed = 0;  // bytes
    bool exists = false;
  };

  int64_t nodes = 0, opset = 0;
  std::vector<std::string> obstacles;                        // of no other kind
  std::vector<Operator> unsupported;                         // not in the table
  std::vector<Operator> refused;                             // in the table, but not as the nodes use them
  std::vector<std::pair<std::string, std::string>> unbound;  // dimensions without a size, and an input that has each
  std::vector<std::string> losses;                           // where no loss is chosen: what could be given to --loss
  std::vector<File> missing;
  std::vector<std::string> notes;  // warnings and what was assumed
  Parameters trained, frozen;
  bool exact = false;         // what is trained; false: at most so much
  bool batchAssumed = false;  // the graph has no size of the batch, and none is given

  // Whether the graph can be compiled; weights may be missing.
  bool trainable() const { return obstacles.empty() && unsupported.empty() && refused.empty() && unbound.empty(); }
};

// Imports as importOnnx does, but goes on after errors, which go into `survey` and not to the context's handlers. The
// module is null unless the model can be trained.
mlir::OwningOpRef<mlir::ModuleOp> surveyOnnx(mlir::MLIRContext& context, llvm::StringRef path,
                                             const ImportOptions& options, Survey& survey);

// One loss that --loss can add.
struct SupportedLoss {
  std::string syntax;  // "mse(OUTPUT)"
  std::string text;    // what it computes
};
std::vector<SupportedLoss> supportedLosses();

}  // namespace sheaf::frontend
