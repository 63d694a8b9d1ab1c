// The course of a number in a few characters: the means of equally many values each, from the first value to the last.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sheaf::exec {

class Sparkline {
 public:
  explicit Sparkline(size_t width) : width_(width) {}

  // Values that are not finite are left out.
  void add(double value);
  // At most `width` block characters, the lowest mean as the lowest block, in UTF-8; nothing before the second mean.
  std::string text() const;

 private:
  const size_t width_;
  int64_t each_ = 1;           // values of a mean
  std::vector<double> means_;  // complete ones; adjacent ones are merged when there are too many
  double sum_ = 0;             // of the next one
  int64_t count_ = 0;
};

}  // namespace sheaf::exec
