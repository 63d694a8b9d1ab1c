#include "runtime/base/PhaseProgress.h"

#include <unistd.h>

#include <cstdio>

#include "runtime/base/Print.h"
#include "runtime/base/Text.h"

namespace sheaf {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::seconds;

constexpr seconds kFirstOnTerminal(2), kNextOnTerminal(1), kElsewhere(30);

PhaseProgress* current = nullptr;

}  // namespace

PhaseProgress::PhaseProgress(std::string command) : command_(std::move(command)), outer_(current) {
  current = this;
  // A system that refuses the thread runs the command all the same.
  if (Expected<Thread> thread = Thread::start("the progress line", [this] { run(); }); thread.ok())
    thread_ = std::move(*thread);
}

PhaseProgress::~PhaseProgress() {
  current = outer_;
  {
    std::lock_guard lock(mutex_);
    end_ = true;
  }
  ended_.notify_all();
  thread_.join();
  out::clearLine();
}

void PhaseProgress::phase(const std::string& text) {
  if (!current) return;
  std::lock_guard lock(current->mutex_);
  current->phase_ = text;
}

void PhaseProgress::run() {
  const bool terminal = isatty(STDERR_FILENO);
  const Clock::time_point begin = Clock::now();
  Clock::time_point next = begin + (terminal ? kFirstOnTerminal : kElsewhere);
  std::unique_lock lock(mutex_);
  while (!ended_.wait_until(lock, next, [this] { return end_; })) {
    next += terminal ? kNextOnTerminal : kElsewhere;
    const auto elapsed = std::chrono::duration_cast<seconds>(Clock::now() - begin).count();
    const std::string text = cat(command_, ": ", phase_.empty() ? "working" : phase_, " (", elapsed, " s)");
    if (terminal)
      out::drawLine(text);
    else
      out::fprintf(stderr, "%s\n", text.c_str());
  }
}

}  // namespace sheaf
