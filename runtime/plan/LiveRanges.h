// What of a buffer is alive, for walks over instructions from the last to the first.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>

namespace sheaf::plan {

// Disjoint byte ranges of one buffer whose contents are still to be read.
class LiveRanges {
 public:
  bool empty() const { return ranges_.empty(); }

  void add(uint64_t begin, uint64_t end) {
    if (begin == end) return;
    auto at = ranges_.upper_bound(begin);
    if (at != ranges_.begin() && std::prev(at)->second >= begin) --at;
    while (at != ranges_.end() && at->first <= end) {
      begin = std::min(begin, at->first);
      end = std::max(end, at->second);
      at = ranges_.erase(at);
    }
    ranges_[begin] = end;
  }

  void remove(uint64_t begin, uint64_t end) {
    auto at = ranges_.upper_bound(begin);
    if (at != ranges_.begin() && std::prev(at)->second > begin) --at;
    while (at != ranges_.end() && at->first < end) {
      auto [first, last] = *at;
      at = ranges_.erase(at);
      if (first < begin) ranges_[first] = begin;
      if (last > end) ranges_[end] = last;
    }
  }

 private:
  std::map<uint64_t, uint64_t> ranges_;
};

}  // namespace sheaf::plan
