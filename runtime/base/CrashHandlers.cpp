#include "runtime/base/CrashHandlers.h"

#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <exception>
#include <new>

#include "runtime/base/MappedFile.h"
#include "runtime/base/ResourceErrors.h"

namespace sheaf {
namespace {

const char* programName = "sheaf";
std::atomic<bool> ending{false};

void say(const char* text) {
  for (size_t left = std::strlen(text); left > 0;) {
    const ssize_t written = write(STDERR_FILENO, text, left);
    if (written <= 0) return;
    text += written;
    left -= static_cast<size_t>(written);
  }
}

[[noreturn]] void finish(const char* before, const char* text) {
  // Another thread that ends for the same reason waits for this one's message.
  if (ending.exchange(true))
    for (;;) pause();
  for (const char* part : {programName, ": error: ", before, text, "\n"}) say(part);
  _exit(1);
}

// Freed on out-of-memory so that the error can be formatted.
std::atomic<char*> reserve{nullptr};
constexpr size_t kReserveBytes = size_t{64} << 10;

[[noreturn]] void endWithoutMemory() {
  // A second call, by the same thread or another one, has no memory for the longer text.
  char* const memory = reserve.exchange(nullptr);
  if (!memory) finish("", "out of memory");
  delete[] memory;
  finish("", outOfMemory("").message().c_str());
}

void onNoMemory() {
  if (AllowBadAlloc::isActive()) throw std::bad_alloc();
  endWithoutMemory();
}

// Called where an exception is not caught, before anything is unwound.
void onTerminate() {
  try {
    if (std::current_exception()) throw;
  } catch (const std::bad_alloc&) {
    endWithoutMemory();
  } catch (const std::exception& error) {
    finish("internal error: ", error.what());
  } catch (...) {
  }
  finish("", "internal error");
}

// Re-raises the signal, so that core dumps and debuggers work.
void onFault(int signal, siginfo_t*, void*) {
  say(programName);
  say(signal == SIGSEGV  ? ": error: crashed (SIGSEGV)"
      : signal == SIGILL ? ": error: crashed (SIGILL)"
                         : ": error: crashed (SIGFPE)");
  say(": a bug in Sheaf, a library or the plan's kernels, or out of memory\n");
  std::signal(signal, SIG_DFL);
  raise(signal);
}

void onBusError(int signal, siginfo_t* info, void*) {
  if (const char* file = mappedFileAt(info->si_addr))
    finish(file,
           " was truncated while in use, or its disk failed; restore it, and do not change files that a program reads");
  say(programName);
  say(": error: cannot access memory (SIGBUS): out of memory, or a mapped file was truncated\n");
  std::signal(signal, SIG_DFL);
  raise(signal);
}

void handle(int signal, void (*handler)(int, siginfo_t*, void*)) {
  struct sigaction action {};
  action.sa_sigaction = handler;
  // Runs on an alternate stack: the main thread's may have overflowed.
  action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
  sigaction(signal, &action, nullptr);
}

}  // namespace

void exitWithError(const char* text) {
  finish("", text);
}

void installCrashHandlers(const char* program) {
  programName = program;
  reserve = new char[kReserveBytes];
  static char signalStack[size_t{64} << 10];
  const stack_t stack{.ss_sp = signalStack, .ss_flags = 0, .ss_size = sizeof signalStack};
  sigaltstack(&stack, nullptr);
  std::set_new_handler(onNoMemory);
  std::set_terminate(onTerminate);
  std::signal(SIGXFSZ, SIG_IGN);
  // A heap for each thread would take all of a small address space in advance.
  if (rlimit limit{}; getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) mallopt(M_ARENA_MAX, 1);
  handle(SIGBUS, onBusError);
  // Sanitizers install their own handlers.
  for (const int fault : {SIGSEGV, SIGILL, SIGFPE})
    if (struct sigaction now{}; sigaction(fault, nullptr, &now) == 0 && now.sa_handler == SIG_DFL)
      handle(fault, onFault);
}

}  // namespace sheaf
