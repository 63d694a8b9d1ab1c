// Errors of what the system refuses: memory and threads.
#pragma once

#include <cstdint>
#include <new>
#include <string>
#include <string_view>
#include <system_error>

#include "runtime/base/Status.h"

namespace sheaf {

// Says which limits of this process may be the reason, and what to change. Empty `what`: nothing more is known of it.
Status outOfMemory(std::string_view what);
// The same of a thread; `what` is what it was for, `error` that of the system.
Status outOfThreads(std::string_view what, int error);
// An error if the process has no address space for so many bytes that libraries are going to take: some crash where
// they get none.
Status checkAddressSpace(std::string_view what, uint64_t bytes);

// Allows exceptions for want of memory on this thread while it exists. Elsewhere endWithMessages() ends the program
// instead: an exception would come through libraries that do not expect one (oneDNN, glibc's pthread_once), and abort
// it or let it hang.
class MemoryGuard {
 public:
  MemoryGuard() { ++depth; }
  ~MemoryGuard() { --depth; }
  MemoryGuard(const MemoryGuard&) = delete;
  static bool isActive() { return depth > 0; }

 private:
  static thread_local int depth;
};

// Returns what `body` returns. Where it gets no memory, the error says that it was wanted for `what`. Only for code of
// ours that starts no work on other threads.
template <typename Body>
Status guarded(std::string_view what, Body&& body) {
  try {
    const MemoryGuard guard;
    return body();
  } catch (const std::bad_alloc&) {
    return outOfMemory(what);
  } catch (const std::system_error& error) {
    return Status::error(std::string(what) + ": " + error.what());
  }
}

}  // namespace sheaf
