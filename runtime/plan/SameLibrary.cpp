// The function of libsheaf_same.so.
#include "runtime/plan/Same.h"

extern "C" __attribute__((visibility("default"))) sheaf::Expected<sheaf::plan::Comparison> sheaf_compare_plans(
    const sheaf::plan::Plan& first, const std::string& firstName, const sheaf::plan::Plan& second,
    const std::string& secondName) {
  return sheaf::plan::comparePlans(first, firstName, second, secondName);
}
