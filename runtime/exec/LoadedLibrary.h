// Loads the runtime's shared libraries, of which a run needs some.
#pragma once

#include <string>

#include "runtime/base/Status.h"

namespace sheaf::exec {

// Returns the function `symbol` of a library, which is searched in the folders of SHEAF_LIBRARY_PATH, in ../lib next to
// the program, and on the system's library path; or which is the file `chosen`, if it is given. C++ objects pass
// between program and library, so only a library of the program's version is taken. It stays loaded. The error names
// the first file that was found and why it was not taken, or is dlopen's.
Expected<void*> loadFunction(const std::string& name, const char* symbol, const char* chosen = nullptr);

}  // namespace sheaf::exec
