#include "test/emulation/Collectives.h"

#include <cstdio>
#include <map>
#include <mutex>

namespace sheaf::emulation {
namespace {

// The collective that a device of this process was given last.
struct Last {
  std::shared_ptr<Record> record;
  const Launches* communicator = nullptr;  // null: a graph's
  std::string name;
};
struct Devices {
  std::mutex mutex;
  std::map<int, Last> last;
};
Devices& devices() {
  static Devices& devices = *new Devices;
  return devices;
}

// A graph's launch orders its collectives with those before and after it.
bool comparable(cudaStream_t stream, const std::shared_ptr<Record>& record) {
  return record && record->captured == (stream->capture != nullptr) && record->capture.lock() == stream->capture;
}

cudaError_t follow(cudaStream_t stream, const std::shared_ptr<Record>& record) {
  return comparable(stream, record) && !comesAfter(stream, record) ? await(stream, record) : cudaSuccess;
}

// Returns true, with a report, if the device's last collective may run after the stream's next work.
bool isUnordered(cudaStream_t stream, const Last& last, const std::string& name) {
  if (!comparable(stream, last.record) || comesAfter(stream, last.record)) return false;
  std::fprintf(stderr,
               "emulated NCCL: nothing orders %s after %s of another communicator: on a GPU that runs them one after "
               "the other, in another order on each rank, they wait for each other for ever\n",
               name.c_str(), last.name.c_str());
  return true;
}

}  // namespace

cudaError_t enqueueCollective(cudaStream_t stream, const Collective& collective, Task task) {
  std::lock_guard lock(devices().mutex);
  Last& last = devices().last[stream->device];
  std::shared_ptr<Record>& own = collective.communicator->last;
  if (cudaError_t error = follow(stream, own)) return error;
  if (collective.ordered)
    if (cudaError_t error = follow(stream, last.record)) return error;
  const bool unordered = last.communicator != collective.communicator && isUnordered(stream, last, collective.name);
  const bool stuck = unordered && !stream->capture;
  if (cudaError_t error = enqueue(stream, stuck ? Task(collective.stuck) : std::move(task), true)) return error;
  if (cudaError_t error = record(stream, own)) return error;
  last = {own, collective.communicator, collective.name};
  return cudaSuccess;
}

cudaError_t enqueueCollectives(cudaStream_t stream, Task graph) {
  std::lock_guard lock(devices().mutex);
  Last& last = devices().last[stream->device];
  const std::string name = "the collectives of a graph";
  (void)isUnordered(stream, last, name);
  if (cudaError_t error = enqueue(stream, std::move(graph))) return error;
  last.communicator = nullptr, last.name = name;
  return record(stream, last.record);
}

}  // namespace sheaf::emulation
