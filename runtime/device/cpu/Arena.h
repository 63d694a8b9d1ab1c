// One rank's memory: every buffer of the plan lies in it at its offset.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "runtime/base/Status.h"

namespace sheaf::cpu {

class Arena {
 public:
  // `bytes` of zeroed memory, page-aligned. With `poison` it holds a pattern instead, and so do the bytes after its
  // end that belong to no buffer.
  static Expected<std::unique_ptr<Arena>> create(uint64_t bytes, bool poison);
  // The same in memory that the caller owns: zeroed, page-aligned, of room(bytes, poison) bytes.
  static std::unique_ptr<Arena> inside(std::byte* memory, uint64_t bytes, bool poison);
  // Bytes of memory that an arena takes; where it is large they begin and end with huge pages.
  static uint64_t room(uint64_t bytes, bool poison);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  std::byte* data() const { return data_; }
  uint64_t size() const { return size_; }
  // 1 + the highest byte that no longer holds the pattern; 0 without poison or if none was touched.
  uint64_t highestTouchedByte() const;

 private:
  Arena(std::byte* data, uint64_t size, uint64_t mapped, bool poison, bool own)
      : data_(data), size_(size), mapped_(mapped), poison_(poison), own_(own) {}

  std::byte* data_;
  uint64_t size_;
  uint64_t mapped_;
  bool poison_, own_;
};

}  // namespace sheaf::cpu
