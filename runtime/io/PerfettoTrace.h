// Writes events in Perfetto's protobuf format (ui.perfetto.dev).
#pragma once

#include <string>

#include "runtime/base/Status.h"
#include "runtime/io/TraceEvents.h"

namespace sheaf::io {

// Times are rounded to nanoseconds. Processes with threads or counters have names.
Status writePerfettoTrace(const TraceEvents& events, const std::string& path);

}  // namespace sheaf::io
