#include "runtime/device/cpu/FileArena.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "runtime/base/Text.h"

namespace sheaf::cpu {
namespace {

constexpr uint64_t kBlock = 4096;  // what direct input and output takes, in files as in memory
constexpr uint64_t kStripe = 4 << 20;
constexpr uint64_t kRequest = 8 << 20;  // most bytes of a system call
constexpr uint64_t kBounce = 1 << 20;

Status failure(const std::string& path, const char* what, int error) {
  return Status::error(cat(path, ": ", what, ": ", std::strerror(error)));
}

bool isAligned(const void* memory, uint64_t offset, uint64_t bytes) {
  return (reinterpret_cast<uintptr_t>(memory) | offset | bytes) % kBlock == 0;
}

}  // namespace

Expected<std::unique_ptr<FileArena>> FileArena::create(const std::vector<std::string>& folders, int64_t rank,
                                                       uint64_t bytes) {
  if (folders.empty())
    return Status::error("the plan keeps " + bytesText(bytes) +
                         " of each rank in files: say in which folder with --offload-dir DIR");
  std::unique_ptr<FileArena> arena(new FileArena);
  arena->size_ = bytes;
  for (Bounce* bounce : {&arena->in_, &arena->out_}) {
    bounce->data = static_cast<std::byte*>(std::aligned_alloc(kBlock, kBounce));
    if (!bounce->data) return Status::error("no memory for input and output");
  }
  const uint64_t stripes = (bytes + kStripe - 1) / kStripe;
  const uint64_t each = folders.size() == 1 ? (bytes + kBlock - 1) / kBlock * kBlock
                                            : (stripes + folders.size() - 1) / folders.size() * kStripe;
  for (const std::string& folder : folders) SHEAF_RETURN_IF_ERROR(arena->open(folder, rank, each));
  return arena;
}

FileArena::~FileArena() {
  for (const File& file : files_) {
    ::unlink(file.path.c_str());
    ::close(file.descriptor);
  }
  std::free(in_.data);
  std::free(out_.data);
}

Status FileArena::open(const std::string& folder, int64_t rank, uint64_t bytes) {
  struct stat info;
  const std::string option = "--offload-dir " + folder;
  if (::stat(folder.c_str(), &info) != 0) return failure(option, "no such folder", errno);
  if (!S_ISDIR(info.st_mode)) return Status::error(option + ": it is not a folder");
  const std::pair<uint64_t, uint64_t> identity(info.st_dev, info.st_ino);
  if (std::find(folders_.begin(), folders_.end(), identity) != folders_.end())
    return Status::error(option + ": the folder is given twice");
  folders_.push_back(identity);
  const std::string path = cat(folder, "/rank-", rank, ".arena");
  for (;;) {
    // Neither a link is followed nor a pipe waited for: others may write to the folder.
    int descriptor =
        ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | (direct_ ? O_DIRECT : 0), 0600);
    if (descriptor < 0 && errno == EINVAL && direct_) {
      SHEAF_RETURN_IF_ERROR(giveUpDirect());
      continue;
    }
    if (descriptor < 0 && errno == ELOOP)
      return Status::error(cat(option, ": ", path, " is a symbolic link; remove it, or give another folder"));
    if (descriptor < 0) return failure(option, cat("cannot create ", path).c_str(), errno);
    if (::fstat(descriptor, &info) != 0 || !S_ISREG(info.st_mode) || info.st_uid != ::geteuid() || info.st_nlink > 1) {
      ::close(descriptor);
      return Status::error(cat(option, ": ", path,
                               " is not a file of this user's alone, as a run makes one; remove it, or give another "
                               "folder"));
    }
    if (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
      const int error = errno;
      ::close(descriptor);
      if (error == EWOULDBLOCK)
        return Status::error(cat(option, ": another run uses ", path, "; give each run a folder of its own"));
      return failure(option, cat("cannot lock ", path).c_str(), error);
    }
    // The run that had the lock may have removed the file since it was opened.
    if (::fstat(descriptor, &info) == 0 && info.st_nlink > 0) {
      files_.push_back({descriptor, path});
      break;
    }
    ::close(descriptor);
  }
  File& file = files_.back();
  if (::ftruncate(file.descriptor, 0) != 0) return failure(path, "cannot empty it", errno);
  int error = ::posix_fallocate(file.descriptor, 0, static_cast<off_t>(bytes));
  // A file system that cannot keep room tells only when it is full.
  if (error == EOPNOTSUPP || error == EINVAL)
    error = ::ftruncate(file.descriptor, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  if (error == ENOSPC || error == EFBIG || error == EDQUOT)
    return failure(option, cat("no room for ", bytesText(bytes), " of rank ", rank).c_str(), error);
  if (error != 0) return failure(path, cat("cannot make it ", bytes, " bytes long").c_str(), error);
  if (!direct_) return {};
  // Some file systems accept direct files and refuse to use them.
  std::memset(out_.data, 0, kBlock);
  if (::pwrite(file.descriptor, out_.data, kBlock, 0) == static_cast<ssize_t>(kBlock)) return {};
  if (errno != EINVAL) return failure(path, "cannot write", errno);
  return giveUpDirect();
}

// Of all folders: memory that one of them takes must be good for the others.
Status FileArena::giveUpDirect() {
  direct_ = false;
  for (const File& one : files_)
    if (::fcntl(one.descriptor, F_SETFL, ::fcntl(one.descriptor, F_GETFL) & ~O_DIRECT) != 0)
      return failure(one.path, "cannot write without O_DIRECT", errno);
  return {};
}

template <typename Visit>
Status FileArena::forEachStripe(uint64_t offset, uint64_t bytes, Visit visit) {
  if (offset > size_ || bytes > size_ - offset)
    return Status::error(cat("bytes [", offset, ", +", bytes, ") lie outside the files of ", size_));
  const uint64_t files = files_.size();
  while (bytes > 0) {
    const uint64_t stripe = offset / kStripe, within = offset % kStripe;
    const uint64_t here = files == 1 ? bytes : std::min(bytes, kStripe - within);
    SHEAF_RETURN_IF_ERROR(visit(files_[stripe % files], files == 1 ? offset : stripe / files * kStripe + within, here));
    offset += here, bytes -= here;
  }
  return {};
}

Status FileArena::read(uint64_t offset, std::span<std::byte> bytes) {
  return forEachStripe(offset, bytes.size(), [&](File& file, uint64_t at, uint64_t count) {
    Status status = readFile(file, at, bytes.first(count));
    bytes = bytes.subspan(count);
    return status;
  });
}

Status FileArena::write(uint64_t offset, std::span<const std::byte> bytes) {
  return forEachStripe(offset, bytes.size(), [&](File& file, uint64_t at, uint64_t count) {
    Status status = writeFile(file, at, bytes.first(count));
    bytes = bytes.subspan(count);
    return status;
  });
}

Status FileArena::readFully(const File& file, uint64_t offset, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t got =
        ::pread(file.descriptor, bytes.data(), std::min<uint64_t>(bytes.size(), kRequest), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return failure(file.path, cat("cannot read ", bytes.size(), " bytes at ", offset).c_str(), errno);
    if (got == 0)
      return Status::error(cat(file.path, ": it ends at byte ", offset, ", and ", bytes.size(),
                               " more bytes should follow: something has changed it during the run"));
    bytes = bytes.subspan(static_cast<size_t>(got));
    offset += static_cast<uint64_t>(got);
  }
  return {};
}

Status FileArena::writeFully(const File& file, uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t put =
        ::pwrite(file.descriptor, bytes.data(), std::min<uint64_t>(bytes.size(), kRequest), static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0)
      return failure(file.path, cat("cannot write ", bytes.size(), " bytes at ", offset).c_str(),
                     put < 0 ? errno : ENOSPC);
    bytes = bytes.subspan(static_cast<size_t>(put));
    offset += static_cast<uint64_t>(put);
  }
  return {};
}

