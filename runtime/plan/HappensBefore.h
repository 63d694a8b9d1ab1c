// Happens-before over a sequence of instructions in issue order: program order of each stream, plus record -> wait.
// Vector clocks, one entry per stream (Mattern 1989). MLIR-free: the compiler's passes and the plan's verifier use it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace sheaf::plan {

// The walk that analyses use. It contains every pair of consecutive parts of a run: P B, B B, B E, E host, host P. The
// host saves or loads; only state survives it.
enum class Part { kPrologue, kBody, kEpilogue, kHost, kEvaluation };
inline constexpr Part kUnrolled[] = {Part::kPrologue, Part::kBody, Part::kEpilogue, Part::kHost, Part::kPrologue,
                                     Part::kBody,     Part::kBody, Part::kEpilogue, Part::kHost};
// What follows it in a plan that has an evaluation: batches run one after the other, between two visits of the host.
inline constexpr Part kUnrolledEvaluation[] = {Part::kEvaluation, Part::kEvaluation, Part::kHost};

struct IssuedInstruction {
  // kHost: the host reads and writes state. It runs on stream 0 after what was issued there before; it issues what
  // follows only after all streams have drained.
  enum Kind { kOther, kRecord, kWait, kHost };
  uint32_t stream = 0;
  Kind kind = kOther;
  uint32_t event = 0;  // of a record or a wait
};

class HappensBefore {
 public:
  // Streams and events must be less than the counts given.
  HappensBefore(std::span<const IssuedInstruction> sequence, uint32_t streams, uint32_t events);

  // Whether instruction a is complete before instruction b starts. A wait is complete when its event is.
  bool ordered(size_t a, size_t b) const { return position_[a] <= clock(b)[sequence_[a].stream] && a != b; }

  // Whether deleting this wait would lose an order: neither what its stream waited for before nor another wait between
  // the same two instructions implies it. All waits that are not needed can be deleted together; the rest is the
  // transitive reduction of the order.
  bool needed(size_t wait) const { return needed_[wait]; }

 private:
  std::span<const uint32_t> clock(size_t i) const { return {clocks_.data() + i * streams_, streams_}; }

  std::span<const IssuedInstruction> sequence_;
  uint32_t streams_;
  std::vector<uint32_t> position_;  // 1-based position of an instruction in its stream
  std::vector<uint32_t> clocks_;    // per instruction and stream: how far that stream is known to be when it starts
  std::vector<bool> needed_;
};

}  // namespace sheaf::plan
