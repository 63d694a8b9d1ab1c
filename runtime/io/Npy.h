// NumPy's array files: the header. Versions 1 to 3 are read, version 1 is written.
// https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
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

// The same in two steps, for what is not there as a whole yet.
struct NpyHeader {
  DataType type = DataType::F32;
  std::vector<int64_t> shape;
  size_t bytes = 0;  // of the header, before the elements
};
constexpr size_t kNpyPreamble = 12;  // bytes from which the header's size is known
Expected<size_t> npyHeaderBytes(std::span<const std::byte> file);
Expected<NpyHeader> parseNpyHeader(std::span<const std::byte> file);
// Also fails if `fileBytes` does not match the shape. `head` has at least npyHeaderBytes().
Expected<NpyHeader> parseAndCheckNpyHeader(std::span<const std::byte> head, uint64_t fileBytes);

// What precedes the elements, in C order. A type that NumPy lacks (bf16) is an error.
Expected<std::string> npyHeader(DataType type, std::span<const int64_t> shape);

}  // namespace sheaf::io
