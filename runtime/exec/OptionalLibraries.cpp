#include "runtime/exec/OptionalLibraries.h"

#include <string>

#include "runtime/base/Text.h"
#include "runtime/exec/LoadedLibrary.h"

namespace sheaf::exec {
namespace {

// `what` is what asks for the library.
template <typename Function>
Expected<Function> load(const std::string& what, const std::string& name, const char* symbol) {
  Expected<void*> function = loadFunction(name, symbol);
  if (!function.ok())
    return Status::error(cat(what, ": cannot load ", name, ": ", function.status().message(),
                             "; it is installed with sheaf-run, and SHEAF_LIBRARY_PATH names the folder that has it"));
  return reinterpret_cast<Function>(*function);
}

}  // namespace

Expected<measure::MeasureProfile> loadMeasureProfile() {
  return load<measure::MeasureProfile>("--measure", "libsheaf_measure.so", "sheaf_measure_profile");
}

Expected<plan::ComparePlans> loadComparePlans() {
  return load<plan::ComparePlans>("several plans", "libsheaf_same.so", "sheaf_compare_plans");
}

}  // namespace sheaf::exec
