#include "runtime/base/Endings.h"

#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <exception>
#include <new>

#include "runtime/base/MappedFile.h"
#include "runtime/base/Shortage.h"

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

// Memory for the error that there is none.
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
  if (MemoryGuard::isActive()) throw std::bad_alloc();
  endWithoutMemory();
}

// Called where an exception is not caught, before anything is unwound.
void onTerminate() {
  try {
    if (std::current_exception()) throw;
  } catch (const std::bad_alloc&) {
    endWithoutMemory();
  } catch (const std::exception& error) {
    finish("the program cannot go on: ", error.what());
  } catch (...) {
  }
  finish("", "the program cannot go on: an error that should not occur");
}

// The fault stays what it is for the system and for debuggers.
void onFault(int signal, siginfo_t*, void*) {
  say(programName);
  say(signal == SIGSEGV  ? ": error: a fault (SIGSEGV)"
      : signal == SIGILL ? ": error: a fault (SIGILL)"
                         : ": error: a fault (SIGFPE)");
  say(": the program, a library or a plan's code is wrong, or had no memory left\n");
  std::signal(signal, SIG_DFL);
  raise(signal);
}

void onBusError(int signal, siginfo_t* info, void*) {
  if (const char* file = mappedFileAt(info->si_addr))
    finish(file,
           ": it has become shorter since it was opened, or its disk fails; restore the file, and leave files that a "
           "program reads as they are");
  say(programName);
  say(": error: memory cannot be accessed (SIGBUS): the system has none left, or a file has become shorter\n");
  std::signal(signal, SIG_DFL);
  raise(signal);
}

void handle(int signal, void (*handler)(int, siginfo_t*, void*)) {
  struct sigaction action {};
  action.sa_sigaction = handler;
  // On a stack of its own, because that of the main thread may be what has overflowed.
  action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
  sigaction(signal, &action, nullptr);
}

}  // namespace

void endWith(const char* text) {
  finish("", text);
}

void endWithMessages(const char* program) {
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
  // Not where a sanitizer has a report of its own.
  for (const int fault : {SIGSEGV, SIGILL, SIGFPE})
    if (struct sigaction now{}; sigaction(fault, nullptr, &now) == 0 && now.sa_handler == SIG_DFL)
      handle(fault, onFault);
}

}  // namespace sheaf
