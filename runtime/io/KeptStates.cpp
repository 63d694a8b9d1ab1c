#include "runtime/io/KeptStates.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "runtime/base/NewFiles.h"
#include "runtime/base/Text.h"
#include "runtime/io/Checkpoint.h"
#include "runtime/io/StateFolder.h"

namespace sheaf::io {
namespace {

namespace fs = std::filesystem;

}  // namespace

Expected<KeptStates> KeptStates::open(const std::string& folder, int64_t keep) {
  KeptStates states;
  Expected<std::vector<std::string>> made = makeFolders(folder);
  if (!made.ok()) return made.status();
  states.made_ = std::move(*made);
  states.folder_ = folder;
  states.keep_ = keep;
  states.descriptor_ = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (states.descriptor_ < 0) return Status::error(cat("cannot open folder ", folder, ": ", std::strerror(errno)));
  const bool shares = keep == 0, locked = flock(states.descriptor_, (shares ? LOCK_SH : LOCK_EX) | LOCK_NB) == 0;
  states.locked_ = locked && !shares;
  if (locked || errno != EWOULDBLOCK) return states;
  return Status::error(shares ? cat("a run with --keep-saves saves its states in ", folder,
                                    ", and would remove those of this run: give another folder")
                              : cat("another run saves its states in ", folder,
                                    ", and --keep-saves would remove them: give another folder"));
}

KeptStates::KeptStates(KeptStates&& other) noexcept {
  *this = std::move(other);
}

KeptStates& KeptStates::operator=(KeptStates&& other) noexcept {
  std::swap(folder_, other.folder_);
  std::swap(keep_, other.keep_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(locked_, other.locked_);
  std::swap(made_, other.made_);
  return *this;
}

KeptStates::~KeptStates() {
  if (!made_.empty() && flock(descriptor_, LOCK_EX | LOCK_NB) == 0)
    while (!made_.empty() && rmdir(made_.back().c_str()) == 0) made_.pop_back();
  if (descriptor_ >= 0) close(descriptor_);
}

Status KeptStates::prune(int64_t step) const {
  if (keep_ == 0) return {};
  std::error_code error;
  std::vector<std::pair<int64_t, fs::path>> states;
  std::vector<fs::path> remove;
  for (fs::directory_iterator entry(folder_, error), end; !error && entry != end; entry.increment(error)) {
    if (std::optional<int64_t> of = stepOfState(*entry); of && *of <= step)
      states.emplace_back(*of, entry->path());
    else if (isBeingRemoved(*entry) || (locked_ && isUnfinished(*entry)))
      remove.push_back(entry->path());
  }
  if (error) return Status::error(cat("cannot read folder ", folder_, ": ", error.message()));
  std::sort(states.rbegin(), states.rend());
  int64_t whole = 0;
  for (const auto& [of, path] : states) {
    if (whole < keep_) {
      whole += hasAllFiles(path.string());
      continue;
    }
    if (!holdsState(path)) continue;
    const fs::path nameless = path.parent_path() / (kRemovedPrefix + path.filename().string());
    // A run that was killed in removing such a state may have left it.
    moveForeignFiles(nameless, path);
    if (Expected<bool> gone = removeStateFiles(nameless); !gone.ok()) return gone.status();
    if (rename(path.c_str(), nameless.c_str()) != 0)
      return Status::error(cat("cannot remove the saved state ", path.string(), ": ", std::strerror(errno)));
    Expected<bool> gone = removeStateFiles(nameless);
    if (!gone.ok()) return gone.status();
    // The folder holds something that is not ours.
    if (!*gone) fs::rename(nameless, path, error);
  }
  for (const fs::path& path : remove)
    if (Expected<bool> gone = removeStateFiles(path); !gone.ok()) return gone.status();
  return {};
}

}  // namespace sheaf::io
