#include "runtime/base/Hash.h"

#include <bit>
#include <cstring>

namespace sheaf {
namespace {

constexpr uint64_t kPrime1 = 0x9e3779b185ebca87u;
constexpr uint64_t kPrime2 = 0xc2b2ae3d27d4eb4fu;
constexpr uint64_t kPrime3 = 0x165667b19e3779f9u;
constexpr uint64_t kPrime4 = 0x85ebca77c2b2ae63u;
constexpr uint64_t kPrime5 = 0x27d4eb2f165667c5u;

template <typename T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

uint64_t accumulate(uint64_t lane, uint64_t input) {
  return std::rotl(lane + input * kPrime2, 31) * kPrime1;
}

}  // namespace

Xxh64::Xxh64() : lanes_{kPrime1 + kPrime2, kPrime2, 0, 0 - kPrime1} {}

void Xxh64::stripe(const std::byte* at) {
  for (int i = 0; i < 4; ++i) lanes_[i] = accumulate(lanes_[i], load<uint64_t>(at + 8 * i));
}

void Xxh64::update(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  total_ += bytes.size();
  if (tailSize_) {
    size_t take = std::min(sizeof tail_ - tailSize_, bytes.size());
    std::memcpy(tail_ + tailSize_, bytes.data(), take);
    tailSize_ += take;
    bytes = bytes.subspan(take);
    if (tailSize_ < sizeof tail_) return;
    stripe(tail_);
    tailSize_ = 0;
  }
  for (; bytes.size() >= sizeof tail_; bytes = bytes.subspan(sizeof tail_)) stripe(bytes.data());
  if (!bytes.empty()) std::memcpy(tail_, bytes.data(), bytes.size());
  tailSize_ = bytes.size();
}

uint64_t Xxh64::digest() const {
  uint64_t hash = kPrime5;
  if (total_ >= sizeof tail_) {
    hash = std::rotl(lanes_[0], 1) + std::rotl(lanes_[1], 7) + std::rotl(lanes_[2], 12) + std::rotl(lanes_[3], 18);
    for (uint64_t lane : lanes_) hash = (hash ^ accumulate(0, lane)) * kPrime1 + kPrime4;
  }
  hash += total_;
  size_t at = 0;
  for (; at + 8 <= tailSize_; at += 8)
    hash = std::rotl(hash ^ accumulate(0, load<uint64_t>(tail_ + at)), 27) * kPrime1 + kPrime4;
  if (at + 4 <= tailSize_) {
    hash = std::rotl(hash ^ (load<uint32_t>(tail_ + at) * kPrime1), 23) * kPrime2 + kPrime3;
    at += 4;
  }
  for (; at < tailSize_; ++at) hash = std::rotl(hash ^ (static_cast<uint64_t>(tail_[at]) * kPrime5), 11) * kPrime1;
  hash = (hash ^ (hash >> 33)) * kPrime2;
  hash = (hash ^ (hash >> 29)) * kPrime3;
  return hash ^ (hash >> 32);
}

}  // namespace sheaf
