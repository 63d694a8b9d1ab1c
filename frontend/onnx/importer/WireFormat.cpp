#include "frontend/onnx/importer/WireFormat.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <algorithm>
#include <optional>

namespace sheaf::frontend {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;

// Numbers of the fields on the way to the bytes of an initializer or a constant; see onnx-ml.proto.
constexpr int kModelGraph = 7, kGraphNode = 1, kGraphInitializer = 5, kNodeAttribute = 5, kAttributeTensor = 5;
constexpr int kTensorRawData = 9;
// The longest tag with a length or a number after it.
constexpr size_t kMaxHead = 2 * 10;

// Bytes of the field after its head; nothing if the field is malformed.
std::optional<uint64_t> contentSize(CodedInputStream& head, WireFormatLite::WireType type) {
  uint64_t number = 0;
  switch (type) {
    case WireFormatLite::WIRETYPE_VARINT:
      if (!head.ReadVarint64(&number)) return std::nullopt;
      return 0;
    case WireFormatLite::WIRETYPE_FIXED64:
      return 8;
    case WireFormatLite::WIRETYPE_FIXED32:
      return 4;
    case WireFormatLite::WIRETYPE_LENGTH_DELIMITED:
      if (!head.ReadVarint64(&number)) return std::nullopt;
      return number;
    default:
      return std::nullopt;  // ONNX has no groups
  }
}

// One field after another of a serialized message. CodedInputStream counts in 32 bits, and a model with its weights may
// exceed 2 GiB: so one reads each field's head, and the content is skipped here.
class Fields {
 public:
  explicit Fields(llvm::StringRef message) : message(message) {}

  // Advances; false at the end or at a malformed field (then `ok` is false).
  bool next() {
    if (at == message.size() || !ok) return false;
    begin = at;
    CodedInputStream head(message.bytes_begin() + at, int(std::min(message.size() - at, kMaxHead)));
    uint32_t tag = head.ReadTag();
    type = WireFormatLite::GetTagWireType(tag);
    number = WireFormatLite::GetTagFieldNumber(tag);
    std::optional<uint64_t> size = tag ? contentSize(head, type) : std::nullopt;
    payload = at + head.CurrentPosition();
    if (!size || *size > message.size() - payload) return ok = false;
    at = payload + *size;
    return true;
  }
  // Whether it is this field, of a type that has a length.
  bool is(int field) const { return number == field && type == WireFormatLite::WIRETYPE_LENGTH_DELIMITED; }
  llvm::StringRef field() const { return message.slice(begin, at); }  // with its tag
  llvm::StringRef content() const { return message.slice(payload, at); }
  int64_t contentOffset() const { return int64_t(payload); }

  bool ok = true;

 private:
  llvm::StringRef message;
  size_t at = 0, begin = 0, payload = 0;
  int number = 0;
  WireFormatLite::WireType type = WireFormatLite::WIRETYPE_VARINT;
};

void append(std::string& to, llvm::StringRef bytes) {
  to.append(bytes.data(), bytes.size());
}

void appendField(std::string& to, int number, llvm::StringRef content) {
  uint8_t head[kMaxHead];
  uint8_t* end = WireFormatLite::WriteTagToArray(number, WireFormatLite::WIRETYPE_LENGTH_DELIMITED, head);
  end = CodedOutputStream::WriteVarint64ToArray(content.size(), end);
  to.append(head, end);
  append(to, content);
}

bool cutTensor(llvm::StringRef tensor, int64_t base, std::string& rest, RawSpan& span) {
  Fields fields(tensor);
  while (fields.next()) {
    if (fields.is(kTensorRawData))
      span = {base + fields.contentOffset(), int64_t(fields.content().size())};
    else
      append(rest, fields.field());
  }
  return fields.ok;
}

bool cutGraph(llvm::StringRef graph, int64_t base, std::string& rest, std::vector<RawSpan>& spans) {
  Fields fields(graph);
  std::string tensor;
  while (fields.next()) {
    if (!fields.is(kGraphInitializer)) {
      append(rest, fields.field());
      continue;
    }
    tensor.clear();
    if (!cutTensor(fields.content(), base + fields.contentOffset(), tensor, spans.emplace_back())) return false;
    appendField(rest, kGraphInitializer, tensor);
  }
  return fields.ok;
}

}  // namespace

bool locateConstants(llvm::StringRef model, std::vector<RawSpan>& spans) {
  // Calls visit(content, offset in the file) for every field of that number.
  auto each = [](llvm::StringRef message, int64_t base, int number, auto&& visit) {
    Fields fields(message);
    while (fields.next())
      if (fields.is(number)) visit(fields.content(), base + fields.contentOffset());
    return fields.ok;
  };
  bool ok = true;
  ok &= each(model, 0, kModelGraph, [&](llvm::StringRef graph, int64_t inGraph) {
    ok &= each(graph, inGraph, kGraphNode, [&](llvm::StringRef node, int64_t inNode) {
      RawSpan& span = spans.emplace_back();
      ok &= each(node, inNode, kNodeAttribute, [&](llvm::StringRef attribute, int64_t inAttribute) {
        ok &= each(attribute, inAttribute, kAttributeTensor, [&](llvm::StringRef tensor, int64_t inTensor) {
          ok &= each(tensor, inTensor, kTensorRawData, [&](llvm::StringRef bytes, int64_t at) {
            span = {at, int64_t(bytes.size())};
          });
        });
      });
    });
  });
  return ok;
}

bool cutRawData(llvm::StringRef model, std::string& rest, std::vector<RawSpan>& spans) {
  Fields fields(model);
  bool seen = false;
  while (fields.next()) {
    if (!fields.is(kModelGraph)) {
      append(rest, fields.field());
      continue;
    }
    if (seen) return false;
    seen = true;
    std::string graph;
    if (!cutGraph(fields.content(), fields.contentOffset(), graph, spans)) return false;
    appendField(rest, kModelGraph, graph);
  }
  return fields.ok;
}

}  // namespace sheaf::frontend
