#include "runtime/exec/Sparkline.h"

#include <algorithm>
#include <cmath>

namespace sheaf::exec {

void Sparkline::add(double value) {
  if (!std::isfinite(value)) return;
  sum_ += value;
  if (++count_ < each_) return;
  means_.push_back(sum_ / static_cast<double>(count_));
  sum_ = 0, count_ = 0;
  if (means_.size() <= width_) return;
  for (size_t i = 0; i + 1 < means_.size(); i += 2) means_[i / 2] = (means_[i] + means_[i + 1]) / 2;
  // With an odd number the last mean is half of the next one.
  if (means_.size() % 2) sum_ = means_.back() * static_cast<double>(each_), count_ = each_;
  means_.resize(means_.size() / 2);
  each_ *= 2;
}

std::string Sparkline::text() const {
  static constexpr const char* kBlocks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  std::vector<double> means = means_;
  if (count_ > 0 && means.size() < width_) means.push_back(sum_ / static_cast<double>(count_));
  if (means.size() < 2) return {};
  const auto [low, high] = std::minmax_element(means.begin(), means.end());
  std::string result;
  for (const double mean : means)
    result += kBlocks[*high > *low ? std::min(7, static_cast<int>((mean - *low) / (*high - *low) * 8)) : 0];
  return result;
}

}  // namespace sheaf::exec
