// Takes over what a configuration of DeepSpeed's says as options of `sheaf compile`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/Status.h"
#include "tools/options/Table.h"

namespace sheaf::tool {

// Sets the options, adds them to `given`, and prints what becomes of each key of the file. `ranks`: of the job;
// `ignored`: keys of --ignore. Keys that change results and are not supported are an error that names all of them;
// errors do not name the file.
Status takeDeepSpeed(const options::Table& table, const std::string& path, int64_t ranks,
                     const std::vector<std::string>& ignored, options::Given& given, void* target);

}  // namespace sheaf::tool
