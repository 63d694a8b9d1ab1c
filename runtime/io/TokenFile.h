// Raw token files: nanoGPT's (bare u16), llm.c's (1,024-byte header, then u16 or u32), plain bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "runtime/base/Status.h"
#include "runtime/io/DataType.h"

namespace sheaf::io {

struct Tokens {
  DataType type = DataType::U16;
  uint64_t offset = 0;  // place of the first token in the file
  uint64_t count = 0;
};

// The type is taken from `type` ("u8", "u16", "u32", "i32", "i64") if given, else from the path's ending (.u8, .u16,
// .u32; .bin is u16). llm.c's header is recognised in any .bin file and overrules the ending.
// `head` are the first kTokenHeaderBytes bytes of a file of `size`, or all.
constexpr size_t kTokenHeaderBytes = 1024;
Expected<Tokens> parseTokens(std::span<const std::byte> head, uint64_t size, std::string_view path,
                             std::string_view type);

// Whether parseTokens can read a file of this name without a type being given.
bool looksLikeTokens(std::string_view path);

}  // namespace sheaf::io
