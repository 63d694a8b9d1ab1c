#include "runtime/base/Sha256.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace sheaf {
namespace {

constexpr size_t kBlock = 64;

// The first 32 bits of the fractional parts of the cube roots of the first 64 primes (FIPS 180-4, section 4.2.2).
constexpr uint32_t kRounds[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t readBigEndian(const uint8_t* bytes) {
  return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | bytes[3];
}

void writeBigEndian(uint32_t value, uint8_t* bytes) {
  for (int i = 0; i < 4; ++i) bytes[i] = static_cast<uint8_t>(value >> (24 - 8 * i));
}

}  // namespace

// FIPS 180-4, section 6.2.2.
void Sha256::processBlock(const uint8_t* block) {
  uint32_t schedule[64];
  for (int t = 0; t < 16; ++t) schedule[t] = readBigEndian(block + 4 * t);
  for (int t = 16; t < 64; ++t) {
    const uint32_t a = schedule[t - 15], b = schedule[t - 2];
    schedule[t] = (std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10) + schedule[t - 7] +
                  (std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3) + schedule[t - 16];
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (int t = 0; t < 64; ++t) {
    const uint32_t one =
        h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) + ((e & f) ^ (~e & g)) + kRounds[t] + schedule[t];
    const uint32_t two = (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + one, d = c, c = b, b = a, a = one + two;
  }
  const uint32_t sums[8] = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < 8; ++i) state_[i] += sums[i];
}

void Sha256::update(std::string_view bytes) {
  bytes_ += bytes.size();
  while (!bytes.empty()) {
    const size_t count = std::min(bytes.size(), kBlock - used_);
    std::memcpy(block_.data() + used_, bytes.data(), count);
    bytes.remove_prefix(count);
    used_ += count;
    if (used_ < kBlock) return;
    processBlock(block_.data());
    used_ = 0;
  }
}

Sha256Digest Sha256::digest() {
  const uint64_t bits = bytes_ * 8;
  // A one bit, zeros, and the length in bits in the last eight bytes of a block.
  std::string_view padding("\x80", 1);
  const char zeros[kBlock] = {};
  update(padding);
  update({zeros, (2 * kBlock - 8 - used_) % kBlock});
  uint8_t length[8];
  writeBigEndian(static_cast<uint32_t>(bits >> 32), length);
  writeBigEndian(static_cast<uint32_t>(bits), length + 4);
  update({reinterpret_cast<const char*>(length), sizeof length});
  Sha256Digest digest;
  for (size_t i = 0; i < state_.size(); ++i) writeBigEndian(state_[i], digest.data() + 4 * i);
  return digest;
}

Sha256Digest sha256(std::string_view bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.digest();
}

Sha256Digest hmacSha256(std::string_view key, std::string_view message) {
  char padded[kBlock] = {};
  const Sha256Digest shortened = key.size() > kBlock ? sha256(key) : Sha256Digest{};
  if (key.size() > kBlock) key = bytesOf(shortened);
  std::copy(key.begin(), key.end(), padded);
  char inner[kBlock], outer[kBlock];
  for (size_t i = 0; i < kBlock; ++i) {
    inner[i] = static_cast<char>(padded[i] ^ 0x36);
    outer[i] = static_cast<char>(padded[i] ^ 0x5c);
  }
  Sha256 first, second;
  first.update({inner, kBlock});
  first.update(message);
  second.update({outer, kBlock});
  second.update(bytesOf(first.digest()));
  return second.digest();
}

bool equalInConstantTime(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  volatile uint8_t differences = 0;
  for (size_t i = 0; i < a.size(); ++i) differences = differences | static_cast<uint8_t>(a[i] ^ b[i]);
  return differences == 0;
}

}  // namespace sheaf
