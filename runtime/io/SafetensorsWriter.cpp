#include <algorithm>

#include "runtime/base/Json.h"
#include "runtime/base/Text.h"
#include "runtime/io/Safetensors.h"
#include "runtime/plan/Types.h"

namespace sheaf::io {
namespace {

constexpr size_t kHashedAtOnce = 256 << 10;

}  // namespace

Expected<SafetensorsHead> safetensorsHead(std::span<const SafetensorsWriter::Entry> entries,
                                          const std::map<std::string, std::string>& metadata) {
  json::Object header;
  if (!metadata.empty()) {
    json::Object values;
    for (const auto& [name, value] : metadata) values.set(name, value);
    header.set("__metadata__", std::move(values));
  }
  SafetensorsHead head;
  uint64_t at = 0;
  for (const SafetensorsWriter::Entry& entry : entries) {
    std::optional<uint64_t> count = plan::elementCount(entry.shape);
    if (!count) return Status::error(cat("tensor '", entry.name, "': shape ", shapeText(entry.shape), " is too large"));
    const std::string dtype(factsOf(entry.type).safetensors);
    if (dtype.empty())
      return Status::error(cat("tensor '", entry.name, "': safetensors has no elements of type ", nameOf(entry.type)));
    json::Array shape(entry.shape.begin(), entry.shape.end());
    uint64_t end = at + *count * bytesOf(entry.type);
    header.set(entry.name,
               json::Object{{"dtype", dtype}, {"shape", std::move(shape)}, {"data_offsets", json::Array{at, end}}});
    head.begins.push_back(at);
    at = end;
  }
  std::string text = json::write(std::move(header));
  // Readers map the data and want it aligned.
  text.resize((text.size() + 63) / 64 * 64, ' ');
  const uint64_t length = text.size();
  head.bytes = std::string(reinterpret_cast<const char*>(&length), sizeof length) + text;
  for (uint64_t& begin : head.begins) begin += head.bytes.size();
  head.fileBytes = head.bytes.size() + at;
  return head;
}

Expected<SafetensorsWriter> SafetensorsWriter::create(const std::string& path, const std::vector<Entry>& entries,
                                                      const std::map<std::string, std::string>& metadata) {
  const Expected<SafetensorsHead> head = safetensorsHead(entries, metadata);
  return head.ok() ? begin(*head, AtomicFile::create(path)) : head.status();
}

Expected<SafetensorsWriter> SafetensorsWriter::createDirect(const std::string& path,
                                                            const std::vector<Entry>& entries) {
  const Expected<SafetensorsHead> head = safetensorsHead(entries, {});
  return head.ok() ? begin(*head, AtomicFile::createDirect(path, head->fileBytes)) : head.status();
}

Expected<SafetensorsWriter> SafetensorsWriter::begin(const SafetensorsHead& head, Expected<AtomicFile> file) {
  if (!file.ok()) return file.status();
  SafetensorsWriter writer(std::move(*file));
  writer.remaining_ = head.fileBytes;
  SHEAF_RETURN_IF_ERROR(writer.write(std::as_bytes(std::span(head.bytes))));
  return writer;
}

Status SafetensorsWriter::write(std::span<const std::byte> bytes) {
  if (bytes.size() > remaining_) return Status::error("more bytes are written than the safetensors header announces");
  remaining_ -= bytes.size();
  // In pieces, which are still in the processor's cache when they are written.
  for (std::span<const std::byte> piece; !bytes.empty(); bytes = bytes.subspan(piece.size())) {
    piece = bytes.first(std::min(bytes.size(), kHashedAtOnce));
    hash_.update(piece);
    SHEAF_RETURN_IF_ERROR(file_.write(piece));
  }
  return {};
}

Status SafetensorsWriter::commit() {
  if (remaining_ != 0) return Status::error("fewer bytes are written than the safetensors header announces");
  return file_.commit();
}

}  // namespace sheaf::io
