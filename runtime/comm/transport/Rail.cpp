#include "runtime/comm/transport/Rail.h"

#include <chrono>
#include <span>
#include <thread>

#include "runtime/base/Text.h"

namespace sheaf::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLook(100);
// A process that ends says why elsewhere; so long that word may take.
constexpr std::chrono::seconds kLastWords(2);

}  // namespace

void Rail::begin(const CollectiveBuffers& collective) {
  mine_ = {mine_.number + 1, static_cast<uint32_t>(collective.op), static_cast<uint32_t>(collective.type),
           collective.count};
  const int64_t processes = group_.size();
  // Each process begins with the next one, so that not all send to the same.
  for (int64_t i = 1; i < processes; ++i) {
    const int64_t process = (group_.rank() + i) % processes;
    Link& link = links_[static_cast<size_t>(process)];
    link.agreed = false;
    link.before = channel_.received(process);
    channel_.countHeader(process, sizeof mine_);
    channel_.send(process, std::as_bytes(std::span(&mine_, 1)));
    channel_.receive(process, std::as_writable_bytes(std::span(&link.header, 1)));
  }
}

void Rail::send(int64_t process, const std::byte* data, uint64_t bytes) {
  if (bytes > 0) channel_.send(process, {data, bytes});
}

void Rail::receive(int64_t process, std::byte* data, uint64_t bytes) {
  if (bytes > 0) channel_.receive(process, {data, bytes});
}

Status Rail::finish() {
  for (auto lastMove = Clock::now();;) {
    const Expected<bool> moved = channel_.poll(kLook);
    // Headers first: where the processes are in different collectives, a transport may also find pieces of other sizes.
    SHEAF_RETURN_IF_ERROR(checkHeaders());
    if (!moved.ok()) return gone(moved.status());
    if (done()) return {};
    if (abort_.raised()) return abort_.status();
    const auto now = Clock::now();
    if (*moved) lastMove = now;
    if (now - lastMove > group_.limit()) return late();
  }
}

Status Rail::checkHeaders() {
  for (int64_t process = 0; process < group_.size(); ++process) {
    Link& link = links_[static_cast<size_t>(process)];
    if (process == group_.rank() || link.agreed || channel_.received(process) == link.before) continue;
    if (link.header != mine_)
      return Status::error(cat("this process and ", group_.describe(process),
                               " met in different collectives; the plan is not the same on all ranks"));
    link.agreed = true;
  }
  return {};
}

bool Rail::done() const {
  for (int64_t process = 0; process < group_.size(); ++process)
    if (process != group_.rank() && !channel_.idle(process)) return false;
  return true;
}

Status Rail::gone(const Status& why) const {
  for (auto until = Clock::now() + kLastWords; !abort_.raised() && Clock::now() < until;)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return abort_.raised() ? abort_.status() : why;
}

Status Rail::late() const {
  std::vector<std::string> names;
  for (int64_t process = 0; process < group_.size(); ++process)
    if (process != group_.rank() && !channel_.idle(process)) names.push_back(group_.describe(process));
  return Status::error(cat("nothing has come from ", listText(names), " for ",
                           secondsText(static_cast<double>(group_.limit().count()) / 1000), " (SHEAF_TIMEOUT)"));
}

}  // namespace sheaf::comm
