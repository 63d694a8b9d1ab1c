// Library calls for tests.
#pragma once

#include "runtime/plan/Library.h"

namespace sheaf::testing {

using plan::libraryCall;

}  // namespace sheaf::testing
