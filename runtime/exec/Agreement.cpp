#include "runtime/exec/Agreement.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/base/Text.h"
#include "runtime/comm/process/Connection.h"

namespace sheaf::exec {

Status agreeOnStatus(comm::ProcessGroup* group, const std::string& what, const Status& mine,
                     const std::string& subject) {
  if (!group) return mine;
  Expected<std::vector<std::string>> all =
      group->allGather(comm::Packer().string(subject).string(mine.message()).bytes(), what);
  if (!all.ok()) return all.status();
  for (size_t i = 0; i < all->size(); ++i) {
    comm::Unpacker first((*all)[0]), theirs((*all)[i]);
    const std::string expected = first.string(), found = theirs.string(), why = theirs.string();
    const auto process = static_cast<int64_t>(i);
    if (found != expected)
      return Status::error(cat(group->describe(0), " finds ", expected, ", ", group->describe(process), " ", found,
                               ": they must see the same files, on a file system that all share"));
    // An error of process 0 may name another process already.
    if (!why.empty())
      return Status::error(process == 0 || process == group->rank() ? why : cat(group->describe(process), ": ", why));
  }
  return {};
}

Expected<std::string> shareName(comm::ProcessGroup* group, const std::string& name, const std::string& what) {
  if (!group) return name;
  Expected<std::vector<std::string>> all = group->allGather(name, what);
  return all.ok() ? Expected<std::string>(std::move((*all)[0])) : all.status();
}

std::chrono::milliseconds lockLimit(const comm::ProcessGroup* group) {
  constexpr std::chrono::milliseconds kLongest = std::chrono::minutes(1);
  return group ? std::min(kLongest, group->limit() / 2) : kLongest;
}

}  // namespace sheaf::exec
