#include "runtime/base/RegularFile.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "runtime/base/Text.h"

namespace sheaf {
namespace {

const char* kindOf(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

Status irregular(const std::string& path, mode_t mode) {
  return Status::error(cat("cannot read ", path, ": it is ", kindOf(mode),
                           ", not a regular file; copy its data into one, or give another file"));
}

}  // namespace

Expected<OpenFile> openRegularFile(const std::string& path) {
  auto failed = [&] {
    const char* remedy = errno == EMFILE ? ": raise `ulimit -n`" : "";
    return Status::error(cat("cannot open ", path, ": ", std::strerror(errno), remedy));
  };
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return failed();
  if (!S_ISREG(info.st_mode)) return irregular(path, info.st_mode);
  // It may have been replaced since, and to open a pipe without O_NONBLOCK waits for its writer.
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (descriptor < 0) return failed();
  if (fstat(descriptor, &info) != 0 || !S_ISREG(info.st_mode)) {
    close(descriptor);
    return irregular(path, info.st_mode);
  }
  return OpenFile{descriptor, static_cast<uint64_t>(info.st_size)};
}

uint64_t allowMostOpenFiles() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : 0;
}

Expected<std::string> readSmallFile(const std::string& path, uint64_t limit, const std::string& what) {
  Expected<OpenFile> file = openRegularFile(path);
  if (!file.ok()) return file.status();
  std::string text;
  Status status;
  auto tooLarge = [&](uint64_t size) {
    return Status::error(cat(path, " has ", bytesText(size), ", which is too large for ", what, " (at most ",
                             bytesText(limit), "); give another file"));
  };
  if (file->size > limit) status = tooLarge(file->size);
  while (status.ok()) {
    char part[1 << 16];
    const ssize_t got = read(file->descriptor, part, sizeof part);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) status = Status::error(cat("cannot read ", path, ": ", std::strerror(errno)));
    if (got <= 0) break;
    text.append(part, static_cast<size_t>(got));
    // Files of /proc have no size, and others may grow.
    if (text.size() > limit) status = tooLarge(text.size());
  }
  close(file->descriptor);
  return status.ok() ? Expected<std::string>(std::move(text)) : status;
}

}  // namespace sheaf
