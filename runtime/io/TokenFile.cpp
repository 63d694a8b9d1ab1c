#include "runtime/io/TokenFile.h"

#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>

#include "runtime/base/Text.h"

namespace sheaf::io {
namespace {

// llm.c's data files: 256 int32, of which the first are magic, version, number of tokens.
constexpr size_t kHeaderBytes = kTokenHeaderBytes;
constexpr int32_t kMagicU16 = 20240520, kMagicU32 = 20240801;

std::optional<DataType> typeNamed(std::string_view name) {
  if (name == "bin") return DataType::U16;
  for (DataType type : {DataType::U8, DataType::U16, DataType::U32, DataType::I32, DataType::I64})
    if (name == nameOf(type)) return type;
  return std::nullopt;
}

std::string_view ending(std::string_view path) {
  size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : path.substr(dot + 1);
}

}  // namespace

bool looksLikeTokens(std::string_view path) {
  return typeNamed(ending(path)).has_value();
}

Expected<Tokens> parseTokens(std::span<const std::byte> head, uint64_t size, std::string_view path,
                             std::string_view type) {
  std::optional<DataType> element = typeNamed(type.empty() ? ending(path) : type);
  if (!element || type == "bin")
    return Status::error(type.empty() ? "the type of the tokens is unknown; append :u8, :u16 or :u32 to the file's name"
                                      : cat("'", type, "' is not a type of tokens; use u8, u16, u32, i32 or i64"));
  Tokens tokens;
  tokens.type = *element;
  int32_t header[3] = {};
  if (head.size() >= kHeaderBytes) std::memcpy(header, head.data(), sizeof header);
  if (ending(path) == "bin" && (header[0] == kMagicU16 || header[0] == kMagicU32) && header[1] >= 1) {
    tokens.offset = kHeaderBytes;
    tokens.type = header[0] == kMagicU16 ? DataType::U16 : DataType::U32;
    uint64_t announced = static_cast<uint32_t>(header[2]);
    if (announced * bytesOf(tokens.type) != size - tokens.offset)
      return Status::error(cat("the header announces ", announced, " tokens of ", nameOf(tokens.type), ", ",
                               size - tokens.offset, " bytes follow; the file is truncated or damaged"));
  }
  size_t bytes = bytesOf(tokens.type);
  if ((size - tokens.offset) % bytes != 0)
    return Status::error(
        cat(size - tokens.offset, " bytes are not a whole number of ", nameOf(tokens.type), " tokens"));
  tokens.count = (size - tokens.offset) / bytes;
  return tokens;
}

}  // namespace sheaf::io
