#include "runtime/exec/Sparkline.h"

#include <gtest/gtest.h>

#include <cmath>

namespace sheaf::exec {
namespace {

std::string of(size_t width, const std::vector<double>& values) {
  Sparkline line(width);
  for (const double value : values) line.add(value);
  return line.text();
}

TEST(Sparkline, ShowsLowestAndHighest) {
  EXPECT_EQ(of(8, {}), "");
  EXPECT_EQ(of(8, {3}), "");
  EXPECT_EQ(of(8, {8, 0, 4}), "█▁▅");
  EXPECT_EQ(of(8, {2, 2}), "▁▁");
  EXPECT_EQ(of(8, {8, NAN, INFINITY, 0}), "█▁");
}

// However many values there are, the first is at the left end and the last at the right.
TEST(Sparkline, KeepsTheWholeRun) {
  EXPECT_EQ(of(4, {8, 8, 8, 0, 0}), "█▅▁");  // (8, 8), (8, 0), and half of the next
  for (const size_t count : {4, 5, 6, 7, 8, 9, 64, 1000, 1001}) {
    std::vector<double> values;
    for (size_t i = 0; i < count; ++i) values.push_back(static_cast<double>(count - i));
    const std::string text = of(4, values);
    const size_t blocks = text.size() / 3;
    EXPECT_TRUE(blocks >= 2 && blocks <= 4) << count << ": " << text;
    EXPECT_TRUE(text.starts_with("█") && text.ends_with("▁")) << count << ": " << text;
  }
}

}  // namespace
}  // namespace sheaf::exec
