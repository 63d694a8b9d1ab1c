// The profiles of passes/schedule/profiles, compiled into the program.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/profile/Profile.h"

namespace sheaf::schedule {

// A shipped profile by its name or a former one, or a file by its path. Those of GPUs describe a type of machine, good
// for any number of ranks: withRanks() says how many there are.
Expected<profile::Profile> loadProfile(const std::string& nameOrPath);

// Of the shipped profiles, without former names.
std::vector<std::string> profileNames();

}  // namespace sheaf::schedule
