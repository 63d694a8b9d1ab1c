// Checks that no instruction overwrites its own operands, except in place where that is allowed.
#pragma once

#include "runtime/base/Status.h"
#include "runtime/plan/Places.h"

namespace sheaf::plan {

// Checks each instruction: what it writes overlaps none of its other operands, except: a kernel may write a result at
// exactly the bytes of an operand; a collective may be in place (VerifyInstructions.cpp); a call's operands may share a
// buffer, but no byte. And an operand whose address depends on the rank lies in that rank's part of the buffer; all
// parts have one size (Places.h). The error names instruction and operands.
Status checkOperandOverlap(const Places& places);

}  // namespace sheaf::plan
