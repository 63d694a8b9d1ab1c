#include "runtime/device/cpu/FileArena.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "runtime/base/Hash.h"
#include "runtime/base/Text.h"

namespace sheaf::cpu {
namespace {

constexpr uint64_t kBlock = kDirectAlignment;
constexpr uint64_t kStripe = 4 << 20;
constexpr uint64_t kRequest = 8 << 20;  // most bytes of a system call
constexpr uint64_t kBounce = 1 << 20;

Status failure(const std::string& path, const char* what, int error) {
  return Status::error(cat(path, ": ", what, ": ", std::strerror(error)));
}

bool isAligned(const void* memory, uint64_t offset, uint64_t bytes) {
  return (reinterpret_cast<uintptr_t>(memory) | offset | bytes) % kBlock == 0;
}

constexpr char kMagic[8] = {'s', 'h', 'e', 'a', 'f', 'f', 'a', '1'};

}  // namespace

// After the bytes of a file that holds a state, or a part of one.
struct FileArena::Label {
  char magic[8];
  uint64_t plan, run;
  int64_t rank;
  uint64_t folder, folders, bytes;
  uint64_t hash;  // of what stands before

  uint64_t ownHash() const { return xxh64(std::as_bytes(std::span(this, 1)).first(offsetof(Label, hash))); }
};

FileArena::FileArena(const FileArenaOptions& options)
    : layer_(options.files ? *options.files : system_),
      folders_(options.folders),
      rank_(options.rank),
      ranks_(options.ranks),
      size_(options.bytes),
      state_(options.state),
      readOnly_(options.readOnly) {
  const uint64_t stripes = (size_ + kStripe - 1) / kStripe;
  each_ = folders_.size() <= 1 ? (size_ + kBlock - 1) / kBlock * kBlock
                               : (stripes + folders_.size() - 1) / folders_.size() * kStripe;
}

Expected<std::unique_ptr<FileArena>> FileArena::create(const FileArenaOptions& options) {
  if (options.folders.empty())
    return Status::error("the plan keeps " + bytesText(options.bytes) +
                         " of each rank in files: say in which folder with --offload-dir DIR");
  std::unique_ptr<FileArena> arena(new FileArena(options));
  for (Bounce* bounce : {&arena->in_, &arena->out_}) {
    bounce->data = allocateAligned(kBounce);
    if (!bounce->data) return Status::error("no memory for input and output");
  }
  // All are looked at before any is changed.
  for (const std::string& folder : options.folders) SHEAF_RETURN_IF_ERROR(arena->open(folder));
  if (options.state && options.state->step) {
    for (uint64_t i = 0; File & file : arena->files_) SHEAF_RETURN_IF_ERROR(arena->checkLabel(file, i++));
  } else {
    SHEAF_RETURN_IF_ERROR(arena->checkNoState());
    for (File& file : arena->files_) SHEAF_RETURN_IF_ERROR(arena->empty(file, "--offload-dir " + file.folder));
  }
  if (options.state) SHEAF_RETURN_IF_ERROR(arena->openLog());
  return arena;
}

FileArena::~FileArena() {
  for (const File& file : files_) {
    struct stat info;
    const bool isEmpty = ::fstat(file.descriptor, &info) == 0 && info.st_size == 0;
    if (!committed_ && !readOnly_ && (file.own || isEmpty)) layer_.unlink(file.path);
    layer_.close(file.descriptor);
  }
  if (log_ && !committed_) layer_.unlink(log_->path());
}

// Opens and locks, and changes nothing.
Status FileArena::open(const std::string& folder) {
  struct stat info;
  const std::string option = "--offload-dir " + folder;
  if (::stat(folder.c_str(), &info) != 0) return failure(option, "no such folder", errno);
  if (!S_ISDIR(info.st_mode)) return Status::error(option + ": it is not a folder");
  const std::pair<uint64_t, uint64_t> identity(info.st_dev, info.st_ino);
  if (std::find(identities_.begin(), identities_.end(), identity) != identities_.end())
    return Status::error(option + ": the folder is given twice");
  identities_.push_back(identity);
  const std::string path = cat(folder, "/rank-", rank_, ".arena");
  const bool resumes = state_ && state_->step;
  const int access = readOnly_ ? O_RDONLY : O_RDWR | (resumes ? 0 : O_CREAT);
  for (;;) {
    // Neither a link is followed nor a pipe waited for: others may write to the folder.
    int descriptor = layer_.open(path, access | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | (direct_ ? O_DIRECT : 0), 0600);
    if (descriptor < 0 && errno == EINVAL && direct_) {
      SHEAF_RETURN_IF_ERROR(giveUpDirect());
      continue;
    }
    if (descriptor < 0 && errno == ELOOP)
      return Status::error(cat(option, ": ", path, " is a symbolic link; remove it, or give another folder"));
    if (descriptor < 0 && resumes)
      return failure(option, cat("cannot open ", path, ", which has a part of the state").c_str(), errno);
    if (descriptor < 0) return failure(option, cat("cannot create ", path).c_str(), errno);
    if (::fstat(descriptor, &info) != 0 || !S_ISREG(info.st_mode) || info.st_uid != ::geteuid() || info.st_nlink > 1) {
      layer_.close(descriptor);
      return Status::error(cat(option, ": ", path,
                               " is not a file of this user's alone, as a run makes one; remove it, or give another "
                               "folder"));
    }
    if (::flock(descriptor, (readOnly_ ? LOCK_SH : LOCK_EX) | LOCK_NB) != 0) {
      const int error = errno;
      layer_.close(descriptor);
      if (error == EWOULDBLOCK)
        return Status::error(cat(option, ": another run uses ", path, "; give each run a folder of its own"));
      return failure(option, cat("cannot lock ", path).c_str(), error);
    }
    // The run that had the lock may have removed the file since it was opened.
    if (::fstat(descriptor, &info) == 0 && info.st_nlink > 0) {
      files_.push_back({descriptor, path, folder, false});
      return {};
    }
    layer_.close(descriptor);
  }
}

// A run that begins does not overwrite what another one may go on from. Labels say that there may be a state. Its
// records are in the first folder: without them, or if the files are not all of one run and in its order, some state is
// there of which this run knows too little.
Status FileArena::checkNoState() {
  const File* labelled = nullptr;
  bool inOrder = true;
  std::optional<Label> first;
  for (uint64_t i = 0; i < files_.size(); ++i) {
    struct stat info;
    if (::fstat(files_[i].descriptor, &info) != 0) return failure(files_[i].path, "cannot ask for its size", errno);
    const uint64_t bytes = static_cast<uint64_t>(info.st_size);
    if (bytes < kBlock || bytes % kBlock != 0) continue;
    Expected<std::optional<Label>> label = readLabel(files_[i], bytes - kBlock);
    if (!label.ok()) return label.status();
    if (!*label) continue;
    if (!labelled) labelled = &files_[i], first = **label;
    inOrder &= (*label)->folder == i && (*label)->folders == files_.size() && (*label)->run == first->run;
  }
  if (!labelled) return {};
  if (inOrder) {
    // A run that ended before it said that there is a state has left none, and one that ended before its first step
    // nothing that is not where it was before.
    Expected<CommitLog::Slots> slots = CommitLog::read(layer_, files_.front().folder, rank_);
    auto isNone = [&](const auto& slot) { return !slot || (slot->isFirst && slot->owner.run == first->run); };
    if (slots.ok() && std::all_of(slots->begin(), slots->end(), isNone)) return {};
  }
  return Status::error(cat("--offload-dir ", labelled->folder, ": ", labelled->path,
                           " holds a state: go on from it with --resume, and the folders and their order of that run, "
                           "give another folder, or remove rank-*.arena and rank-*.commit there"));
}

Status FileArena::empty(File& file, const std::string& option) {
  const uint64_t bytes = each_ + (state_ ? kBlock : 0);
  file.own = true;
  if (layer_.ftruncate(file.descriptor, 0) != 0) return failure(file.path, "cannot empty it", errno);
  int error = layer_.fallocate(file.descriptor, bytes);
  // A file system that cannot keep room tells only when it is full.
  if (error == EOPNOTSUPP || error == EINVAL) error = layer_.ftruncate(file.descriptor, bytes) == 0 ? 0 : errno;
  if (error == ENOSPC || error == EFBIG || error == EDQUOT)
    return failure(option, cat("no room for ", bytesText(bytes), " of rank ", rank_).c_str(), error);
  if (error != 0) return failure(file.path, cat("cannot make it ", bytes, " bytes long").c_str(), error);
  if (!direct_) return {};
  // Some file systems accept direct files and refuse to use them.
  std::memset(out_.data.get(), 0, kBlock);
  if (layer_.pwrite(file.descriptor, out_.data.get(), kBlock, 0) == static_cast<ssize_t>(kBlock)) return {};
  if (errno != EINVAL) return failure(file.path, "cannot write", errno);
  return giveUpDirect();
}

// Nothing: there is none.
Expected<std::optional<FileArena::Label>> FileArena::readLabel(File& file, uint64_t offset) {
  // Some file systems accept direct files and refuse to use them.
  if (direct_ && layer_.pread(file.descriptor, in_.data.get(), kBlock, offset) < 0 && errno == EINVAL)
    SHEAF_RETURN_IF_ERROR(giveUpDirect());
  Label label;
  SHEAF_RETURN_IF_ERROR(readFile(file, offset, std::as_writable_bytes(std::span(&label, 1))));
  if (std::memcmp(label.magic, kMagic, sizeof kMagic) != 0 || label.hash != label.ownHash())
    return std::optional<Label>();
  return std::optional(label);
}

// That the file is the one of this place which the run has left, and whole.
Status FileArena::checkLabel(File& file, uint64_t index) {
  struct stat info;
  if (::fstat(file.descriptor, &info) != 0) return failure(file.path, "cannot ask for its size", errno);
  if (static_cast<uint64_t>(info.st_size) != each_ + kBlock)
    return Status::error(cat(file.path, " has ", info.st_size, " bytes, and the plan's state takes ", each_ + kBlock,
                             " there: something has changed it"));
  Expected<std::optional<Label>> read = readLabel(file, each_);
  if (!read.ok()) return read.status();
  const std::optional<Label>& label = *read;
  if (!label) return Status::error(cat(file.path, " has no label of a run's: something has changed it"));
  auto differs = [&](const std::string& what) {
    return Status::error(cat(file.path, " does not belong to the state: it is ", what));
  };
  if (label->plan != state_->plan) return differs("another plan's");
  if (label->run != state_->run) return differs("another run's");
  if (label->rank != rank_) return differs(cat("that of rank ", label->rank, ", not ", rank_));
  if (label->folder != index || label->folders != folders_.size() || label->bytes != size_)
    return differs(cat("folder ", label->folder + 1, " of ", label->folders, ", and is given as ", index + 1, " of ",
                       folders_.size(), ": give all folders, in the same order"));
  return {};
}

FileOwner FileArena::owner() const {
  return {state_->plan, state_->run, rank_, ranks_, size_, folders_.size()};
}

Expected<std::vector<Committed>> FileArena::committed(const FileArenaOptions& options) {
  FileArena arena(options);
  struct stat info;
  const std::string& folder = options.folders.front();
  if (::stat(folder.c_str(), &info) != 0) return failure(folder, "no such folder", errno);
  Expected<CommitLog::Slots> slots = CommitLog::read(arena.layer_, folder, options.rank);
  if (!slots.ok()) return slots.status();
  std::vector<Committed> states;
  for (const std::optional<CommitRecord>& slot : *slots) {
    if (!slot) continue;
    auto differs = [&](const std::string& what) {
      return Status::error(cat(folder, "/rank-", options.rank, ".commit is ", what));
    };
    const FileOwner &found = slot->owner, mine = arena.owner();
    if (found.plan != mine.plan)
      return differs(cat("of another plan, with hash ", hexText(found.plan), "; this one's is ", hexText(mine.plan)));
    if (found.rank != mine.rank || found.ranks != mine.ranks)
      return differs(cat("that of rank ", found.rank, " of ", found.ranks, ", not ", mine.rank, " of ", mine.ranks));
    if (found.folders != mine.folders || found.bytes != mine.bytes)
      return differs(cat("of a state in ", found.folders, " folders, and ", mine.folders,
                         " are given: give all of them with --offload-dir, in the same order"));
    states.push_back(slot->state);
  }
  if (states.empty())
    return Status::error(cat(folder, " holds no state of rank ", options.rank, ": none was complete"));
  return states;
}

// Which generation is the one to go on from. A later one, which other ranks do not have, will be overwritten, and must
// not be taken for a state in the meantime.
Status FileArena::openLog() {
  if (!state_->evaluates) {
    Expected<std::unique_ptr<CommitLog>> log = CommitLog::open(layer_, folders_.front(), rank_);
    if (!log.ok()) return log.status();
    log_ = std::move(*log);
  }
  if (!state_->step) {
    for (size_t generation : {0, 1}) SHEAF_RETURN_IF_ERROR(log_->write(generation, std::nullopt));
    return {};
  }
  committed_ = true;
  Expected<CommitLog::Slots> slots = CommitLog::read(layer_, folders_.front(), rank_);
  if (!slots.ok()) return slots.status();
  for (size_t generation : {0, 1})
    if (const std::optional<CommitRecord>& slot = (*slots)[generation];
        slot && slot->state.step == *state_->step && slot->owner.run == state_->run) {
      generation_ = generation, step_ = *state_->step;
      SHEAF_RETURN_IF_ERROR(readChecksum());
      // The records are as an evaluation finds them, for a run that goes on.
      return log_ && (*slots)[1 - generation] ? log_->write(1 - generation, std::nullopt) : Status();
    }
  return Status::error(
      cat(folders_.front(), "/rank-", rank_, ".commit no longer has the state after step ", *state_->step));
}

Status FileArena::readChecksum() {
  Expected<std::optional<StateChecksum>> found = CommitLog::readChecksum(layer_, folders_.front(), rank_);
  if (!found.ok()) return found.status();
  if (*found && (*found)->run == state_->run && (*found)->step == step_) checksum_ = (*found)->hash;
  return {};
}

Status FileArena::writeChecksum(uint64_t hash) {
  if (!log_) return Status::error("this run must not commit a state: its files are temporary, or it only evaluates");
  return frozen_ ? Status() : log_->writeChecksum(StateChecksum{state_->run, step_, hash});
}

Status FileArena::verifyChecksum(uint64_t hash) const {
  if (hash == checksum_) return {};
  std::string files;
  for (const File& file : files_) files += cat(files.empty() ? "" : " or ", file.path);
  return Status::error(cat("bytes of the state after step ", step_, " in ", files,
                           " are not what the run has left there: something has changed them since; go on from a state "
                           "of --save-state, or remove rank-*.arena and rank-*.commit to begin again"));
}

Status FileArena::persist() {
  for (const File& file : files_)
    if (layer_.fdatasync(file.descriptor) != 0) return failure(file.path, "cannot make it durable", errno);
  return {};
}

Status FileArena::commit(size_t generation, const Committed& state, bool isFirst) {
  if (!log_) return Status::error("this run must not commit a state: its files are temporary, or it only evaluates");
  if (frozen_) return {};
  if (!committed_) {
    // The files are new: their names must last, before a label says that there may be a state. Some file systems cannot
    // sync folders, and promise no more.
    for (const File& file : files_)
      if (layer_.fsync(file.folder) != 0 && errno != EINVAL)
        return failure(file.folder, "cannot make the names in it durable", errno);
    for (uint64_t i = 0; File & file : files_) {
      Label label{{}, state_->plan, state_->run, rank_, i++, folders_.size(), size_, 0};
      std::memcpy(label.magic, kMagic, sizeof kMagic);
      label.hash = label.ownHash();
      SHEAF_RETURN_IF_ERROR(writeFile(file, each_, std::as_bytes(std::span(&label, 1))));
    }
    SHEAF_RETURN_IF_ERROR(persist());
  }
  SHEAF_RETURN_IF_ERROR(log_->write(generation, CommitRecord{owner(), state, isFirst}));
  committed_ = true;
  step_ = state.step;
  return {};
}

// Of all folders: memory that one of them takes must be good for the others.
Status FileArena::giveUpDirect() {
  direct_ = false;
  for (const File& one : files_)
    if (::fcntl(one.descriptor, F_SETFL, ::fcntl(one.descriptor, F_GETFL) & ~O_DIRECT) != 0)
      return failure(one.path, "cannot write without O_DIRECT", errno);
  return {};
}

template <typename Visit>
Status FileArena::forEachStripe(uint64_t offset, uint64_t bytes, Visit visit) {
  if (offset > size_ || bytes > size_ - offset)
    return Status::error(cat("bytes [", offset, ", +", bytes, ") lie outside the files of ", size_));
  const uint64_t files = files_.size();
  while (bytes > 0) {
    const uint64_t stripe = offset / kStripe, within = offset % kStripe;
    const uint64_t here = files == 1 ? bytes : std::min(bytes, kStripe - within);
    SHEAF_RETURN_IF_ERROR(visit(files_[stripe % files], files == 1 ? offset : stripe / files * kStripe + within, here));
    offset += here, bytes -= here;
  }
  return {};
}

Status FileArena::read(uint64_t offset, std::span<std::byte> bytes) {
  return forEachStripe(offset, bytes.size(), [&](File& file, uint64_t at, uint64_t count) {
    Status status = readFile(file, at, bytes.first(count));
    bytes = bytes.subspan(count);
    return status;
  });
}

Status FileArena::write(uint64_t offset, std::span<const std::byte> bytes) {
  if (readOnly_) return Status::error("the files are only read");
  if (frozen_) return {};
  return forEachStripe(offset, bytes.size(), [&](File& file, uint64_t at, uint64_t count) {
    Status status = writeFile(file, at, bytes.first(count));
    bytes = bytes.subspan(count);
    return status;
  });
}

Status FileArena::readFully(const File& file, uint64_t offset, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t got = layer_.pread(file.descriptor, bytes.data(), std::min<uint64_t>(bytes.size(), kRequest), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return failure(file.path, cat("cannot read ", bytes.size(), " bytes at ", offset).c_str(), errno);
    if (got == 0)
      return Status::error(cat(file.path, ": it ends at byte ", offset, ", and ", bytes.size(),
                               " more bytes should follow: something has changed it during the run"));
    bytes = bytes.subspan(static_cast<size_t>(got));
    offset += static_cast<uint64_t>(got);
  }
  return {};
}

Status FileArena::writeFully(const File& file, uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t put =
        layer_.pwrite(file.descriptor, bytes.data(), std::min<uint64_t>(bytes.size(), kRequest), offset);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0)
      return failure(file.path, cat("cannot write ", bytes.size(), " bytes at ", offset).c_str(),
                     put < 0 ? errno : ENOSPC);
    bytes = bytes.subspan(static_cast<size_t>(put));
    offset += static_cast<uint64_t>(put);
  }
  return {};
}

