#include <filesystem>

#include "codegen/emit/Emit.h"
#include "llvm/Support/MemoryBuffer.h"
#include "mlir/IR/DialectResourceBlobManager.h"
#include "runtime/base/AtomicFile.h"
#include "runtime/base/Hash.h"

using namespace mlir;
namespace fs = std::filesystem;

namespace sheaf::codegen {

namespace {

// The dense row-major bytes of an attribute's elements; predicates take a byte each.
LogicalResult appendBytes(Operation* op, ElementsAttr value, std::string& out) {
  auto dense = dyn_cast<DenseElementsAttr>(value);
  if (!dense) {
    if (auto resource = dyn_cast<DenseResourceElementsAttr>(value)) {
      ArrayRef<char> raw = resource.getRawHandle().getBlob()->getData();
      out.append(raw.begin(), raw.end());
      return success();
    }
    return op->emitError("constant has no bytes of its own");
  }
  int64_t count = dense.getNumElements();
  if (dense.getElementType().isInteger(1)) {
    for (bool bit : dense.getValues<bool>()) out.push_back(bit);
    return success();
  }
  ArrayRef<char> raw = dense.getRawData();
  for (int64_t i = 0; i < (dense.isSplat() ? count : 1); ++i) out.append(raw.begin(), raw.end());
  return success();
}

}  // namespace

LogicalResult resolveFiles(plan_ir::ProgramOp program, const std::string& modelFolder, const std::string& planPath,
                           bool& wroteData) {
  wroteData = false;
  std::error_code ignored;
  fs::path planFolder = fs::absolute(planPath, ignored).lexically_normal().parent_path();
  Block& block = program.getBody().front();
  int64_t files = 0;
  Operation* lastFile = nullptr;
  auto describe = [&](plan_ir::FileOp file, const fs::path& where) {
    uint64_t size = fs::file_size(where, ignored), hash = 0;
    if (ignored) size = 0;
    if (size)
      if (auto head = llvm::MemoryBuffer::getFileSlice(where.string(), std::min<uint64_t>(size, kFileHashBytes), 0))
        hash = fileHash(std::as_bytes(std::span((*head)->getBufferStart(), (*head)->getBufferSize())));
    fs::path relative = where.lexically_proximate(planFolder);
    file.setPath(relative.generic_string());
    file.setSize(size);
    file.setHash(int64_t(hash));
  };
  for (auto file : block.getOps<plan_ir::FileOp>()) {
    describe(file, fs::absolute(fs::path(modelFolder) / file.getPath().str(), ignored).lexically_normal());
    lastFile = file;
    ++files;
  }

  std::string data;
  auto append = [&](Operation* op, ElementsAttr value) -> LogicalResult {
    data.resize((data.size() + 127) / 128 * 128);
    int64_t offset = data.size();
    if (failed(appendBytes(op, value, data))) return failure();
    op->setAttr("source", DenseI64ArrayAttr::get(op->getContext(), {files, offset, int64_t(data.size()) - offset}));
    op->removeAttr("value");
    return success();
  };
  for (Operation& op : block)
    if (auto value = op.getAttrOfType<ElementsAttr>("value"))
      if (isa<plan_ir::ConstantOp, plan_ir::ParameterOp>(op) && failed(append(&op, value))) return failure();
  if (data.empty()) return success();

  std::string path = planPath + ".data";
  auto write = [&]() -> Status {
    Expected<AtomicFile> file = AtomicFile::create(path);
    if (!file.ok()) return file.status();
    SHEAF_RETURN_IF_ERROR(file->write(std::as_bytes(std::span(data))));
    return file->commit();
  };
  if (Status written = write(); !written.ok()) return program.emitError(written.message());
  wroteData = true;
  OpBuilder builder(program.getContext());
  lastFile ? builder.setInsertionPointAfter(lastFile) : builder.setInsertionPointToStart(&block);
  describe(plan_ir::FileOp::create(builder, program.getLoc(), "", int64_t(0), int64_t(0)), fs::absolute(path, ignored));
  return success();
}

}  // namespace sheaf::codegen
