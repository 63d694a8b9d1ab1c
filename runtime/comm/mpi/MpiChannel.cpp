#include "runtime/comm/mpi/MpiChannel.h"

#include <algorithm>

namespace sheaf::comm {

void MpiChannel::Flow::complete(uint64_t index) {
  early.push_back(index);
  for (auto next = early.end(); (next = std::find(early.begin(), early.end(), done)) != early.end(); ++done)
    early.erase(next);
  for (; !ends.empty() && ends.front() <= done; ++pieces) ends.pop_front();
}

void MpiChannel::add(Flow& flow, Message message, uint64_t bytes) {
  for (uint64_t at = 0; at < bytes; at += message.bytes, message.data += message.bytes) {
    message.index = flow.queued++;
    message.bytes = std::min(bytes - at, messageBytes_);
    if (!rate_ || !message.sends) {
      pending_.push_back(message);
      continue;
    }
    if (delayed_.empty()) since_ = SendRate::Clock::now();
    delayed_.push_back(message);
  }
  flow.ends.push_back(flow.queued);
}

void MpiChannel::send(int64_t process, std::span<const std::byte> piece) {
  add(links_[static_cast<size_t>(process)].out, {this, process, true, 0, const_cast<std::byte*>(piece.data()), 0},
      piece.size());
}

void MpiChannel::receive(int64_t process, std::span<std::byte> piece) {
  add(links_[static_cast<size_t>(process)].in, {this, process, false, 0, piece.data(), 0}, piece.size());
}

bool MpiChannel::idle(int64_t process) const {
  const Link& link = links_[static_cast<size_t>(process)];
  return link.out.done == link.out.queued && link.in.done == link.in.queued;
}

void MpiChannel::release() {
  for (const auto now = SendRate::Clock::now(); !delayed_.empty(); delayed_.pop_front(), reserved_ = false) {
    if (!reserved_) since_ = due_ = rate_->reserve(delayed_.front().bytes, since_);
    reserved_ = true;
    if (due_ > now) return;
    pending_.push_back(delayed_.front());
  }
}

Expected<bool> MpiChannel::poll(std::chrono::milliseconds wait) {
  release();
  std::chrono::nanoseconds limit = wait;
  if (!delayed_.empty()) limit = std::min<std::chrono::nanoseconds>(limit, due_ - SendRate::Clock::now());
  active_ += pending_.size();
  if (!pending_.empty()) submit_(pending_);
  std::string failure;
  {
    std::unique_lock lock(mutex_);
    auto news = [&] { return !completed_.empty() || !failure_.empty() || aborted_; };
    if (active_ > 0 || !delayed_.empty()) changed_.wait_for(lock, limit, news);
    taken_.swap(completed_);
    failure = failure_;
  }
  const bool moved = !taken_.empty();
  active_ -= taken_.size();
  for (const Message& message : taken_) {
    Link& link = links_[static_cast<size_t>(message.process)];
    (message.sends ? link.out : link.in).complete(message.index);
    if (message.sends) countSent(message.process, message.bytes);
  }
  taken_.clear();
  if (!failure.empty()) return Status::error(failure);
  return moved;
}

void MpiChannel::complete(const Message& message) {
  {
    std::lock_guard lock(mutex_);
    completed_.push_back(message);
  }
  changed_.notify_one();
}

void MpiChannel::fail(const std::string& why) {
  {
    std::lock_guard lock(mutex_);
    if (failure_.empty()) failure_ = why;
  }
  changed_.notify_one();
}

void MpiChannel::abort() {
  {
    std::lock_guard lock(mutex_);
    aborted_ = true;
  }
  changed_.notify_one();
}

}  // namespace sheaf::comm
