// Finds the conflicting accesses of a run of a plan. The compiler orders them by events, and the proof checks the
// order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "runtime/plan/AccessHistory.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/Unrolled.h"

namespace sheaf::plan {

// `AddressAt`: addressAt(entry, buffer) is the address of a buffer's first byte when the entry is issued.
template <typename AddressAt>
class Conflicts {
 public:
  // The sequence must outlive the object.
  Conflicts(const Unrolled& sequence, AddressAt addressAt) : sequence_(sequence), addressAt_(std::move(addressAt)) {}

  // Takes the entries of the sequence in order. Calls conflict(earlier, buffer, begin, end, kind) for each entry that
  // this one must come after, with the addresses that both access, here as bytes of `buffer`.
  template <typename Visit>
  void visit(size_t entry, Visit conflict) {
    auto add = [&](uint32_t buffer, uint64_t begin, uint64_t end, Access access) {
      history_.add(begin, end, entry, sequence_.issued()[entry].stream, access,
                   [&](size_t earlier, uint64_t from, uint64_t to, Conflict kind) {
                     conflict(earlier, buffer, from, to, kind);
                   });
    };
    const Plan& plan = sequence_.plan();
    if (!sequence_.isHost(entry)) {
      forEachOperand(*sequence_[entry].instruction, [&](const Operand& operand) {
        const uint64_t begin = addressAt_(entry, operand.buffer()) + operand.offset();
        add(operand.buffer(), begin, begin + operand.bytes() + mostRankOffset(plan, operand), operand.access());
      });
      return;
    }
    // The host saves, and may load, what lives from step to step. It issues nothing before all streams have drained.
    for (uint32_t b = 0; b < static_cast<uint32_t>(plan.buffers_size()); ++b)
      if (const Buffer& buffer = plan.buffers(static_cast<int>(b)); buffer.persistent())
        add(b, addressAt_(entry, b), addressAt_(entry, b) + buffer.bytes(), WRITE);
    history_.forget();
  }

 private:
  const Unrolled& sequence_;
  const AddressAt addressAt_;
  AccessHistory history_;
};

}  // namespace sheaf::plan
