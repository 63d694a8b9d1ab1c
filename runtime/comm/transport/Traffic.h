// Counts the bytes that a transport sends.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace sheaf::comm {

// By the plan's communicator and by the process that they go to. Channels count from their threads, anyone reads.
class Traffic {
 public:
  struct Counts {
    std::atomic<uint64_t> bytes = 0;    // all that went out
    std::atomic<uint64_t> headers = 0;  // of these, a transfer's header for each process; the rest are values of ranks
    uint64_t values() const { return bytes - headers; }
  };

  // Called once, before anything is sent.
  void open(int64_t communicators, int64_t processes) {
    communicators_ = communicators, processes_ = processes;
    counts_ = std::make_unique<Counts[]>(static_cast<size_t>(communicators * processes));
  }
  int64_t communicators() const { return communicators_; }
  int64_t processes() const { return processes_; }
  Counts& of(int64_t communicator, int64_t process) {
    return counts_[static_cast<size_t>(communicator * processes_ + process)];
  }

 private:
  int64_t communicators_ = 0, processes_ = 0;
  std::unique_ptr<Counts[]> counts_;
};

}  // namespace sheaf::comm
