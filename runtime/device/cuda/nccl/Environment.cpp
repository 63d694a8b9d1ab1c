#include "runtime/device/cuda/nccl/Environment.h"

#include <strings.h>

#include <cstdlib>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

#include "runtime/base/Text.h"

namespace sheaf::nccl {

bool windowsWanted() {
  const char* value = std::getenv("SHEAF_NCCL_WINDOWS");
  return !value || std::string_view(value) != "0";
}

Status chooseRing() {
  for (const auto& [name, wanted] : {std::pair("NCCL_ALGO", "Ring"), std::pair("NCCL_PROTO", "Simple")}) {
    setenv(name, wanted, 0);
    if (const char* value = std::getenv(name); strcasecmp(value, wanted) != 0)
      return Status::error(cat("--reduce-order ring sets ", name, " to ", wanted, ", the environment has ", value,
                               ": unset ", name, ", or run with --reduce-order tree"));
  }
  return {};
}

bool launchesAreOrdered(bool wanted) {
  constexpr const char* kVariable = "NCCL_LAUNCH_ORDER_IMPLICIT";
  static std::mutex mutex;
  static std::optional<bool> read;
  std::lock_guard lock(mutex);
  if (!read) {
    if (wanted) setenv(kVariable, "1", 0);
    const char* value = std::getenv(kVariable);
    read = value && std::strtoll(value, nullptr, 0) != 0;
  }
  return *read;
}

}  // namespace sheaf::nccl
