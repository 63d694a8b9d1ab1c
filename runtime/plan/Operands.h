// Whether an instruction may have its operands where they are.
#pragma once

#include "runtime/base/Status.h"
#include "runtime/plan/Places.h"

namespace sheaf::plan {

// Checks of each instruction that what it writes does not lie on its other operands. Only a kernel writes a result in
// place of an operand, at the same bytes of the same buffer; only a collective writes a whole in place of a part, and
// the reverse (VerifyInstructions.cpp); a call's operands may take turns in a buffer, but have no byte in common. And
// checks that an operand whose address depends on the rank is one of equal parts that the ranks have of the buffer, one
// after the other, so that what a rank finds there is its own doing or that of instructions at the same place on every
// rank: all that the proof distinguishes (Places.h). The error names instruction and operands.
Status checkOperands(const Places& places);

}  // namespace sheaf::plan
