// NumPy's array files, versions 1 to 3: the header.
// https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/io/DataType.h"

namespace sheaf::io {

struct NpyArray {
  DataType type = DataType::F32;
  std::vector<int64_t> shape;
  std::span<const std::byte> data;  // row-major, exactly the shape's bytes
};

// Little-endian plain types in C order; anything else is an error that says what to save instead.
Expected<NpyArray> parseNpy(std::span<const std::byte> file);

}  // namespace sheaf::io
