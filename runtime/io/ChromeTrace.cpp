#include "runtime/io/ChromeTrace.h"

namespace sheaf::io {
namespace {

json::Object nameOf(const char* what, int64_t process, int64_t thread, std::string name) {
  return {{"name", what},
          {"ph", "M"},
          {"pid", process},
          {"tid", thread},
          {"args", json::Object{{"name", std::move(name)}}}};
}

}  // namespace

Status writeChromeTrace(TraceEvents events, const std::string& path) {
  json::Array list;
  for (TraceEvents::Process& one : events.processes)
    list.push_back(nameOf("process_name", one.process, 0, std::move(one.name)));
  for (TraceEvents::Thread& one : events.threads)
    list.push_back(nameOf("thread_name", one.process, one.thread, std::move(one.name)));
  for (TraceEvents::Slice& slice : events.slices)
    list.push_back(json::Object{{"name", std::move(slice.name)},
                                {"cat", std::move(slice.kind)},
                                {"ph", "X"},
                                {"pid", slice.process},
                                {"tid", slice.thread},
                                {"ts", slice.begin},
                                {"dur", slice.duration},
                                {"args", std::move(slice.arguments)}});
  for (TraceEvents::Count& count : events.counts)
    list.push_back(json::Object{{"name", std::move(count.counter)},
                                {"ph", "C"},
                                {"pid", count.process},
                                {"ts", count.time},
                                {"args", json::Object{{"bytes", count.bytes}}}});
  const json::Object root{{"traceEvents", std::move(list)}, {"displayTimeUnit", "ms"}};
  return writeTraceFile(path, json::write(root) + "\n");
}

}  // namespace sheaf::io
