// Moves buffers of a program to other spaces, and updates to the host. What was moved is its *home*; instructions then
// work on *images* of it where they are executed, and transfers fetch and store the images.
#pragma once

#include "passes/plan/BufferUses.h"

namespace sheaf::plan_ir {

// An update that can be made on the host, and the state that it alone uses.
struct HostUpdate {
  LaunchOp launch;
  const plan::Instruction* instruction = nullptr;
  llvm::SmallVector<BufferOp> states;
};

class Mover {
 public:
  // `uses` are those of the program before anything is moved; each buffer is moved once.
  Mover(ProgramOp program, const BufferUses& uses) : program_(program), uses_(uses), builder_(program.getContext()) {}

  // What persists lies in the space from now on, also between uses that it is `away` between. What lives within a step
  // lies there where it is away, if all of it has been written.
  void move(BufferOp buffer, plan::Buffer::Space space, Away away);

  llvm::SmallVector<HostUpdate> hostUpdates() const;
  // Before its operands are moved.
  void runOnHost(LaunchOp update);

 private:
  void moveState(BufferOp home, plan::Buffer::Space space, Away away);
  void moveValue(BufferOp value, plan::Buffer::Space space, Away away);
  mlir::Value imageOf(BufferOp home, plan::Buffer::Space executor);
  void fetch(const Section& section, const Session& session, mlir::Value home, mlir::Value image,
             plan::Buffer::Space space);
  void store(const Section& section, const Session& session, mlir::Value image, mlir::Value home,
             plan::Buffer::Space space);

  ProgramOp program_;
  const BufferUses& uses_;
  mlir::OpBuilder builder_;
  llvm::DenseMap<mlir::Value, int64_t> images_;  // of each home, so far
};

}  // namespace sheaf::plan_ir
