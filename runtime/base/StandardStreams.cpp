#include "runtime/base/StandardStreams.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "runtime/base/Text.h"

namespace sheaf {

void openStandardStreams() {
  // The lowest number that is free is taken. For reading only, so that writing to them fails.
  for (int stream = open("/dev/null", O_RDONLY); stream >= 0; stream = open("/dev/null", O_RDONLY))
    if (stream > STDERR_FILENO) {
      close(stream);
      return;
    }
}

Status finishStandardOutput() {
  errno = 0;
  const bool lost = std::fflush(stdout) != 0 || std::ferror(stdout) != 0;
  if (!lost) return {};
  return Status::error(cat("cannot write to standard output", errno != 0 ? cat(": ", std::strerror(errno)) : "",
                           "; what was printed is not whole"));
}

}  // namespace sheaf