// What is aligned moves directly; the rest, and all where the memory is not aligned, by blocks of the bounce.
Status FileArena::readFile(File& file, uint64_t offset, std::span<std::byte> bytes) {
  if (!direct_) return readFully(file, offset, bytes);
  const uint64_t whole = bytes.size() / kBlock * kBlock;
  if (whole > 0 && isAligned(bytes.data(), offset, whole)) {
    SHEAF_RETURN_IF_ERROR(readFully(file, offset, bytes.first(whole)));
    offset += whole, bytes = bytes.subspan(whole);
  }
  std::lock_guard lock(in_.mutex);
  while (!bytes.empty()) {
    const uint64_t before = offset % kBlock, here = std::min<uint64_t>(bytes.size(), kBounce - before);
    const uint64_t blocks = (before + here + kBlock - 1) / kBlock * kBlock;
    SHEAF_RETURN_IF_ERROR(readFully(file, offset - before, {in_.data, blocks}));
    std::memcpy(bytes.data(), in_.data + before, here);
    offset += here, bytes = bytes.subspan(here);
  }
  return {};
}

Status FileArena::writeFile(File& file, uint64_t offset, std::span<const std::byte> bytes) {
  if (!direct_) return writeFully(file, offset, bytes);
  const uint64_t whole = bytes.size() / kBlock * kBlock;
  if (whole > 0 && isAligned(bytes.data(), offset, whole)) {
    SHEAF_RETURN_IF_ERROR(writeFully(file, offset, bytes.first(whole)));
    offset += whole, bytes = bytes.subspan(whole);
  }
  std::lock_guard lock(out_.mutex);
  while (!bytes.empty()) {
    const uint64_t before = offset % kBlock, here = std::min<uint64_t>(bytes.size(), kBounce - before);
    const uint64_t blocks = (before + here + kBlock - 1) / kBlock * kBlock;
    // Of the first and the last block the other bytes stay as they are.
    if (before > 0) SHEAF_RETURN_IF_ERROR(readFully(file, offset - before, {out_.data, kBlock}));
    if ((before + here) % kBlock > 0 && (before == 0 || blocks > kBlock))
      SHEAF_RETURN_IF_ERROR(readFully(file, offset - before + blocks - kBlock, {out_.data + blocks - kBlock, kBlock}));
    std::memcpy(out_.data + before, bytes.data(), here);
    SHEAF_RETURN_IF_ERROR(writeFully(file, offset - before, {out_.data, blocks}));
    offset += here, bytes = bytes.subspan(here);
  }
  return {};
}

}  // namespace sheaf::cpu
