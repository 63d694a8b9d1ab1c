#include "runtime/io/PerfettoTrace.h"

#include <cmath>
#include <span>

#include "runtime/base/AtomicFile.h"
#include "runtime/base/Text.h"

namespace sheaf::io {
namespace {

// Only one writer: all packets are of one sequence.
constexpr uint32_t kSequence = 1;

uint64_t nanoseconds(double microseconds) {
  return static_cast<uint64_t>(std::llround(std::max(microseconds, 0.0) * 1e3));
}

}  // namespace

perfetto::TracePacket& PerfettoTrace::packet() {
  perfetto::TracePacket& packet = *trace_.add_packet();
  packet.set_trusted_packet_sequence_id(kSequence);
  return packet;
}

perfetto::TrackDescriptor& PerfettoTrace::descriptor(uint64_t track) {
  perfetto::TrackDescriptor& descriptor = *packet().mutable_track_descriptor();
  descriptor.set_uuid(track);
  return descriptor;
}

perfetto::TrackEvent& PerfettoTrace::event(uint64_t track, double time, perfetto::TrackEvent::Type type) {
  perfetto::TracePacket& one = packet();
  one.set_timestamp(nanoseconds(time));
  one.mutable_track_event()->set_track_uuid(track);
  one.mutable_track_event()->set_type(type);
  return *one.mutable_track_event();
}

void PerfettoTrace::nameProcess(int64_t process, const std::string& name) {
  perfetto::TrackDescriptor& track = descriptor(processes_[process] = ++tracks_);
  // Perfetto takes the process 0 for an idle one.
  track.mutable_process()->set_pid(static_cast<int32_t>(process + 1));
  track.mutable_process()->set_process_name(name);
}

void PerfettoTrace::nameThread(int64_t process, int64_t thread, const std::string& name) {
  perfetto::TrackDescriptor& track = descriptor(threads_[{process, thread}] = ++tracks_);
  track.set_parent_uuid(processes_[process]);
  track.mutable_thread()->set_pid(static_cast<int32_t>(process + 1));
  track.mutable_thread()->set_tid(thread + 1);
  track.mutable_thread()->set_thread_name(name);
}

void PerfettoTrace::add(int64_t process, int64_t thread, const std::string& name, const std::string& kind, double begin,
                        double duration, const json::Object& arguments) {
  const uint64_t track = threads_[{process, thread}];
  perfetto::TrackEvent& start = event(track, begin, perfetto::TrackEvent::TYPE_SLICE_BEGIN);
  start.set_name(name);
  start.add_categories(kind);
  for (const auto& [key, value] : arguments.members()) {
    perfetto::DebugAnnotation& note = *start.add_debug_annotations();
    note.set_name(key);
    double number = 0;
    if (value.integer())
      note.set_int_value(*value.integer());
    else if (value.number(number))
      note.set_double_value(number);
    else if (value.string())
      note.set_string_value(*value.string());
  }
  event(track, begin + duration, perfetto::TrackEvent::TYPE_SLICE_END);
}

void PerfettoTrace::count(int64_t process, const std::string& counter, double time, uint64_t bytes) {
  uint64_t& track = counters_[{process, counter}];
  if (track == 0) {
    perfetto::TrackDescriptor& made = descriptor(track = ++tracks_);
    made.set_name(counter);
    made.set_parent_uuid(processes_[process]);
    made.mutable_counter()->set_unit(perfetto::CounterDescriptor::UNIT_SIZE_BYTES);
  }
  event(track, time, perfetto::TrackEvent::TYPE_COUNTER).set_counter_value(static_cast<int64_t>(bytes));
}

Status PerfettoTrace::write(const std::string& path) && {
  const std::string bytes = trace_.SerializeAsString();
  Expected<AtomicFile> file = AtomicFile::create(path);
  if (!file.ok()) return Status::error(cat("--trace: ", file.status().message()));
  SHEAF_RETURN_IF_ERROR(file->write(std::as_bytes(std::span(bytes))));
  return file->commit();
}

}  // namespace sheaf::io
