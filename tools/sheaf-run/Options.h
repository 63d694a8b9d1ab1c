// sheaf-run's command line.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/exec/Run.h"

namespace sheaf {

struct CommandLine {
  bool help = false, version = false;
  exec::RunOptions run;
};

// Errors name the option, and the one that was probably meant.
Expected<CommandLine> parseCommandLine(const std::vector<std::string>& arguments);

extern const char kHelp[];

}  // namespace sheaf
