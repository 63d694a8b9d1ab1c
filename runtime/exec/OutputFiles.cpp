#include "runtime/exec/OutputFiles.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>

#include "runtime/base/FileLock.h"
#include "runtime/base/NewFiles.h"
#include "runtime/base/Text.h"
#include "runtime/base/WriteAt.h"
#include "runtime/exec/Agreement.h"
#include "runtime/io/DataType.h"
#include "runtime/io/Npy.h"
#include "runtime/plan/Types.h"

namespace sheaf::exec {
namespace {

std::string fileName(const std::string& output, std::set<std::string>& taken) {
  std::string name = output.substr(0, 100);
  for (char& c : name)
    if (!(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z') && !(c >= '0' && c <= '9') && c != '-' && c != '.') c = '_';
  if (name[0] == '.') name[0] = '_';
  std::string unique = name;
  for (int i = 2; !taken.insert(unique).second; ++i) unique = cat(name, ".", i);
  return unique;
}

Status cannot(const char* what, const std::string& path) {
  return Status::error(cat("--outputs: cannot ", what, " ", path, ": ", std::strerror(errno)));
}

Status writeTo(int descriptor, std::span<const std::byte> bytes, uint64_t offset, const std::string& path) {
  return writeAt(descriptor, bytes, offset) ? Status() : cannot("write", path);
}

}  // namespace

std::vector<std::string> OutputFiles::paths(const plan::Plan& plan, const std::string& folder) {
  std::set<std::string> taken;
  std::vector<std::string> paths;
  for (const plan::Output& output : plan.outputs())
    paths.push_back(cat(folder, "/", fileName(output.name(), taken), ".npy"));
  return paths;
}

Status OutputFiles::check(const plan::Plan& plan, const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::path existing = folder;
  while (!existing.empty() && existing != existing.parent_path() && !fs::exists(existing, error))
    existing = existing.parent_path();
  if (!existing.empty() && !fs::is_directory(existing, error))
    return Status::error(cat("--outputs ", folder, ": ", existing.string(), " is not a folder"));
  for (const std::string& path : paths(plan, folder))
    if (fs::is_directory(path, error))
      return Status::error(cat("--outputs: ", path, " is a folder, and not a file that could be replaced"));
  return {};
}

Expected<std::unique_ptr<OutputFiles>> OutputFiles::create(const plan::Plan& plan, const std::string& folder,
                                                           uint64_t rows, Job& job) {
  std::unique_ptr<OutputFiles> files(new OutputFiles(plan, rows, job));
  files->folder_ = folder;
  Status status;
  if (job.first()) {
    if (auto made = makeFolders(folder); !made.ok())
      status = Status::error(cat("--outputs: ", made.status().message()));
    Expected<std::string> random = randomSuffix();
    if (status.ok()) status = random.status();
    if (random.ok()) files->random_ = std::move(*random);
  }
  const uint64_t batch = static_cast<uint64_t>(plan::rowsAtOnce(plan)),
                 rowsOfRank = batch / static_cast<uint64_t>(plan.ranks());
  const uint64_t batches = (rows + batch - 1) / batch;
  const std::vector<std::string> names = paths(plan, folder);
  std::vector<std::string> headers;
  std::vector<uint64_t> bytes;
  for (const plan::Output& output : plan.outputs()) {
    File& file = files->files_.emplace_back();
    file.path = names[files->files_.size() - 1];
    std::vector<int64_t> shape(output.shape().begin(), output.shape().end());
    const uint64_t size = *plan::elementCount(plan::shapeOf(output)) * plan::elementBytes(output.type());
    file.hasRows = output.blocks() > 0;
    if (file.hasRows) {
      const size_t axis = output.axis();
      file.outer = *plan::elementCount(std::span(shape).first(axis)) * output.blocks();
      file.inner = size / (file.outer * rowsOfRank);
      shape[axis] = shape[axis] / static_cast<int64_t>(rowsOfRank) * static_cast<int64_t>(rows);
      bytes.push_back(file.outer * rows * file.inner);
    } else {
      file.inner = size;
      if (batches > 1) shape.insert(shape.begin(), static_cast<int64_t>(batches));
      bytes.push_back(batches * size);
    }
    Expected<std::string> header = io::npyHeader(io::dataTypeOf(output.type()), shape);
    if (!header.ok()) return Status::error(cat("--outputs: '", output.name(), "': ", header.status().message()));
    file.begin = header->size();
    headers.push_back(std::move(*header));
  }
  // Process 0 makes the files before the others open them, and tells these their random name.
  auto openAll = [&] {
    for (size_t i = 0; i < files->files_.size() && status.ok(); ++i)
      status = files->open(files->files_[i], headers[i], bytes[i]);
  };
  if (job.first()) openAll();
  SHEAF_RETURN_IF_ERROR(agreeOnStatus(job.group(), "the files of --outputs", status, cat("--outputs ", folder)));
  Expected<std::string> random = shareName(job.group(), files->random_, "the files of --outputs");
  if (!random.ok()) return random.status();
  files->random_ = std::move(*random);
  // It becomes a part of a path.
  if (!isRandomSuffix(files->random_)) return Status::error("--outputs: process 0 sent an invalid temporary name");
  if (!job.first()) openAll();
  if (!status.ok()) return status;
  return files;
}

Status OutputFiles::open(File& file, const std::string& header, uint64_t bytes) {
  file.temporary = temporaryPath(file.path, random_);
  file.descriptor = job_.first() ? createExclusive(file.temporary) : openExisting(file.temporary);
  if (file.descriptor < 0) return cannot("open", file.temporary);
  if (!job_.first()) return {};
  file.made = true;
  if (ftruncate(file.descriptor, static_cast<off_t>(header.size() + bytes)) != 0)
    return cannot("write", file.temporary);
  return writeTo(file.descriptor, std::as_bytes(std::span(header)), 0, file.temporary);
}

OutputFiles::~OutputFiles() {
  for (const File& file : files_) {
    if (file.descriptor >= 0) close(file.descriptor);
    if (file.made) unlink(file.temporary.c_str());
  }
}

Status OutputFiles::write(int64_t rank, uint32_t output, int64_t batch, std::span<const std::byte> tensor) const {
  const File& file = files_[output];
  if (!file.hasRows) {
    if (rank != 0) return {};
    return writeTo(file.descriptor, tensor, file.begin + static_cast<uint64_t>(batch) * file.inner, file.path);
  }
  const uint64_t rowsOfRank = static_cast<uint64_t>(plan::rowsAtOnce(plan_) / plan_.ranks());
  const uint64_t first =
      static_cast<uint64_t>(batch * plan::rowsAtOnce(plan_)) + static_cast<uint64_t>(rank) * rowsOfRank;
  if (first >= rows_) return {};
  const uint64_t count = std::min(rowsOfRank, rows_ - first);
  for (uint64_t block = 0; block < file.outer; ++block)
    SHEAF_RETURN_IF_ERROR(writeTo(file.descriptor, tensor.subspan(block * rowsOfRank * file.inner, count * file.inner),
                                  file.begin + (block * rows_ + first) * file.inner, file.path));
  return {};
}

std::vector<std::string> OutputFiles::paths() const {
  std::vector<std::string> paths;
  for (const File& file : files_) paths.push_back(file.path);
  return paths;
}

Status OutputFiles::commit() {
  Status status;
  for (File& file : files_) {
    if (fsync(file.descriptor) != 0 && status.ok()) status = cannot("sync", file.temporary);
    if (close(file.descriptor) != 0 && status.ok()) status = cannot("write", file.temporary);
    file.descriptor = -1;
  }
  SHEAF_RETURN_IF_ERROR(agreeOnStatus(job_.group(), "the files of --outputs", status));
  if (!job_.first()) return {};
  // Serialises the renames: two runs must not interleave them.
  Expected<FileLock> lock = FileLock::take(lockPath(folder_ + "/outputs"), lockLimit(job_.group()));
  std::string separate;
  if (!lock.ok())
    for (File& file : files_) {
      file.path = cat(file.path.substr(0, file.path.size() - 4), ".", random_, ".npy");
      separate += cat(separate.empty() ? "" : ", ", file.path);
    }
  // A run that is killed between the names leaves fewer files, and none of another run next to its own.
  for (const File& file : files_)
    if (unlink(file.path.c_str()) != 0 && errno != ENOENT) return cannot("replace", file.path);
  SHEAF_RETURN_IF_ERROR(syncFolder(folder_));
  for (File& file : files_) {
    if (rename(file.temporary.c_str(), file.path.c_str()) != 0) return cannot("write", file.path);
    file.made = false;
  }
  SHEAF_RETURN_IF_ERROR(syncFolder(folder_));
  return lock.ok() ? Status()
                   : Status::error(cat("--outputs: ", lock.status().message(), "; these tensors are in ", separate));
}

}  // namespace sheaf::exec
