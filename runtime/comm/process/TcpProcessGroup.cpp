#include "runtime/comm/process/TcpProcessGroup.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>

#include "runtime/base/SuspendDetector.h"
#include "runtime/base/Text.h"

namespace sheaf::comm {
namespace {

// Heartbeats per time limit. A broken connection is noticed at once regardless.
constexpr int kHeartbeats = 10;
constexpr std::chrono::milliseconds kMaxHeartbeat(2000);
// How long a process that ends with an error waits for the others to receive the reason.
constexpr std::chrono::seconds kFarewell(2);
constexpr size_t kMaxReason = 4000;

std::string seconds(std::chrono::milliseconds time) {
  return secondsText(static_cast<double>(time.count()) / 1000);
}

}  // namespace

Expected<std::unique_ptr<TcpProcessGroup>> TcpProcessGroup::join(
    const Launch& launch, const std::function<bool()>& cancelled,
    const std::function<void(const std::string& text)>& waits) {
  Expected<Joined> joined = joinJob(launch, cancelled, waits);
  if (!joined.ok()) return joined.status();
  auto refuse = [](std::vector<Connection>& connections, const Status& why) {
    for (Connection& connection : connections) {
      connection.send(FrameType::kFailure, 0, why.message());
      (void)connection.flush();
      connection.finish();
    }
    return why;
  };
  const int wakeup = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (wakeup < 0)
    return refuse(joined->connections, Status::error(cat("no event for the job's connections: ", systemError())));
  std::unique_ptr<TcpProcessGroup> group(new TcpProcessGroup(launch, std::move(*joined), wakeup));
  Expected<Thread> service = Thread::start("the job's connections", [raw = group.get()] { raw->serve(); });
  if (!service.ok()) return refuse(group->connections_, service.status());
  group->service_ = std::move(*service);
  return group;
}

TcpProcessGroup::TcpProcessGroup(const Launch& launch, Joined joined, int wakeup)
    : launch_(launch),
      members_(std::move(joined.members)),
      connections_(std::move(joined.connections)),
      endTreated_(connections_.size()),
      wakeup_(wakeup) {
  if (launch_.rank == 0) exchange_.emplace(launch_.size, 0);
}

TcpProcessGroup::~TcpProcessGroup() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake();
  service_.join();
  close(wakeup_);
}

void TcpProcessGroup::wake() {
  uint64_t one = 1;
  (void)!write(wakeup_, &one, sizeof one);
}

std::string TcpProcessGroup::describe(int64_t process) const {
  return cat("process ", process, " (", members_[static_cast<size_t>(process)].host, ")");
}

Expected<std::vector<std::string>> TcpProcessGroup::allGather(const std::string& message, const std::string& what) {
  return exchange(ExchangeKind::kAll, message, what);
}

Expected<std::vector<std::string>> TcpProcessGroup::gather(const std::string& message, const std::string& what) {
  return exchange(ExchangeKind::kFirst, message, what);
}

Status TcpProcessGroup::leave() {
  return exchange(ExchangeKind::kLeave, "", "the end of the run").status();
}

bool TcpProcessGroup::left() const {
  std::lock_guard lock(mutex_);
  return left_;
}

Expected<std::vector<std::string>> TcpProcessGroup::exchange(ExchangeKind kind, const std::string& message,
                                                             const std::string& what) {
  if (message.size() > kMaxMessageBytes)
    return Status::error(cat(what, ": a message of ", bytesText(message.size()), " is too large"));
  std::lock_guard caller(callers_);
  std::unique_lock lock(mutex_);
  if (!over_.ok()) return over_;
  ours_ = Contribution{kind, what, message};
  result_.reset();
  wake();
  // Process 0 notices first which process is missing. If process 0 itself is, the others notice a little later.
  auto late = Clock::now() + launch_.limit + std::max(launch_.limit / 4, std::chrono::milliseconds(500));
  while (!result_ && over_.ok())
    if (changed_.wait_until(lock, late) == std::cv_status::timeout && !result_ && over_.ok())
      return Status::error(
          cat(what, ": ", describe(0), " has not answered within ", seconds(launch_.limit), " (SHEAF_TIMEOUT)"));
  if (!result_) return over_;
  ++sequence_;
  if (kind == ExchangeKind::kLeave) over_ = Status::error("this process has left the job");
  return std::move(*result_);
}

void TcpProcessGroup::watch(std::function<void(const Status&)> lost) {
  {
    std::lock_guard lock(mutex_);
    watchers_.push_back(std::move(lost));
  }
  wake();
}

void TcpProcessGroup::fail(const std::string& why) {
  {
    std::lock_guard lock(mutex_);
    if (!over_.ok()) return;
    failed_ = why.substr(0, kMaxReason);
    over_ = Status::error(why);
  }
  changed_.notify_all();
  wake();
}

