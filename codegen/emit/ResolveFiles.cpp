#include <atomic>
#include <filesystem>

#include "codegen/emit/Emit.h"
#include "llvm/Support/MemoryBuffer.h"
#include "mlir/IR/DialectResourceBlobManager.h"
#include "runtime/base/AtomicFile.h"
#include "runtime/base/Hash.h"
#include "runtime/base/MappedFile.h"
#include "runtime/base/Threads.h"

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

// A piece of initial bytes, and where its hash goes.
struct Piece {
  std::span<const std::byte> bytes;
  int64_t* hash;
};

void hashPieces(ArrayRef<Piece> pieces, unsigned threads) {
  std::atomic<size_t> next{0};
  auto work = [&] {
    for (size_t i; (i = next++) < pieces.size();) *pieces[i].hash = static_cast<int64_t>(xxh64(pieces[i].bytes));
  };
  runOnThreads(std::min<size_t>(threads, pieces.size()), work);
}

// Appends hashes to the sources of parameters, copied tensors and constants that lie in files that exist.
LogicalResult hashSources(plan_ir::ProgramOp program, ArrayRef<fs::path> paths, unsigned threads) {
  std::vector<MappedFile> files(paths.size());
  std::vector<std::pair<Operation*, SmallVector<int64_t>>> sources;
  std::error_code ignored;
  for (Operation& op : program.getBody().front()) {
    auto source = op.getAttrOfType<DenseI64ArrayAttr>("source");
    if (!source || source.size() != 3 || source[0] >= static_cast<int64_t>(paths.size())) continue;
    MappedFile& file = files[source[0]];
    if (file.path().empty() && fs::file_size(paths[source[0]], ignored) > 0 && !ignored) {
      Expected<MappedFile> opened = MappedFile::open(paths[source[0]].string());
      if (!opened.ok()) return op.emitError(opened.status().message());
      file = std::move(*opened);
    }
    if (file.path().empty()) continue;  // the file is not there
    const uint64_t length = source[2];
    if (auto slice = file.slice(source[1], length); !slice.ok()) return op.emitError(slice.status().message());
    sources.emplace_back(&op, llvm::to_vector(source.asArrayRef()));
    sources.back().second.resize(3 + llvm::divideCeil(length, kSourceHashBytes));
  }
  std::vector<Piece> pieces;
  for (auto& [op, numbers] : sources) {
    auto bytes = files[numbers[0]].bytes().subspan(numbers[1], numbers[2]);
    for (size_t i = 3; i < numbers.size(); ++i) {
      const size_t begin = (i - 3) * kSourceHashBytes;
      pieces.push_back({bytes.subspan(begin, std::min<size_t>(bytes.size() - begin, kSourceHashBytes)), &numbers[i]});
    }
  }
  hashPieces(pieces, threads);
  for (auto& [op, numbers] : sources) op->setAttr("source", DenseI64ArrayAttr::get(op->getContext(), numbers));
  return success();
}

}  // namespace

LogicalResult resolveFiles(plan_ir::ProgramOp program, const std::string& modelFolder, const std::string& planPath,
                           unsigned hashThreads, bool& wroteData) {
  wroteData = false;
  std::error_code ignored;
  fs::path planFolder = fs::absolute(planPath, ignored).lexically_normal().parent_path();
  Block& block = program.getBody().front();
  int64_t files = 0;
  SmallVector<fs::path> paths;
  Operation* lastFile = nullptr;
  auto describe = [&](plan_ir::FileOp file, const fs::path& where) {
    uint64_t size = fs::file_size(where, ignored), hash = 0;
    if (ignored) size = 0;
    if (size)
      if (auto head = llvm::MemoryBuffer::getFileSlice(where.string(), std::min<uint64_t>(size, kFileHashBytes), 0))
        hash = fileHash(std::as_bytes(std::span((*head)->getBufferStart(), (*head)->getBufferSize())));
    paths.push_back(where);
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
      if (isa<plan_ir::ConstantOp, plan_ir::ParameterOp, plan_ir::CopiedOp>(op) && failed(append(&op, value)))
        return failure();
  auto hashed = [&] { return hashThreads ? hashSources(program, paths, hashThreads) : success(); };
  if (data.empty()) return hashed();

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
  return hashed();
}

}  // namespace sheaf::codegen
