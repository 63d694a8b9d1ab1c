// The profiles of runtime/schedule/profiles, compiled into the program.
#pragma once

#include <span>

namespace sheaf::schedule {

struct ShippedProfile {
  const char* name;
  const char* text;  // JSON
};
std::span<const ShippedProfile> shippedProfiles();

}  // namespace sheaf::schedule
