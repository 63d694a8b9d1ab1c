// Finds the earlier accesses to the same bytes that an access must come after.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/plan/ByteMap.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::plan {

// Why the later of two accesses to the same bytes comes after the earlier one.
enum class Conflict : uint8_t {
  kTrue,    // it reads what the earlier one wrote
  kAnti,    // it overwrites what the earlier one reads
  kOutput,  // it overwrites what the earlier one wrote
};

// Accesses are added in issue order. An access conflicts with the last write of each byte and, if it writes, with each
// stream's last read since. Earlier ones need not be looked at again: an earlier writer conflicted with the last one,
// and an earlier reader precedes the later reader of its stream.
class AccessHistory {
 public:
  // Calls conflict(earlier, begin, end, kind) for each instruction that `instruction` must come after, itself excluded.
  // One that reads and writes bytes comes after their last writer as its reader.
  template <typename Visit>
  void add(uint64_t begin, uint64_t end, size_t instruction, uint32_t stream, Access access, Visit conflict) {
    bytes_.visit(begin, end, [&](uint64_t from, uint64_t to, Last& last) {
      if (last.written && last.writer != instruction)
        conflict(last.writer, from, to, access == WRITE ? Conflict::kOutput : Conflict::kTrue);
      if (access == READ) return noteReader(last, instruction, stream);
      for (const Reader& reader : last.readers)
        if (reader.instruction != instruction) conflict(reader.instruction, from, to, Conflict::kAnti);
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

  static void noteReader(Last& last, size_t instruction, uint32_t stream) {
    for (Reader& reader : last.readers)
      if (reader.stream == stream) {
        reader.instruction = instruction;
        return;
      }
    last.readers.push_back({instruction, stream});
  }

  ByteMap<Last> bytes_;
};

}  // namespace sheaf::plan
