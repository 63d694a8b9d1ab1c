// Where a fiber goes on: its stack and its registers. Blocks of emulated threads switch so often that ucontext's system
// calls would be most of their time; sanitizers, however, know of ucontext only.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#include <ucontext.h>
#else
// Saves the registers that a function must keep on the stack, and that stack's pointer in *from; goes on where `to` was
// saved.
extern "C" void sheafSwitchStack(void** from, void* to);
#endif

namespace sheaf::emulation {

class Context {
 public:
  // Begins with entry(), which never returns, on a stack.
  void start(char* stack, size_t bytes, void (*entry)());
  // Comes back when somebody switches to this one.
  void switchTo(Context& other);

 private:
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  ucontext_t context_;
#else
  void* stack_ = nullptr;
#endif
};

}  // namespace sheaf::emulation
