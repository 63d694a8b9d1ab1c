// A file layer under which only what was made durable is sure to survive a crash.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "runtime/device/FileLayer.h"

namespace sheaf::testing {

// Passes everything on to the system, and keeps for each file what is durable and what has been written since. From the
// crash on every call fails. Afterwards afterCrash() leaves in the folder what a machine might find there: names that
// were not synced may be gone, and of what was not synced any part, in any order and by sectors, may be there or not.
class VolatileFiles : public FileLayer {
 public:
  // Crashes before the call of number `crash` on files with `of` in their names: 0 is the first. Negative: never.
  VolatileFiles(std::string of, int64_t crash) : of_(std::move(of)), crash_(crash) {}

  int64_t calls() const { return calls_; }  // on those files
  bool crashed() const { return crashed_; }
  // The next write of so many bytes and more fails with this error, or, if it is 0, writes only a part.
  void failWrites(size_t bytes, int error) { failBytes_ = bytes, failError_ = error; }
  void failReads(size_t bytes, int error) { failReadBytes_ = bytes, failReadError_ = error; }
  void failSyncs(int error) { failSync_ = error; }

  int open(const std::string& path, int flags, mode_t mode) override {
    if (!alive(path)) return -1;
    std::lock_guard lock(mutex_);
    const bool there = std::filesystem::exists(path);
    const int descriptor = FileLayer::open(path, flags, mode);
    if (descriptor < 0) return descriptor;
    paths_[descriptor] = path;
    auto [file, isNew] = files_.try_emplace(path);
    if (isNew && there) file->second.durable = content(path), file->second.named = true;
    return descriptor;
  }
  int close(int descriptor) override {
    std::lock_guard lock(mutex_);
    paths_.erase(descriptor);
    return FileLayer::close(descriptor);
  }
  int unlink(const std::string& path) override {
    if (crashed_) return dead();
    std::lock_guard lock(mutex_);
    files_.erase(path);
    return FileLayer::unlink(path);
  }
  int ftruncate(int descriptor, uint64_t bytes) override {
    if (!alive(pathOf(descriptor))) return -1;
    std::lock_guard lock(mutex_);
    fileOf(descriptor).changes.push_back({bytes, {}, true});
    return FileLayer::ftruncate(descriptor, bytes);
  }
  int fallocate(int descriptor, uint64_t bytes) override {
    if (!alive(pathOf(descriptor))) return errno;
    std::lock_guard lock(mutex_);
    fileOf(descriptor).changes.push_back({bytes, {}, true});
    // Not posix_fallocate: nothing here is about room.
    return FileLayer::ftruncate(descriptor, bytes) == 0 ? 0 : errno;
  }
  ssize_t pread(int descriptor, void* to, size_t bytes, uint64_t offset) override {
    if (!alive(pathOf(descriptor))) return -1;
    if (failReadError_ && bytes >= failReadBytes_) return fail(failReadError_);
    return FileLayer::pread(descriptor, to, bytes, offset);
  }
  ssize_t pwrite(int descriptor, const void* from, size_t bytes, uint64_t offset) override {
    if (!alive(pathOf(descriptor))) return -1;
    if (failBytes_ && bytes >= failBytes_) {
      if (failError_) return fail(failError_);
      if (bytes > 4096) bytes = 4096;
    }
    const ssize_t put = FileLayer::pwrite(descriptor, from, bytes, offset);
    std::lock_guard lock(mutex_);
    if (put > 0) {
      const auto* data = static_cast<const char*>(from);
      fileOf(descriptor).changes.push_back({offset, {data, data + put}, false});
    }
    return put;
  }
  int fdatasync(int descriptor) override {
    if (!alive(pathOf(descriptor), true)) return -1;
    if (failSync_) return static_cast<int>(fail(failSync_));
    std::lock_guard lock(mutex_);
    File& file = fileOf(descriptor);
    for (const Change& change : file.changes) apply(change, file.durable, nullptr);
    file.changes.clear();
    return 0;
  }
  int fsync(const std::string& folder) override {
    if (!alive(folder)) return -1;
    std::lock_guard lock(mutex_);
    for (auto& [path, file] : files_)
      if (std::filesystem::path(path).parent_path() == folder) file.named = true;
    return 0;
  }

