// The profiles of passes/schedule/profiles, compiled into the program.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/profile/Profile.h"

namespace sheaf::schedule {

// A shipped profile by its name, or a file by its path.
Expected<profile::Profile> loadProfile(const std::string& nameOrPath);

// Of the shipped profiles.
std::vector<std::string> profileNames();

}  // namespace sheaf::schedule
