// The options of `sheaf compile` that decide bits, as its table marks them: recorded in a plan, and taken over from
// one.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/plan/plan.pb.h"
#include "tools/options/Table.h"

namespace sheaf::tool {

// The options that were given, as "--name=value" or "--flag", in the table's order. `settled` has the values that
// the tool has chosen for options that were not given, or were left open.
std::vector<std::string> decidingOptions(const options::Table& table, const options::Given& given,
                                         const std::map<std::string, std::string>& settled);

// All options that were given, in the same form, but for what names files of this machine or changes no plan.
std::vector<std::string> givenOptions(const options::Table& table, const options::Given& given);

// Sets all options that decide bits to what the plan was compiled with, and adds them to `given`. One that is given
// with another value is an error that names both, unless the plan was compiled with a default that depends on the
// model: then only the plans can be compared. `name` is the plan's.
Status takeOver(const options::Table& table, const plan::Plan& plan, const std::string& name, options::Given& given,
                void* target);

}  // namespace sheaf::tool
