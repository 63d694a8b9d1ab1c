#include "runtime/io/PerfettoTrace.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "runtime/io/perfetto_trace.pb.h"

namespace sheaf::io {
namespace {

// Only one writer: all packets are of one sequence.
constexpr uint32_t kSequence = 1;

uint64_t nanoseconds(double microseconds) {
  return static_cast<uint64_t>(std::llround(std::max(microseconds, 0.0) * 1e3));
}

class Writer {
 public:
  void add(const TraceEvents::Process& one) {
    perfetto::TrackDescriptor& track = descriptor(processes_[one.process] = ++tracks_);
    // Perfetto takes the process 0 for an idle one.
    track.mutable_process()->set_pid(static_cast<int32_t>(one.process + 1));
    track.mutable_process()->set_process_name(one.name);
  }

  void add(const TraceEvents::Thread& one) {
    perfetto::TrackDescriptor& track = descriptor(threads_[{one.process, one.thread}] = ++tracks_);
    track.set_parent_uuid(processes_[one.process]);
    track.mutable_thread()->set_pid(static_cast<int32_t>(one.process + 1));
    track.mutable_thread()->set_tid(one.thread + 1);
    track.mutable_thread()->set_thread_name(one.name);
  }

  void add(const TraceEvents::Slice& slice) {
    const uint64_t track = threads_[{slice.process, slice.thread}];
    perfetto::TrackEvent& start = event(track, slice.begin, perfetto::TrackEvent::TYPE_SLICE_BEGIN);
    start.set_name(slice.name);
    start.add_categories(slice.kind);
    for (const auto& [key, value] : slice.arguments.members()) {
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
    event(track, slice.begin + slice.duration, perfetto::TrackEvent::TYPE_SLICE_END);
  }

  void add(const TraceEvents::Count& count) {
    uint64_t& track = counters_[{count.process, count.counter}];
    if (track == 0) {
      perfetto::TrackDescriptor& made = descriptor(track = ++tracks_);
      made.set_name(count.counter);
      made.set_parent_uuid(processes_[count.process]);
      made.mutable_counter()->set_unit(perfetto::CounterDescriptor::UNIT_SIZE_BYTES);
    }
    event(track, count.time, perfetto::TrackEvent::TYPE_COUNTER).set_counter_value(static_cast<int64_t>(count.bytes));
  }

  std::string bytes() const { return trace_.SerializeAsString(); }

 private:
  perfetto::TracePacket& packet() {
    perfetto::TracePacket& packet = *trace_.add_packet();
    packet.set_trusted_packet_sequence_id(kSequence);
    return packet;
  }

  perfetto::TrackDescriptor& descriptor(uint64_t track) {
    perfetto::TrackDescriptor& descriptor = *packet().mutable_track_descriptor();
    descriptor.set_uuid(track);
    return descriptor;
  }

  perfetto::TrackEvent& event(uint64_t track, double time, perfetto::TrackEvent::Type type) {
    perfetto::TracePacket& one = packet();
    one.set_timestamp(nanoseconds(time));
    one.mutable_track_event()->set_track_uuid(track);
    one.mutable_track_event()->set_type(type);
    return *one.mutable_track_event();
  }

  perfetto::Trace trace_;
  std::map<std::pair<int64_t, int64_t>, uint64_t> threads_;
  std::map<std::pair<int64_t, std::string>, uint64_t> counters_;
  std::map<int64_t, uint64_t> processes_;
  uint64_t tracks_ = 0;
};

}  // namespace

Status writePerfettoTrace(const TraceEvents& events, const std::string& path) {
  Writer writer;
  auto addAll = [&](const auto& list) {
    for (const auto& one : list) writer.add(one);
  };
  addAll(events.processes);
  addAll(events.threads);
  addAll(events.slices);
  addAll(events.counts);
  return writeTraceFile(path, writer.bytes());
}

}  // namespace sheaf::io
