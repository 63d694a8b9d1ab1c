// The saved state of a fiber: its stack and its registers. Blocks of emulated threads switch so often that ucontext's
// system calls would take most of their time. Every switch is announced to sanitizers. Switches go from the scheduler
// to a fiber or back, never between fibers.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#elif defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

// For functions that run on all fibers: ThreadSanitizer treats fibers as threads and is to check kernels, not the code
// here that all fibers share.
#define SHEAF_NO_TSAN __attribute__((no_sanitize("thread")))

// Saves the registers that a function must keep on the stack, and that stack's pointer in *from; goes on where `to` was
// saved. Known to the file alone that includes this.
extern "C" void sheafSwitchStack(void** from, void* to);
__asm__(R"(
  .pushsection .text
  .type sheafSwitchStack, @function
sheafSwitchStack:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
  .size sheafSwitchStack, .-sheafSwitchStack
  .popsection
)");

namespace sheaf::emulation {

#if defined(__SANITIZE_ADDRESS__)

// What AddressSanitizer knows of a stack.
class Traces {
 public:
  void start(const void* stack, size_t bytes) { bottom_ = stack, bytes_ = bytes; }
  void adopt() {}
  void end() {}
  void leave(Traces& to, bool forEver) {
    __sanitizer_start_switch_fiber(forEver ? nullptr : &frames_, to.bottom_, to.bytes_);
  }
  void arrive(Traces& from) { __sanitizer_finish_switch_fiber(frames_, &from.bottom_, &from.bytes_); }

 private:
  const void* bottom_ = nullptr;
  size_t bytes_ = 0;
  void* frames_ = nullptr;  // those that it watches after their return
};
inline void publish(void*) {}
inline void observe(void*) {}

#elif defined(__SANITIZE_THREAD__)

// To ThreadSanitizer each fiber is a thread, and switching orders nothing between them: what a kernel's barriers do not
// order is a race, in whichever order the fibers run.
class Traces {
 public:
  SHEAF_NO_TSAN void start(const void*, size_t) { fiber_ = __tsan_create_fiber(0); }
  SHEAF_NO_TSAN void adopt() { fiber_ = __tsan_get_current_fiber(); }
  SHEAF_NO_TSAN void end() { __tsan_destroy_fiber(fiber_); }
  SHEAF_NO_TSAN void leave(Traces& to, bool) { __tsan_switch_to_fiber(to.fiber_, __tsan_switch_to_fiber_no_sync); }
  void arrive(Traces&) {}

 private:
  void* fiber_ = nullptr;
};
// What was done before publish() is seen by what is done after observe() of the same place.
inline void publish(void* place) {
  __tsan_release(place);
}
inline void observe(void* place) {
  __tsan_acquire(place);
}

#else

class Traces {
 public:
  void start(const void*, size_t) {}
  void adopt() {}
  void end() {}
  void leave(Traces&, bool) {}
  void arrive(Traces&) {}
};
inline void publish(void*) {}
inline void observe(void*) {}

#endif

class Context {
 public:
  // A fiber that begins with entry() on this stack. entry() calls arrive() first and depart() last.
  SHEAF_NO_TSAN void start(char* stack, size_t bytes, void (*entry)()) {
    constexpr int kSavedRegisters = 6;
    // As a call of entry() would leave it: the stack's pointer is 8 below a multiple of 16.
    void** pointer = reinterpret_cast<void**>((reinterpret_cast<uintptr_t>(stack) + bytes) / 16 * 16);
    *--pointer = nullptr;  // entry() returns to nowhere
    *--pointer = reinterpret_cast<void*>(entry);
    for (int i = 0; i < kSavedRegisters; ++i) *--pointer = nullptr;
    stack_ = pointer;
    traces_.start(stack, bytes);
  }
  // The calling thread itself, which others come back to.
  SHEAF_NO_TSAN void adopt() { traces_.adopt(); }

  // Comes back when `other` switches to this one.
  SHEAF_NO_TSAN void switchTo(Context& other) {
    traces_.leave(other.traces_, false);
    sheafSwitchStack(&stack_, other.stack_);
    traces_.arrive(other.traces_);
  }
  SHEAF_NO_TSAN void arrive(Context& from) { traces_.arrive(from.traces_); }
  // Never comes back.
  SHEAF_NO_TSAN void depart(Context& other) {
    traces_.leave(other.traces_, true);
    sheafSwitchStack(&stack_, other.stack_);
  }
  // After it has departed, by another.
  SHEAF_NO_TSAN void end() { traces_.end(); }

 private:
  void* stack_ = nullptr;
  Traces traces_;
};

}  // namespace sheaf::emulation