void TcpProcessGroup::serve() {
  std::optional<Clock::time_point> leaving;
  // Frames that followed the welcome have been read together with it, and the end of the connection perhaps, too.
  for (size_t i = 0; i < connections_.size(); ++i) readable_.push_back(i);
  for (;;) {
    SuspendDetector::heartbeat(launch_.limit);
    for (size_t i : readable_) receive(i);
    std::optional<Contribution> ours;
    std::optional<std::string> failed;
    bool stop;
    {
      std::lock_guard lock(mutex_);
      ours.swap(ours_);
      failed.swap(failed_);
      stop = stop_;
    }
    if (ours && launch_.rank == 0) contribute(0, std::move(*ours));
    if (ours && launch_.rank != 0) connections_[0].send(FrameType::kContribution, sequence_, pack(*ours));
    if (failed && launch_.rank == 0) broadcastFailure(cat(describe(0), ": ", *failed), 0);
    if (failed && launch_.rank != 0) connections_[0].send(FrameType::kFailure, 0, *failed);
    checkTimes();
    callWatchers();
    bool unsent = false, open = false;
    for (Connection& connection : connections_) {
      // A connection that is broken is noticed by the next receive().
      if (!connection.ended()) (void)connection.flush();
      unsent |= connection.hasUnsent() && !connection.ended();
      open |= !connection.ended();
    }
    if (stop && !unsent)
      for (Connection& connection : connections_) connection.finish();
    if (stop && !leaving) leaving = Clock::now() + kFarewell;
    if (leaving && (!open || Clock::now() > *leaving)) return SuspendDetector::end();
    waitForSockets(stop);
  }
}

void TcpProcessGroup::waitForSockets(bool stopping) {
  std::vector<pollfd> polled{{wakeup_, POLLIN, 0}};
  for (const Connection& connection : connections_)
    polled.push_back({connection.ended() ? -1 : connection.socket().descriptor(),
                      static_cast<short>(POLLIN | (connection.hasUnsent() ? POLLOUT : 0)), 0});
  auto wait = std::max(std::min(launch_.limit / kHeartbeats, kMaxHeartbeat) / 2, std::chrono::milliseconds(10));
  for (const Connection& connection : connections_)
    if (connection.waiting()) wait = {};
  if (stopping) wait = std::min<std::chrono::milliseconds>(wait, std::chrono::milliseconds(100));
  poll(polled.data(), polled.size(), static_cast<int>(wait.count()));
  uint64_t count;
  (void)!read(wakeup_, &count, sizeof count);
  readable_.clear();
  for (size_t i = 0; i < connections_.size(); ++i)
    if ((polled[i + 1].revents & ~POLLOUT) || connections_[i].waiting()) readable_.push_back(i);
}

void TcpProcessGroup::receive(size_t index) {
  Connection& connection = connections_[index];
  if (endTreated_[index]) return;
  const uint64_t limit = launch_.rank == 0 ? kMaxMessageBytes + kMaxGreetingBytes : kMaxFrameBytes;
  Expected<std::vector<Frame>> frames = connection.receive(limit);
  int64_t process = processOf(index);
  if (frames.ok())
    for (Frame& frame : *frames) handle(index, frame);
  else
    endJob(Status::error(cat(describe(process), ": ", frames.status().message())), process);
  if (!connection.ended()) return;
  endTreated_[index] = true;
  // Unblocks the other side if it waits for this one to read.
  (void)connection.flush();
  connection.finish();
  bool left = exchange_ && exchange_->leaves(process);
  {
    std::lock_guard lock(mutex_);
    left |= left_ || stop_;
  }
  if (left) return;
  const bool stoodStill = SuspendDetector::lastSuspension().count() > 0;
  endJob(Status::error(cat(describe(process), stoodStill ? " has ended the connection meanwhile"
                                                         : " has ended without a message: it crashed or was killed")),
         process);
}

void TcpProcessGroup::handle(size_t index, Frame& frame) {
  int64_t process = processOf(index);
  switch (frame.type) {
    case FrameType::kHeartbeat:
      return;
    case FrameType::kFailure:
      frame.bytes.resize(std::min(frame.bytes.size(), 2 * kMaxReason));
      // A failure that process 0 passes on already names its process.
      return endJob(Status::error(process == 0 ? frame.bytes : cat(describe(process), ": ", frame.bytes)), process);
    case FrameType::kContribution: {
      std::optional<Contribution> contribution = unpackContribution(frame.bytes);
      if (!exchange_ || !contribution || frame.sequence != exchange_->sequence()) return refuse(process);
      return contribute(process, std::move(*contribution));
    }
    case FrameType::kResult: {
      Unpacker unpacker(frame.bytes);
      bool leave = unpacker.number() == static_cast<uint64_t>(ExchangeKind::kLeave);
      std::vector<std::string> messages;
      for (uint64_t count = unpacker.number(); messages.size() < count && unpacker.ok();)
        messages.push_back(unpacker.string());
      std::unique_lock lock(mutex_);
      if (process != 0 || !unpacker.complete() || frame.sequence != sequence_ || result_) {
        lock.unlock();
        return refuse(process);
      }
      result_ = std::move(messages);
      left_ |= leave;
      changed_.notify_all();
      return;
    }
    default:
      return refuse(process);
  }
}

