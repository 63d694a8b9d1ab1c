// Waiting a little without sleeping.
#pragma once

namespace sheaf {

// Checks `done` up to `spins` times, some 20 to 50 ns apart; true as soon as it holds. Worth it only where the awaited
// thread has a core of its own.
template <typename Done>
bool spinUntil(int spins, Done&& done) {
  for (int i = 0;; ++i) {
    if (done()) return true;
    if (i >= spins) return false;
    __builtin_ia32_pause();
  }
}

}  // namespace sheaf
