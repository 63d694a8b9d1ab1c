// Makes of the step of the global batch that of one leaf: its share of the loss, and so of the gradients.
//
// Every op is computed by a leaf for its own rows, where the op's axes (OpAxes.h) say that it can be. Sums over the
// batch give each leaf a term, linear ops keep terms, and any other op that needs the sum gets train.global_sum. An op
// without such a rule reads whole operands (train.gather_rows) and is computed by every leaf: that is always right, its
// gradient included, and the leaf keeps its rows of the result. One leaf is the global batch, and nothing changes.
//
// The gradient of the whole loss is that of the sum of the leaves' losses as a function of all leaves: train.global_sum
// and train.gather_rows have their transposes as gradients, so differentiation needs to know nothing of leaves. (GSPMD,
// arXiv:2105.04663, section 3, partitions in the same way, and has the same default.)
//
// A graph that is fixed to one row has no values of the batch: each row is a leaf, and the step stays (RowLeaves.h).
//
// In an evaluation rows may only fill up the last batch. Where every row can be followed to all sums over the batch, a
// mask leaves them out, and the loss is that of the rows that count. Otherwise every batch must be full.
#include "ir/Train/Matchers.h"
#include "ir/Train/TensorBuilder.h"
#include "llvm/ADT/TypeSwitch.h"
#include "passes/train/AddAccuracy.h"
#include "passes/train/Partitioner.h"
#include "passes/train/Passes.h"
#include "passes/train/RowLeaves.h"
#include "runtime/base/Decisions.h"
#include "runtime/base/Text.h"

namespace sheaf::train {
#define GEN_PASS_DEF_PARTITION
#include "passes/train/Passes.h.inc"
}  // namespace sheaf::train

using namespace mlir;
using namespace sheaf::train;

namespace {

// Bytes of a step above which gathered values are worth a warning, and the share of a leaf's multiplications above
// which those for the rows of others are.
constexpr int64_t kManyBytes = int64_t(64) << 20;
constexpr double kManyProducts = 0.05;

// The maximum number of elements of a leaf's value: sums of the bytes of many values cannot overflow.
constexpr int64_t kMaxLeafElements = int64_t(1) << 42;

// Multiplications of an op's products; 0 for other ops, which take as good as no time.
double productsOf(Operation& op) {
  auto typeOf = [](Value v) { return TensorBuilder::typeOf(v); };
  auto count = [&](Value v) { return double(typeOf(v).getNumElements()); };
  return llvm::TypeSwitch<Operation*, double>(&op)
      .Case([&](MatMulOp o) {
        const RankedTensorType a = typeOf(o.getLhs());
        return count(o.getResult()) * double(a.getDimSize(a.getRank() - (o.getTransposeA() ? 2 : 1)));
      })
      .Case([&](ConvOp o) {
        return count(o.getResult()) * count(o.getFilter()) / double(typeOf(o.getFilter()).getDimSize(0));
      })
      .Case([&](ConvGradInputOp o) {
        return count(o.getGradient()) * count(o.getFilter()) / double(typeOf(o.getFilter()).getDimSize(0));
      })
      .Case([&](AttentionOp o) {
        return (count(o.getQuery()) + count(o.getResult())) * double(typeOf(o.getKey()).getDimSize(1));
      })
      .Default([](Operation*) { return 0.0; });
}

struct Partition : sheaf::train::impl::PartitionBase<Partition> {
  using Base::Base;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    auto step = module.lookupSymbol<func::FuncOp>("step");
    if (!step || step.isExternal()) {
      module.emitError("has no function @step that could be partitioned");
      return signalPassFailure();
    }
    if (failed(makeLeaf(module, step)) || failed(checkSizes(step))) signalPassFailure();
  }

