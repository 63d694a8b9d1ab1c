#include "runtime/base/Shortage.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <cstring>

#include "runtime/base/Text.h"

namespace sheaf {
namespace {

// The soft limit; 0: there is none.
uint64_t limitOf(decltype(RLIMIT_AS) resource) {
  rlimit limit{};
  return getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY ? limit.rlim_cur : 0;
}

std::string addressSpace() {
  const uint64_t most = limitOf(RLIMIT_AS);
  return most > 0 ? cat("more address space (`ulimit -v` is ", bytesText(most), ")") : "";
}

}  // namespace

thread_local int MemoryGuard::depth = 0;

Status outOfMemory(std::string_view what) {
  const std::string space = addressSpace();
  return Status::error(
      cat("out of memory", what.empty() ? "" : ": none is left for ", what, "; allow the process ",
          space.empty() ? "more memory, or give each process less to do (more ranks on more machines)" : space));
}

Status checkAddressSpace(std::string_view what, uint64_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return outOfMemory(cat(bytesText(bytes), " of ", what));
  munmap(memory, bytes);
  return {};
}

Status outOfThreads(std::string_view what, int error) {
  std::string remedy;
  if (const uint64_t most = limitOf(RLIMIT_NPROC); most > 0)
    remedy = cat("more threads of this user (`ulimit -u` is ", most, "), ");
  if (const std::string space = addressSpace(); !space.empty()) remedy += space + ", ";
  return Status::error(cat("cannot start a thread for ", what, ": ", std::strerror(error), "; allow ", remedy,
                           remedy.empty() ? "" : "or ", "more threads of the container or service (pids.max)"));
}

}  // namespace sheaf
