// Writes events in Chrome's trace event format (chrome://tracing, Perfetto).
#pragma once

#include <string>

#include "runtime/base/Status.h"
#include "runtime/io/TraceEvents.h"

namespace sheaf::io {

Status writeChromeTrace(TraceEvents events, const std::string& path);

}  // namespace sheaf::io
