#include "runtime/device/cpu/LibraryFunction.h"

#include <utility>

namespace sheaf::cpu {

Expected<Function> makeLibraryFunction(const plan::Instruction& instruction, int64_t seed) {
  const Expected<plan::AnyCall> call = plan::parseCall(instruction.call());
  if (!call.ok()) return call.status();
  return std::visit([&](const auto& each) { return makeFunction(each, CallSite{instruction, seed}); }, *call);
}

}  // namespace sheaf::cpu
