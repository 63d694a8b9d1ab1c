#include "runtime/measure/MeasureDisk.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "runtime/base/AlignedMemory.h"
#include "runtime/base/NewFiles.h"
#include "runtime/base/Text.h"
#include "runtime/measure/MeasureParts.h"

namespace sheaf::measure {
namespace {

constexpr uint64_t kBlock = kDirectAlignment, kLargest = uint64_t{8} << 20;
constexpr uint64_t kSizes[] = {kBlock, 64 << 10, 256 << 10, 1 << 20, 4 << 20, kLargest};
// Steps that are made durable, and what each has written before.
constexpr int kSteps = 41;
constexpr uint64_t kStepBytes = 1 << 20;
// A file needs room for several requests of the largest size.
constexpr uint64_t kLeastBytes = 8 * kLargest;

class DiskFile {
 public:
  explicit DiskFile(const std::string& folder) : folder_(folder) {}
  DiskFile(const DiskFile&) = delete;
  DiskFile& operator=(const DiskFile&) = delete;
  ~DiskFile() {
    for (const int file : {file_, record_})
      if (file >= 0) ::close(file);
  }

  Status open(const DiskOptions& options) {
    struct statvfs free;
    if (::statvfs(options.folder.c_str(), &free) != 0) return failed("see the space of");
    const uint64_t room = uint64_t{free.f_bavail} * free.f_frsize / 4;
    bytes_ = std::min(options.bytes, room) / kLargest * kLargest;
    if (bytes_ < kLeastBytes)
      return Status::error(cat("the disk of ", options.folder, ": measuring it needs ", bytesText(4 * kLeastBytes),
                               " of free space, and takes a quarter of what is free"));
    for (int* const file : {&file_, &record_}) {
      Expected<TemporaryFile> made = makeTemporaryFile(folder_ + "/sheaf-disk", kPrivateFileMode);
      if (!made.ok()) return Status::error(cat("measuring a disk: ", made.status().message()));
      *file = made->descriptor;
      ::unlink(made->path.c_str());  // it ends with this process, however that ends
    }
    const int flags = ::fcntl(file_, F_GETFL);
    direct_ = flags >= 0 && ::fcntl(file_, F_SETFL, flags | O_DIRECT) == 0;
    buffer_ = allocateAligned(kLargest);
    if (!buffer_) return Status::error("no memory for a buffer of 8 MiB");
    // What a drive compresses would be faster than state is.
    uint64_t random = 0x9e3779b97f4a7c15;
    for (uint64_t i = 0; i < kLargest; i += sizeof random) {
      random ^= random << 13, random ^= random >> 7, random ^= random << 17;
      std::memcpy(buffer_.get() + i, &random, sizeof random);
    }
    // Blocks that were never written are slow to write and quick to read.
    for (uint64_t at = 0; at < bytes_; at += kLargest) {
      if (options.checkInterrupt) SHEAF_RETURN_IF_ERROR(options.checkInterrupt());
      SHEAF_RETURN_IF_ERROR(request(true, at, kLargest));
    }
    if (::fsync(file_) != 0) return failed("write to");
    return {};
  }

  // Seconds of a request of this size, on average over at least so many seconds.
  Expected<double> seconds(bool write, uint64_t size, const DiskOptions& options) {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point begin = Clock::now();
    double passed = 0;
    uint64_t count = 0;
    // The page cache must not be what is measured: what it holds is written back, and forgotten before it is read.
    if (!direct_ && !write) ::posix_fadvise(file_, 0, 0, POSIX_FADV_DONTNEED);
    for (; passed < options.seconds; ++count) {
      if (options.checkInterrupt) SHEAF_RETURN_IF_ERROR(options.checkInterrupt());
      if (!direct_ && !write && next_ + size > bytes_) ::posix_fadvise(file_, 0, 0, POSIX_FADV_DONTNEED);
      if (next_ + size > bytes_) next_ = 0;
      SHEAF_RETURN_IF_ERROR(request(write, next_, size));
      next_ += size;
      passed = std::chrono::duration<double>(Clock::now() - begin).count();
    }
    if (write && !direct_) {
      if (::fsync(file_) != 0) return failed("write to");
      passed = std::chrono::duration<double>(Clock::now() - begin).count();
    }
    return passed / static_cast<double>(count);
  }

