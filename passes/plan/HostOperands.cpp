// Copies to host memory what launches on the host read of device buffers, and back what they write.
#include <array>
#include <map>
#include <tuple>
#include <vector>

#include "passes/plan/Passes.h"
#include "passes/plan/Transfers.h"

namespace sheaf::plan_ir {
#define GEN_PASS_DEF_HOSTOPERANDS
#include "passes/plan/Passes.h.inc"
}  // namespace sheaf::plan_ir

using namespace mlir;
using namespace sheaf;
using namespace sheaf::plan_ir;

namespace {

// The work on one list of instructions.
class OperandCopier {
 public:
  OperandCopier(ProgramOp program, Block& block) : program_(program), block_(block), builder_(program.getContext()) {}

  void run() {
    SmallVector<Operation*> instructions;
    for (Operation& op : block_) instructions.push_back(&op);
    for (Operation* op : instructions) {
      if (executorOf(op) == plan::Buffer::HOST)
        copyOperands(op);
      else
        for (const Operand& operand : operandsOf(op))
          if (operand.access != kRead) writer_[operand.buffer] = op;
    }
  }

 private:
  void copyOperands(Operation* launch) {
    llvm::SetVector<Value> onDevice;
    for (const Operand& operand : operandsOf(launch))
      if (spaceOf(operand.buffer) == plan::Buffer::DEVICE) onDevice.insert(operand.buffer);
    for (Value buffer : onDevice) {
      SmallVector<Operand> inputs, outputs;
      for (const Operand& operand : operandsOf(launch)) {
        if (operand.buffer != buffer) continue;
        if (operand.access != kWrite) inputs.push_back(operand);
        if (operand.access != kRead) outputs.push_back(operand);
      }
      inputs = joined(std::move(inputs));
      const Value image = outputs.empty() ? sharedImage(launch, buffer, inputs) : newImage(launch, buffer, inputs);
      launch->replaceUsesOfWith(buffer, image);
      builder_.setInsertionPointAfter(launch);
      for (const Operand& operand : outputs)
        writer_[buffer] = createTransfer(builder_, program_, plan::Transfer::TO_DEVICE, image, buffer, &operand);
    }
  }

  // Ranges that meet are one.
  static SmallVector<Operand> joined(SmallVector<Operand> ranges) {
    llvm::stable_sort(ranges, [](const Operand& a, const Operand& b) { return a.offset < b.offset; });
    SmallVector<Operand> result;
    for (const Operand& range : ranges) {
      Operand* last = result.empty() ? nullptr : &result.back();
      if (last && last->stride == range.stride && last->axis == range.axis &&
          range.offset <= last->offset + last->bytes && (range.stride == 0 || range.offset == last->offset))
        last->bytes = std::max(last->bytes, range.offset + range.bytes - last->offset);
      else
        result.push_back(range);
    }
    return result;
  }

  // Launches that read the same bytes, such as the step scalars, share one image: they are copied once.
  Value sharedImage(Operation* launch, Value buffer, ArrayRef<Operand> inputs) {
    Key key{buffer.getAsOpaquePointer(), writer_.lookup(buffer), {}};
    for (const Operand& of : inputs) std::get<2>(key).push_back({of.offset, of.bytes, of.stride, of.axis});
    auto [known, fresh] = images_.try_emplace(key);
    if (fresh) known->second = newImage(launch, buffer, inputs);
    return known->second;
  }

  // Its inputs are copied as soon as they have been written: then the device's bytes are free.
  Value newImage(Operation* launch, Value buffer, ArrayRef<Operand> inputs) {
    auto of = buffer.getDefiningOp<BufferOp>();
    const int64_t number = count_[buffer]++;
    BufferOp image =
        createLike(builder_, of, of.getName() + ".host" + (number ? "." + Twine(number) : Twine()), plan::Buffer::HOST);
    if (Operation* writer = writer_.lookup(buffer))
      builder_.setInsertionPointAfter(writer);
    else
      builder_.setInsertionPoint(launch);
    for (const Operand& operand : inputs)
      createTransfer(builder_, program_, plan::Transfer::TO_HOST, buffer, image.getResult(), &operand);
    return image.getResult();
  }

  using Key = std::tuple<const void*, Operation*, std::vector<std::array<int64_t, 4>>>;

  ProgramOp program_;
  Block& block_;
  OpBuilder builder_;
  llvm::DenseMap<Value, Operation*> writer_;  // of the device's bytes, so far
  llvm::DenseMap<Value, int64_t> count_;
  std::map<Key, Value> images_;
};

struct HostOperands : plan_ir::impl::HostOperandsBase<HostOperands> {
  using Base::Base;

  void runOnOperation() override {
    for (auto program : getOperation().getOps<ProgramOp>())
      for (Operation& op : program.getBody().front())
        if (isa<PartOp, StepOp, EvaluationOp>(op)) OperandCopier(program, op.getRegion(0).front()).run();
  }
};

}  // namespace
