#include "frontend/onnx/WireFormat.h"

namespace sheaf::frontend {
namespace {

// Numbers of the fields on the way to an initializer's bytes; see onnx-ml.proto.
constexpr uint64_t kModelGraph = 7, kGraphInitializer = 5, kTensorRawData = 9;
enum WireType { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

// One field after another of a serialized message.
class Fields {
 public:
  explicit Fields(llvm::StringRef message) : message(message) {}

  // Advances; false at the end or at a malformed field (then `ok` is false).
  bool next() {
    if (at == message.size() || !ok) return false;
    begin = at;
    uint64_t tag;
    if (!varint(tag)) return ok = false;
    number = tag >> 3;
    type = tag & 7;
    uint64_t length = 0;
    if (type == kVarint) {
      if (!varint(length)) return ok = false;
      return true;
    }
    if (type == kFixed64)
      length = 8;
    else if (type == kFixed32)
      length = 4;
    else if (type != kBytes || !varint(length))
      return ok = false;
    if (length > message.size() - at) return ok = false;
    payload = at;
    at += length;
    return true;
  }
  llvm::StringRef field() const { return message.slice(begin, at); }      // with its tag
  llvm::StringRef content() const { return message.slice(payload, at); }  // of a field of type kBytes
  size_t contentOffset() const { return payload; }

  uint64_t number = 0;
  unsigned type = 0;
  bool ok = true;

 private:
  bool varint(uint64_t& value) {
    value = 0;
    for (int shift = 0; shift < 64 && at < message.size(); shift += 7) {
      uint8_t byte = message[at++];
      value |= uint64_t(byte & 0x7f) << shift;
      if (!(byte & 0x80)) return true;
    }
    return false;
  }

  llvm::StringRef message;
  size_t at = 0, begin = 0, payload = 0;
};

void append(std::string& to, llvm::StringRef bytes) {
  to.append(bytes.data(), bytes.size());
}

void appendField(std::string& to, uint64_t number, llvm::StringRef content) {
  auto varint = [&](uint64_t value) {
    for (; value >= 0x80; value >>= 7) to.push_back(char(value | 0x80));
    to.push_back(char(value));
  };
  varint(number << 3 | kBytes);
  varint(content.size());
  append(to, content);
}

bool cutTensor(llvm::StringRef tensor, int64_t base, std::string& rest, RawSpan& span) {
  Fields fields(tensor);
  while (fields.next()) {
    if (fields.number == kTensorRawData && fields.type == kBytes)
      span = {base + int64_t(fields.contentOffset()), int64_t(fields.content().size())};
    else
      append(rest, fields.field());
  }
  return fields.ok;
}

bool cutGraph(llvm::StringRef graph, int64_t base, std::string& rest, std::vector<RawSpan>& spans) {
  Fields fields(graph);
  std::string tensor;
  while (fields.next()) {
    if (fields.number != kGraphInitializer || fields.type != kBytes) {
      append(rest, fields.field());
      continue;
    }
    tensor.clear();
    if (!cutTensor(fields.content(), base + int64_t(fields.contentOffset()), tensor, spans.emplace_back()))
      return false;
    appendField(rest, kGraphInitializer, tensor);
  }
  return fields.ok;
}

}  // namespace

bool cutRawData(llvm::StringRef model, std::string& rest, std::vector<RawSpan>& spans) {
  Fields fields(model);
  bool seen = false;
  while (fields.next()) {
    if (fields.number != kModelGraph || fields.type != kBytes) {
      append(rest, fields.field());
      continue;
    }
    if (seen) return false;
    seen = true;
    std::string graph;
    if (!cutGraph(fields.content(), int64_t(fields.contentOffset()), graph, spans)) return false;
    appendField(rest, kModelGraph, graph);
  }
  return fields.ok;
}

}  // namespace sheaf::frontend
