// Fits of cost formulas to measurements.
#pragma once

#include <vector>

namespace sheaf::measure {

// A measurement: what each coefficient is multiplied by, and the seconds that their sum is to be.
struct Sample {
  std::vector<double> terms;
  double seconds = 0;
};

// Non-negative coefficients with the least sum of squared relative errors, in which samples far off count less: other
// load on the machine spoils some. The first is positive: if it would not be, it is fitted alone.
std::vector<double> fitNonNegative(const std::vector<Sample>& samples);

}  // namespace sheaf::measure
