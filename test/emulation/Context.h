// Where a fiber goes on: its stack and its registers. Blocks of emulated threads switch so often that ucontext's system
// calls would be most of their time; sanitizers, however, know of ucontext only.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)

#include <ucontext.h>

namespace sheaf::emulation {

class Context {
 public:
  // Begins with entry(), which never returns, on a stack.
  void start(char* stack, size_t bytes, void (*entry)()) {
    getcontext(&context_);
    context_.uc_stack.ss_sp = stack;
    context_.uc_stack.ss_size = bytes;
    context_.uc_link = nullptr;
    makecontext(&context_, entry, 0);
  }
  // Comes back when somebody switches to this one.
  void switchTo(Context& other) { swapcontext(&context_, &other.context_); }

 private:
  ucontext_t context_;
};

}  // namespace sheaf::emulation

#else

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

class Context {
 public:
  void start(char* stack, size_t bytes, void (*entry)()) {
    constexpr int kSavedRegisters = 6;
    // As a call of entry() would leave it: the stack's pointer is 8 below a multiple of 16.
    void** pointer = reinterpret_cast<void**>((reinterpret_cast<uintptr_t>(stack) + bytes) / 16 * 16);
    *--pointer = nullptr;  // entry() returns to nowhere
    *--pointer = reinterpret_cast<void*>(entry);
    for (int i = 0; i < kSavedRegisters; ++i) *--pointer = nullptr;
    stack_ = pointer;
  }
  void switchTo(Context& other) { sheafSwitchStack(&stack_, other.stack_); }

 private:
  void* stack_ = nullptr;
};

}  // namespace sheaf::emulation

#endif
