#include "runtime/io/Checkpoint.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <tuple>

#include "runtime/base/NewFiles.h"
#include "runtime/base/Text.h"
#include "runtime/io/StateFolder.h"
#include "runtime/plan/Types.h"

namespace sheaf::io {
namespace {

constexpr uint64_t kMaxManifestBytes = 1 << 28;

namespace fs = std::filesystem;

Status writeText(const std::string& path, const std::string& text) {
  Expected<AtomicFile> file = AtomicFile::create(path);
  if (!file.ok()) return file.status();
  SHEAF_RETURN_IF_ERROR(file->write(std::as_bytes(std::span(text))));
  return file->commit();
}

// What DIR/latest names, or nothing.
std::string latestOf(const std::string& folder) {
  Expected<MappedFile> file = MappedFile::open(folder + "/" + kLatestFile);
  if (!file.ok()) return {};
  std::string name(reinterpret_cast<const char*>(file->bytes().data()), std::min<size_t>(file->bytes().size(), 64));
  return name.substr(0, name.find('\n'));
}

// In parts, so that a file larger than memory is never in memory whole.
uint64_t checksum(const MappedFile& file) {
  constexpr size_t kPart = 8 << 20;
  Xxh64 hash;
  for (std::span<const std::byte> rest = file.bytes(), part; !rest.empty(); rest = rest.subspan(part.size())) {
    part = rest.first(std::min(rest.size(), kPart));
    hash.update(part);
    file.release(part);
  }
  return hash.digest();
}

}  // namespace

std::string stepFolder(int64_t step) {
  char name[40];
  std::snprintf(name, sizeof name, "step-%08lld", static_cast<long long>(step));
  return name;
}

std::optional<int64_t> stepOfFolder(const std::string& name) {
  int64_t step = 0;
  if (!name.starts_with("step-") || !parseInteger(std::string_view(name).substr(5), step) || step < 0)
    return std::nullopt;
  return step;
}

Expected<Manifest> readManifest(const std::string& folder) {
  const std::string path = folder + "/" + kManifestFile;
  Expected<MappedFile> file = MappedFile::open(path);
  if (!file.ok()) return file.status();
  if (file->bytes().size() > kMaxManifestBytes) return Status::error(cat(path, ": it is too large for a manifest"));
  Expected<Manifest> manifest =
      parseManifest({reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size()});
  if (!manifest.ok()) return Status::error(cat(path, ": ", manifest.status().message()));
  return manifest;
}

bool hasAllFiles(const std::string& folder) {
  Expected<Manifest> manifest = readManifest(folder);
  return manifest.ok() && std::all_of(manifest->files.begin(), manifest->files.end(), [&](const Manifest::File& file) {
           std::error_code error;
           const uint64_t size = fs::file_size(folder + "/" + file.name, error);
           return !error && size == file.size;
         });
}

bool isState(const std::string& folder) {
  std::error_code error;
  if (!fs::exists(folder + "/" + kManifestFile, error)) return false;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    if (const std::string name = entry->path().filename(); name != kManifestFile && isStateFileName(name)) return true;
  return readManifest(folder).ok();
}

Expected<CheckpointWriter> CheckpointWriter::create(const std::string& folder, int64_t step) {
  if (auto made = makeFolders(folder); !made.ok()) return made.status();
  CheckpointWriter writer;
  writer.folder_ = folder;
  writer.name_ = stepFolder(step);
  Expected<std::string> temporary = makeTemporaryFolder(folder + "/" + kSavingPrefix);
  if (!temporary.ok()) return temporary.status();
  writer.temporary_ = std::move(*temporary);
  return writer;
}

Expected<CheckpointWriter> CheckpointWriter::join(const std::string& folder, const std::string& name) {
  // It comes from another process: it must be a name, not a path.
  const std::string_view begin = kSavingPrefix;
  if (!name.starts_with(begin) || !isRandomSuffix(std::string_view(name).substr(begin.size())))
    return Status::error(cat("'", name.substr(0, 100), "' is not the name of a saved state's folder"));
  std::error_code error;
  CheckpointWriter writer;
  writer.folder_ = folder;
  writer.temporary_ = folder + "/" + name;
  writer.ours_ = false;
  if (!fs::is_directory(writer.temporary_, error))
    return Status::error(cat(writer.temporary_,
                             " is not there, though another process has made it: the folder must be on ",
                             "a file system that all processes share"));
  return writer;
}

CheckpointWriter::CheckpointWriter(CheckpointWriter&& other) noexcept {
  *this = std::move(other);
}

CheckpointWriter& CheckpointWriter::operator=(CheckpointWriter&& other) noexcept {
  std::swap(folder_, other.folder_);
  std::swap(name_, other.name_);
  std::swap(temporary_, other.temporary_);
  std::swap(ours_, other.ours_);
  return *this;
}

CheckpointWriter::~CheckpointWriter() {
  if (ours_ && !temporary_.empty()) (void)removeStateFiles(temporary_);
}

Status CheckpointWriter::commit(const Manifest& manifest) {
  SHEAF_RETURN_IF_ERROR(writeText(path(kManifestFile), manifestText(manifest)));
  SHEAF_RETURN_IF_ERROR(syncFolder(temporary_));
  const std::string target = folder_ + "/" + name_;
  std::error_code error;
  // A state of the same step (of an earlier run, say) is replaced in one step, so that at no time there is none.
  std::string old;
  if (const fs::file_type type = fs::symlink_status(target, error).type(); type != fs::file_type::not_found) {
    if (type != fs::file_type::directory)
      return Status::error(cat("cannot replace ", target, ": it is not a folder; give it another name"));
    old = temporary_;
    if (renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) != 0) {
      if (errno != EINVAL && errno != ENOSYS)
        return Status::error(cat("cannot replace ", target, ": ", std::strerror(errno)));
      // The file system cannot exchange names: the old one is moved aside whole until ours is in place.
      old += kReplacedSuffix;
      if (rename(target.c_str(), old.c_str()) != 0)
        return Status::error(cat("cannot replace ", target, ": ", std::strerror(errno)));
    }
  }
  if (old != temporary_ && rename(temporary_.c_str(), target.c_str()) != 0) {
    Status failure = Status::error(cat("cannot name ", target, ": ", std::strerror(errno)));
    if (!old.empty()) fs::rename(old, target, error);
    return failure;
  }
  temporary_.clear();
  SHEAF_RETURN_IF_ERROR(syncFolder(folder_));
  SHEAF_RETURN_IF_ERROR(writeText(folder_ + "/" + kLatestFile, name_ + "\n"));
  if (old.empty()) return {};
  moveForeignFiles(old, target);
  return removeStateFiles(old).status();
}

