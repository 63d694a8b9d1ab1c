#include "runtime/exec/OptionalLibraries.h"

#include <dlfcn.h>

#include <string>

#include "runtime/base/Text.h"
#include "runtime/exec/DeviceLibrary.h"

namespace sheaf::exec {
namespace {

// `what` is what asks for the library.
template <typename Function>
Expected<Function> load(const std::string& what, const std::string& name, const char* symbol) {
  Expected<void*> library = openLibrary(name);
  if (!library.ok())
    return Status::error(cat(what, ": cannot load ", name, ": ", library.status().message(),
                             "; it is installed with sheaf-run, and SHEAF_LIBRARY_PATH names the folder that has it"));
  auto function = reinterpret_cast<Function>(dlsym(*library, symbol));
  if (!function) return Status::error(cat(what, ": ", name, " does not export ", symbol));
  return function;
}

}  // namespace

Expected<measure::MeasureProfile> loadMeasure() {
  return load<measure::MeasureProfile>("--measure", "libsheaf_measure.so", "sheaf_measure_profile");
}

Expected<plan::ComparePlans> loadComparison() {
  return load<plan::ComparePlans>("several plans", "libsheaf_same.so", "sheaf_compare_plans");
}

}  // namespace sheaf::exec
