// Appends buffers, kernels and instructions to the draft that the lowering makes.
#pragma once

#include "ir/Plan/Draft.h"
#include "ir/Train/ElementTypes.h"
#include "ir/Train/TrainDialect.h"
#include "passes/plan/Finish.h"
#include "runtime/plan/Library.h"
#include "runtime/plan/Types.h"

namespace sheaf::plan_ir {

inline constexpr int64_t kComputeStream = 0, kCommunicationStream = 1;
// With nodes: of hops between them, so that one array's hop within nodes runs while another one's is under way there.
inline constexpr int64_t kNetworkStream = 2;

// Access to an operand; the numbers are those of plan.proto.
inline constexpr int64_t kRead = 1, kWrite = 2, kReadWrite = 3;

// A number that no buffer has.
inline constexpr int64_t kNoBuffer = -1;

// One operand of an instruction: bytes of a buffer of the draft. `axis`: whose index `stride` is multiplied by.
struct Operand {
  int64_t buffer = kNoBuffer;
  int64_t offset = 0, bytes = 0, stride = 0, access = kRead;
  plan::Axis axis = plan::WORLD;
};

// A copy of a strided view: sizes and strides in elements of `width` bytes. The destination begins with its operand,
// the source `sourceOffset` elements after its operand's beginning.
struct StridedCopy {
  int64_t width = 0;
  llvm::ArrayRef<int64_t> sizes, sourceStrides, destinationStrides;
  int64_t sourceOffset = 0;
};

class PlanBuilder {
 public:
  // Fusions of kernels are kept in the module, each in a function of its own.
  PlanBuilder(mlir::ModuleOp module, const LowerOptions& options) : options_(options), module_(module) {}

  plan::Plan& plan() { return draft.plan; }

  // Declares a buffer, and returns its number; names are made unique.
  int64_t buffer(llvm::StringRef name, plan::BufferKind kind, int64_t bytes, bool persistent = false);
  plan::Buffer& at(int64_t buffer) { return *plan().mutable_buffers(static_cast<int>(buffer)); }

  // Instructions go to the end of this list from now on.
  void appendTo(plan::InstructionList& list) { list_ = &list; }
  bool appendsTo(const plan::InstructionList& list) const { return list_ == &list; }
  // Puts the instructions that `make` appends before those of the list.
  void atBegin(plan::InstructionList& list, llvm::function_ref<void()> make);

  // Appends an instruction; the caller sets what it does.
  plan::Instruction& add(int64_t stream, llvm::StringRef label, llvm::ArrayRef<Operand> operands);
  // The operands are in the order of the call's table; scratch is added.
  void call(llvm::StringRef label, const plan::AnyCall& call, llvm::ArrayRef<Operand> operands);
  void copy(llvm::StringRef label, const Operand& source, const Operand& destination, const StridedCopy& view);
  // `updates`: one more than the index of the bucket that it updates; 0: it updates none.
  void launch(train::FusionOp fusion, llvm::StringRef label, llvm::ArrayRef<Operand> operands, int64_t updates = 0);
  void write(llvm::StringRef label, plan::OutputKind kind, const Operand& value, int64_t tensor = 0,
             int64_t stream = kComputeStream);

  Draft draft;

 private:
  int64_t kernel(train::FusionOp fusion, llvm::ArrayRef<Operand> operands);

  const LowerOptions options_;
  mlir::ModuleOp module_;
  plan::InstructionList* list_ = nullptr;
  llvm::StringMap<int64_t> names_, kernels_;  // name -> times it was given; text of a fusion -> kernel
};

// Bytes of an element in memory.
inline int64_t widthOf(mlir::Type element) {
  return int64_t(train::elementFacts(element).bytes());
}
inline int64_t bytesOf(mlir::Value value) {
  auto type = llvm::cast<mlir::RankedTensorType>(value.getType());
  return type.getNumElements() * widthOf(type.getElementType());
}
// An element type in plan.proto, and that of a tensor's elements.
inline plan::ElementType elementTypeOf(mlir::Type element) {
  return train::planType(element);
}
inline plan::ElementType elementTypeOf(mlir::Value value) {
  return elementTypeOf(llvm::cast<mlir::RankedTensorType>(value.getType()).getElementType());
}

// A short name for people: the graph node or parameter an op comes from.
std::string labelOf(mlir::Location loc);
inline std::string labelOf(mlir::Operation* op) {
  return labelOf(op->getLoc());
}

}  // namespace sheaf::plan_ir
