#include "test/fuzz/Mutator.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <utility>

namespace sheaf::fuzz {

uint64_t Random::next() {
  uint64_t z = (state_ += 0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

uint64_t interesting(Random& random, uint64_t near) {
  switch (random.below(8)) {
    case 0:
      return near + 1;
    case 1:
      return near - 1;
    case 2:
      return near * 2;
    case 3:
      return near ^ (uint64_t{1} << random.below(64));
    case 4:
      return uint64_t{1} << random.below(64);
    case 5:
      return (uint64_t{1} << random.below(64)) - 1;
    case 6:
      return random.below(16);
    default:
      return ~random.below(16);
  }
}

std::string mutateBytes(std::string_view input, Random& random) {
  std::string bytes(input);
  for (uint64_t round = 1 + random.below(4); round > 0; --round) {
    if (bytes.empty()) return std::string(random.below(64), static_cast<char>(random.next()));
    size_t at = random.below(bytes.size());
    size_t length = std::min(bytes.size() - at, size_t{1} << random.below(12));
    switch (random.below(7)) {
      case 0:
        bytes[at] ^= static_cast<char>(1 << random.below(8));
        break;
      case 1:
        bytes[at] = static_cast<char>(random.next());
        break;
      case 2: {
        uint64_t number = interesting(random, static_cast<unsigned char>(bytes[at]));
        size_t width = std::min(bytes.size() - at, size_t{1} << random.below(4));
        for (size_t i = 0; i < width; ++i) bytes[at + i] = static_cast<char>(number >> (8 * i));
        break;
      }
      case 3:
        bytes.erase(at, length);
        break;
      case 4:
        bytes.insert(random.below(bytes.size()), bytes.substr(at, length));
        break;
      case 5:
        bytes.resize(at);
        break;
      default:
        std::fill_n(bytes.begin() + static_cast<ptrdiff_t>(at), length, random.oneIn(2) ? '\0' : '\xff');
    }
  }
  return bytes;
}

namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;

struct Field {
  uint32_t tag = 0;
  uint64_t number = 0;       // of a varint
  std::string_view payload;  // of the other types

  WireFormatLite::WireType type() const { return WireFormatLite::GetTagWireType(tag); }
};

// Whether a string is such fields and nothing else; most strings that are not messages are not.
std::optional<std::vector<Field>> parseFields(std::string_view message) {
  CodedInputStream in(reinterpret_cast<const uint8_t*>(message.data()), static_cast<int>(message.size()));
  std::vector<Field> fields;
  while (static_cast<size_t>(in.CurrentPosition()) < message.size()) {
    Field field;
    field.tag = in.ReadTag();
    int number = WireFormatLite::GetTagFieldNumber(field.tag), length = 0;
    if (number == 0 || number > 1000) return std::nullopt;
    bool read = true;
    switch (field.type()) {
      case WireFormatLite::WIRETYPE_VARINT:
        read = in.ReadVarint64(&field.number);
        break;
      case WireFormatLite::WIRETYPE_FIXED64:
        length = 8;
        break;
      case WireFormatLite::WIRETYPE_FIXED32:
        length = 4;
        break;
      case WireFormatLite::WIRETYPE_LENGTH_DELIMITED:
        read = in.ReadVarintSizeAsInt(&length);
        break;
      default:
        return std::nullopt;
    }
    size_t at = static_cast<size_t>(in.CurrentPosition());
    if (!read || !in.Skip(length)) return std::nullopt;
    field.payload = message.substr(at, static_cast<size_t>(length));
    fields.push_back(field);
  }
  return fields;
}

void writeField(std::string& out, const Field& field) {
  uint8_t head[20];
  uint8_t* end = CodedOutputStream::WriteVarint32ToArray(field.tag, head);
  if (field.type() == WireFormatLite::WIRETYPE_VARINT) end = CodedOutputStream::WriteVarint64ToArray(field.number, end);
  if (field.type() == WireFormatLite::WIRETYPE_LENGTH_DELIMITED)
    end = CodedOutputStream::WriteVarint64ToArray(field.payload.size(), end);
  out.append(head, end);
  out += field.payload;
}

std::string mutateOneField(std::string_view message, Random& random) {
  std::optional<std::vector<Field>> parsed = parseFields(message);
  if (!parsed || parsed->empty()) return mutateBytes(message, random);
  std::vector<Field>& fields = *parsed;
  std::string changed;  // what the mutated field's payload points to
  size_t at = random.below(fields.size());
  if (random.oneIn(6)) {
    size_t other = random.below(fields.size());
    switch (random.below(4)) {
      case 0:
        fields.erase(fields.begin() + static_cast<ptrdiff_t>(at));
        break;
      case 1:
        fields.insert(fields.begin() + static_cast<ptrdiff_t>(at), Field(fields[other]));
        break;
      case 2:
        std::swap(fields[at], fields[other]);
        break;
      default:
        fields[at].tag =
            static_cast<uint32_t>(interesting(random, fields[at].tag >> 3) & 0xff) << 3 | fields[at].type();
    }
  } else if (Field& field = fields[at]; field.type() == WireFormatLite::WIRETYPE_VARINT) {
    field.number = interesting(random, field.number);
  } else {
    changed = field.type() == WireFormatLite::WIRETYPE_LENGTH_DELIMITED && !field.payload.empty()
                  ? mutateOneField(field.payload, random)
                  : mutateBytes(field.payload, random);
    // Eight and four bytes have no length of their own.
    if (field.type() != WireFormatLite::WIRETYPE_LENGTH_DELIMITED) changed.resize(field.payload.size());
    field.payload = changed;
  }
  std::string out;
  for (const Field& field : fields) writeField(out, field);
  return out;
}

}  // namespace

std::string mutateWire(std::string_view message, Random& random) {
  std::string out = mutateOneField(message, random);
  while (random.oneIn(3)) out = mutateOneField(out, random);
  return out;
}

std::string mutateText(std::string_view text, Random& random) {
  if (text.empty() || random.oneIn(3)) return mutateBytes(text, random);
  std::string out(text);
  for (uint64_t round = 1 + random.below(3); round > 0; --round) {
    size_t at = random.below(out.size());
    auto digit = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; };
    size_t begin =
        static_cast<size_t>(std::find_if(out.begin() + static_cast<ptrdiff_t>(at), out.end(), digit) - out.begin());
    size_t end = static_cast<size_t>(std::find_if_not(out.begin() + static_cast<ptrdiff_t>(begin), out.end(), digit) -
                                     out.begin());
    if (begin < end && !random.oneIn(4)) {
      uint64_t number = 0;
      for (size_t i = begin; i < end; ++i) number = number * 10 + static_cast<uint64_t>(out[i] - '0');
      uint64_t other = interesting(random, number);
      out.replace(begin, end - begin,
                  random.oneIn(2) ? std::to_string(other) : std::to_string(static_cast<int64_t>(other)));
    } else {
      static constexpr std::string_view kWords[] = {"null",  "{}",   "[]",      "\"\"", "-1",
                                                    "1e999", "[[[[", "\\ud800", ",",    "\""};
      out.insert(at, kWords[random.below(std::size(kWords))]);
    }
  }
  return out;
}

}  // namespace sheaf::fuzz
