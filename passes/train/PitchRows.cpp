// Pads the rows of matrices whose rows would start anywhere. A matrix that is a candidate by itself may still have to
// stay dense for another's sake: a result takes over an operand's memory only where both have the same pitch.
#include "ir/Train/RowPitches.h"
#include "llvm/ADT/EquivalenceClasses.h"
#include "llvm/ADT/SetVector.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "passes/train/FusionOps.h"
#include "passes/train/Passes.h"
#include "runtime/plan/RowPitch.h"

namespace sheaf::train {
#define GEN_PASS_DEF_PITCHROWS
#include "passes/train/Passes.h.inc"
}  // namespace sheaf::train

using namespace mlir;
using namespace sheaf::train;

namespace {

// The pitch that a value would have if nothing kept it from having one; 0 if that of dense rows is as good.
int64_t wantedPitch(Value v) {
  auto type = cast<RankedTensorType>(v.getType());
  int64_t columns = columnsOf(v);
  if (type.getNumElements() == 0 || rowsOf(v) < 2) return 0;
  int64_t pitch = sheaf::plan::rowPitch(columns, std::max(1u, type.getElementTypeBitWidth() / 8));
  return pitch == columns ? 0 : pitch;
}

// Whether the kernel goes through its operands and results row by row of so many columns, or can: a flat one does not
// care where rows end, unless it moves them.
bool hasRows(FusionOp fusion, int64_t columns) {
  if (static_cast<int64_t>(fusion.getColumns()) == columns) return true;
  auto fits = [&](Value v) {
    auto type = cast<RankedTensorType>(v.getType());
    return type.getRank() > 0 && (type.getNumElements() == 1 || type.getShape().back() == columns);
  };
  Block& body = fusion.getBody().front();
  if (!llvm::all_of(body.getArguments(), fits)) return false;
  return llvm::all_of(body.without_terminator(),
                      [&](Operation& op) { return !isa<ReduceOp, IotaOp>(op) && llvm::all_of(op.getResults(), fits); });
}

// Whether everyone who reads the value can do so at a pitch.
bool isReadByRows(Value v) {
  return llvm::all_of(v.getUses(), [&](OpOperand& use) {
    Operation* user = use.getOwner();
    if (auto reshape = dyn_cast<ReshapeOp>(user)) return keepsRows(reshape) && isReadByRows(reshape.getResult());
    if (auto fusion = dyn_cast<FusionOp>(user)) return hasRows(fusion, columnsOf(v));
    return isa<MatMulOp, MatMulEpilogueOp>(user) && use.getOperandNumber() < 2;
  });
}

bool isCandidate(Value v) {
  auto result = dyn_cast<OpResult>(v);
  if (!result || !wantedPitch(v) || !isReadByRows(v)) return false;
  if (auto fusion = dyn_cast<FusionOp>(result.getOwner())) return hasRows(fusion, columnsOf(v));
  return isa<MatMulOp, MatMulEpilogueOp>(result.getOwner()) && result.getResultNumber() == 0;
}

struct PitchRows : sheaf::train::impl::PitchRowsBase<PitchRows> {
  using Base::Base;

  void runOnOperation() override {
    for (auto function : getOperation().getOps<func::FuncOp>())
      for (Block& block : function.getBody()) pitch(block);
  }

  static void pitch(Block& block) {
    // Candidates, in classes of those that may share memory; some classes have members that are none.
    llvm::SetVector<Value> pitched;
    llvm::EquivalenceClasses<void*> sharing;
    for (Operation& op : block)
      for (Value v : op.getResults())
        if (isCandidate(v)) pitched.insert(v);
    if (pitched.empty()) return;
    llvm::DenseSet<Value> dense;
    block.walk([&](FusionOp fusion) {
      for (int64_t i : fusion.getElementwise())
        for (Value result : fusion.getResults()) {
          if (fusion.getOperand(i).getType() != result.getType()) continue;
          Value operand = withoutReshapes(fusion.getOperand(i));
          sharing.unionSets(operand.getAsOpaquePointer(), result.getAsOpaquePointer());
          for (Value v : {operand, result})
            if (!pitched.contains(v)) dense.insert(v);
        }
    });
    llvm::DenseSet<void*> denseClasses;
    for (Value v : dense) denseClasses.insert(sharing.getLeaderValue(v.getAsOpaquePointer()));
    pitched.remove_if([&](Value v) {
      auto leader = sharing.findLeader(v.getAsOpaquePointer());
      return leader != sharing.member_end() && denseClasses.contains(*leader);
    });

    for (Operation& op : block) {
      if (auto fusion = dyn_cast<FusionOp>(op)) {
        apply(fusion, pitched);
      } else if (isa<MatMulOp, MatMulEpilogueOp>(op) && pitched.contains(op.getResult(0))) {
        op.setAttr(kPitchAttr, Builder(&op).getI64IntegerAttr(wantedPitch(op.getResult(0))));
      }
    }
  }

  static void apply(FusionOp fusion, const llvm::SetVector<Value>& pitched) {
    SmallVector<int64_t> pitches;
    Value any;
    auto add = [&](Value v) {
      bool is = pitched.contains(withoutReshapes(v));
      pitches.push_back(is ? wantedPitch(v) : 0);
      if (is) any = v;
    };
    for (Value v : fusion.getOperands()) add(v);
    for (Value v : fusion.getResults()) add(v);
    if (!any) return;
    fusion.setPitches(pitches);
    if (static_cast<int64_t>(fusion.getColumns()) == columnsOf(any)) return;
    fusion.setRows(rowsOf(any));
    fusion.setColumns(columnsOf(any));
    fusion.setBlock(rowsOfBlock(rowsOf(any), columnsOf(any)));
  }
};

}  // namespace
