#include "runtime/device/cpu/CommitLog.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "runtime/base/Hash.h"
#include "runtime/base/Text.h"

namespace sheaf::cpu {
namespace {

constexpr uint64_t kSlotBytes = 4096;
constexpr char kMagic[8] = {'s', 'h', 'e', 'a', 'f', 'c', 'm', '1'};

// As it stands in the file; the position follows, and the hash of all of it.
struct Head {
  char magic[8];
  uint64_t plan, run;
  int64_t rank, ranks;
  uint64_t bytes, folders;
  int64_t step;
  uint64_t isFirst;
  uint64_t positionBytes;
};
constexpr size_t kMostPosition = kSlotBytes - sizeof(Head) - sizeof(uint64_t);

Status failure(const std::string& path, const char* what, int error = errno) {
  return Status::error(cat(path, ": ", what, ": ", std::strerror(error)));
}

std::string pathOf(const std::string& folder, int64_t rank) {
  return cat(folder, "/rank-", rank, ".commit");
}

std::optional<CommitRecord> parse(const std::vector<std::byte>& slot) {
  Head head;
  std::memcpy(&head, slot.data(), sizeof head);
  if (std::memcmp(head.magic, kMagic, sizeof kMagic) != 0 || head.positionBytes > kMostPosition) return std::nullopt;
  const size_t size = sizeof head + head.positionBytes;
  uint64_t hash;
  std::memcpy(&hash, slot.data() + size, sizeof hash);
  if (hash != xxh64(std::span(slot).first(size))) return std::nullopt;
  CommitRecord record{.owner = {head.plan, head.run, head.rank, head.ranks, head.bytes, head.folders},
                      .state = {head.step, head.run, std::string(head.positionBytes, '\0')},
                      .isFirst = head.isFirst != 0};
  std::memcpy(record.state.position.data(), slot.data() + sizeof head, head.positionBytes);
  return record;
}

}  // namespace

Expected<std::unique_ptr<CommitLog>> CommitLog::open(FileLayer& files, const std::string& folder, int64_t rank) {
  const std::string path = pathOf(folder, rank);
  const int descriptor = files.open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
  if (descriptor < 0) return failure(path, "cannot open it");
  std::unique_ptr<CommitLog> log(new CommitLog(files, path, descriptor));
  struct stat info;
  if (::fstat(descriptor, &info) != 0 || !S_ISREG(info.st_mode) || info.st_uid != ::geteuid() || info.st_nlink > 1)
    return Status::error(path +
                         " is not a file of this user's alone, as a run makes one; remove it, or give another "
                         "folder");
  if (const int error = files.fallocate(descriptor, 2 * kSlotBytes); error != 0 && error != EOPNOTSUPP) {
    errno = error;
    return failure(path, "no room for it");
  }
  return log;
}

Expected<CommitLog::Slots> CommitLog::read(FileLayer& files, const std::string& folder, int64_t rank) {
  const std::string path = pathOf(folder, rank);
  const int descriptor = files.open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0);
  if (descriptor < 0 && errno == ENOENT)
    return Status::error(cat("there is no ", path, ": the folder holds no state of rank ", rank));
  if (descriptor < 0) return failure(path, "cannot open it");
  struct stat info;
  if (::fstat(descriptor, &info) != 0 || static_cast<uint64_t>(info.st_size) < 2 * kSlotBytes) {
    files.close(descriptor);
    return Status::error(cat(path, " is cut off: something has changed it"));
  }
  return CommitLog(files, path, descriptor).read();
}

CommitLog::~CommitLog() {
  files_.close(descriptor_);
}

Expected<CommitLog::Slots> CommitLog::read() const {
  Slots slots;
  for (size_t generation = 0; generation < slots.size(); ++generation) {
    std::vector<std::byte> slot(kSlotBytes);
    for (size_t got = 0; got < slot.size();) {
      const ssize_t more =
          files_.pread(descriptor_, slot.data() + got, slot.size() - got, generation * kSlotBytes + got);
      if (more < 0 && errno == EINTR) continue;
      if (more < 0) return failure(path_, "cannot read it");
      if (more == 0) break;  // too short: what is missing is zero
      got += static_cast<size_t>(more);
    }
    slots[generation] = parse(slot);
  }
  return slots;
}

Status CommitLog::write(size_t generation, const std::optional<CommitRecord>& record) {
  std::vector<std::byte> slot(kSlotBytes);
  if (record) {
    const FileOwner& owner = record->owner;
    const std::string& position = record->state.position;
    if (position.size() > kMostPosition) return Status::error(path_ + ": the position of the run is too long for it");
    Head head{{},          owner.plan,    owner.run,          owner.rank,      owner.ranks,
              owner.bytes, owner.folders, record->state.step, record->isFirst, position.size()};
    std::memcpy(head.magic, kMagic, sizeof kMagic);
    std::memcpy(slot.data(), &head, sizeof head);
    std::memcpy(slot.data() + sizeof head, position.data(), position.size());
    const size_t size = sizeof head + position.size();
    const uint64_t hash = xxh64(std::span(slot).first(size));
    std::memcpy(slot.data() + size, &hash, sizeof hash);
  }
  for (size_t put = 0; put < slot.size();) {
    const ssize_t more =
        files_.pwrite(descriptor_, slot.data() + put, slot.size() - put, generation * kSlotBytes + put);
    if (more < 0 && errno == EINTR) continue;
    if (more <= 0) return failure(path_, "cannot write it", more < 0 ? errno : ENOSPC);
    put += static_cast<size_t>(more);
  }
  if (files_.fdatasync(descriptor_) != 0) return failure(path_, "cannot make it durable");
  return {};
}

}  // namespace sheaf::cpu
