// sheaf-run's command line.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/exec/Run.h"
#include "tools/options/Table.h"

namespace sheaf {

struct CommandLine {
  options::Given given;
  exec::RunOptions run;
};

// Errors name the option and what it takes, or the one that was probably meant.
Expected<CommandLine> parseCommandLine(const std::vector<std::string>& arguments);

const options::Table& runTable();

// Returns the command, quoted for a shell, with --resume FOLDER in place of the --resume that it has, if it has one.
std::string commandToResume(const std::vector<std::string>& command, const std::string& folder);

}  // namespace sheaf
