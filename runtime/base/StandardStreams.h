// The standard streams of a program.
#pragma once

#include "runtime/base/Status.h"

namespace sheaf {

// Opens those of stdin, stdout and stderr that the program was started without, so that no file that it opens becomes
// one of them. They read nothing, and lose what is written. Called first.
void openStandardStreams();

// Writes what stdout still holds. An error if any of what the program printed there since its start was lost.
Status finishStandardOutput();

}  // namespace sheaf
