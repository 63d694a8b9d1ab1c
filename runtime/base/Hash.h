// Hashes that detect a changed file. They detect accidents, not attackers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

namespace sheaf {

// XXH64 with seed 0: https://github.com/Cyan4973/xxHash, doc/xxhash_spec.md
uint64_t xxh64(std::span<const std::byte> bytes);
inline uint64_t xxh64(std::string_view text) {
  return xxh64(std::as_bytes(std::span(text)));
}

// The same hash of bytes that arrive in pieces.
class Xxh64 {
 public:
  Xxh64();
  ~Xxh64();
  Xxh64(Xxh64&&) noexcept;
  Xxh64& operator=(Xxh64&&) noexcept;
  void update(std::span<const std::byte> bytes);
  uint64_t digest() const;  // of all bytes so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// How many bytes at the start of a weight file plan.proto's File.hash covers.
inline constexpr size_t kFileHashBytes = 64 * 1024;
inline uint64_t fileHash(std::span<const std::byte> file) {
  return xxh64(file.first(std::min(file.size(), kFileHashBytes)));
}

// plan.proto's Source.hashes are of pieces of so many bytes.
inline constexpr uint64_t kSourceHashBytes = uint64_t{16} << 20;

// A finaliser that spreads every bit of its argument over the result (splitmix64).
inline uint64_t mixBits(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace sheaf
