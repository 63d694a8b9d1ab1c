#include "runtime/plan/Liveness.h"

#include <algorithm>

#include "runtime/plan/Types.h"
#include "runtime/plan/Unrolled.h"

namespace sheaf::plan {

std::vector<Liveness::Touched> Liveness::visit(const Instruction& instruction) {
  std::vector<Touched> touched;
  forEachOperand(instruction, [&](const Operand& operand) {
    const uint32_t buffer = operand.buffer();
    if (!plan_.buffers(static_cast<int>(buffer)).persistent()) touched.push_back({buffer, false, isLive(buffer)});
  });
  auto ascending = [](const Touched& a, const Touched& b) { return a.buffer < b.buffer; };
  auto same = [](const Touched& a, const Touched& b) { return a.buffer == b.buffer; };
  std::sort(touched.begin(), touched.end(), ascending);
  touched.erase(std::unique(touched.begin(), touched.end(), same), touched.end());
  forEachOperand(instruction, [&](const Operand& operand) {
    if (operand.access() == WRITE) live_[operand.buffer()].remove(operand.offset(), operand.offset() + operand.bytes());
  });
  forEachOperand(instruction, [&](const Operand& operand) {
    // Scratch is read and written, but nothing of it is there before or after.
    if (operand.access() != WRITE && !isScratch(instruction, operand))
      live_[operand.buffer()].add(operand.offset(), operand.offset() + operand.bytes());
  });
  for (Touched& each : touched) each.liveBefore = isLive(each.buffer);
  return touched;
}

}  // namespace sheaf::plan