  void afterCrash(uint64_t seed) {
    std::mt19937_64 random(seed);
    for (auto& [path, file] : files_) {
      // A name that is not durable is gone in most cases: that is what a test is for.
      if (!file.named && random() % 4) {
        std::filesystem::remove(path);
        continue;
      }
      std::vector<Change> changes = file.changes;
      // The size first: the system orders that.
      std::stable_partition(changes.begin(), changes.end(), [](const Change& c) { return c.resizes; });
      auto writes = std::find_if(changes.begin(), changes.end(), [](const Change& c) { return !c.resizes; });
      if (random() % 2) std::shuffle(writes, changes.end(), random);
      const uint64_t policy = random() % 4;  // all, none, any, any sectors
      for (const Change& change : changes) {
        if (policy == 1 || (policy == 2 && random() % 2)) continue;
        apply(change, file.durable, policy == 3 && !change.resizes ? &random : nullptr);
      }
      std::FILE* out = std::fopen(path.c_str(), "wb");
      if (!out) continue;
      if (!file.durable.empty()) std::fwrite(file.durable.data(), 1, file.durable.size(), out);
      std::fclose(out);
    }
  }

 private:
  struct Change {
    uint64_t at;  // offset, or the new size
    std::vector<char> data;
    bool resizes;
  };
  struct File {
    std::vector<char> durable;
    std::vector<Change> changes;
    bool named = false;  // the name is durable
  };

  // With `random` only some sectors of it.
  static void apply(const Change& change, std::vector<char>& content, std::mt19937_64* random) {
    if (change.resizes) return content.resize(change.at);
    constexpr size_t kSector = 512;
    if (content.size() < change.at + change.data.size()) content.resize(change.at + change.data.size());
    for (size_t i = 0; i < change.data.size(); i += kSector)
      if (!random || (*random)() % 2)
        std::memcpy(content.data() + change.at + i, change.data.data() + i, std::min(kSector, change.data.size() - i));
  }

  static std::vector<char> content(const std::string& path) {
    std::vector<char> bytes(std::filesystem::file_size(path));
    if (std::FILE* in = std::fopen(path.c_str(), "rb")) {
      bytes.resize(std::fread(bytes.data(), 1, bytes.size(), in));
      std::fclose(in);
    }
    return bytes;
  }

  static ssize_t fail(int error) {
    errno = error;
    return -1;
  }
  static int dead() { return static_cast<int>(fail(EIO)); }
  std::string pathOf(int descriptor) {
    std::lock_guard lock(mutex_);
    return paths_[descriptor];
  }
  File& fileOf(int descriptor) { return files_[paths_[descriptor]]; }

  // Whether the call is still before the crash. The rank that crashes while it makes something durable is a slow one:
  // the others get as far as they can.
  bool alive(const std::string& path, bool syncs = false) {
    if (crashed_) return fail(EIO) == 0;
    if (path.find(of_) == std::string::npos) return true;
    if (calls_++ != crash_) return true;
    if (syncs) std::this_thread::sleep_for(std::chrono::milliseconds(30));
    std::lock_guard lock(mutex_);
    crashed_ = true;
    return fail(EIO) == 0;
  }

  const std::string of_;
  const int64_t crash_;
  std::atomic<int64_t> calls_{0};
  std::atomic<bool> crashed_{false};
  std::mutex mutex_;
  std::map<int, std::string> paths_;  // by descriptor
  std::map<std::string, File> files_;
  size_t failBytes_ = 0, failReadBytes_ = 0;
  int failError_ = 0, failReadError_ = 0, failSync_ = 0;
};

}  // namespace sheaf::testing
