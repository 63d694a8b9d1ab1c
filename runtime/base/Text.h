// Small helpers for messages.
#pragma once

#include <cstdint>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace sheaf {

// The arguments as text, one after the other.
template <typename... Args>
std::string cat(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return std::move(out).str();
}

// "[2, 3]"
std::string shapeText(std::span<const int64_t> shape);

// "12", "1.5 KiB", "3.2 GiB"
std::string bytesText(uint64_t bytes);

// "41.8 ms", "1.25 s"
std::string secondsText(double seconds);

// "12,345,678"
std::string countText(uint64_t count);

// "rank" for 1, else "ranks"; `many` is a plural that does not end in -s alone.
template <typename Integer>
std::string plural(Integer count, std::string_view one, std::string_view many = {}) {
  return count == 1 ? std::string(one) : many.empty() ? cat(one, "s") : std::string(many);
}
// "1 rank", "2 ranks"
template <typename Integer>
std::string counted(Integer count, std::string_view one, std::string_view many = {}) {
  return cat(count, " ", plural(count, one, many));
}

// "a, b, c"; a long list ends in ", ... (N in all)".
std::string listText(const std::vector<std::string>& names, size_t limit = 8);

// With ASCII letters in lower case.
std::string lowerCase(std::string_view text);

// A word as a POSIX shell reads it back.
std::string shellWord(std::string_view word);
// The same of a path as an argument: one that looks like an option gets "./".
std::string shellPath(std::string_view path);

// Sixteen lower-case hexadecimal digits.
std::string hexText(uint64_t value);

// The candidate nearest to `word` if it is near enough to be a slip of the keyboard, or begins or completes it; else
// empty.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

// A whole string as a number; false if anything else is in it or it is out of range.
bool parseInteger(std::string_view text, int64_t& value);
bool parseReal(std::string_view text, double& value);
// Says why f32 does not hold a finite number, as in "is beyond the largest number of f32, 3.4e38"; empty if it does.
std::string f32Problem(double value);
// Bytes: a number with a unit, as in "24GiB", "80GB", "1.5 MiB", "4096". False also beyond 2^60.
bool parseBytes(std::string_view text, uint64_t& bytes);
// The same; says what is wrong, or returns an empty text.
std::string bytesProblem(std::string_view text, uint64_t& bytes);

}  // namespace sheaf
