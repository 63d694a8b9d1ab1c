// Which earlier accesses to the same bytes an access must come after.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/plan/ByteMap.h"

namespace sheaf::plan {

// Accesses are added in issue order. An access conflicts with the last write of each byte and, if it writes, with each
// stream's last read since. Earlier ones need not be looked at again: an earlier writer conflicted with the last one,
// and an earlier reader precedes the later reader of its stream.
class AccessHistory {
 public:
  // conflict(earlier, begin, end) is called for each instruction that `instruction` must come after, itself excluded.
  template <typename Conflict>
  void read(uint64_t begin, uint64_t end, size_t instruction, uint32_t stream, Conflict conflict) {
    bytes_.visit(begin, end, [&](uint64_t from, uint64_t to, Last& last) {
      if (last.written && last.writer != instruction) conflict(last.writer, from, to);
      for (Reader& reader : last.readers)
        if (reader.stream == stream) {
          reader.instruction = instruction;
          return;
        }
      last.readers.push_back({instruction, stream});
    });
  }

  template <typename Conflict>
  void write(uint64_t begin, uint64_t end, size_t instruction, Conflict conflict) {
    bytes_.visit(begin, end, [&](uint64_t from, uint64_t to, Last& last) {
      if (last.written && last.writer != instruction) conflict(last.writer, from, to);
      for (const Reader& reader : last.readers)
        if (reader.instruction != instruction) conflict(reader.instruction, from, to);
      last = {true, instruction, {}};
    });
  }

  // Everything so far precedes everything that follows.
  void forget() { bytes_.clear(); }

 private:
  struct Reader {
    size_t instruction;
    uint32_t stream;
  };
  struct Last {
    bool written = false;
    size_t writer = 0;
    std::vector<Reader> readers;  // since that write
  };

  ByteMap<Last> bytes_;
};

}  // namespace sheaf::plan