// What is aligned moves directly; the rest, and all where the memory is not aligned, by blocks of the bounce.
Status FileArena::readFile(File& file, uint64_t offset, std::span<std::byte> bytes) {
  if (!direct_) return readFully(file, offset, bytes);
  const uint64_t whole = bytes.size() / kBlock * kBlock;
  if (whole > 0 && isAligned(bytes.data(), offset, whole)) {
    SHEAF_RETURN_IF_ERROR(readFully(file, offset, bytes.first(whole)));
    offset += whole, bytes = bytes.subspan(whole);
  }
  std::lock_guard lock(in_.mutex);
  while (!bytes.empty()) {
    const uint64_t before = offset % kBlock, here = std::min<uint64_t>(bytes.size(), kBounce - before);
    const uint64_t blocks = (before + here + kBlock - 1) / kBlock * kBlock;
    SHEAF_RETURN_IF_ERROR(readFully(file, offset - before, {in_.data.get(), blocks}));
    std::memcpy(bytes.data(), in_.data.get() + before, here);
    offset += here, bytes = bytes.subspan(here);
  }
  return {};
}

Status FileArena::writeFile(File& file, uint64_t offset, std::span<const std::byte> bytes) {
  if (!direct_) return writeFully(file, offset, bytes);
  const uint64_t whole = bytes.size() / kBlock * kBlock;
  if (whole > 0 && isAligned(bytes.data(), offset, whole)) {
    SHEAF_RETURN_IF_ERROR(writeFully(file, offset, bytes.first(whole)));
    offset += whole, bytes = bytes.subspan(whole);
  }
  std::lock_guard lock(out_.mutex);
  while (!bytes.empty()) {
    const uint64_t before = offset % kBlock, here = std::min<uint64_t>(bytes.size(), kBounce - before);
    const uint64_t blocks = (before + here + kBlock - 1) / kBlock * kBlock;
    // Of the first and the last block the other bytes stay as they are.
    if (before > 0) SHEAF_RETURN_IF_ERROR(readFully(file, offset - before, {out_.data.get(), kBlock}));
    if ((before + here) % kBlock > 0 && (before == 0 || blocks > kBlock))
      SHEAF_RETURN_IF_ERROR(
          readFully(file, offset - before + blocks - kBlock, {out_.data.get() + blocks - kBlock, kBlock}));
    std::memcpy(out_.data.get() + before, bytes.data(), here);
    SHEAF_RETURN_IF_ERROR(writeFully(file, offset - before, {out_.data.get(), blocks}));
    offset += here, bytes = bytes.subspan(here);
  }
  return {};
}

}  // namespace sheaf::cpu
