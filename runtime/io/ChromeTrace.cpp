#include "runtime/io/ChromeTrace.h"

#include <span>

#include "runtime/base/AtomicFile.h"
#include "runtime/base/Text.h"

namespace sheaf::io {

void ChromeTrace::nameThing(const char* what, int64_t process, int64_t thread, const std::string& name) {
  events_.push_back(json::Object{
      {"name", what}, {"ph", "M"}, {"pid", process}, {"tid", thread}, {"args", json::Object{{"name", name}}}});
}

void ChromeTrace::add(int64_t process, int64_t thread, const std::string& name, const std::string& kind, double begin,
                      double duration, json::Object arguments) {
  events_.push_back(json::Object{{"name", name},
                                 {"cat", kind},
                                 {"ph", "X"},
                                 {"pid", process},
                                 {"tid", thread},
                                 {"ts", begin},
                                 {"dur", duration},
                                 {"args", std::move(arguments)}});
}

Status ChromeTrace::write(const std::string& path) && {
  const std::string text =
      json::write(json::Object{{"traceEvents", std::move(events_)}, {"displayTimeUnit", "ms"}}) + "\n";
  Expected<AtomicFile> file = AtomicFile::create(path);
  if (!file.ok()) return Status::error(cat("--trace: ", file.status().message()));
  SHEAF_RETURN_IF_ERROR(file->write(std::as_bytes(std::span(text))));
  return file->commit();
}

}  // namespace sheaf::io
