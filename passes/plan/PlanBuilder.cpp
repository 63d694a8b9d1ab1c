#include "passes/plan/PlanBuilder.h"

#include <algorithm>

#include "ir/Train/FusionCost.h"
#include "ir/Train/RowPitches.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/IRMapping.h"
#include "passes/plan/Edits.h"
#include "passes/plan/KernelProgram.h"
#include "runtime/base/Hash.h"

using namespace mlir;

namespace sheaf::plan_ir {

std::string labelOf(mlir::Location loc) {
  if (auto name = dyn_cast<NameLoc>(loc)) return name.getName().str();
  if (auto fused = dyn_cast<FusedLoc>(loc))
    for (mlir::Location inner : fused.getLocations())
      if (std::string label = labelOf(inner); !label.empty()) return label;
  return "";
}

int64_t PlanBuilder::buffer(StringRef name, plan::BufferKind kind, int64_t bytes, bool persistent) {
  const int64_t repeat = names_[name]++, number = plan().buffers_size();
  plan::Buffer& made = *plan().add_buffers();
  made.set_name(repeat ? (name + "." + Twine(repeat)).str() : name.str());
  made.set_kind(kind);
  made.set_bytes(bytes);
  made.set_persistent(persistent);
  return number;
}

void PlanBuilder::atBegin(plan::InstructionList& list, llvm::function_ref<void()> make) {
  plan::InstructionList made;
  plan::InstructionList* before = std::exchange(list_, &made);
  make();
  list_ = before;
  OpenList open(list);
  const OpenList::Place begin = open.begin();
  for (plan::Instruction& instruction : made) open.insert(begin, std::move(instruction));
}

plan::Instruction& PlanBuilder::add(int64_t stream, StringRef label, ArrayRef<Operand> operands) {
  plan::Instruction& instruction = *list_->Add();
  instruction.set_stream(static_cast<uint32_t>(stream));
  instruction.set_label(label.str());
  for (const Operand& from : operands) {
    plan::Operand& to = *instruction.add_operands();
    to.set_buffer(static_cast<uint32_t>(from.buffer));
    to.set_offset(from.offset);
    to.set_bytes(from.bytes);
    to.set_shard_stride(from.stride);
    to.set_access(static_cast<plan::Access>(from.access));
    to.set_axis(from.axis);
  }
  return instruction;
}

void PlanBuilder::call(StringRef label, const plan::AnyCall& call, ArrayRef<Operand> operands) {
  SmallVector<Operand> all(operands);
  // On whichever device it runs.
  const int64_t scratch = options_.cpu ? plan::scratchPerThread(call) : 0;
  const int64_t deviceScratch = options_.gpu ? plan::deviceScratch(call) : 0;
  if (int64_t bytes = std::max(scratch * options_.maxThreads, deviceScratch))
    all.push_back({buffer("scratch", plan::WORKSPACE, bytes), 0, bytes, 0, kReadWrite});
  plan::LibraryCall& made = *add(kComputeStream, label, all).mutable_call();
  made = plan::toWire(call);
  std::sort(made.mutable_attributes()->begin(), made.mutable_attributes()->end(),
            [](const plan::Attribute& a, const plan::Attribute& b) { return a.name() < b.name(); });
  made.set_scratch_per_thread(scratch);
  made.set_device_scratch(deviceScratch);
}

void PlanBuilder::copy(StringRef label, const Operand& source, const Operand& destination, const StridedCopy& view) {
  plan::CopyCall strided{.elementBytes = view.width, .sourceOffset = view.sourceOffset};
  for (size_t d = 0; d < view.sizes.size(); ++d)
    strided.dimensions.push_back({view.sizes[d], view.sourceStrides[d], view.destinationStrides[d]});
  call(label, strided, {source, destination});
}

int64_t PlanBuilder::kernel(train::FusionOp fusion, ArrayRef<Operand> operands) {
  // Fusions with the same text are one kernel.
  std::string text;
  llvm::raw_string_ostream stream(text);
  fusion->print(stream, OpPrintingFlags().useLocalScope());
  // The operand list differs from launch to launch; what follows it is the kernel.
  text = text.substr(text.find(") rows "));
  auto [entry, fresh] = kernels_.try_emplace(text, kernels_.size());
  if (!fresh) return entry->second;
  plan::Kernel& made = *plan().add_kernels();
  made.set_symbol(("kernel" + Twine(entry->second)).str());
  made.set_rows(fusion.getRows());
  made.set_block(fusion.getBlock());
  for (const Operand& operand : operands) made.add_operand_bytes(operand.bytes);
  made.set_operations(train::fusionOperations(fusion));
  made.set_padding(train::paddingBytes(fusion));
  made.set_program(xxh64(text));
  for (const std::string& line : programOf(fusion)) made.add_ops(line);

  OpBuilder builder = OpBuilder::atBlockEnd(module_.getBody());
  auto holder = func::FuncOp::create(builder, fusion.getLoc(), made.symbol(),
                                     builder.getFunctionType(fusion->getOperandTypes(), {}));
  holder.setPrivate();
  builder.setInsertionPointToEnd(holder.addEntryBlock());
  IRMapping mapping;
  mapping.map(fusion->getOperands(), holder.getArguments());
  draft.fusions.push_back(builder.clone(*fusion, mapping));
  func::ReturnOp::create(builder, fusion.getLoc());
  return entry->second;
}

void PlanBuilder::launch(train::FusionOp fusion, StringRef label, ArrayRef<Operand> operands, int64_t updates) {
  const int64_t number = kernel(fusion, operands);
  plan::Instruction& instruction = add(kComputeStream, label, operands);
  instruction.set_updates_bucket(static_cast<uint32_t>(updates));
  plan::KernelLaunch& made = *instruction.mutable_kernel();
  made.set_kernel(static_cast<uint32_t>(number));
  made.set_rows(fusion.getRows());
  made.set_block(fusion.getBlock());
}

void PlanBuilder::write(StringRef label, plan::OutputKind kind, const Operand& value, int64_t tensor, int64_t stream) {
  plan::WriteOutput& made = *add(stream, label, {value}).mutable_output();
  made.set_output(kind);
  made.set_tensor(static_cast<uint32_t>(tensor));
}

}  // namespace sheaf::plan_ir
