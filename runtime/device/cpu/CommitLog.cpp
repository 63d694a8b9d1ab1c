#include "runtime/device/cpu/CommitLog.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "runtime/base/Hash.h"
#include "runtime/base/Text.h"

namespace sheaf::cpu {
namespace {

constexpr uint64_t kBlockBytes = 4096;
constexpr size_t kChecksumBlock = 2, kBlocks = 3;  // after those of the two generations
constexpr char kMagic[8] = {'s', 'h', 'e', 'a', 'f', 'c', 'm', '1'};
constexpr char kChecksumMagic[8] = {'s', 'h', 'e', 'a', 'f', 'c', 's', '1'};

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
constexpr size_t kMostPosition = kBlockBytes - sizeof(Head) - sizeof(uint64_t);

// The checksum as it stands in the file.
struct ChecksumBlock {
  char magic[8];
  uint64_t run;
  int64_t step;
  uint64_t hash;
  uint64_t blockHash;  // of what stands before

  uint64_t ownHash() const {
    return xxh64(std::as_bytes(std::span(this, 1)).first(offsetof(ChecksumBlock, blockHash)));
  }
};

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
  if (const int error = files.fallocate(descriptor, kBlocks * kBlockBytes); error != 0 && error != EOPNOTSUPP)
    return failure(path, "no room for it", error);
  log->hasChecksum_ = static_cast<uint64_t>(info.st_size) > kChecksumBlock * kBlockBytes;
  return log;
}

Expected<std::unique_ptr<CommitLog>> CommitLog::openToRead(FileLayer& files, const std::string& folder, int64_t rank) {
  const std::string path = pathOf(folder, rank);
  const int descriptor = files.open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0);
  if (descriptor < 0 && errno == ENOENT)
    return Status::error(cat("there is no ", path, ": the folder holds no state of rank ", rank));
  if (descriptor < 0) return failure(path, "cannot open it");
  std::unique_ptr<CommitLog> log(new CommitLog(files, path, descriptor));
  struct stat info;
  if (::fstat(descriptor, &info) != 0 || static_cast<uint64_t>(info.st_size) < kChecksumBlock * kBlockBytes)
    return Status::error(cat(path, " is cut off: something has changed it"));
  return log;
}

CommitLog::~CommitLog() {
  files_.close(descriptor_);
}

Expected<CommitLog::Slots> CommitLog::read(FileLayer& files, const std::string& folder, int64_t rank) {
  Expected<std::unique_ptr<CommitLog>> log = openToRead(files, folder, rank);
  if (!log.ok()) return log.status();
  Slots slots;
  for (size_t generation = 0; generation < slots.size(); ++generation) {
    Expected<std::vector<std::byte>> block = (*log)->readBlock(generation);
    if (!block.ok()) return block.status();
    slots[generation] = parse(*block);
  }
  return slots;
}

Expected<std::optional<StateChecksum>> CommitLog::readChecksum(FileLayer& files, const std::string& folder,
                                                               int64_t rank) {
  Expected<std::unique_ptr<CommitLog>> log = openToRead(files, folder, rank);
  if (!log.ok()) return log.status();
  Expected<std::vector<std::byte>> bytes = (*log)->readBlock(kChecksumBlock);
  if (!bytes.ok()) return bytes.status();
  ChecksumBlock block;
  std::memcpy(&block, bytes->data(), sizeof block);
  if (std::memcmp(block.magic, kChecksumMagic, sizeof kChecksumMagic) != 0 || block.blockHash != block.ownHash())
    return std::optional<StateChecksum>();
  return std::optional(StateChecksum{block.run, block.step, block.hash});
}

Expected<std::vector<std::byte>> CommitLog::readBlock(size_t block) const {
  std::vector<std::byte> bytes(kBlockBytes);
  for (size_t got = 0; got < bytes.size();) {
    const ssize_t more = files_.pread(descriptor_, bytes.data() + got, bytes.size() - got, block * kBlockBytes + got);
    if (more < 0 && errno == EINTR) continue;
    if (more < 0) return failure(path_, "cannot read it");
    if (more == 0) break;
    got += static_cast<size_t>(more);
  }
  return bytes;
}

Status CommitLog::writeBlock(size_t block, const std::vector<std::byte>& bytes) {
  for (size_t put = 0; put < bytes.size();) {
    const ssize_t more = files_.pwrite(descriptor_, bytes.data() + put, bytes.size() - put, block * kBlockBytes + put);
    if (more < 0 && errno == EINTR) continue;
    if (more <= 0) return failure(path_, "cannot write it", more < 0 ? errno : ENOSPC);
    put += static_cast<size_t>(more);
  }
  if (files_.fdatasync(descriptor_) != 0) return failure(path_, "cannot make it durable");
  return {};
}

Status CommitLog::write(size_t generation, const std::optional<CommitRecord>& record) {
  // First: no record may ever stand next to the checksum of another state after the same step.
  if (record && hasChecksum_) SHEAF_RETURN_IF_ERROR(writeChecksum(std::nullopt));
  std::vector<std::byte> slot(kBlockBytes);
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
  return writeBlock(generation, slot);
}

Status CommitLog::writeChecksum(const std::optional<StateChecksum>& checksum) {
  std::vector<std::byte> bytes(kBlockBytes);
  if (checksum) {
    ChecksumBlock block{{}, checksum->run, checksum->step, checksum->hash, 0};
    std::memcpy(block.magic, kChecksumMagic, sizeof kChecksumMagic);
    block.blockHash = block.ownHash();
    std::memcpy(bytes.data(), &block, sizeof block);
  }
  SHEAF_RETURN_IF_ERROR(writeBlock(kChecksumBlock, bytes));
  hasChecksum_ = checksum.has_value();
  return {};
}

}  // namespace sheaf::cpu
