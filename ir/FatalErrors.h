// Errors that LLVM takes for the end of the program: no memory, no thread.
#pragma once

#include <cerrno>
#include <cstring>

#include "llvm/Support/ErrorHandling.h"
#include "runtime/base/CrashHandlers.h"
#include "runtime/base/ResourceErrors.h"

namespace sheaf {

// Called once, at the start of main: as installCrashHandlers(), and LLVM's errors are ours, without a trace and an
// abort.
inline void installCompilerCrashHandlers(const char* program) {
  installCrashHandlers(program);
  llvm::install_bad_alloc_error_handler(
      [](void*, const char*, bool) { exitWithError(outOfMemory("").message().c_str()); });
  llvm::install_fatal_error_handler([](void*, const char* reason, bool) {
    // The one error of the system that LLVM reports so.
    constexpr const char* kThread = "pthread_create failed: ";
    if (std::strncmp(reason, kThread, std::strlen(kThread)) == 0)
      exitWithError(outOfThreads("the compiler", EAGAIN).message().c_str());
    exitWithError(reason);
  });
}

}  // namespace sheaf
