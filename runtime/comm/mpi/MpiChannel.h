// A channel whose pieces are messages of MPI. The rank's thread queues them and waits; the engine's thread, the only
// one that calls MPI, moves them and reports what is done.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/comm/transport/SendRate.h"
#include "runtime/comm/transport/Transport.h"

namespace sheaf::comm {

class MpiChannel : public CountingChannel {
 public:
  // A message: a piece, or a part of one that is longer than messageBytes. `index` counts the messages of its process
  // and direction.
  struct Message {
    MpiChannel* channel = nullptr;
    int64_t process = 0;
    bool sends = false;
    uint64_t index = 0;
    std::byte* data = nullptr;
    uint64_t bytes = 0;
  };

  // `submit` takes messages to be moved, in order; the vector comes back empty. `rate`: null without a limit.
  MpiChannel(int64_t processes, int tag, uint64_t messageBytes, std::function<void(std::vector<Message>&)> submit,
             Traffic& traffic, int64_t communicator, SendRate* rate)
      : CountingChannel(traffic, communicator),
        submit_(std::move(submit)),
        tag_(tag),
        messageBytes_(rate ? std::min(messageBytes, SendRate::kPieceBytes) : messageBytes),
        rate_(rate),
        links_(static_cast<size_t>(processes)) {}

  void send(int64_t process, std::span<const std::byte> piece) override;
  void receive(int64_t process, std::span<std::byte> piece) override;
  Expected<bool> poll(std::chrono::milliseconds wait) override;
  uint64_t received(int64_t process) const override { return links_[static_cast<size_t>(process)].in.pieces; }
  bool idle(int64_t process) const override;

  // Called by the engine's thread: the message has been moved; the channel is broken.
  void complete(const Message& message);
  void fail(const std::string& why);
  // Ends waiting, now and from now on.
  void abort();
  int tag() const { return tag_; }

 private:
  // Messages in one direction. They may be done out of order.
  struct Flow {
    uint64_t queued = 0, done = 0;  // the first `done` messages are done
    std::vector<uint64_t> early;    // further ones that are
    uint64_t pieces = 0;            // whole ones that are done
    std::deque<uint64_t> ends;      // of the other pieces: the numbers after their last messages
    void complete(uint64_t index);
  };
  struct Link {
    Flow out, in;
  };

  void add(Flow& flow, Message message, uint64_t bytes);
  // With a rate: makes messages pending that may be sent by now.
  void release();

  const std::function<void(std::vector<Message>&)> submit_;
  const int tag_;
  const uint64_t messageBytes_;
  SendRate* const rate_;
  // Of the rank's thread.
  std::vector<Link> links_;       // to each process
  std::vector<Message> pending_;  // not submitted yet
  // With a rate: messages to be sent, of which the first may be from due_ on if it is reserved, and since when the
  // others have waited.
  std::deque<Message> delayed_;
  bool reserved_ = false;
  SendRate::Clock::time_point due_, since_;
  std::vector<Message> taken_;
  uint64_t active_ = 0;  // submitted, and not done

  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::vector<Message> completed_;
  std::string failure_;
  bool aborted_ = false;
};

}  // namespace sheaf::comm
