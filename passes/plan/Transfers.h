// How passes move bytes between spaces.
#pragma once

#include "ir/Plan/PlanDialect.h"

namespace sheaf::plan_ir {

// The index of the program's stream of that name, which is appended if there is none.
int64_t streamNamed(ProgramOp program, llvm::StringRef name);

// The stream of launches on the host.
inline constexpr llvm::StringLiteral kHostComputeStream = "host_compute";

// The kind of the transfer from a home in that space to an image of it (fetch), or back.
plan::Transfer::Kind transferKind(plan::Buffer::Space home, bool fetch);

// Moves all bytes of a buffer to its image, or those of `range`, at the builder's place.
TransferOp createTransfer(mlir::OpBuilder& builder, ProgramOp program, plan::Transfer::Kind kind, mlir::Value source,
                          mlir::Value destination, const Operand* range = nullptr);

// A buffer of the same kind and size, in a space, without a place there yet: an image, or a home.
BufferOp createLike(mlir::OpBuilder& builder, BufferOp of, const llvm::Twine& name, plan::Buffer::Space space);

// Where an instruction's operands lie: HOST for launches on the host, else DEVICE. Of transfers: see their kind.
plan::Buffer::Space executorOf(mlir::Operation* instruction);

}  // namespace sheaf::plan_ir