  LogicalResult makeLeaf(ModuleOp module, func::FuncOp step) {
    auto ranks = module->getAttrOfType<IntegerAttr>("train.ranks");
    const int64_t leaves = ranks ? ranks.getInt() : 1;
    if (module->removeAttr(kOneRowAttr)) return makeRowLeaves(step, leaves);
    for (unsigned i = 0; i < step.getNumArguments(); ++i) {
      if (!step.getArgAttr(i, "train.row_mask")) continue;
      // Adds sums over the rows that count.
      addAccuracy(step);
      const int64_t rows = TensorBuilder::typeOf(step.getArgument(i)).getDimSize(0);
      if (canMaskRows(step, leaves, rows)) return partition(module, step, leaves, rows);
      (void)step.eraseArgument(i);
      if (leaves == 1) {
        markOutputRows(step, rows);
        return success();
      }
      break;
    }
    return leaves > 1 ? partition(module, step, leaves, leaves) : success();
  }

  static LogicalResult checkSizes(func::FuncOp step) {
    const WalkResult walk = step.walk([](Operation* op) -> WalkResult {
      for (Type type : op->getResultTypes()) {
        int64_t elements = 1;
        for (int64_t size : cast<RankedTensorType>(type).getShape())
          if (size > 0 && elements > kMaxLeafElements / size)
            return op->emitError() << "its result of shape "
                                   << sheaf::shapeText(cast<RankedTensorType>(type).getShape()) << " is too large for "
                                   << "one rank: give smaller sizes, or a smaller batch per rank; at most "
                                   << kMaxLeafElements << " elements are possible";
          else
            elements *= size;
      }
      return WalkResult::advance();
    });
    return failure(walk.wasInterrupted());
  }

  LogicalResult partition(ModuleOp module, func::FuncOp step, int64_t leaves, int64_t parts) {
    Partitioner partitioner(step, leaves, parts);
    OpCheck tries(&getContext(), leaves, fault);
    const bool failed = mlir::failed(partitioner.run(check && leaves > 1 ? &tries : nullptr));
    tries.addTo(module, "partition");
    if (failed) return failure();
    report(module, partitioner);
    warnOfRepeated(step, partitioner);
    return success();
  }

  // True if every row can be followed to the sums over the batch; false if rows depend on each other.
  static bool canMaskRows(func::FuncOp step, int64_t leaves, int64_t rows) {
    OwningOpRef<func::FuncOp> masked = step.clone();
    ScopedDiagnosticHandler quiet(step.getContext(), [](Diagnostic&) { return success(); });
    Partitioner partitioner(*masked, leaves, rows);
    return succeeded(partitioner.run()) && !partitioner.rowsDepend();
  }

  // Products that every leaf computes for the rows of all.
  static void warnOfRepeated(func::FuncOp step, const Partitioner& partitioner) {
    double all = 0, repeated = 0;
    Operation* most = nullptr;
    for (Operation& op : step.getBody().front()) all += productsOf(op);
    for (Operation* op : partitioner.repeated()) {
      const double products = productsOf(*op);
      if (products > 0 && (!most || products > productsOf(*most))) most = op;
      repeated += products;
    }
    if (most && repeated > kManyProducts * all)
      emitWarning(most->getLoc())
          << "every leaf computes this product for the rows of all leaves, since what it reads does not divide into "
          << "them: with others like it " << int64_t(100 * repeated / all) << " % of a leaf's multiplications; if rows "
          << "are left out or added before it, do so after it";
  }

  static void report(ModuleOp module, const Partitioner& partitioner) {
    if (partitioner.gathered().empty()) return;
    int64_t bytes = 0;
    for (const GatheredValue& value : partitioner.gathered()) {
      bytes += value.bytes;
      recordDecision(module, nodeName(value.at) + Twine(sheaf::kNeedsAllRows) + Twine(value.bytes) +
                                 " bytes are gathered in a step");
    }
    if (bytes > kManyBytes)
      emitWarning(partitioner.gathered().front().at)
          << partitioner.gathered().size()
          << " values, of which this op needs one, are gathered from all leaves: " << (bytes >> 20)
          << " MiB in a step, in the types of the model";
  }
};

}  // namespace
