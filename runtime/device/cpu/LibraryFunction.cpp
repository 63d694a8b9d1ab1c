#include "runtime/device/cpu/LibraryFunction.h"

#include <utility>

namespace sheaf::cpu {

Expected<Function> makeLibraryFunction(const plan::LibraryCall& wire, int64_t seed) {
  const Expected<plan::AnyCall> call = plan::parseCall(wire);
  if (!call.ok()) return call.status();
  return std::visit([&](const auto& each) { return makeFunction(each, CallSite{wire, seed}); }, *call);
}

}  // namespace sheaf::cpu
