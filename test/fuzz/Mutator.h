// Seeded mutations of inputs: of plain bytes, of protobuf's wire format, of text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sheaf::fuzz {

// splitmix64: every input is determined by the numbers it is seeded with.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next();
  // Uniform in [0, count); count > 0.
  uint64_t below(uint64_t count) { return next() % count; }
  bool oneIn(uint64_t count) { return below(count) == 0; }

 private:
  uint64_t state_;
};

// A number that code tends to be wrong about: limits of types, sizes that overflow, neighbours of `near`.
uint64_t interesting(Random& random, uint64_t near);

// Flips, overwrites, cuts, repeats and moves bytes, one to a few times.
std::string mutateBytes(std::string_view input, Random& random);

// Changes one to a few fields somewhere in a tree of protobuf messages, whose lengths stay right: values, strings, and
// whole fields removed, repeated or moved. What does not parse as wire format is mutated as bytes.
std::string mutateWire(std::string_view message, Random& random);

// Changes numbers, words and lines of a text such as JSON.
std::string mutateText(std::string_view text, Random& random);

}  // namespace sheaf::fuzz
