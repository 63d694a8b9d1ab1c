// A job's processes connected by TCP. Every exchange goes through process 0. One service thread per process handles the
// sockets, so that the end or silence of a process is noticed at any time.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/Threads.h"
#include "runtime/comm/process/Exchange.h"
#include "runtime/comm/process/Join.h"
#include "runtime/comm/process/ProcessGroup.h"

namespace sheaf::comm {

class TcpProcessGroup : public ProcessGroup {
 public:
  // Largest message of one process, in bytes.
  static constexpr uint64_t kMaxMessageBytes = uint64_t{64} << 20;

  // Returns when all processes have joined. `cancelled` and `waits` as in joinJob().
  static Expected<std::unique_ptr<TcpProcessGroup>> join(
      const Launch& launch, const std::function<bool()>& cancelled = nullptr,
      const std::function<void(const std::string& text)>& waits = nullptr);
  // Without leave() before, the other processes treat it as a failure.
  ~TcpProcessGroup() override;

  int64_t rank() const override { return launch_.rank; }
  int64_t size() const override { return launch_.size; }
  Expected<int64_t> localRank() const override { return requireLocalRank(launch_); }
  Expected<std::vector<std::string>> allGather(const std::string& message, const std::string& what) override;
  Expected<std::vector<std::string>> gather(const std::string& message, const std::string& what) override;
  void watch(std::function<void(const Status&)> lost) override;
  void fail(const std::string& why) override;
  Status leave() override;
  bool left() const override;
  std::string describe(int64_t process) const override;
  std::string address(int64_t process) const override { return members_[static_cast<size_t>(process)].address; }
  std::chrono::milliseconds limit() const override { return launch_.limit; }
  // A network is between the processes, and no secret keeps unrelated programs from joining.
  bool lacksSecret() const { return launch_.secret.empty() && onSeveralHosts(members_); }

 private:
  // `wakeup`: a descriptor of an event.
  TcpProcessGroup(const Launch& launch, Joined joined, int wakeup);
  Expected<std::vector<std::string>> exchange(ExchangeKind kind, const std::string& message, const std::string& what);
  void wake();

  // Run on the service thread.
  void serve();
  void waitForSockets(bool stopping);
  void receive(size_t index);
  void handle(size_t index, Frame& frame);
  // Ends the job: the process has sent what is not expected now.
  void refuse(int64_t process);
  void contribute(int64_t process, Contribution contribution);
  void conclude();
  void checkTimes();
  void endJob(const Status& why, int64_t origin);
  void broadcastFailure(const std::string& why, int64_t origin);
  void callWatchers();
  int64_t processOf(size_t index) const { return launch_.rank == 0 ? static_cast<int64_t>(index) + 1 : 0; }

  const Launch launch_;
  const std::vector<Member> members_;
  // Used by the service thread only.
  std::vector<Connection> connections_;
  std::vector<bool> endTreated_;      // per connection
  std::vector<size_t> readable_;      // indices of connections_
  std::optional<Exchange> exchange_;  // on process 0
  Clock::time_point lastHeartbeat_ = Clock::now();
  const int wakeup_;

  std::mutex callers_;        // one exchange at a time
  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::optional<Contribution> ours_;   // to be sent by the service thread
  std::optional<std::string> failed_;  // the reason given to fail(), to be sent by the service thread
  uint32_t sequence_ = 0;
  std::optional<std::vector<std::string>> result_;
  bool left_ = false, stop_ = false;
  Status over_;        // why no more exchanges are possible
  bool lost_ = false;  // another process is the reason
  std::vector<std::function<void(const Status&)>> watchers_;
  Thread service_;
};

}  // namespace sheaf::comm
