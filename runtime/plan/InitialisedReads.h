// Whether a plan reads only what it has written.
#pragma once

#include "runtime/base/Status.h"
#include "runtime/plan/Places.h"
#include "runtime/plan/Unrolled.h"

namespace sheaf::plan {

// Checks that every byte read was written before through the same buffer, or is state or a constant. After the host has
// used the arena only state and constants are defined. The error names the reader, the bytes and who has overwritten
// them. For plans that checkOperandOverlap() accepts.
Status checkInitialisedReads(const Unrolled& sequence, const Places& places);

}  // namespace sheaf::plan
