#include "runtime/plan/OperandOverlap.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "runtime/base/Text.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/Unrolled.h"
#include "runtime/plan/Verify.h"

namespace sheaf::plan {
namespace {

class OperandOverlap {
 public:
  explicit OperandOverlap(const Places& places) : places_(places), plan_(places.plan()) {}

  Status run() {
    return checkInstructions(plan_, [this](std::string_view section, int index, const Instruction& instruction) {
      section_ = section, index_ = index, instruction_ = &instruction;
      return operands();
    });
  }

 private:
  Status operands() const {
    const std::vector<Place>& places = places_.of(*instruction_);
    for (size_t i = 0; i < places.size(); ++i) {
      SHEAF_RETURN_IF_ERROR(parts(places[i], i));
      for (size_t j = 0; j < i; ++j) SHEAF_RETURN_IF_ERROR(pair(places[j], j, places[i], i));
    }
    return {};
  }

  Status wrong(const std::string& why) const {
    return Status::error(cat("the plan is refused: ", describe(plan_, section_, index_, *instruction_), ": ", why));
  }

  std::string name(size_t operand) const { return Places::name(*instruction_, operand); }
  std::string bufferName(const Place& place) const {
    return cat("buffer '", shortName(plan_.buffers(static_cast<int>(place.buffer)).name()), "'");
  }

  Status parts(const Place& place, size_t index) const {
    const Operand& operand = *place.operand;
    if (place.part != Share::kNone && operand.offset() + operand.bytes() > operand.shard_stride())
      return wrong(cat(name(index), " is not within the rank's own part of ", bufferName(place), ": ",
                       placeText(operand), " reach into the next rank's part"));
    if (place.misplaced)
      return wrong(cat(name(index), " divides ", bufferName(place), " into parts of ", operand.shard_stride(),
                       " bytes, another operand into parts of ", places_.period(place.buffer),
                       plan_.ranks_per_node() > 0
                           ? ": these must be shards, and the operand all shards of the ranks with "
                             "one local number"
                           : ""));
    if (place.scattered)
      return wrong(cat(name(index), " is written in more than ", kMostPieces,
                       " strided pieces that do not repeat with the other rows in ", bufferName(place),
                       "; the proof does not follow so many"));
    return {};
  }

  Status pair(const Place& a, size_t first, const Place& b, size_t second) const {
    if (!a.writes && !b.writes) return {};
    const ArenaRange x = arenaRange(plan_, *a.operand), y = arenaRange(plan_, *b.operand);
    const uint64_t begin = std::max(x.begin, y.begin), end = std::min(x.end, y.end);
    if (begin >= end || (a.buffer == b.buffer && apart(a, b))) return {};
    const bool secondWrites = b.writes;
    return wrong(cat("it writes ", name(secondWrites ? second : first), " in ", bufferName(secondWrites ? b : a),
                     " on ", arenaText(begin, end), ", where its ", name(secondWrites ? first : second), " in ",
                     bufferName(secondWrites ? a : b), " lies"));
  }

  // Whether two operands in one buffer may meet there as they do, one of them written.
  bool apart(const Place& a, const Place& b) const {
    if (instruction_->has_collective()) return true;
    const Operand &x = *a.operand, &y = *b.operand;
    if (instruction_->has_kernel())
      return x.access() != y.access() && x.access() != READ_WRITE && y.access() != READ_WRITE &&
             x.offset() == y.offset() && x.bytes() == y.bytes() && stridesOf(plan_, x) == stridesOf(plan_, y);
    return Places::disjoint(a.writes ? a.written : a.accessed, b.writes ? b.written : b.accessed) &&
           (!a.reads || Places::disjoint(a.accessed, b.written)) &&
           (!b.reads || Places::disjoint(b.accessed, a.written));
  }

  const Places& places_;
  const Plan& plan_;
  std::string_view section_;
  int index_ = 0;
  const Instruction* instruction_ = nullptr;
};

}  // namespace

Status checkOperandOverlap(const Places& places) {
  return OperandOverlap(places).run();
}

}  // namespace sheaf::plan
