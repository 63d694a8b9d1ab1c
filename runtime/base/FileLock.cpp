#include "runtime/base/FileLock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "runtime/base/NewFiles.h"
#include "runtime/base/Text.h"

namespace sheaf {
namespace {

// Returns true if the path names the open file. It is opened again, since a network file system may remember what
// `stat` said.
bool isNamed(int descriptor, const std::string& path) {
  const int again = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  struct stat mine, named;
  const bool same = again >= 0 && fstat(descriptor, &mine) == 0 && fstat(again, &named) == 0 &&
                    mine.st_dev == named.st_dev && mine.st_ino == named.st_ino;
  if (again >= 0) close(again);
  return same;
}

}  // namespace

std::string lockPath(const std::string& path) {
  constexpr size_t kMaxName = 200;  // a file system takes 255 bytes
  const std::string name = path.substr(path.rfind('/') + 1);
  return cat(folderOf(path), "/.", name.substr(name.size() - std::min(name.size(), kMaxName)), ".lock");
}

Expected<FileLock> FileLock::take(const std::string& path, std::chrono::milliseconds limit) {
  const auto until = std::chrono::steady_clock::now() + limit;
  for (;;) {
    constexpr int kFlags = O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | kFlags, kFileMode);
    // Another user's, left by a program that was killed: it need not be written.
    if (descriptor < 0 && errno == EACCES) descriptor = ::open(path.c_str(), O_RDONLY | kFlags);
    if (descriptor < 0) return Status::error(cat("cannot create the lock file ", path, ": ", std::strerror(errno)));
    FileLock lock(path, descriptor);
    const bool held = flock(descriptor, LOCK_EX | LOCK_NB) == 0;
    if (!held && errno != EWOULDBLOCK && errno != EINTR) return lock;
    // The program that held it may have removed the file since it was opened.
    if (held && isNamed(descriptor, path)) return lock;
    lock.path_.clear();  // it is another program's
    if (std::chrono::steady_clock::now() > until)
      return Status::error(cat("another program has held the lock ", path, " for ",
                               std::chrono::duration_cast<std::chrono::seconds>(limit).count(),
                               " s: stop it, or use another folder"));
    if (!held) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

FileLock::FileLock(FileLock&& other) noexcept
    : path_(std::exchange(other.path_, {})), descriptor_(std::exchange(other.descriptor_, -1)) {}

FileLock::~FileLock() {
  // While it is held, so that a program that has opened the file before sees that it has gone.
  if (!path_.empty()) unlink(path_.c_str());
  if (descriptor_ >= 0) close(descriptor_);
}

}  // namespace sheaf
