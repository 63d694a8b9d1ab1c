// SHA-256 (FIPS 180-4) and message authentication with it: HMAC (RFC 2104).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace sheaf {

using Sha256Digest = std::array<uint8_t, 32>;

class Sha256 {
 public:
  void update(std::string_view bytes);
  // Of all bytes so far. Only once.
  Sha256Digest digest();

 private:
  void processBlock(const uint8_t* block);

  std::array<uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> block_{};
  size_t used_ = 0;  // bytes of block_
  uint64_t bytes_ = 0;
};

Sha256Digest sha256(std::string_view bytes);
Sha256Digest hmacSha256(std::string_view key, std::string_view message);

// Takes the same time wherever the bytes differ, so that its duration does not help to guess them.
bool equalInConstantTime(std::string_view a, std::string_view b);

inline std::string_view bytesOf(const Sha256Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

}  // namespace sheaf
