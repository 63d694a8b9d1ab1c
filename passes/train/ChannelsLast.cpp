// Turns images from [N, C, H, W] to [N, H, W, C] around convolutions and poolings, and keeps them so through what lies
// between: elementwise ops, batch norms, reductions, concatenations, slices and padding. Where an image comes from
// elsewhere or goes elsewhere it is transposed.
#include "ir/Train/BatchNorm.h"
#include "llvm/ADT/TypeSwitch.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/IRMapping.h"
#include "passes/train/Passes.h"

namespace sheaf::train {
#define GEN_PASS_DEF_CHANNELSLAST
#include "passes/train/Passes.h.inc"
}  // namespace sheaf::train

using namespace mlir;
using namespace sheaf::train;

namespace {

// Dimension d of an image with its channels last is dimension kLast[d] of the image, and the other way round.
constexpr int64_t kLast[] = {0, 2, 3, 1}, kFirst[] = {0, 3, 1, 2};

bool isImage(Value v) {
  auto type = dyn_cast<RankedTensorType>(v.getType());
  return type && type.getRank() == 4;
}

SmallVector<int64_t> permuted(ArrayRef<int64_t> from, ArrayRef<int64_t> order = kLast) {
  SmallVector<int64_t> to;
  for (int64_t d : order) to.push_back(from[d]);
  return to;
}

Type lastType(Value v) {
  auto type = TensorBuilder::typeOf(v);
  return type.clone(permuted(type.getShape()));
}

// Where there is one channel, or one pixel, both layouts have the elements in the same order.
Value turned(TensorBuilder& t, Value v, ArrayRef<int64_t> order) {
  auto type = TensorBuilder::typeOf(v);
  SmallVector<int64_t> kept;
  for (int64_t d : order)
    if (type.getDimSize(d) != 1) kept.push_back(d);
  if (llvm::is_sorted(kept)) return t.reshape(v, permuted(type.getShape(), order));
  return t.make<TransposeOp>(v, order);
}

class Converter {
 public:
  explicit Converter(func::FuncOp step) : body(step.getBody().front()), builder(step.getContext()) {}

  void run() {
    for (Operation& op : llvm::make_early_inc_range(body)) visit(&op);
  }

 private:
  // What repeats, or is one number, costs nothing to have in either layout.
  static bool isFree(Value v) {
    if (auto constant = v.getDefiningOp<ConstantOp>()) return isa<SplatElementsAttr>(constant.getValue());
    return v.getDefiningOp<BroadcastOp>();
  }

  // More of the images that the op reads have their channels last already than would have to be transposed.
  bool isWorthwhile(Operation* op) const {
    int64_t balance = 0, known = 0;
    for (Value v : op->getOperands()) {
      if (!isImage(v)) continue;
      const bool has = last.contains(v);
      known += has;
      balance += has ? 1 : isFree(v) ? 0 : -1;
    }
    return known > 0 && balance >= 0;
  }

  Value get(Value v) {
    if (Value known = last.lookup(v)) return known;
    OpBuilder::InsertionGuard guard(builder);
    builder.setInsertionPointAfterValue(v);
    TensorBuilder t{builder, v.getLoc()};
    Value result;
    auto constant = v.getDefiningOp<ConstantOp>();
    if (auto splat = constant ? dyn_cast<SplatElementsAttr>(constant.getValue()) : SplatElementsAttr())
      result = ConstantOp::create(builder, v.getLoc(), splat.resizeSplat(cast<ShapedType>(lastType(v))));
    else if (auto broadcast = v.getDefiningOp<BroadcastOp>())
      result = t.broadcast(get(broadcast.getOperand()), permuted(TensorBuilder::typeOf(v).getShape()));
    else
      result = turned(t, v, kLast);
    return last[v] = result;
  }

  // Replaces the op by `fresh`, whose images have their channels last.
  void replace(Operation* op, Operation* fresh) {
    TensorBuilder t{builder, op->getLoc()};
    for (auto [old, now] : llvm::zip(op->getResults(), fresh->getResults())) {
      Value same = now;
      if (isImage(old)) {
        same = turned(t, now, kFirst);
        last[same] = now;
      }
      old.replaceAllUsesWith(same);
    }
    op->erase();
  }

  // The same op on images with their channels last, with some attributes in the order of their dimensions.
  void convert(Operation* op, ArrayRef<StringRef> byDimension = {}) {
    builder.setInsertionPoint(op);
    IRMapping mapping;
    for (Value v : op->getOperands())
      if (isImage(v)) mapping.map(v, get(v));
    Operation* fresh = builder.clone(*op, mapping);
    for (Value result : fresh->getResults())
      if (isImage(result)) result.setType(lastType(result));
    for (StringRef name : byDimension) {
      auto sizes = fresh->getAttrOfType<DenseI64ArrayAttr>(name);
      fresh->setAttr(name, builder.getDenseI64ArrayAttr(permuted(sizes)));
    }
    replace(op, fresh);
  }

  // A convolution or a pooling; its filter stays.
  template <typename Op>
  void convertWindowed(Op op) {
    if (op.getChannelsLast()) return;
    builder.setInsertionPoint(op);
    auto fresh = cast<Op>(builder.clone(*op));
    fresh.setChannelsLast(true);
    for (OpOperand& operand : fresh->getOpOperands())
      if (!isFilter(op, operand.getOperandNumber())) operand.set(get(operand.get()));
    if (isa<ConvGradFilterOp>(op)) {
      op.replaceAllUsesWith(fresh.getResult());
      op.erase();
      return;
    }
    fresh.getResult().setType(cast<RankedTensorType>(lastType(fresh.getResult())));
    replace(op, fresh);
  }
  static bool isFilter(Operation* op, unsigned operand) { return isa<ConvOp, ConvGradInputOp>(op) && operand == 1; }

  void visit(Operation* op) {
    llvm::TypeSwitch<Operation*>(op)
        .Case<ConvOp, ConvGradInputOp, ConvGradFilterOp, MaxPoolOp, MaxPoolIndicesOp, MaxPoolGradOp>(
            [&](auto windowed) { convertWindowed(windowed); })
        .Case([&](BatchNormOp norm) {
          if (!isWorthwhile(norm)) return;
          norm.setChannelsLast(true);
          convert(norm);
        })
        .Case([&](ReduceOp reduce) {
          if (!isWorthwhile(reduce)) return;
          SmallVector<int64_t> axes;
          for (int64_t axis : reduce.getAxes()) axes.push_back(kFirst[axis]);
          llvm::sort(axes);
          reduce.setAxes(axes);
          convert(reduce);
        })
        .Case([&](ConcatOp concat) {
          if (!isImage(concat.getResult()) || !isWorthwhile(concat)) return;
          concat.setAxis(kFirst[concat.getAxis()]);
          convert(concat);
        })
        .Case([&](SliceOp slice) {
          if (isWorthwhile(slice)) convert(slice, {"starts", "sizes", "steps"});
        })
        .Case([&](PadOp pad) {
          if (isWorthwhile(pad)) convert(pad, {"low", "high", "interior"});
        })
        .Default([&](Operation* other) {
          if (other->hasTrait<OpTrait::Elementwise>() && isWorthwhile(other)) convert(other);
        });
  }

  Block& body;
  OpBuilder builder;
  DenseMap<Value, Value> last;  // images with their channels last, by the image with its channels first
};

struct ChannelsLast : sheaf::train::impl::ChannelsLastBase<ChannelsLast> {
  using Base::Base;

  void runOnOperation() override {
    for (auto function : getOperation().getOps<func::FuncOp>()) Converter(function).run();
  }
};

}  // namespace
