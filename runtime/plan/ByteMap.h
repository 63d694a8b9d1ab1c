// What is known of ranges of bytes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>

namespace sheaf::plan {

// A value for every byte, kept for disjoint pieces that are cut where visited ranges begin and end.
template <typename T>
class ByteMap {
 public:
  // Calls visit(begin, end, value) for the pieces of [begin, end) in order; it may change the value. Bytes that were
  // not visited before have the value T().
  template <typename Visit>
  void visit(uint64_t begin, uint64_t end, Visit visit) {
    if (begin >= end) return;
    cut(begin);
    cut(end);
    auto it = pieces_.lower_bound(begin);
    for (uint64_t at = begin; at < end; ++it) {
      if (it == pieces_.end() || it->first > at)
        it = pieces_.emplace_hint(it, at, Piece{it == pieces_.end() ? end : std::min(end, it->first), T()});
      visit(it->first, it->second.end, it->second.value);
      at = it->second.end;
    }
  }

  // Calls visit(begin, end, value) for all pieces in order.
  template <typename Visit>
  void forEach(Visit visit) const {
    for (const auto& [begin, piece] : pieces_) visit(begin, piece.end, piece.value);
  }

  void clear() { pieces_.clear(); }

 private:
  struct Piece {
    uint64_t end;
    T value;
  };

  void cut(uint64_t at) {
    auto it = pieces_.upper_bound(at);
    if (it == pieces_.begin()) return;
    --it;
    if (it->first == at || it->second.end <= at) return;
    Piece right = it->second;
    it->second.end = at;
    pieces_.emplace(at, std::move(right));
  }

  std::map<uint64_t, Piece> pieces_;  // by first byte
};

}  // namespace sheaf::plan
