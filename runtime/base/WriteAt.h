#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace sheaf {

// Writes all bytes at an offset of a file, in as many writes as the system makes of them; false with errno if it
// cannot.
bool writeAt(int descriptor, std::span<const std::byte> bytes, uint64_t offset);

}  // namespace sheaf
