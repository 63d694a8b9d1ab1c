#include "runtime/base/ResourceErrors.h"

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

}  // namespace

thread_local int AllowBadAlloc::depth = 0;

std::string memoryRemedy(std::string_view otherwise) {
  const uint64_t limit = limitOf(RLIMIT_AS);
  return limit > 0 ? cat("raise `ulimit -v` (now ", bytesText(limit), ")") : std::string(otherwise);
}

Status outOfMemory(std::string_view purpose) {
  return Status::error(cat("out of memory", purpose.empty() ? "" : " for ", purpose, "; ",
                           memoryRemedy("give the process more memory, or use more ranks on more machines")));
}

Status checkAddressSpace(std::string_view purpose, uint64_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return outOfMemory(cat(bytesText(bytes), " of ", purpose));
  munmap(memory, bytes);
  return {};
}

Status outOfThreads(std::string_view purpose, int error) {
  std::string remedy;
  if (const uint64_t limit = limitOf(RLIMIT_NPROC); limit > 0)
    remedy = cat("more threads of this user (`ulimit -u` is ", limit, "), ");
  if (const uint64_t limit = limitOf(RLIMIT_AS); limit > 0)
    remedy += cat("more address space (`ulimit -v` is ", bytesText(limit), "), ");
  return Status::error(cat("cannot start a thread for ", purpose, ": ", std::strerror(error), "; allow ", remedy,
                           remedy.empty() ? "" : "or ", "more threads of the container or service (pids.max)"));
}

}  // namespace sheaf
