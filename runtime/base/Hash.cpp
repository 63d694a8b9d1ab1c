#include "runtime/base/Hash.h"

// Compiled in, so that neither programs nor device libraries need libxxhash at run time.
#define XXH_INLINE_ALL
#define XXH_NO_XXH3
#include <xxhash.h>

namespace sheaf {

uint64_t xxh64(std::span<const std::byte> bytes) {
  return XXH64(bytes.data(), bytes.size(), 0);
}

struct Xxh64::State {
  XXH64_state_t xxh;
};

Xxh64::Xxh64() : state_(std::make_unique<State>()) {
  XXH64_reset(&state_->xxh, 0);
}
Xxh64::~Xxh64() = default;
Xxh64::Xxh64(Xxh64&&) noexcept = default;
Xxh64& Xxh64::operator=(Xxh64&&) noexcept = default;

void Xxh64::update(std::span<const std::byte> bytes) {
  XXH64_update(&state_->xxh, bytes.data(), bytes.size());
}

uint64_t Xxh64::digest() const {
  return XXH64_digest(&state_->xxh);
}

}  // namespace sheaf
