// Errors for memory and threads that the system refuses.
#pragma once

#include <cstdint>
#include <new>
#include <string>
#include <string_view>
#include <system_error>

#include "runtime/base/Status.h"

namespace sheaf {

// Returns an error that names the limit of this process that may be the reason. `purpose` may be empty.
Status outOfMemory(std::string_view purpose);
// Returns what to do about memory that the system refuses: the limit of this process, if it has one, or `otherwise`.
std::string memoryRemedy(std::string_view otherwise);
// outOfMemory() for a thread; `error` is the system's errno.
Status outOfThreads(std::string_view purpose, int error);
// Fails if `bytes` of address space cannot be reserved. Checked first because some libraries crash instead.
Status checkAddressSpace(std::string_view purpose, uint64_t bytes);

// Lets `new` throw std::bad_alloc on this thread while it exists. Elsewhere installCrashHandlers() ends the program
// instead: libraries that do not expect exceptions (oneDNN, glibc's pthread_once) would abort or hang.
class AllowBadAlloc {
 public:
  AllowBadAlloc() { ++depth; }
  ~AllowBadAlloc() { --depth; }
  AllowBadAlloc(const AllowBadAlloc&) = delete;
  static bool isActive() { return depth > 0; }

 private:
  static thread_local int depth;
};

// Returns what `body` returns, or an error that names `purpose` if it throws std::bad_alloc or std::system_error. Only
// for our own code that starts no work on other threads.
template <typename Body>
Status catchOutOfMemory(std::string_view purpose, Body&& body) {
  try {
    const AllowBadAlloc allow;
    return body();
  } catch (const std::bad_alloc&) {
    return outOfMemory(purpose);
  } catch (const std::system_error& error) {
    return Status::error(std::string(purpose) + ": " + error.what());
  }
}

}  // namespace sheaf
