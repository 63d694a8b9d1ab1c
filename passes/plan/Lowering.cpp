// Places, operands and instructions, for all of the lowering.
#include "passes/plan/Lowering.h"

#include "ir/Plan/PlanProto.h"
#include "ir/Train/FusionCost.h"
#include "ir/Train/RowPitches.h"
#include "mlir/IR/IRMapping.h"
#include "passes/plan/KernelProgram.h"
#include "runtime/base/Hash.h"
#include "runtime/base/Text.h"

using namespace mlir;

namespace sheaf::plan_ir {

plan::ElementType elementTypeOf(Value value) {
  return elementTypeOf(cast<RankedTensorType>(value.getType()).getElementType());
}

std::string labelOf(mlir::Location loc) {
  if (auto name = dyn_cast<NameLoc>(loc)) return name.getName().str();
  if (auto fused = dyn_cast<FusedLoc>(loc))
    for (mlir::Location inner : fused.getLocations())
      if (std::string label = labelOf(inner); !label.empty()) return label;
  return "";
}

Value Lowering::buffer(StringRef name, plan::BufferKind kind, int64_t bytes, bool persistent) {
  int64_t repeat = names[name]++;
  std::string unique = repeat ? (name + "." + Twine(repeat)).str() : name.str();
  return BufferOp::create(head, module.getLoc(), BufferType::get(head.getContext()), unique, kind, int64_t(0), bytes,
                          persistent, SpaceAttr());
}

Location Lowering::placeResult(Value value, int64_t rowElements) {
  // Follow reshapes to the op that fixes the place.
  Value leaf = value;
  while (leaf.hasOneUse() && isa<train::ReshapeOp>(*leaf.user_begin())) leaf = leaf.user_begin()->getResult(0);
  Operation* reduction = nullptr;
  for (OpOperand& use : leaf.getUses())
    if (isa<zero::AllReduceOp, zero::ReduceScatterOp, zero::GradientOp>(use.getOwner())) {
      reduction = use.getOwner();
      BucketStorage& storage = buckets[reduction->getAttrOfType<FlatSymbolRefAttr>("bucket").getValue()];
      // The reduction overwrites the slot at stages 0 and 1, so the value must not be read after it.
      if (lastUse.lookup(value) > position[reduction]) break;
      return {storage.gradient, storage.op.getOffsets()[use.getOperandNumber()] * widthOf(storage.gradientType)};
    }
  ArrayRef<int64_t> leafShape = cast<RankedTensorType>(leaf.getType()).getShape();
  if (rowElements && !leafShape.empty() && leafShape.back() == rowElements && leaf.hasOneUse()) {
    auto concat = dyn_cast<train::ConcatOp>(*leaf.user_begin());
    auto type = concat ? cast<RankedTensorType>(concat.getResult().getType()) : RankedTensorType();
    if (concat && concat.getAxis() == uint64_t(type.getRank() - 1)) {
      if (!locations.contains(concat.getResult())) locations[concat.getResult()] = placeResult(concat.getResult());
      Location at = locations[concat.getResult()];
      if (!at.rowStride) {
        int64_t width = widthOf(type.getElementType());
        for (Value piece : concat.getOperands().take_front(leaf.use_begin()->getOperandNumber()))
          at.offset += cast<RankedTensorType>(piece.getType()).getShape().back() * width;
        at.rowStride = type.getShape().back() * width;
        at.rowBytes = rowElements * width;
        return at;
      }
    }
  }
  // A piece of a concatenation along the first dimension lies in one piece there.
  if (auto concat = leaf.hasOneUse() ? dyn_cast<train::ConcatOp>(*leaf.user_begin()) : train::ConcatOp();
      concat && concat.getAxis() == 0 && !train::pitchOf(value)) {
    int64_t before = 0;
    for (Value piece : concat.getOperands().take_front(leaf.use_begin()->getOperandNumber())) before += bytesOf(piece);
    if (!locations.contains(concat.getResult())) locations[concat.getResult()] = placeResult(concat.getResult());
    Location at = locations[concat.getResult()];
    if (!at.rowStride && before % plan::kAlignment == 0) {
      at.offset += before;
      return at;
    }
  }
  Location at;
  int64_t bytes = bytesOf(value);
  if (int64_t pitch = train::pitchOf(value)) {
    auto type = cast<RankedTensorType>(value.getType());
    int64_t columns = type.getShape().back(), width = widthOf(type.getElementType());
    at.rowStride = pitch * width, at.rowBytes = columns * width, at.padded = true;
    bytes = bytes / at.rowBytes * at.rowStride;
  }
  std::string label = labelOf(value.getLoc());
  at.buffer = buffer(label.empty() ? "value" : label, plan::ACTIVATIONS, bytes);
  ownedBuffers[at.buffer] = true;
  lastUse[at.buffer] = lastUse.lookup(value);
  return at;
}

Operand Lowering::operand(Value value, int64_t access) const {
  Location at = locate(value);
  int64_t bytes = bytesOf(value);
  if (at.rowStride) bytes = (bytes / at.rowBytes - 1) * at.rowStride + (at.padded ? at.rowStride : at.rowBytes);
  return {at.buffer, at.offset, bytes, at.shardStride, access, at.axis};
}

void Lowering::call(mlir::Location loc, const plan::AnyCall& call, ArrayRef<Operand> operands) {
  const plan::LibraryCall wire = plan::toWire(call);
  SmallVector<Operand> all(operands);
  // On whichever device it runs.
  int64_t scratch = cpu ? plan::scratchPerThread(call) : 0;
  int64_t deviceScratch = gpu ? plan::deviceScratch(call) : 0;
  if (int64_t bytes = std::max(scratch * maxThreads, deviceScratch))
    all.push_back({buffer("scratch", plan::WORKSPACE, bytes), 0, bytes, 0, kReadWrite});
  instruction<CallOp>(loc, kComputeStream, labelOf(loc), all, wire.function(), attributesOf(head, wire), scratch,
                      deviceScratch);
}

void Lowering::launch(train::FusionOp fusion, ArrayRef<Operand> operands, StringRef label, int64_t updates) {
  // Fusions with the same text are one kernel.
  std::string text;
  llvm::raw_string_ostream stream(text);
  fusion->print(stream, OpPrintingFlags().useLocalScope());
  // The operand list differs from launch to launch; what follows it is the kernel.
  text = text.substr(text.find(") rows "));
  auto [entry, fresh] = kernels.try_emplace(text, kernels.size());
  if (fresh) {
    SmallVector<int64_t> bytes;
    for (const Operand& operand : operands) bytes.push_back(operand.bytes);
    auto kernel = KernelOp::create(head, fusion.getLoc(), ("kernel" + Twine(entry->second)).str(),
                                   int64_t(fusion.getRows()), int64_t(fusion.getBlock()), bytes, ArrayRef<int64_t>(),
                                   ArrayRef<int64_t>(), train::fusionOperations(fusion), train::paddingBytes(fusion),
                                   head.getStringAttr(hexText(xxh64(text))), /*ops=*/ArrayAttr());
    const SmallVector<std::string> ops = programOf(fusion);
    if (!ops.empty()) kernel.setOpsAttr(head.getStrArrayAttr(SmallVector<StringRef>(ops.begin(), ops.end())));
    Block* block = head.createBlock(&kernel.getFusion());
    SmallVector<mlir::Location> locations(fusion->getNumOperands(), fusion.getLoc());
    block->addArguments(fusion->getOperandTypes(), locations);
    IRMapping mapping;
    mapping.map(fusion->getOperands(), block->getArguments());
    head.setInsertionPointToEnd(block);
    head.clone(*fusion, mapping);
    head.setInsertionPointAfter(kernel);
  }
  instruction<LaunchOp>(fusion.getLoc(), kComputeStream, label, operands, entry->second, int64_t(fusion.getRows()),
                        int64_t(fusion.getBlock()), updates);
}

}  // namespace sheaf::plan_ir
