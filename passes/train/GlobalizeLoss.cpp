// Makes the loss of one rank's rows this rank's share of the loss of the global batch.
//
// The step is written for one rank, as if its rows were the whole batch. A forward analysis classifies every value by
// its relation to the global one (Globalizer.h), and makes sums of the ranks' terms where the global value is needed.
//
// With one row, the batch looks like any other dimension of size 1. So the importer makes a step of two rows where the
// graph allows it. The pass finds the dimensions of the batch there, then cuts the step to one row (FirstRow.h).
//
// In the evaluation rows may only fill up the last batch: wherever the batch is summed over, a mask leaves them out, so
// that loss and counts are those of the rows that count.
#include "ir/Train/Evaluator.h"
#include "ir/Train/Outputs.h"
#include "ir/Train/TensorBuilder.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/IRMapping.h"
#include "passes/train/AddAccuracy.h"
#include "passes/train/FirstRow.h"
#include "passes/train/Globalizer.h"
#include "passes/train/Passes.h"

namespace sheaf::train {
#define GEN_PASS_DEF_GLOBALIZELOSS
#include "passes/train/Passes.h.inc"
}  // namespace sheaf::train

using namespace mlir;
using namespace sheaf::train;

namespace {

struct GlobalizeLoss : sheaf::train::impl::GlobalizeLossBase<GlobalizeLoss> {
  using Base::Base;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    auto ranks = module->getAttrOfType<IntegerAttr>("train.ranks");
    auto step = module.lookupSymbol<func::FuncOp>("step");
    if (!step || step.isExternal()) {
      module.emitError("has no function @step whose loss could be globalized");
      return signalPassFailure();
    }
    const int64_t count = ranks ? ranks.getInt() : 1;
    // Before anything is summed over the rows that count.
    bool evaluation = false;
    for (unsigned i = 0; i < step.getNumArguments(); ++i) evaluation |= bool(step.getArgAttr(i, "train.row_mask"));
    if (evaluation) addAccuracy(step);
    module->removeAttr(kOneRowAttr);
    module->removeAttr(kUnfoldedAttr);
    const bool twoRows = bool(module->removeAttr(kTwoRowsAttr));
    const bool fixedRows = bool(step->removeAttr(kFixedRowsAttr));
    bool rowsKnown = bool(module->removeAttr(kRowsKnownAttr));
    auto refused = dyn_cast_or_null<DictionaryAttr>(step->removeAttr(kRowsRefusedAttr));
    if (count > 1 && refused && !fixedRows) {
      emitError(cast<LocationAttr>(refused.get("at"))) << cast<StringAttr>(refused.get("why")).getValue();
      return signalPassFailure();
    }
    if (count <= 1 && evaluation) return evaluateOnOneRank(step);
    if (count <= 1) return;
    // Sizes that the exporter took from a fixed number of rows may mean anything where there are more.
    if (fixedRows && rowsKnown) rowsKnown = isDivided(step, count);
    Globalizer globalizer(step, count, rowsKnown, fixedRows);
    if (twoRows) {
      FailureOr<BatchStates> states = statesOf(step, count, rowsKnown);
      if (failed(states) || failed(cutToFirstRow(step, *states))) return signalPassFailure();
      globalizer.setReshapeStates(std::move(*states));
    }
    if (failed(globalizer.run())) return signalPassFailure();
    for (Operation& op : step.getBody().front()) op.removeAttr(kRowsAttr);
    // A constant does not say whether the exporter made it of the number of rows.
    if (fixedRows)
      emitWarning(step.getLoc())
          << "the number of rows is fixed in the model: constants that the exporter computed from it, such as the "
             "divisor of a mean, count the rows of one rank only. Export the model with a dynamic batch";
  }

  // True if the step can be divided among ranks with the batch where its ops say.
  static bool isDivided(func::FuncOp step, int64_t ranks) {
    OwningOpRef<func::FuncOp> copy = step.clone();
    ScopedDiagnosticHandler quiet(step.getContext(), [](Diagnostic&) { return success(); });
    return succeeded(Globalizer(*copy, ranks, true, true).run());
  }

  // The states of a step's values, found on a copy of it.
  static FailureOr<BatchStates> statesOf(func::FuncOp step, int64_t ranks, bool rowsKnown) {
    IRMapping copies;
    OwningOpRef<func::FuncOp> copy = cast<func::FuncOp>(step->clone(copies));
    Globalizer globalizer(*copy, ranks, rowsKnown, false);
    if (failed(globalizer.run())) return failure();
    BatchStates states;
    for (auto [value, copied] : copies.getValueMap())
      if (auto found = globalizer.valueStates().find(copied); found != globalizer.valueStates().end())
        states[value] = found->second;
    return states;
  }

  // On one rank rows may depend on each other: then every batch must be full, and what the first dimension of an output
  // holds is taken for rows where it can be.
  static void evaluateOnOneRank(func::FuncOp step) {
    OwningOpRef<func::FuncOp> whole = step.clone();
    {
      ScopedDiagnosticHandler quiet(step.getContext(), [](Diagnostic&) { return success(); });
      if (succeeded(Globalizer(step, 1, false, false).run())) return;
    }
    step.getBody().takeBody(whole->getBody());
    int64_t rows = 0;
    for (int64_t i = int64_t(step.getNumArguments()) - 1; i >= 0; --i)
      if (step.getArgAttr(i, "train.row_mask")) {
        rows = TensorBuilder::typeOf(step.getArgument(i)).getDimSize(0);
        (void)step.eraseArgument(i);
      }
    for (OutputOp output : step.getOps<OutputOp>()) {
      const ArrayRef<int64_t> shape = TensorBuilder::typeOf(output.getValue()).getShape();
      if (output.getKind() == "tensor" && !shape.empty() && shape.front() % rows == 0) output.setBlocks(1);
    }
  }
};

}  // namespace
