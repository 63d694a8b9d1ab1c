#include "runtime/exec/Job.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "runtime/base/Print.h"
#include "runtime/base/Text.h"
#include "runtime/comm/process/Launcher.h"
#include "runtime/comm/shared/MemoryId.h"
#include "runtime/exec/Machine.h"

namespace sheaf::exec {
namespace {

std::vector<std::string> linesOf(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// The numbers of processes that could share the ranks: "1, 2, 3 or 6".
std::string divisorsText(int64_t ranks) {
  std::vector<std::string> divisors;
  for (int64_t n = 1; n <= ranks; ++n)
    if (ranks % n == 0) divisors.push_back(std::to_string(n));
  if (divisors.size() == 1) return divisors[0];
  std::string last = divisors.back();
  divisors.pop_back();
  return cat(listText(divisors, 16), " or ", last);
}

}  // namespace

Expected<std::unique_ptr<Job>> Job::join(const std::atomic<bool>& interrupted, bool quiet,
                                         std::function<void(const std::string& why)> lost) {
  Expected<comm::Launch> launch = comm::findLaunch([](const char* name) { return std::getenv(name); });
  if (!launch.ok()) return launch.status();
  std::unique_ptr<Job> job(new Job);
  job->warning_ = launch->warning;
  if (launch->size == 1) return job;
  auto print = [](const std::string& text) { out::fprintf(stderr, "sheaf-run: %s\n", text.c_str()); };
  auto group = comm::TcpProcessGroup::join(
      *launch, [&] { return interrupted.load(); }, quiet ? nullptr : std::function<void(const std::string&)>(print));
  if (!group.ok()) return group.status();
  job->group_ = std::move(*group);
  job->group_->watch([loss = job->loss_, lost = std::move(lost)](const Status& why) {
    {
      std::lock_guard lock(loss->mutex);
      loss->why = why;
    }
    if (lost) lost(why.message());
  });
  return job;
}

Status Job::share(int64_t ranks) {
  if (ranks % processes() != 0)
    return Status::error(cat("the plan's ", ranks, " ranks cannot be shared by ", processes(),
                             " processes, each having as many; start ", divisorsText(ranks),
                             ", or compile with --ranks ", processes()));
  localRanks_ = ranks / processes();
  firstRank_ = process() * localRanks_;
  return {};
}

Status Job::agree(const std::vector<std::string>& facts) {
  if (!group_) return {};
  constexpr size_t kIds = 3;  // lines before the facts
  std::string message = cat(machineId(), "\n", coresId(), "\n", comm::memoryId(std::getenv("SHEAF_HOST")), "\n");
  for (const std::string& fact : facts) message += fact + "\n";
  Expected<std::vector<std::string>> all = group_->allGather(message, "what the processes are started with");
  if (!all.ok()) return all.status();
  const std::vector<std::string> mine = linesOf(message), first = linesOf((*all)[0]);
  onMachine_ = onCores_ = 0;
  std::vector<std::string> memoryIds;
  for (size_t process = 0; process < all->size(); ++process) {
    std::vector<std::string> theirs = linesOf((*all)[process]);
    theirs.resize(std::max(theirs.size(), kIds));
    onMachine_ += theirs[0] == mine[0];
    onCores_ += theirs[0] == mine[0] && theirs[1] == mine[1];
    memoryIds.push_back(theirs[2]);
    for (size_t i = kIds; i < std::max(theirs.size(), first.size()); ++i) {
      std::string here = i < first.size() ? first[i] : "nothing more",
                  there = i < theirs.size() ? theirs[i] : "nothing more";
      if (here != there)
        return Status::error(cat("the processes do not run the same: ", group_->describe(0), " has ",
                                 here.substr(0, 200), ", ", group_->describe(static_cast<int64_t>(process)), " has ",
                                 there.substr(0, 200)));
    }
  }
  perNode_ = comm::processesPerNode(memoryIds);
  return {};
}

Status Job::end(Status status) {
  if (!group_) return status;
  if (status.ok()) return group_->leave();
  {
    std::lock_guard lock(loss_->mutex);
    const std::string& lost = loss_->why.message();
    if (!loss_->why.ok()) return status.message().find(lost) == std::string::npos ? loss_->why : status;
  }
  group_->fail(status.message());
  return status;
}

}  // namespace sheaf::exec
