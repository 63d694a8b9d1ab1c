#include "runtime/exec/StagingRing.h"

#include <algorithm>

#include "runtime/plan/SavedParts.h"

namespace sheaf::exec {
namespace {

// Pieces of this size keep both sides at work.
constexpr uint64_t kPieceBytes = 1 << 20;

uint64_t aligned(uint64_t bytes) {
  return (bytes + plan::kStagingAlignment - 1) / plan::kStagingAlignment * plan::kStagingAlignment;
}

}  // namespace

StagingRing::StagingRing(uint64_t bytes) : bytes_(bytes), memory_(new std::byte[bytes]) {
  std::fill_n(memory_.get(), bytes, std::byte{0});
}

void StagingRing::open() {
  std::lock_guard lock(mutex_);
  full_.clear();
  next_ = used_ = 0;
  closed_ = false;
}

void StagingRing::close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

std::span<std::byte> StagingRing::room(uint64_t most) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return closed_ || used_ < bytes_; });
  if (closed_) return {};
  return {memory_.get() + next_, std::min({most, kPieceBytes, bytes_ - used_, bytes_ - next_})};
}

void StagingRing::filled(std::span<const std::byte> bytes) {
  std::lock_guard lock(mutex_);
  full_.push_back(bytes);
  next_ = (next_ + aligned(bytes.size())) % bytes_;
  used_ += aligned(bytes.size());
  changed_.notify_all();
}

std::span<const std::byte> StagingRing::take() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return closed_ || !full_.empty(); });
  return closed_ ? std::span<const std::byte>() : full_.front();
}

void StagingRing::taken() {
  std::lock_guard lock(mutex_);
  if (closed_) return;
  used_ -= aligned(full_.front().size());
  full_.pop_front();
  changed_.notify_all();
}

}  // namespace sheaf::exec
