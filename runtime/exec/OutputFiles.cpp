#include "runtime/exec/OutputFiles.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>

#include "runtime/base/Text.h"
#include "runtime/base/WriteAt.h"
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

Status OutputFiles::check(const plan::Plan& plan, const std::string& folder, const std::vector<std::string>& inputs) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::path existing = folder;
  while (!existing.empty() && existing != existing.parent_path() && !fs::exists(existing, error))
    existing = existing.parent_path();
  if (!existing.empty() && !fs::is_directory(existing, error))
    return Status::error(cat("--outputs ", folder, ": ", existing.string(), " is not a folder"));
  std::set<std::string> taken;
  for (const plan::Output& output : plan.outputs()) {
    const std::string path = cat(folder, "/", fileName(output.name(), taken), ".npy");
    if (fs::is_directory(path, error))
      return Status::error(cat("--outputs: ", path, " is a folder, and not a file that could be replaced"));
    for (const std::string& input : inputs)
      if (fs::equivalent(path, input, error) && !error)
        return Status::error(cat("--outputs: the output '", output.name(), "' would replace ", path,
                                 ", which this run reads; give another folder"));
  }
  return {};
}

Expected<std::unique_ptr<OutputFiles>> OutputFiles::create(const plan::Plan& plan, const std::string& folder,
                                                           uint64_t rows, Job& job) {
  std::unique_ptr<OutputFiles> files(new OutputFiles(plan, rows, job));
  Status status;
  if (std::error_code error; job.first() && !std::filesystem::create_directories(folder, error) && error)
    status = Status::error(cat("--outputs: cannot make the folder ", folder, ": ", error.message()));
  const uint64_t batch = static_cast<uint64_t>(plan::rowsAtOnce(plan)),
                 rowsOfRank = batch / static_cast<uint64_t>(plan.ranks());
  const uint64_t batches = (rows + batch - 1) / batch;
  std::set<std::string> taken;
  std::vector<std::string> headers;
  std::vector<uint64_t> bytes;
  for (const plan::Output& output : plan.outputs()) {
    File& file = files->files_.emplace_back();
    file.path = cat(folder, "/", fileName(output.name(), taken), ".npy");
    file.temporary = cat(file.path, ".partial");
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
  // Process 0 makes the files before the others open them.
  auto openAll = [&] {
    for (size_t i = 0; i < files->files_.size() && status.ok(); ++i)
      status = files->open(files->files_[i], headers[i], bytes[i]);
  };
  if (job.first()) openAll();
  SHEAF_RETURN_IF_ERROR(job.together(cat("--outputs ", folder), status));
  if (!job.first()) openAll();
  if (!status.ok()) return status;
  return files;
}

Status OutputFiles::open(File& file, const std::string& header, uint64_t bytes) {
  const int flags = O_WRONLY | O_CLOEXEC | (job_.first() ? O_CREAT | O_TRUNC : 0);
  file.descriptor = ::open(file.temporary.c_str(), flags, 0666);
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

Status OutputFiles::commit() {
  Status status;
  for (File& file : files_) {
    if (close(file.descriptor) != 0 && status.ok()) status = cannot("write", file.temporary);
    file.descriptor = -1;
  }
  SHEAF_RETURN_IF_ERROR(job_.together("the files of --outputs", status));
  if (!job_.first()) return {};
  for (File& file : files_) {
    if (rename(file.temporary.c_str(), file.path.c_str()) != 0) return cannot("write", file.path);
    file.made = false;
  }
  return {};
}

}  // namespace sheaf::exec
