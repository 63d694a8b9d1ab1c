#include "runtime/io/StateFolder.h"

#include <algorithm>
#include <string_view>
#include <system_error>
#include <vector>

#include "runtime/base/NewFiles.h"
#include "runtime/base/Text.h"
#include "runtime/io/Checkpoint.h"

namespace sheaf::io {
namespace {

namespace fs = std::filesystem;

bool isFolder(const fs::directory_entry& entry) {
  std::error_code error;
  return entry.symlink_status(error).type() == fs::file_type::directory;
}

// "rank-00012.safetensors" for "rank-" and ".safetensors".
bool isNumbered(std::string_view name, std::string_view begin, std::string_view end) {
  if (name.size() < begin.size() + end.size() + 1 || !name.starts_with(begin) || !name.ends_with(end)) return false;
  name = name.substr(begin.size(), name.size() - begin.size() - end.size());
  return std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// A regular file that a state has, or has had under a temporary name.
bool isStateFile(const fs::directory_entry& entry) {
  std::error_code error;
  if (entry.symlink_status(error).type() != fs::file_type::regular) return false;
  const std::string name = entry.path().filename();
  if (isStateFileName(name)) return true;
  const size_t dash = name.rfind('-');
  return dash != std::string::npos && dash > 1 && isTemporaryName(name, std::string_view(name).substr(1, dash - 1)) &&
         isStateFileName(std::string_view(name).substr(1, dash - 1));
}

}  // namespace

bool isStateFileName(std::string_view name) {
  return name == kManifestFile || isNumbered(name, "rank-", ".safetensors") || isNumbered(name, "process-", "");
}

std::optional<int64_t> stepOfState(const fs::directory_entry& entry) {
  const std::string name = entry.path().filename();
  const std::optional<int64_t> step = stepOfFolder(name);
  return step && stepFolder(*step) == name && isFolder(entry) ? step : std::nullopt;
}

bool isUnfinished(const fs::directory_entry& entry) {
  const std::string name = entry.path().filename();
  std::error_code error;
  if (isTemporaryName(name, kLatestFile)) return entry.symlink_status(error).type() == fs::file_type::regular;
  constexpr std::string_view kBegin = kSavingPrefix, kOld = kReplacedSuffix;
  std::string_view random(name);
  if (!random.starts_with(kBegin)) return false;
  random.remove_prefix(kBegin.size());
  if (random.ends_with(kOld)) random.remove_suffix(kOld.size());
  return isRandomSuffix(random) && isFolder(entry);
}

bool isBeingRemoved(const fs::directory_entry& entry) {
  const std::string name = entry.path().filename();
  constexpr std::string_view kBegin = kRemovedPrefix;
  if (!name.starts_with(kBegin) || !isFolder(entry)) return false;
  const std::optional<int64_t> step = stepOfFolder(name.substr(kBegin.size()));
  return step && kBegin.size() + stepFolder(*step).size() == name.size();
}

bool holdsState(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    if (isStateFile(*entry)) return true;
  return false;
}

Expected<bool> removeStateFiles(const fs::path& path) {
  auto cannot = [](const fs::path& what, const std::error_code& error) {
    return Status::error(cat("cannot remove ", what.string(), ": ", error.message()));
  };
  std::error_code error;
  bool others = false;
  if (fs::symlink_status(path, error).type() == fs::file_type::directory) {
    std::vector<fs::path> own;
    for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error))
      if (isStateFile(*entry))
        own.push_back(entry->path());
      else
        others = true;
    // Another process may remove them, too.
    for (const fs::path& file : own)
      if (!fs::remove(file, error) && error) return cannot(file, error);
  }
  if (others) return false;
  if (!fs::remove(path, error) && error) return cannot(path, error);
  return true;
}

void moveForeignFiles(const fs::path& from, const fs::path& to) {
  std::error_code error;
  std::vector<fs::path> others;
  for (fs::directory_iterator entry(from, error), end; !error && entry != end; entry.increment(error))
    if (!isStateFile(*entry)) others.push_back(entry->path());
  for (const fs::path& path : others)
    if (const fs::path there = to / path.filename();
        fs::symlink_status(there, error).type() == fs::file_type::not_found)
      fs::rename(path, there, error);
}

}  // namespace sheaf::io
