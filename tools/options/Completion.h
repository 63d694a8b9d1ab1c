// Completion in bash and zsh, from the tables of options.
#pragma once

#include <string>
#include <vector>

#include "tools/options/Table.h"

namespace sheaf::options {

// A script for `program`, which has one table of its own name, or a table for each of its commands ("sheaf compile").
std::string bashCompletion(const std::string& program, const std::vector<const Table*>& tables);
std::string zshCompletion(const std::string& program, const std::vector<const Table*>& tables);

}  // namespace sheaf::options
