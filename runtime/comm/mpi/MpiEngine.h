// The thread that makes all calls of MPI, from MPI_Init_thread to MPI_Finalize (MPI_THREAD_FUNNELED): no other thread
// ever waits in one, and libraries that are slow with MPI_THREAD_MULTIPLE are not.
#pragma once

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/comm/mpi/MpiChannel.h"

namespace sheaf::comm {

class MpiEngine {
 public:
  struct Place {
    std::vector<int> ranks;  // of the group's processes, in MPI's world
    size_t mine = 0;         // this process's number in the group
    int lastTag = 0;
    std::vector<std::string> names;  // of the processes, for errors
  };
  explicit MpiEngine(Place place) : place_(std::move(place)) {}

  // The thread's body.
  void serve();

  // The rest is called by other threads. Waits return false if the limit has passed.
  bool waitForStart(std::chrono::milliseconds limit);
  Status startStatus();  // once waitForStart() is true
  // Moves the messages and empties the vector.
  void submit(std::vector<MpiChannel::Message>& messages);
  // Ends the thread; orderly: by MPI_Finalize, to which all processes must come. Otherwise MPI is not called any more.
  void finish(bool orderly);
  bool waitForEnd(std::chrono::milliseconds limit);

 private:
  using Clock = std::chrono::steady_clock;

  Status start() const;
  void move();
  void takeSubmitted();
  void post(const MpiChannel::Message& message);
  bool test();
  void rest();
  void fail(const MpiChannel::Message& message, int error) const;

  const Place place_;
  // Of the engine's thread: the requests under way, and where MPI_Testsome says which are done.
  std::vector<MPI_Request> requests_;
  std::vector<MpiChannel::Message> messages_;  // of the requests
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
  std::vector<MpiChannel::Message> taken_;
  Clock::time_point lastMove_;  // when a message was posted or done

  std::atomic<bool> news_ = false;  // there are submitted messages, or the thread is to end
  std::mutex mutex_;                // guards the members below
  std::condition_variable changed_;
  std::vector<MpiChannel::Message> submitted_;
  bool started_ = false, finishing_ = false, orderly_ = false, ended_ = false;
  Status startStatus_;
};

}  // namespace sheaf::comm