void TcpProcessGroup::refuse(int64_t process) {
  endJob(Status::error(cat(describe(process),
                           " has sent a message out of turn; do all processes run the same version of sheaf-run?")),
         process);
}

void TcpProcessGroup::contribute(int64_t process, Contribution contribution) {
  if (!exchange_->add(process, std::move(contribution))) return refuse(process);
  if (exchange_->complete()) conclude();
}

// All processes have contributed: sends the results, or ends the job if they are not in the same exchange.
void TcpProcessGroup::conclude() {
  if (int64_t other = exchange_->mismatch(); other >= 0)
    return endJob(
        Status::error(cat("the processes are in different exchanges: process 0 is at '", exchange_->part(0).what, "', ",
                          describe(other), " at '", exchange_->part(other).what, "'")),
        0);
  if (exchange_->messageBytes() > kMaxFrameBytes / 2)
    return endJob(Status::error(cat(exchange_->what(), ": the messages of all processes are too large, ",
                                    bytesText(exchange_->messageBytes()))),
                  0);
  ExchangeKind kind = exchange_->part(0).kind;
  std::vector<std::string> messages = exchange_->messages();
  Packer packer;
  packer.number(static_cast<uint64_t>(kind)).number(kind == ExchangeKind::kAll ? messages.size() : 0);
  if (kind == ExchangeKind::kAll)
    for (const std::string& message : messages) packer.string(message);
  for (Connection& connection : connections_)
    connection.send(FrameType::kResult, exchange_->sequence(), packer.bytes());
  exchange_.emplace(launch_.size, exchange_->sequence() + 1);
  std::lock_guard lock(mutex_);
  result_ = kind == ExchangeKind::kLeave ? std::vector<std::string>() : std::move(messages);
  left_ |= kind == ExchangeKind::kLeave;
  changed_.notify_all();
}

void TcpProcessGroup::checkTimes() {
  auto now = Clock::now();
  {
    std::lock_guard lock(mutex_);
    if (!over_.ok() || left_) return;
  }
  if (now - lastHeartbeat_ >= std::min(launch_.limit / kHeartbeats, kMaxHeartbeat)) {
    lastHeartbeat_ = now;
    for (Connection& connection : connections_) connection.send(FrameType::kHeartbeat, 0, "");
  }
  for (size_t i = 0; i < connections_.size(); ++i) {
    if (connections_[i].ended() || now - connections_[i].lastHeard() <= launch_.limit) continue;
    connections_[i].abandon();
    return endJob(Status::error(cat(describe(processOf(i)), " has been silent for ", seconds(launch_.limit),
                                    ": it or the network between hangs (SHEAF_TIMEOUT)")),
                  processOf(i));
  }
  if (!exchange_ || !exchange_->begun() || now - exchange_->began() <= launch_.limit) return;
  std::vector<std::string> names;
  for (int64_t process : exchange_->missing()) names.push_back(describe(process));
  endJob(Status::error(cat(exchange_->what(), ": the others have waited ", seconds(launch_.limit), " for ",
                           listText(names), " (SHEAF_TIMEOUT)")),
         0);
}

// Ends the job because of another process.
void TcpProcessGroup::endJob(const Status& why, int64_t origin) {
  {
    std::lock_guard lock(mutex_);
    if (!over_.ok() || left_) return;
    over_ = why;
    lost_ = true;
  }
  changed_.notify_all();
  broadcastFailure(why.message(), origin);
}

// On process 0: sends the reason to all processes but the one that caused it.
void TcpProcessGroup::broadcastFailure(const std::string& why, int64_t origin) {
  if (launch_.rank != 0) return;
  for (size_t i = 0; i < connections_.size(); ++i)
    if (processOf(i) != origin && !connections_[i].ended()) connections_[i].send(FrameType::kFailure, 0, why);
}

void TcpProcessGroup::callWatchers() {
  std::vector<std::function<void(const Status&)>> watchers;
  Status why;
  {
    std::lock_guard lock(mutex_);
    if (!lost_) return;
    watchers.swap(watchers_);
    why = over_;
  }
  for (const auto& watcher : watchers) watcher(why);
}

}  // namespace sheaf::comm
