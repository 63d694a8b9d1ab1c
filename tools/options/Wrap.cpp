#include "tools/options/Wrap.h"

namespace sheaf::options {
namespace {

constexpr size_t kWidth = 100;

}  // namespace

void wrap(std::string& out, const std::string& text, size_t column, size_t indent) {
  size_t at = 0;
  bool first = true;
  while (at < text.size()) {
    size_t end = text.find(' ', at);
    if (end == std::string::npos) end = text.size();
    if (!first && column + 1 + end - at > kWidth) {
      out += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (!first) {
      out += ' ';
      ++column;
    }
    out.append(text, at, end - at);
    column += end - at;
    first = false;
    at = end + 1;
  }
  out += '\n';
}

}  // namespace sheaf::options
