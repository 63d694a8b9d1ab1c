// Hashes that say whether a file is still the one that was meant; none of them resists an attacker.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace sheaf {

// FNV-1a, 64 bits: for small things (plans, the heads of weight files).
inline uint64_t fnv1a(std::span<const std::byte> bytes) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (std::byte byte : bytes) {
    hash ^= static_cast<uint64_t>(byte);
    hash *= 0x100000001b3u;
  }
  return hash;
}

// How much of the head of a weight file plan.proto's File.hash covers.
inline constexpr size_t kFileHashBytes = 64 * 1024;
inline uint64_t fileHash(std::span<const std::byte> file) {
  return fnv1a(file.first(file.size() < kFileHashBytes ? file.size() : kFileHashBytes));
}

// A finaliser that spreads every bit of its argument over the result (splitmix64).
inline uint64_t mixBits(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// XXH64 with seed 0, in pieces: for gigabytes of saved state. https://github.com/Cyan4973/xxHash, doc/xxhash_spec.md
class Xxh64 {
 public:
  Xxh64();
  void update(std::span<const std::byte> bytes);
  uint64_t digest() const;

 private:
  void stripe(const std::byte* at);

  uint64_t lanes_[4];
  uint64_t total_ = 0;
  std::byte tail_[32];
  size_t tailSize_ = 0;
};

}  // namespace sheaf
