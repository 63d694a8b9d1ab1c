#include "runtime/io/Safetensors.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>

#include "runtime/base/Json.h"
#include "runtime/base/Text.h"
#include "runtime/plan/Types.h"

namespace sheaf::io {
namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit

std::optional<DataType> typeNamed(std::string_view name) {
  for (const plan::ElementFacts& row : plan::kElements)
    if (!name.empty() && name == row.safetensors) return static_cast<DataType>(row.type);
  return std::nullopt;
}

// Returns true if torch.save wrote the file, as a ZIP archive or a pickle. Call it only if `length`, the first eight
// bytes, is not a valid header length: a header of 0x280 bytes begins with the bytes of a pickle.
bool isOfTorchSave(std::span<const std::byte> file, uint64_t length) {
  return std::memcmp(file.data(), "PK\x03\x04", 4) == 0 ||
         (length > kMaxHeaderBytes && file[0] == std::byte{0x80} && file[1] >= std::byte{2} && file[1] <= std::byte{5});
}

Status wrong(const std::string& name, const std::string& why) {
  return Status::error(cat("tensor '", name.substr(0, 200), "': ", why));
}

struct Range {
  uint64_t begin, end;
  const std::string* name;
};

Status parseTensor(const std::string& name, const json::Value& value, std::span<const std::byte> data, Tensor& tensor,
                   Range& range) {
  const json::Object* object = value.object();
  const json::Value* type = object ? object->find("dtype") : nullptr;
  const json::Value* shape = object ? object->find("shape") : nullptr;
  const json::Value* offsets = object ? object->find("data_offsets") : nullptr;
  if (!type || !type->string() || !shape || !shape->array() || !offsets || !offsets->array() ||
      offsets->array()->size() != 2)
    return wrong(name, "expected dtype, shape and two data_offsets");
  std::optional<DataType> known = typeNamed(*type->string());
  if (!known) return wrong(name, cat("dtype '", type->string()->substr(0, 32), "' is not known"));
  tensor.type = *known;
  for (const json::Value& size : *shape->array()) {
    if (!size.integer() || *size.integer() < 0) return wrong(name, "a dimension is not a non-negative integer");
    tensor.shape.push_back(*size.integer());
  }
  std::optional<uint64_t> count = plan::elementCount(tensor.shape);
  const int64_t* begin = (*offsets->array())[0].integer();
  const int64_t* end = (*offsets->array())[1].integer();
  if (!begin || !end || *begin < 0 || *end < *begin || static_cast<uint64_t>(*end) > data.size())
    return wrong(name, cat("its bytes lie outside the file's ", data.size(),
                           " bytes of data; the file is truncated or "
                           "damaged"));
  range = {static_cast<uint64_t>(*begin), static_cast<uint64_t>(*end), &name};
  if (!count || *count * bytesOf(*known) != range.end - range.begin)
    return wrong(name, cat("shape ", shapeText(tensor.shape), " of ", nameOf(*known), " does not match its ",
                           range.end - range.begin, " bytes"));
  tensor.data = data.subspan(range.begin, range.end - range.begin);
  return {};
}

}  // namespace

Expected<Safetensors> Safetensors::parse(std::span<const std::byte> file) {
  uint64_t length = 0;
  if (file.size() < sizeof length) return Status::error("not a safetensors file: too short");
  std::memcpy(&length, file.data(), sizeof length);
  if (length > kMaxHeaderBytes || length > file.size() - sizeof length)
    return Status::error(
        isOfTorchSave(file, length)
            ? "not a safetensors file but one of torch.save; save the weights with safetensors.torch.save_file"
            : cat("not a safetensors file, or truncated: its header claims ", length, " bytes of ", file.size()));
  std::string_view text(reinterpret_cast<const char*>(file.data()) + sizeof length, length);
  Expected<json::Value> header = json::parse(text);
  if (!header.ok()) return Status::error(cat("the safetensors header is not valid: ", header.status().message()));
  const json::Object* object = header->object();
  if (!object) return Status::error("the safetensors header is not a JSON object");

  Safetensors result;
  std::span<const std::byte> data = file.subspan(sizeof length + length);
  std::vector<Range> ranges;
  for (const auto& [name, value] : object->members()) {
    if (name == "__metadata__") continue;
    Tensor tensor;
    Range range;
    SHEAF_RETURN_IF_ERROR(parseTensor(name, value, data, tensor, range));
    ranges.push_back(range);
    result.tensors_.emplace(name, std::move(tensor));
  }
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return a.begin != b.begin ? a.begin < b.begin : a.end < b.end; });
  uint64_t at = 0;
  for (const Range& range : ranges) {
    if (range.begin != at)
      return wrong(*range.name, range.begin < at ? "overlaps another tensor" : "a gap precedes it");
    at = range.end;
  }
  if (at != data.size()) return Status::error(cat(data.size() - at, " bytes follow the last tensor"));
  return result;
}

Expected<Safetensors> Safetensors::open(const std::string& path) {
  Expected<MappedFile> file = MappedFile::open(path);
  if (!file.ok()) return file.status();
  Expected<Safetensors> result = parse(file->bytes());
  if (!result.ok()) return Status::error(cat(path, ": ", result.status().message()));
  result->files_.push_back(std::move(*file));
  return result;
}

const Tensor* Safetensors::find(const std::string& name) const {
  auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

}  // namespace sheaf::io
