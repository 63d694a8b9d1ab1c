// Whether a launch of an untrusted plan declares what its kernel does.
#include <string>

#include "runtime/base/Text.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/Verify.h"

namespace sheaf::plan {
namespace {

const char* accessText(int access) {
  return access == READ ? "read" : access == WRITE ? "written" : "read and written";
}

class LaunchCheck {
 public:
  LaunchCheck(const Plan& plan, const Instruction& launch)
      : plan_(plan), launch_(launch), kernel_(plan.kernels(static_cast<int>(launch.kernel().kernel()))) {}

  Status run() const {
    for (int i = 0; i < launch_.operands_size(); ++i)
      if (launch_.operands(i).access() != kernel_.operand_access(i))
        return Status::error(cat("operand ", i, " is declared as ", accessText(launch_.operands(i).access()),
                                 ", kernel '", shortName(kernel_.symbol()), "' has it ",
                                 accessText(kernel_.operand_access(i))));
    for (int i = 0; i < launch_.operands_size(); ++i)
      for (int other = 0; other < launch_.operands_size(); ++other)
        if (kernel_.operand_access(i) != READ && other != i && overlap(i, other) && !inPlace(i, other))
          return Status::error(cat("operand ", i, " is written where operand ", other, " lies, and kernel '",
                                   shortName(kernel_.symbol()), "' does not allow that"));
    return {};
  }

 private:
  uint64_t begin(int i) const {
    const Operand& operand = launch_.operands(i);
    return plan_.buffers(static_cast<int>(operand.buffer())).offset() + operand.offset();
  }
  // One past the last byte: with `ranks`, of all ranks' places together.
  uint64_t end(int i, bool ranks) const {
    const Operand& operand = launch_.operands(i);
    return begin(i) + operand.bytes() + (ranks ? mostRankOffset(plan_, operand) : 0);
  }
  bool sameStride(int i, int other) const {
    return stridesOf(plan_, launch_.operands(i)) == stridesOf(plan_, launch_.operands(other));
  }
  // Whether they share bytes on a rank; those that move with the rank differently count with all their places.
  bool overlap(int i, int other) const {
    const bool ranks = !sameStride(i, other);
    return begin(i) < end(other, ranks) && begin(other) < end(i, ranks);
  }
  bool inPlace(int i, int other) const {
    return kernel_.in_place_size() > 0 && kernel_.in_place(i) != 0 && kernel_.in_place(i) == kernel_.in_place(other) &&
           kernel_.operand_access(other) == READ && begin(i) == begin(other) && sameStride(i, other);
  }

  const Plan& plan_;
  const Instruction& launch_;
  const Kernel& kernel_;
};

}  // namespace

Status checkLaunch(const Plan& plan, const Instruction& launch) {
  return LaunchCheck(plan, launch).run();
}

}  // namespace sheaf::plan
