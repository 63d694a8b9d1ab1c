#include "test/emulation/Context.h"

#include <cstdint>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)

namespace sheaf::emulation {

void Context::start(char* stack, size_t bytes, void (*entry)()) {
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack;
  context_.uc_stack.ss_size = bytes;
  context_.uc_link = nullptr;
  makecontext(&context_, entry, 0);
}

void Context::switchTo(Context& other) {
  swapcontext(&context_, &other.context_);
}

}  // namespace sheaf::emulation

#else

__asm__(R"(
  .pushsection .text
  .globl sheafSwitchStack
  .hidden sheafSwitchStack
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

void Context::start(char* stack, size_t bytes, void (*entry)()) {
  constexpr int kSavedRegisters = 6;
  // As a call of entry() would leave it: the stack's pointer is 8 below a multiple of 16.
  uintptr_t top = (reinterpret_cast<uintptr_t>(stack) + bytes) / 16 * 16;
  void** pointer = reinterpret_cast<void**>(top);
  *--pointer = nullptr;  // entry() returns to nowhere
  *--pointer = reinterpret_cast<void*>(entry);
  for (int i = 0; i < kSavedRegisters; ++i) *--pointer = nullptr;
  stack_ = pointer;
}

void Context::switchTo(Context& other) {
  sheafSwitchStack(&stack_, other.stack_);
}

}  // namespace sheaf::emulation

#endif
