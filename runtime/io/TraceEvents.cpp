#include "runtime/io/TraceEvents.h"

#include <span>

#include "runtime/base/AtomicFile.h"
#include "runtime/base/Text.h"

namespace sheaf::io {

Status writeTraceFile(const std::string& path, const std::string& bytes) {
  Expected<AtomicFile> file = AtomicFile::create(path);
  if (!file.ok()) return Status::error(cat("--trace: ", file.status().message()));
  SHEAF_RETURN_IF_ERROR(file->write(std::as_bytes(std::span(bytes))));
  return file->commit();
}

}  // namespace sheaf::io
