// Terms: what a symbolic execution knows a value by.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

#include "runtime/base/Hash.h"

namespace sheaf::plan {

// Hashes a term, an ordered list of numbers, incrementally. Terms are compared by their hashes.
class Term {
 public:
  explicit Term(std::string_view name) { add(name); }
  Term& add(uint64_t number) {
    hash_ = mixBits(hash_ ^ number) + number;
    return *this;
  }
  Term& add(std::string_view text) { return add(xxh64(text)).add(static_cast<uint64_t>(text.size())); }
  Term& addReal(double number) { return add(std::bit_cast<uint64_t>(number)); }
  uint64_t hash() const { return mixBits(hash_); }

 private:
  uint64_t hash_ = 0;
};

}  // namespace sheaf::plan
