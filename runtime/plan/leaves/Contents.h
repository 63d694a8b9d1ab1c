// What bytes hold, as pieces of symbolic values.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "runtime/plan/Term.h"

namespace sheaf::plan {

// `length` elements of a value, in their order: those from `index` on, or, of a splat, the one at `index` again and
// again. Lengths and indices are in bytes, or in elements of one width.
struct Run {
  uint64_t length = 0;
  uint64_t value = 0;  // its term's hash
  uint64_t index = 0;
  bool splat = false;

  // `length` elements of it from `begin` on.
  Run part(uint64_t begin, uint64_t size) const { return {size, value, splat ? index : index + begin, splat}; }
  // Whether `next` goes on where this run ends.
  bool precedes(const Run& next) const {
    return value == next.value && splat == next.splat && next.index == (splat ? index : index + length);
  }
};

// Runs one after the other; neighbours that are one run are joined.
struct Contents {
  std::vector<Run> runs;

  void add(const Run& run) {
    if (run.length == 0) return;
    if (!runs.empty() && runs.back().precedes(run))
      runs.back().length += run.length;
    else
      runs.push_back(run);
  }
  uint64_t length() const {
    uint64_t sum = 0;
    for (const Run& run : runs) sum += run.length;
    return sum;
  }
};

// A term of a sequence of runs that does not depend on how it was cut. Runs of equal length and value whose indices are
// evenly apart count as one item, so that a strided piece of a value has a short term.
class Sequence {
 public:
  void add(const Run& run) {
    if (run.length == 0) return;
    if (run_.length > 0 && run_.precedes(run)) {
      run_.length += run.length;
      return;
    }
    endRun();
    run_ = run;
  }
  void add(const Contents& contents) {
    for (const Run& run : contents.runs) add(run);
  }
  uint64_t hash() {
    endRun();
    endItem();
    return term_.hash();
  }

 private:
  void endRun() {
    if (run_.length == 0) return;
    const uint64_t step = run_.index - last_;
    if (count_ > 0 && run_.length == item_.length && run_.value == item_.value && run_.splat == item_.splat &&
        (count_ == 1 || step == step_)) {
      step_ = step;
      ++count_;
    } else {
      endItem();
      item_ = run_;
      count_ = 1;
    }
    last_ = run_.index;
    run_.length = 0;
  }
  void endItem() {
    if (count_ > 0) term_.add(item_.length).add(item_.value).add(item_.index).add(static_cast<uint64_t>(item_.splat));
    if (count_ > 1) term_.add("times").add(count_).add(step_);
    count_ = 0;
  }

  Term term_{"sequence"};
  Run run_, item_;
  uint64_t count_ = 0, step_ = 0, last_ = 0;
};

inline uint64_t hashOf(const Contents& contents) {
  Sequence sequence;
  sequence.add(contents);
  return sequence.hash();
}

// What the bytes of a buffer hold. What has not been written is a value of its own, 0.
class Bytes {
 public:
  void write(uint64_t begin, Run run) {
    if (run.length == 0) return;
    const uint64_t end = begin + run.length;
    cut(begin);
    cut(end);
    auto at = pieces_.erase(pieces_.lower_bound(begin), pieces_.lower_bound(end));
    if (at != pieces_.begin())
      if (auto left = std::prev(at); left->first + left->second.length == begin && left->second.precedes(run)) {
        left->second.length += run.length;
        return;
      }
    pieces_.emplace_hint(at, begin, run);
  }
  // Calls visit(run) for the runs of [begin, begin + length) in order.
  template <typename Visit>
  void read(uint64_t begin, uint64_t length, Visit visit) const {
    const uint64_t end = begin + length;
    auto it = pieces_.upper_bound(begin);
    if (it != pieces_.begin() && std::prev(it)->first + std::prev(it)->second.length > begin) --it;
    for (uint64_t at = begin; at < end; ++it) {
      const uint64_t next = it == pieces_.end() ? end : std::min(end, it->first);
      if (at < next) visit(Run{next - at, 0, 0, true});
      if (next >= end) return;
      at = std::max(at, it->first);
      const uint64_t until = std::min(end, it->first + it->second.length);
      visit(it->second.part(at - it->first, until - at));
      at = until;
    }
  }
  // The run that all of the bytes lie in; its length is 0 if there is none.
  Run uniform(uint64_t begin, uint64_t length) const {
    auto it = pieces_.upper_bound(begin);
    if (it == pieces_.begin()) return {};
    --it;
    if (begin + length > it->first + it->second.length) return {};
    return it->second.part(begin - it->first, length);
  }

 private:
  void cut(uint64_t at) {
    auto it = pieces_.upper_bound(at);
    if (it == pieces_.begin()) return;
    --it;
    const uint64_t left = at - it->first;
    if (left == 0 || left >= it->second.length) return;
    const Run right = it->second.part(left, it->second.length - left);
    it->second.length = left;
    pieces_.emplace(at, right);
  }

  std::map<uint64_t, Run> pieces_;  // by first byte
};

}  // namespace sheaf::plan
