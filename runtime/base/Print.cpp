#include "runtime/base/Print.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdarg>
#include <mutex>

namespace sheaf {

bool Character::controls() const {
  return (code >= 0 && code < 0x20) || (code >= 0x7f && code < 0xa0) || code == 0x061c || code == 0x200e ||
         code == 0x200f || (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
}

// RFC 3629: no overlong forms, no surrogates, nothing beyond U+10FFFF.
Character characterAt(std::string_view text, size_t at) {
  auto byte = [&](size_t i) { return i < text.size() ? static_cast<uint8_t>(text[i]) : uint8_t{0}; };
  const int32_t first = byte(at);
  if (first < 0x80) return {1, first};
  const size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  static constexpr int32_t kLeast[] = {0x80, 0x800, 0x10000};
  int32_t code = first & (0x7f >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    if (byte(at + i) >> 6 != 2) return {};
    code = code << 6 | (byte(at + i) & 0x3f);
  }
  if (first < 0xc0 || first > 0xf4 || code < kLeast[bytes - 2] || code > 0x10ffff || code >> 11 == 0x1b) return {};
  return {bytes, code};
}

static std::string shown(std::string_view text, std::string_view kept) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const Character character = characterAt(text, at);
    const std::string_view bytes = text.substr(at, character.bytes);
    at += character.bytes;
    if (character.code >= 0 && (!character.controls() || kept.find(bytes) != std::string_view::npos)) {
      result += bytes;
      continue;
    }
    for (const char c : bytes) {
      const auto byte = static_cast<uint8_t>(c);
      result += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return result;
}

std::string shown(std::string_view text) {
  return shown(text, "\n\t");
}

std::string shownLine(std::string_view text) {
  return shown(text, "");
}

std::string shownMessage(std::string_view text) {
  const std::string lines = shown(text);
  std::string result;
  for (size_t i = 0; i < lines.size(); ++i) {
    result += lines[i];
    if (lines[i] == '\n' && i + 1 < lines.size() && lines[i + 1] != ' ' && lines[i + 1] != '\n') result += "  ";
  }
  return result;
}

namespace out {
namespace {

std::mutex lineMutex;
bool lineIsDrawn = false;

int print(std::FILE* file, const char* format, va_list arguments) {
  va_list again;
  va_copy(again, arguments);
  const int size = std::vsnprintf(nullptr, 0, format, again);
  va_end(again);
  if (size < 0) return size;
  std::string text(static_cast<size_t>(size) + 1, '\0');
  std::vsnprintf(text.data(), text.size(), format, arguments);
  text.pop_back();
  text = shown(text);
  clearLine();
  return std::fwrite(text.data(), 1, text.size(), file) == text.size() ? static_cast<int>(text.size()) : -1;
}

}  // namespace

size_t terminalColumns() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

void drawLine(std::string_view text) {
  const std::string line = shownLine(text).substr(0, terminalColumns() - 1);
  std::lock_guard lock(lineMutex);
  std::fprintf(stderr, "\r\033[K%s", line.c_str());
  lineIsDrawn = true;
}

void clearLine() {
  std::lock_guard lock(lineMutex);
  if (lineIsDrawn) std::fputs("\r\033[K", stderr);
  lineIsDrawn = false;
}

int printf(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const int result = print(stdout, format, arguments);
  va_end(arguments);
  return result;
}

int fprintf(std::FILE* file, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const int result = print(file, format, arguments);
  va_end(arguments);
  return result;
}

}  // namespace out
}  // namespace sheaf
