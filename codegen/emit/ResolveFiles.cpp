#include <atomic>
#include <filesystem>

#include "codegen/emit/Emit.h"
#include "llvm/Support/MemoryBuffer.h"
#include "mlir/IR/DialectResourceBlobManager.h"
#include "runtime/base/AtomicFile.h"
#include "runtime/base/Hash.h"
#include "runtime/base/MappedFile.h"
#include "runtime/base/Text.h"
#include "runtime/base/Threads.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/Verify.h"

using namespace mlir;
namespace fs = std::filesystem;

namespace sheaf::codegen {

namespace {

// The dense row-major bytes of an attribute's elements; predicates take a byte each.
Status appendBytes(ElementsAttr value, std::string& out) {
  auto dense = dyn_cast<DenseElementsAttr>(value);
  if (!dense) {
    auto resource = dyn_cast<DenseResourceElementsAttr>(value);
    if (!resource) return Status::error("a constant has no bytes of its own");
    ArrayRef<char> raw = resource.getRawHandle().getBlob()->getData();
    out.append(raw.begin(), raw.end());
    return {};
  }
  int64_t count = dense.getNumElements();
  if (dense.getElementType().isInteger(1)) {
    for (bool bit : dense.getValues<bool>()) out.push_back(bit);
    return {};
  }
  ArrayRef<char> raw = dense.getRawData();
  for (int64_t i = 0; i < (dense.isSplat() ? count : 1); ++i) out.append(raw.begin(), raw.end());
  return {};
}

// A piece of initial bytes, and where its hash goes.
struct Piece {
  std::span<const std::byte> bytes;
  uint64_t* hash;
};

void hashPieces(ArrayRef<Piece> pieces, unsigned threads) {
  std::atomic<size_t> next{0};
  auto work = [&] {
    for (size_t i; (i = next++) < pieces.size();) *pieces[i].hash = xxh64(pieces[i].bytes);
  };
  runOnThreads(std::min<size_t>(threads, pieces.size()), work);
}

// Appends hashes to sources that lie in files that exist.
Status hashSources(const std::vector<plan::Source*>& sources, const std::vector<fs::path>& paths, unsigned threads) {
  std::vector<MappedFile> files(paths.size());
  std::vector<Piece> pieces;
  std::error_code ignored;
  for (plan::Source* source : sources) {
    if (source->file() >= paths.size()) continue;  // its values have no bytes
    MappedFile& file = files[source->file()];
    const fs::path& path = paths[source->file()];
    if (file.path().empty() && fs::file_size(path, ignored) > 0 && !ignored) {
      Expected<MappedFile> opened = MappedFile::open(path.string());
      if (!opened.ok()) return opened.status();
      file = std::move(*opened);
    }
    if (file.path().empty()) continue;  // the file is not there
    auto bytes = file.slice(source->offset(), source->length());
    if (!bytes.ok()) return bytes.status();
    source->mutable_hashes()->Resize(static_cast<int>(llvm::divideCeil(source->length(), kSourceHashBytes)), 0);
    for (int i = 0; i < source->hashes_size(); ++i) {
      const size_t begin = static_cast<size_t>(i) * kSourceHashBytes;
      pieces.push_back({bytes->subspan(begin, std::min<size_t>(bytes->size() - begin, kSourceHashBytes)),
                        source->mutable_hashes()->Mutable(i)});
    }
  }
  hashPieces(pieces, threads);
  return {};
}

// The sources of parameters, copied tensors and constants that have one.
std::vector<plan::Source*> sourcesOf(plan::Plan& plan) {
  std::vector<plan::Source*> sources;
  for (plan::Parameter& parameter : *plan.mutable_parameters())
    if (parameter.has_source()) sources.push_back(parameter.mutable_source());
  for (plan::Parameter& copied : *plan.mutable_copied())
    if (copied.has_source()) sources.push_back(copied.mutable_source());
  for (plan::Constant& constant : *plan.mutable_constants())
    if (constant.has_source()) sources.push_back(constant.mutable_source());
  return sources;
}

// The values of a draft that lie in no file yet.
class DataFile {
 public:
  explicit DataFile(uint32_t file) : file_(file) {}

  // Appends the values of a table's entries, which are in the file then.
  template <typename Table>
  Status append(Table& table, std::vector<ElementsAttr>& values) {
    for (int i = 0; i < table.size(); ++i) {
      ElementsAttr value = values[static_cast<size_t>(i)];
      if (!value) continue;
      bytes_.resize(llvm::alignTo(bytes_.size(), plan::kAlignment));
      plan::Source& source = *table[i].mutable_source();
      source.set_file(file_);
      source.set_offset(bytes_.size());
      SHEAF_RETURN_IF_ERROR(appendBytes(value, bytes_));
      source.set_length(bytes_.size() - source.offset());
    }
    values.assign(values.size(), nullptr);
    return {};
  }

  bool empty() const { return bytes_.empty(); }
  Status write(const std::string& path) const {
    Expected<AtomicFile> file = AtomicFile::create(path);
    if (!file.ok()) return file.status();
    SHEAF_RETURN_IF_ERROR(file->write(std::as_bytes(std::span(bytes_))));
    return file->commit();
  }

 private:
  uint32_t file_;
  std::string bytes_;
};

}  // namespace

Status resolveFiles(plan_ir::Draft& draft, const std::string& modelFolder, const std::string& planPath,
                    unsigned hashThreads, bool& wroteData) {
  wroteData = false;
  plan::Plan& plan = draft.plan;
  std::error_code ignored;
  fs::path planFolder = fs::absolute(planPath, ignored).lexically_normal().parent_path();
  std::vector<fs::path> paths;
  auto describe = [&](plan::File& file, const fs::path& where) {
    uint64_t size = fs::file_size(where, ignored), hash = 0;
    if (ignored) size = 0;
    if (size)
      if (auto head = llvm::MemoryBuffer::getFileSlice(where.string(), std::min<uint64_t>(size, kFileHashBytes), 0))
        hash = fileHash(std::as_bytes(std::span((*head)->getBufferStart(), (*head)->getBufferSize())));
    paths.push_back(where);
    file.set_path(where.lexically_proximate(planFolder).generic_string());
    file.set_size(size);
    file.set_hash(hash);
  };
  for (plan::File& file : *plan.mutable_files())
    describe(file, fs::absolute(fs::path(modelFolder) / file.path(), ignored).lexically_normal());
  DataFile data(static_cast<uint32_t>(plan.files_size()));
  SHEAF_RETURN_IF_ERROR(data.append(*plan.mutable_parameters(), draft.parameterValues));
  SHEAF_RETURN_IF_ERROR(data.append(*plan.mutable_copied(), draft.copiedValues));
  SHEAF_RETURN_IF_ERROR(data.append(*plan.mutable_constants(), draft.constantValues));
  for (const plan::File& file : plan.files())
    if (file.path().size() > plan::kMaxPathBytes)
      return Status::error(cat("-o: the path from the folder of the plan to the model's file has ", file.path().size(),
                               " bytes, and a plan holds at most ", plan::kMaxPathBytes,
                               ": give a path with fewer folders"));
  if (!data.empty()) {
    const std::string path = planPath + ".data";
    SHEAF_RETURN_IF_ERROR(data.write(path));
    wroteData = true;
    describe(*plan.add_files(), fs::absolute(path, ignored));
  }
  return hashThreads ? hashSources(sourcesOf(plan), paths, hashThreads) : Status();
}

}  // namespace sheaf::codegen
