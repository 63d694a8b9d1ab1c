// Raw token files: nanoGPT's (bare u16), llm.c's (1,024-byte header, then u16 or u32), plain bytes.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "runtime/base/Status.h"
#include "runtime/io/DataType.h"

namespace sheaf::io {

struct Tokens {
  DataType type = DataType::U16;
  std::span<const std::byte> data;
  size_t count = 0;
};

// The type is taken from `type` ("u8", "u16", "u32", "i32", "i64") if given, else from the path's ending (.u8, .u16,
// .u32; .bin is u16). llm.c's header is recognised in any .bin file and overrules the ending.
Expected<Tokens> parseTokens(std::span<const std::byte> file, std::string_view path, std::string_view type);

// Whether parseTokens can read a file of this name without a type being given.
bool looksLikeTokens(std::string_view path);

}  // namespace sheaf::io
