// Error messages of programs that crash or run out of memory.
#pragma once

namespace sheaf {

// Called once, at the start of main. `program` is printed before errors, and must stay valid. From then on:
//
// - Out of memory outside of catchOutOfMemory(): an error, and exit status 1.
// - An exception that is not caught: an error, and exit status 1.
// - Access to a mapped file that was truncated (SIGBUS): an error that names the file, and exit status 1.
// - Any other SIGBUS, SIGSEGV, SIGILL, SIGFPE: an error, then the signal ends the program.
// - A file that grows beyond a limit (SIGXFSZ): the write fails.
void installCrashHandlers(const char* program);

// Prints "PROGRAM: error: TEXT" without allocating memory, and exits with 1. Safe in a signal handler.
[[noreturn]] void exitWithError(const char* text);

}  // namespace sheaf
