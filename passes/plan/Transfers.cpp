#include "passes/plan/Transfers.h"

#include <array>

#include "runtime/plan/Words.h"

using namespace mlir;

namespace sheaf::plan_ir {
namespace {

StringRef streamNameOf(plan::Transfer::Kind kind) {
  switch (kind) {
    case plan::Transfer::TO_DEVICE:
      return "to_device";
    case plan::Transfer::TO_HOST:
      return "to_host";
    case plan::Transfer::READ_FILE:
      return "file_in";
    default:
      return "file_out";
  }
}

}  // namespace

int64_t streamNamed(ProgramOp program, StringRef name) {
  SmallVector<Attribute> streams;
  if (auto known = program->getAttrOfType<ArrayAttr>("streams")) streams.append(known.begin(), known.end());
  Builder builder(program.getContext());
  const auto* found = llvm::find(streams, Attribute(builder.getStringAttr(name)));
  const int64_t index = found - streams.begin();
  if (found == streams.end()) {
    streams.push_back(builder.getStringAttr(name));
    program->setAttr("streams", builder.getArrayAttr(streams));
  }
  return index;
}

plan::Transfer::Kind transferKind(plan::Buffer::Space home, bool fetch) {
  if (home == plan::Buffer::HOST) return fetch ? plan::Transfer::TO_DEVICE : plan::Transfer::TO_HOST;
  return fetch ? plan::Transfer::READ_FILE : plan::Transfer::WRITE_FILE;
}

TransferOp createTransfer(OpBuilder& builder, ProgramOp program, plan::Transfer::Kind kind, Value source,
                          Value destination, const Operand* range) {
  auto from = source.getDefiningOp<BufferOp>(), to = destination.getDefiningOp<BufferOp>();
  const Operand all{source, 0, int64_t(from.getBytes())};
  if (!range) range = &all;
  const std::array<int64_t, 2> offsets{range->offset, range->offset}, bytes{range->bytes, range->bytes},
      strides{range->stride, range->stride}, axes{range->axis, range->axis}, access{kRead, kWrite};
  const BufferOp away = spaceOf(from) > spaceOf(to) ? from : to;
  return TransferOp::create(builder, from.getLoc(), streamNamed(program, streamNameOf(kind)), BufferOp(away).getName(),
                            ValueRange{source, destination}, offsets, bytes, strides, axes, access, kind);
}

BufferOp createLike(OpBuilder& builder, BufferOp of, const Twine& name, plan::Buffer::Space space) {
  builder.setInsertionPointAfter(of);
  const SpaceAttr where = space == plan::Buffer::DEVICE ? SpaceAttr() : SpaceAttr::get(builder.getContext(), space);
  return BufferOp::create(builder, of.getLoc(), of.getType(), name.str(), of.getKind(), int64_t(0), of.getBytes(),
                          false, where);
}

plan::Buffer::Space executorOf(Operation* instruction) {
  auto launch = dyn_cast<LaunchOp>(instruction);
  return launch && launch.getOnHost() ? plan::Buffer::HOST : plan::Buffer::DEVICE;
}

}  // namespace sheaf::plan_ir
