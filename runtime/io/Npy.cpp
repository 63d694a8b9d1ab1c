#include "runtime/io/Npy.h"

#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/Text.h"
#include "runtime/plan/Types.h"

namespace sheaf::io {
namespace {

constexpr size_t kMaxHeaderBytes = 64 * 1024;
constexpr size_t kMaxRank = 32;

// The header is the literal of a Python dictionary with three keys.
class HeaderParser {
 public:
  explicit HeaderParser(std::string_view text) : text_(text) {}

  bool run() {
    if (!accept('{')) return false;
    while (!accept('}')) {
      std::string key;
      if (!parseString(key) || !accept(':')) return false;
      if (key == "descr" && !type_) {
        if (!parseString(type_.emplace())) return false;
      } else if (key == "fortran_order" && !fortran_) {
        if (!parseBool(fortran_.emplace())) return false;
      } else if (key == "shape" && !shape_) {
        if (!parseShape(shape_.emplace())) return false;
      } else {
        return false;
      }
      if (!accept(',') && peek() != '}') return false;
    }
    return type_ && fortran_ && shape_ && peek() == '\0';
  }

  const std::string& type() const { return *type_; }
  bool fortran() const { return *fortran_; }
  const std::vector<int64_t>& shape() const { return *shape_; }

 private:
  char peek() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool accept(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  bool parseString(std::string& out) {
    char quote = peek();
    if (quote != '\'' && quote != '"') return false;
    size_t end = text_.find(quote, ++at_);
    if (end == std::string_view::npos) return false;
    out = text_.substr(at_, end - at_);
    at_ = end + 1;
    return true;
  }
  bool parseBool(bool& out) {
    peek();
    out = text_.substr(at_, 4) == "True";
    if (!out && text_.substr(at_, 5) != "False") return false;
    at_ += out ? 4 : 5;
    return true;
  }
  bool parseShape(std::vector<int64_t>& out) {
    if (!accept('(')) return false;
    while (!accept(')')) {
      peek();
      size_t end = at_;
      while (end < text_.size() && text_[end] >= '0' && text_[end] <= '9') ++end;
      int64_t size = 0;
      if (!parseInteger(text_.substr(at_, end - at_), size) || out.size() == kMaxRank) return false;
      at_ = end;
      if (at_ < text_.size() && text_[at_] == 'L') ++at_;  // as Python 2 wrote long integers
      out.push_back(size);
      if (!accept(',') && peek() != ')') return false;
    }
    return true;
  }

  std::string_view text_;
  size_t at_ = 0;
  std::optional<std::string> type_;
  std::optional<bool> fortran_;
  std::optional<std::vector<int64_t>> shape_;
};

std::optional<DataType> typeOf(std::string_view descr) {
  if (descr.size() != 3 || (descr[0] != '<' && descr[0] != '|' && descr[0] != '=')) return std::nullopt;
  for (const plan::ElementFacts& row : plan::kElements)
    if (descr.substr(1) == row.npy) return static_cast<DataType>(row.type);
  return std::nullopt;
}

}  // namespace

Expected<size_t> npyHeaderBytes(std::span<const std::byte> file) {
  if (file.empty()) return Status::error("the file is empty; save arrays with numpy.save");
  if (file.size() >= 4 && std::memcmp(file.data(), "PK\x03\x04", 4) == 0)
    return Status::error("an archive of arrays (.npz); save each array in a file of its own with numpy.save");
  if (file.size() < 10 || std::memcmp(file.data(), "\x93NUMPY", 6) != 0)
    return Status::error("not a .npy file; save arrays with numpy.save");
  unsigned version = static_cast<unsigned>(file[6]);
  if (version < 1 || version > 3) return Status::error(cat("format version ", version, " of .npy is not known"));
  size_t begin = version == 1 ? 10 : 12, length = 0;
  if (file.size() < begin) return Status::error("the .npy header is truncated");
  for (size_t i = begin; i > 8; --i) length = length << 8 | static_cast<size_t>(file[i - 1]);
  if (length > kMaxHeaderBytes) return Status::error(cat("the .npy header claims ", length, " bytes"));
  return begin + length;
}

Expected<NpyHeader> parseNpyHeader(std::span<const std::byte> file) {
  Expected<size_t> bytes = npyHeaderBytes(file);
  if (!bytes.ok()) return bytes.status();
  if (*bytes > file.size()) return Status::error("the .npy header is truncated");
  const size_t begin = static_cast<unsigned>(file[6]) == 1 ? 10 : 12;
  HeaderParser header(std::string_view(reinterpret_cast<const char*>(file.data()) + begin, *bytes - begin));
  if (!header.run())
    return Status::error("the .npy header is not a plain array's (structured and object arrays are not supported)");
  std::optional<DataType> type = typeOf(header.type());
  if (!type)
    return Status::error(cat("element type '", header.type().substr(0, 32),
                             "' is not supported; save little-endian f2, f4, f8, bool or integers"));
  if (header.fortran() && header.shape().size() > 1)
    return Status::error("the array is in Fortran order; save numpy.ascontiguousarray of it");
  return NpyHeader{*type, header.shape(), *bytes};
}

Expected<NpyHeader> parseAndCheckNpyHeader(std::span<const std::byte> head, uint64_t size) {
  Expected<NpyHeader> header = parseNpyHeader(head);
  if (!header.ok()) return header.status();
  std::optional<uint64_t> count = plan::elementCount(header->shape);
  uint64_t available = size - header->bytes;
  if (!count || *count * bytesOf(header->type) != available)
    return Status::error(cat("shape ", shapeText(header->shape), " of ", nameOf(header->type), " does not match the ",
                             available, " bytes that follow the header; the file is truncated or damaged"));
  return header;
}

Expected<NpyArray> parseNpy(std::span<const std::byte> file) {
  Expected<NpyHeader> header = parseAndCheckNpyHeader(file, file.size());
  if (!header.ok()) return header.status();
  return NpyArray{header->type, header->shape, file.subspan(header->bytes)};
}

Expected<std::string> npyHeader(DataType type, std::span<const int64_t> shape) {
  const std::string_view name = factsOf(type).npy;
  if (name.empty()) return Status::error(cat("NumPy has no elements of type ", nameOf(type)));
  std::string sizes;
  for (int64_t size : shape) sizes += cat(size, ", ");
  std::string text =
      cat("{'descr': '", bytesOf(type) == 1 ? "|" : "<", name, "', 'fortran_order': False, 'shape': (", sizes, "), }");
  // The elements begin at a multiple of 64 bytes.
  constexpr size_t kPreamble = 10, kMultiple = 64;
  text.resize((kPreamble + text.size() + 1 + kMultiple - 1) / kMultiple * kMultiple - kPreamble, ' ');
  text.back() = '\n';
  std::string header("\x93NUMPY\x01\x00", 8);
  header += static_cast<char>(text.size() & 0xff);
  header += static_cast<char>(text.size() >> 8);
  return header + text;
}

}  // namespace sheaf::io
