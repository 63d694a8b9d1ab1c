#include "runtime/base/Text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
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

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  size_t bestDistance = std::max<size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    std::vector<size_t> row(candidate.size() + 1);
    std::iota(row.begin(), row.end(), 0);
    for (size_t i = 0; i < word.size(); ++i) {
      size_t diagonal = row[0];
      row[0] = i + 1;
      for (size_t j = 0; j < candidate.size(); ++j) {
        size_t substituted = diagonal + (word[i] != candidate[j]);
        diagonal = row[j + 1];
        row[j + 1] = std::min({substituted, row[j] + 1, row[j + 1] + 1});
      }
    }
    if (row.back() < bestDistance) {
      bestDistance = row.back();
      best = candidate;
    }
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

bool parseBytes(std::string_view text, uint64_t& bytes) {
  size_t digits = text.find_first_not_of("0123456789.");
  if (digits == std::string_view::npos) digits = text.size();
  double number;
  if (!parseReal(text.substr(0, digits), number)) return false;
  std::string_view unit = text.substr(digits);
  if (unit.starts_with(" ")) unit.remove_prefix(1);
  double scale = unit.empty() || unit == "B" ? 1 : 0;
  const char* const prefixes = "KMGTP";
  for (int power = 1; power <= 5; ++power) {
    const std::string prefix(1, prefixes[power - 1]);
    if (unit == prefix + "iB" || unit == prefix + "i") scale = std::pow(1024.0, power);
    if (unit == prefix + "B" || (power == 1 && unit == "kB")) scale = std::pow(1000.0, power);
  }
  if (scale == 0 || !(number * scale <= 0x1p60)) return false;
  bytes = static_cast<uint64_t>(number * scale);
  return true;
}

}  // namespace sheaf
