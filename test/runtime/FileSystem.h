// What the file system of a test's folder allows, and a limit for the files of this process in place of a full disk.
#pragma once

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "runtime/base/AlignedMemory.h"

namespace sheaf::testing {

// No file of this process may be larger than `bytes`.
class SmallFiles {
 public:
  explicit SmallFiles(rlim_t bytes) {
    std::signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~SmallFiles() { setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_;
};

// Of a new file there, which is removed.
inline bool allows(const std::string& path, int flags, const std::function<bool(int descriptor)>& call) {
  const int descriptor = ::open(path.c_str(), O_CREAT | O_WRONLY | flags, 0600);
  const bool allowed = descriptor >= 0 && call(descriptor);
  if (descriptor >= 0) ::close(descriptor);
  ::unlink(path.c_str());
  return allowed;
}
inline bool allowsDirect(const std::string& path) {
  const AlignedMemory block = allocateAligned(kDirectAlignment);
  std::fill_n(block.get(), kDirectAlignment, std::byte{1});
  return allows(path, O_DIRECT, [&](int descriptor) {
    return ::write(descriptor, block.get(), kDirectAlignment) == static_cast<ssize_t>(kDirectAlignment);
  });
}
inline bool reservesRoom(const std::string& path) {
  return allows(path, 0, [](int descriptor) { return ::fallocate(descriptor, 0, 0, 4096) == 0; });
}

// Puts temporary folders into memory as long as it exists.
class InMemory {
 public:
  InMemory() {
    if (std::filesystem::exists("/dev/shm")) setenv("TMPDIR", "/dev/shm", 1);
  }
  ~InMemory() {
    if (old_)
      setenv("TMPDIR", old_->c_str(), 1);
    else
      unsetenv("TMPDIR");
  }

 private:
  const std::optional<std::string> old_ =
      std::getenv("TMPDIR") ? std::optional<std::string>(std::getenv("TMPDIR")) : std::nullopt;
};

}  // namespace sheaf::testing