  // Seconds from the end of a step's last write until the step is durable, as ranks make it: the median of some steps.
  Expected<double> persistSeconds(const DiskOptions& options) {
    using Clock = std::chrono::steady_clock;
    // Through the page cache a sync writes what a step has written, too, and that is in the bandwidth already.
    const uint64_t written = direct_ ? kStepBytes : kBlock;
    std::vector<double> taken;
    // The first ones give the record its two blocks.
    for (int step = -2; step < kSteps; ++step) {
      if (options.checkInterrupt) SHEAF_RETURN_IF_ERROR(options.checkInterrupt());
      if (next_ + written > bytes_) next_ = 0;
      SHEAF_RETURN_IF_ERROR(request(true, next_, written));
      next_ += written;
      const Clock::time_point begin = Clock::now();
      if (::fdatasync(file_) != 0) return failed("sync a file in");
      if (::pwrite(record_, buffer_.get(), kBlock, static_cast<off_t>(step & 1) * static_cast<off_t>(kBlock)) !=
          static_cast<ssize_t>(kBlock))
        return failed("write to");
      if (::fdatasync(record_) != 0) return failed("sync a file in");
      if (step >= 0) taken.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
    }
    std::nth_element(taken.begin(), taken.begin() + kSteps / 2, taken.end());
    return taken[kSteps / 2];
  }

  bool direct() const { return direct_; }
  uint64_t bytes() const { return bytes_; }

 private:
  Status request(bool write, uint64_t at, uint64_t size) {
    for (uint64_t done = 0; done < size;) {
      std::byte* place = buffer_.get() + done;
      const auto offset = static_cast<off_t>(at + done);
      const ssize_t some =
          write ? ::pwrite(file_, place, size - done, offset) : ::pread(file_, place, size - done, offset);
      if (some < 0 && errno == EINTR) continue;
      if (some < 0 && errno == EINVAL && direct_) {  // a file system that takes the flag and refuses the request
        ::fcntl(file_, F_SETFL, ::fcntl(file_, F_GETFL) & ~O_DIRECT);
        direct_ = false;
        continue;
      }
      if (some <= 0) return failed(write ? "write to" : "read from");
      done += static_cast<uint64_t>(some);
    }
    return {};
  }

  Status failed(const char* what) const {
    return Status::error(cat("measuring a disk: cannot ", what, " ", folder_, ": ", std::strerror(errno)));
  }

  const std::string folder_;
  int file_ = -1, record_ = -1;
  bool direct_ = false;
  uint64_t bytes_ = 0, next_ = 0;
  AlignedMemory buffer_;
};

}  // namespace

Expected<DiskCosts> measureDisk(const DiskOptions& options) {
  DiskFile file(options.folder);
  SHEAF_RETURN_IF_ERROR(file.open(options));
  DiskCosts costs;
  const char* const cached = file.direct() ? "" : "; through the page cache, since the file system refuses O_DIRECT";
  for (const bool write : {false, true}) {
    std::vector<std::pair<double, double>> taken;
    for (const uint64_t size : kSizes) {
      Expected<double> seconds = file.seconds(write, size, options);
      if (!seconds.ok()) return seconds.status();
      taken.emplace_back(static_cast<double>(size), *seconds);
    }
    profile::TransferCost cost = transferCost(write ? plan::Transfer::WRITE_FILE : plan::Transfer::READ_FILE, taken);
    cost.source = cat("measured in a file of ", bytesText(file.bytes()), ", ", write ? "writes" : "reads",
                      " in order, one at a time, of 4 KiB to 8 MiB for ", options.seconds, " s each", cached);
    costs.transfers.push_back(std::move(cost));
  }
  Expected<double> persist = file.persistSeconds(options);
  if (!persist.ok()) return persist.status();
  costs.direct = file.direct();
  costs.persist.seconds = *persist;
  costs.persist.source =
      cat("measured: fdatasync of a file, then a record of 4 KiB and its fdatasync; the median of ", kSteps, cached);
  return costs;
}

}  // namespace sheaf::measure
