#include "passes/schedule/ShippedProfiles.h"

#include <sys/stat.h>

#include <span>

#include "passes/schedule/ProfileTexts.h"
#include "runtime/base/MappedFile.h"
#include "runtime/base/RegularFile.h"
#include "runtime/base/Text.h"

namespace sheaf::schedule {
namespace {

constexpr uint64_t kMaxFileBytes = 16 << 20;

// Names that profiles had when each was of a number of ranks.
struct FormerName {
  const char *name, *now;
  int64_t ranks;
};
constexpr FormerName kFormerNames[] = {
    {"h100x8", "h100", 8}, {"h100x64", "h100", 64}, {"a100x8", "a100", 8}, {"rtx4090x8", "rtx4090", 8}};

}  // namespace

Expected<profile::Profile> loadProfile(const std::string& nameOrPath) {
  for (const FormerName& former : kFormerNames) {
    if (nameOrPath != former.name) continue;
    Expected<profile::Profile> machine = loadProfile(former.now);
    return machine.ok() ? machine->withRanks(former.ranks) : machine;
  }
  for (const ProfileText& shipped : profileTexts())
    if (nameOrPath == shipped.name) return profile::Profile::parse(shipped.text, cat("profile ", nameOrPath));
  struct stat info {};
  const bool exists = stat(nameOrPath.c_str(), &info) == 0;
  if (!exists && nameOrPath.find_first_of("/.") == std::string::npos) {
    const std::string near = nearest(nameOrPath, profileNames());
    return Status::error(cat("there is no profile '", nameOrPath, "'; ",
                             near.empty() ? "" : cat("did you mean ", near, "? "), "shipped are ",
                             listText(profileNames()), ", and `sheaf profile -o FILE` measures this machine"));
  }
  Expected<std::string> content = readSmallFile(nameOrPath, kMaxFileBytes, "a machine profile");
  if (!content.ok())
    return Status::error(cat(content.status().message(), "; shipped profiles are ", listText(profileNames())));
  SHEAF_RETURN_IF_ERROR(refuseLfsPointer(nameOrPath, std::as_bytes(std::span(*content))));
  return profile::Profile::parse(*content, nameOrPath);
}

std::vector<std::string> profileNames() {
  std::vector<std::string> names;
  for (const ProfileText& shipped : profileTexts()) names.push_back(shipped.name);
  return names;
}

}  // namespace sheaf::schedule
