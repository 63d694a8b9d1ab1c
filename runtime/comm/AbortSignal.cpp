#include "runtime/comm/AbortSignal.h"

namespace sheaf::comm {

Status AbortSignal::status() const {
  std::lock_guard lock(mutex_);
  return status_;
}

void AbortSignal::raise(Status error) {
  std::vector<std::function<void()>> listeners;
  {
    std::lock_guard lock(mutex_);
    if (raised_.load(std::memory_order_relaxed)) return;
    status_ = std::move(error);
    raised_.store(true, std::memory_order_release);
    listeners.swap(listeners_);
  }
  for (const auto& listener : listeners) listener();
}

void AbortSignal::listen(std::function<void()> listener) {
  {
    std::lock_guard lock(mutex_);
    if (!raised_.load(std::memory_order_relaxed)) {
      listeners_.push_back(std::move(listener));
      return;
    }
  }
  listener();
}

}  // namespace sheaf::comm
