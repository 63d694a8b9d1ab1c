#include "codegen/fusion/KernelOperands.h"

#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "runtime/plan/plan.pb.h"

using namespace mlir;

namespace sheaf::codegen {
namespace {

Value rootOf(Value pointer) {
  while (auto element = pointer.getDefiningOp<LLVM::GEPOp>()) pointer = element.getBase();
  return pointer;
}

// What an op does with memory at its operand; an op that is not known may do anything.
int64_t accessBy(OpOperand& use) {
  Operation* op = use.getOwner();
  if (isa<LLVM::LoadOp, LLVM::MaskedLoadOp>(op)) return plan::READ;
  if (auto store = dyn_cast<LLVM::StoreOp>(op); store && use.get() == store.getAddr()) return plan::WRITE;
  if (auto store = dyn_cast<LLVM::MaskedStoreOp>(op); store && use.get() == store.getData()) return plan::WRITE;
  return plan::READ_WRITE;
}

SmallVector<int64_t> accessOf(const RowProgram& program, Operation* code, ArrayRef<Buffer> operands,
                              ArrayRef<Buffer> results) {
  DenseMap<Value, size_t> numbers;
  for (const Buffer& buffer : operands) numbers[buffer.pointer] = numbers.size();
  for (const Buffer& buffer : results) numbers[buffer.pointer] = numbers.size();
  SmallVector<int64_t> access(operands.size() + results.size(), 0), first(access);
  code->walk<WalkOrder::PreOrder>([&](Operation* op) {
    if (isa<LLVM::GEPOp>(op)) return;
    for (OpOperand& use : op->getOpOperands()) {
      auto number = numbers.find(rootOf(use.get()));
      if (number == numbers.end()) continue;
      access[number->second] |= accessBy(use);
      if (!first[number->second]) first[number->second] = accessBy(use);
    }
  });
  for (auto [i, output] : llvm::enumerate(program.outputs))
    if (const size_t result = operands.size() + i;
        output.kind == OutputKind::ColumnPartial && first[result] == plan::WRITE)
      access[result] = plan::WRITE;
  for (int64_t& one : access)
    if (!one) one = plan::READ;
  return access;
}

// Operands that are read only at the index being written, and results of the same type and pitch, by their type.
SmallVector<int64_t> inPlaceOf(const RowProgram& program) {
  train::FusionOp fusion = program.fusion;
  SmallVector<std::pair<Type, int64_t>> types;
  for (auto [output, type, pitch] : llvm::zip(program.outputs, fusion.getResultTypes(), program.resultPitches))
    if (std::pair key(type, pitch); output.kind != OutputKind::ColumnPartial && !llvm::is_contained(types, key))
      types.push_back(key);
  auto numberOf = [&](Type type, int64_t pitch) -> int64_t {
    auto* at = llvm::find(types, std::pair(type, pitch));
    return at == types.end() ? 0 : at - types.begin() + 1;
  };
  SmallVector<int64_t> numbers;
  for (auto [i, type, pitch] : llvm::enumerate(fusion.getOperandTypes(), program.operandPitches))
    numbers.push_back(llvm::is_contained(fusion.getElementwise(), static_cast<int64_t>(i)) ? numberOf(type, pitch) : 0);
  for (auto [output, type, pitch] : llvm::zip(program.outputs, fusion.getResultTypes(), program.resultPitches))
    numbers.push_back(output.kind == OutputKind::ColumnPartial ? 0 : numberOf(type, pitch));
  return numbers;
}

}  // namespace

void KernelOperands::join(const KernelOperands& other) {
  if (access.empty()) {
    *this = other;
    return;
  }
  for (auto [mine, theirs] : llvm::zip(access, other.access)) mine |= theirs;
  for (auto [mine, theirs] : llvm::zip(inPlace, other.inPlace))
    if (mine != theirs) mine = 0;
}

KernelOperands operandsOf(const RowProgram& program, Operation* code, ArrayRef<Buffer> operands,
                          ArrayRef<Buffer> results) {
  return {accessOf(program, code, operands, results), inPlaceOf(program)};
}

}  // namespace sheaf::codegen