void Checkpoint::release(const Piece& piece) const {
  for (const Safetensors& file : files_) file.release(piece.data);
}

Status Checkpoint::openFile(const Manifest::File& file, bool verify) {
  std::string path = folder_ + "/" + file.name;
  Expected<MappedFile> mapped = MappedFile::open(path);
  if (!mapped.ok()) return mapped.status();
  if (mapped->bytes().size() != file.size)
    return Status::error(cat(path, " has ", mapped->bytes().size(), " bytes, its manifest says ", file.size));
  if (verify && checksum(*mapped) != file.checksum)
    return Status::error(cat(path, " is damaged: its checksum does not match"));
  Expected<Safetensors> tensors = Safetensors::open(path);
  if (!tensors.ok()) return tensors.status();
  for (const auto& [name, tensor] : tensors->tensors()) {
    size_t first = name.find('/'), second = first == std::string::npos ? first : name.find('/', first + 1);
    int64_t begin = 0;
    if (second == std::string::npos || tensor.shape.size() != 1 ||
        !parseInteger(std::string_view(name).substr(first + 1, second - first - 1), begin) || begin < 0)
      return Status::error(cat(path, ": tensor '", name.substr(0, 200), "' is not part of a saved state"));
    pieces_[{name.substr(0, first), name.substr(second + 1)}].push_back({static_cast<uint64_t>(begin), tensor.data});
  }
  files_.push_back(std::move(*tensors));
  return {};
}

