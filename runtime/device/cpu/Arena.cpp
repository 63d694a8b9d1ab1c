#include "runtime/device/cpu/Arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runtime/base/HugePages.h"
#include "runtime/base/ResourceErrors.h"

namespace sheaf::cpu {
namespace {

constexpr uint64_t kPage = 4096;
// Bytes after its end that a poisoned arena watches.
constexpr uint64_t kWatched = 1 << 20;
constexpr unsigned char kPattern = 0xA5;

// An empty arena has one page, because a mapping cannot be empty.
uint64_t pages(uint64_t bytes, bool poison) {
  return (std::max<uint64_t>(bytes + (poison ? kWatched : 0), 1) + kPage - 1) / kPage * kPage;
}

}  // namespace

uint64_t Arena::room(uint64_t bytes, bool poison) {
  const uint64_t all = pages(bytes, poison);
  return all >= kHugeBytes ? (all + kHugePage - 1) / kHugePage * kHugePage : all;
}

std::unique_ptr<Arena> Arena::inside(std::byte* memory, uint64_t bytes, bool poison) {
  const uint64_t mapped = room(bytes, poison);
  if (poison) std::memset(memory, kPattern, mapped);
  return std::unique_ptr<Arena>(new Arena(memory, bytes, mapped, poison, false));
}

Expected<std::unique_ptr<Arena>> Arena::create(uint64_t bytes, bool poison) {
  if (bytes > UINT64_MAX / 2)
    return Status::error("the plan's arena of " + std::to_string(bytes) + " bytes does not fit in memory");
  const uint64_t mapped = pages(bytes, poison);
  void* memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    return Status::error("cannot map an arena of " + std::to_string(bytes) + " bytes: " + std::strerror(errno) + "; " +
                         memoryRemedy("use more ranks, a higher ZeRO stage or a smaller batch"));
  // Only advice: without huge pages the step is slower but the same.
  if (mapped >= kHugeBytes) madvise(memory, mapped, MADV_HUGEPAGE);
  if (poison) std::memset(memory, kPattern, mapped);
  return std::unique_ptr<Arena>(new Arena(static_cast<std::byte*>(memory), bytes, mapped, poison, true));
}

Arena::~Arena() {
  if (own_) munmap(data_, mapped_);
}

uint64_t Arena::highestTouchedByte() const {
  if (!poison_) return 0;
  unsigned char pattern[kPage];
  std::memset(pattern, kPattern, kPage);
  for (uint64_t end = mapped_; end > 0; end -= kPage) {
    const std::byte* page = data_ + end - kPage;
    if (std::memcmp(page, pattern, kPage) == 0) continue;
    for (uint64_t i = kPage; i > 0; --i)
      if (page[i - 1] != std::byte{kPattern}) return end - kPage + i;
  }
  return 0;
}

}  // namespace sheaf::cpu
