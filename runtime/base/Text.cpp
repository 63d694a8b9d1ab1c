#include "runtime/base/Text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <limits>
#include <numeric>
#include <utility>

namespace sheaf {

std::string shapeText(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += cat(i ? ", " : "", shape[i]);
  return text + "]";
}

std::string bytesText(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  if (bytes < 1024) return cat(bytes, " B");
  double value = static_cast<double>(bytes);
  int unit = -1;
  while (value >= 1024 && unit < 4) {
    value /= 1024;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof text, value < 100 ? "%.1f %s" : "%.0f %s", value, kUnits[unit]);
  return text;
}

std::string secondsText(double seconds) {
  const bool large = seconds >= 1, small = seconds < 1e-3;
  const double value = large ? seconds : seconds * (small ? 1e6 : 1e3);
  char text[32];
  std::snprintf(text, sizeof text, "%.*f %s",
                value < 10    ? 2
                : value < 100 ? 1
                              : 0,
                value,
                large   ? "s"
                : small ? "us"
                        : "ms");
  return text;
}

std::string countText(uint64_t count) {
  std::string digits = std::to_string(count);
  for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3) digits.insert(static_cast<size_t>(at), 1, ',');
  return digits;
}

std::string listText(const std::vector<std::string>& names, size_t limit) {
  std::string text;
  for (size_t i = 0; i < names.size() && i < limit; ++i) text += (i ? ", " : "") + names[i];
  if (names.size() > limit) text += cat(", ... (", names.size(), " in all)");
  return text;
}

std::string hexText(uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

std::string lowerCase(std::string_view text) {
  std::string lower(text);
  for (char& c : lower)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return lower;
}

namespace {

// The number of letters to add, remove, replace or exchange with the next one, to get from one word to the other.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before, last, row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 0; i < a.size(); ++i) {
    before = std::exchange(last, row);
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      row[j + 1] = std::min({last[j] + (a[i] != b[j]), last[j + 1] + 1, row[j] + 1});
      if (i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j]) row[j + 1] = std::min(row[j + 1], before[j - 1] + 1);
    }
  }
  return row.back();
}

}  // namespace

std::string shellWord(std::string_view word) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string_view::npos) return std::string(word);
  std::string text = "'";
  for (char c : word) text += c == '\'' ? "'\\''" : std::string(1, c);
  return text + "'";
}

std::string shellPath(std::string_view path) {
  return shellWord(path.starts_with("-") ? cat("./", path) : std::string(path));
}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  // Dashes do not count: of a word of a letter or two, little else may be wrong.
  const size_t letters = word.size() - std::min(word.size(), word.find_first_not_of('-'));
  size_t bestDistance = (letters < 2 ? 0 : letters < 4 ? 1 : std::max<size_t>(2, word.size() / 3)) + 1;
  for (const std::string& candidate : candidates)
    if (const size_t slips = distance(word, candidate); slips < bestDistance) {
      bestDistance = slips;
      best = candidate;
    }
  constexpr size_t kSlips = 2, kLeast = 4;
  if (!best.empty() && bestDistance <= kSlips) return best;
  // The longest that begins the word, as in --batchsize, or the first that begins with it, as in --micro.
  const std::string similar = std::exchange(best, "");
  for (const std::string& candidate : candidates)
    if (candidate.size() >= kLeast && candidate.size() > best.size() && word.starts_with(candidate)) best = candidate;
  for (const std::string& candidate : candidates)
    if (best.empty() && word.size() >= kLeast && candidate.starts_with(word)) best = candidate;
  return best.empty() ? similar : best;
}

bool parseInteger(std::string_view text, int64_t& value) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

bool parseReal(std::string_view text, double& value) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && !text.empty() && std::isfinite(value);
}

std::string f32Problem(double value) {
  if (std::abs(value) > double{std::numeric_limits<float>::max()}) return "is beyond the largest number of f32, 3.4e38";
  return value != 0 && static_cast<float>(value) == 0 ? "is 0 in f32, whose least positive number is 1.4e-45" : "";
}

std::string bytesProblem(std::string_view text, uint64_t& bytes) {
  size_t digits = text.find_first_not_of("0123456789.");
  if (digits == std::string_view::npos) digits = text.size();
  double number;
  if (!parseReal(text.substr(0, digits), number)) return "it does not begin with a number";
  std::string_view unit = text.substr(digits);
  if (unit.starts_with(" ")) unit.remove_prefix(1);
  double scale = unit.empty() || unit == "B" ? 1 : 0;
  const char* const prefixes = "KMGTP";
  for (int power = 1; power <= 5; ++power) {
    const std::string prefix(1, prefixes[power - 1]);
    if (unit == prefix + "iB" || unit == prefix + "i") scale = std::pow(1024.0, power);
    if (unit == prefix + "B" || (power == 1 && unit == "kB")) scale = std::pow(1000.0, power);
  }
  if (scale == 0) return cat("'", unit, "' is not one of the units KiB, MiB, GiB, TiB, KB, MB, GB, TB");
  if (number * scale > 0x1p60) return "it is more than 1024 PiB";
  bytes = static_cast<uint64_t>(number * scale);
  return "";
}

bool parseBytes(std::string_view text, uint64_t& bytes) {
  return bytesProblem(text, bytes).empty();
}

}  // namespace sheaf