Status Checkpoint::checkCoverage() const {
  size_t expected = 0;
  for (const SavedParameter& parameter : manifest_.parameters) {
    std::vector<std::string> kinds = parameter.states;
    kinds.push_back(kParameterKind);
    std::optional<uint64_t> count = plan::elementCount(parameter.shape);
    for (const std::string& kind : kinds) {
      uint64_t size = kind == kParameterKind ? bytesOf(parameter.type) : sizeof(float), at = 0;
      for (const Piece& piece : pieces(kind, parameter.name)) {
        if (piece.begin != at || piece.data.size() % size != 0)
          return Status::error(cat("the pieces of ", kind, " '", parameter.name, "' do not fit together"));
        at += piece.data.size() / size;
      }
      if (!count || at != *count)
        return Status::error(cat("the pieces of ", kind, " '", parameter.name, "' do not cover it"));
      ++expected;
    }
  }
  if (expected != pieces_.size()) return Status::error("it holds pieces of parameters that its manifest does not name");
  return {};
}

Expected<Checkpoint> Checkpoint::open(const std::string& folder, const SharedReading& shared) {
  Expected<Checkpoint> checkpoint = openAlone(folder, shared);
  if (!shared.agree) return checkpoint;
  Status status = shared.agree(folder, checkpoint.status());
  return status.ok() ? std::move(checkpoint) : status;
}

Expected<Checkpoint> Checkpoint::openAlone(const std::string& folder, const SharedReading& shared) {
  Checkpoint checkpoint;
  checkpoint.folder_ = folder;
  Expected<Manifest> manifest = readManifest(folder);
  if (!manifest.ok()) return manifest.status();
  checkpoint.manifest_ = std::move(*manifest);
  for (size_t i = 0; i < checkpoint.manifest_.files.size(); ++i)
    SHEAF_RETURN_IF_ERROR(checkpoint.openFile(checkpoint.manifest_.files[i], i % shared.count == shared.index));
  for (auto& [key, pieces] : checkpoint.pieces_)
    std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
      return std::tuple(a.begin, a.data.size()) < std::tuple(b.begin, b.data.size());
    });
  if (Status status = checkpoint.checkCoverage(); !status.ok())
    return Status::error(cat(folder, ": ", status.message()));
  return checkpoint;
}

Expected<Checkpoint> Checkpoint::openNewest(const std::string& folder,
                                            const std::function<void(const std::string&)>& warn,
                                            const SharedReading& shared) {
  std::error_code error;
  if (isState(folder)) return open(folder, shared);
  std::vector<std::pair<int64_t, std::string>> states;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    std::string name = entry->path().filename();
    std::optional<int64_t> step = stepOfFolder(name);
    if (!step) continue;
    std::error_code ignored;
    if (fs::exists(entry->path() / kManifestFile, ignored))
      states.emplace_back(*step, name);
    else
      warn(cat(entry->path().string(), " is passed over: it has no ", kManifestFile, ", so it is not a whole state"));
  }
  if (error) return Status::error(cat("cannot read folder ", folder, ": ", error.message()));
  if (states.empty()) return Status::error(cat("there is no saved state in ", folder));
  std::sort(states.rbegin(), states.rend());
  // The one saved last comes first, even where an earlier run went further.
  std::string latest = latestOf(folder);
  std::stable_partition(states.begin(), states.end(), [&](const auto& state) { return state.second == latest; });
  Expected<Checkpoint> newest = open(folder + "/" + states[0].second, shared);
  if (newest.ok()) return newest;
  // How much training is lost is for the user to know and decide.
  for (size_t i = 1; i < states.size(); ++i)
    if (const std::string before = folder + "/" + states[i].second; open(before, shared).ok())
      return Status::error(cat("the latest saved state, ", folder, "/", states[0].second,
                               ", is not usable: ", newest.status().message(), "; the one before it, ", before,
                               ", is: give that folder to go on from there"));
  return Status::error(
      cat("no saved state in ", folder, " is usable; the newest, ", states[0].second, ": ", newest.status().message()));
}

const std::vector<Checkpoint::Piece>& Checkpoint::pieces(const std::string& kind, const std::string& parameter) const {
  static const std::vector<Piece> none;
  auto found = pieces_.find({kind, parameter});
  return found == pieces_.end() ? none : found->second;
}

std::vector<std::string> checkpointFiles(const Checkpoint& checkpoint) {
  std::vector<std::string> paths{cat(checkpoint.folder(), "/", kManifestFile)};
  for (const Manifest::File& file : checkpoint.manifest().files)
    paths.push_back(cat(checkpoint.folder(), "/", file.name));
  return paths;
}

}  // namespace sheaf::io
