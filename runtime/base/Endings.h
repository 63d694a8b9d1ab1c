// A program of Sheaf that cannot go on says why before it ends.
#pragma once

namespace sheaf {

// Called once, at the start of main; `program` is the name before its errors, and stays. From then on
// - where there is no memory, outside of guarded(), the program ends with an error at once, and exits with 1; so it
// does
//   for an exception that is not caught;
// - the end of a mapped file that has become shorter (SIGBUS) is one error that names the file, and exit 1;
// - any other fault (SIGSEGV and the like) is an error before the signal ends the program;
// - a file that grows beyond a limit (SIGXFSZ) is an error of the write.
void endWithMessages(const char* program);

// Prints "PROGRAM: error: TEXT" without taking memory, and exits with 1. Safe in a signal handler.
[[noreturn]] void endWith(const char* text);

}  // namespace sheaf
