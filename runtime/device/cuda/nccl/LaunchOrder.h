// The order in which a GPU runs collectives of several communicators. Without one, a GPU may run them one after the
// other in an order of its own: then a rank is in a collective of one communicator, its peer in one of the other, and
// both wait for ever. So all collectives are ordered as they are issued, which is the same on all ranks (NCCL User
// Guide, "Using multiple NCCL communicators concurrently").
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "runtime/base/Status.h"
#include "runtime/device/cuda/Resources.h"

namespace sheaf::nccl {

class LaunchOrder {
 public:
  // Chooses what orders collectives. `version` is NCCL's, as 22809; the plan has collectives on `streams` streams. One
  // stream orders them by itself. On several, NCCL orders its launches from 2.26 on, if NCCL_LAUNCH_ORDER_IMPLICIT asks
  // for it, and events do otherwise.
  // `byNccl`: it may.
  Status open(int version, size_t streams, bool byNccl);

  // Makes `launch`, which enqueues one operation of NCCL on the stream, after the operation before.
  template <typename Launch>
  Status add(cudaStream_t stream, Launch launch) {
    SHEAF_RETURN_IF_ERROR(awaitLast(stream));
    SHEAF_RETURN_IF_ERROR(launch());
    return record(stream);
  }
  // Forgets the operation before: graphs are ordered by their launches.
  void begin() { last_ = nullptr; }

  // Returns, for the log, the means that orders collectives: "stream", "nccl" or "events".
  const char* text() const { return text_; }

 private:
  Status awaitLast(cudaStream_t stream);
  Status record(cudaStream_t stream);

  const char* text_ = "stream";
  cuda::Event event_;            // null: the order needs no events
  cudaStream_t last_ = nullptr;  // the event was recorded on it
};

}  // namespace sheaf::nccl
