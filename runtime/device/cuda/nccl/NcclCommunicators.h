// Collectives between processes with a GPU each, by NCCL. Gathers are NCCL's. Sums are, unless a run asks for NCCL's
// own, exchanges of all parts followed by our kernel that adds them in the order of a fixed tree: NCCL's order depends
// on the number of ranks, on the machine and on the size, this one on nothing.
#pragma once

#include <memory>

#include "runtime/base/Status.h"
#include "runtime/device/Device.h"
#include "runtime/device/cuda/Communicators.h"
#include "runtime/device/cuda/Progress.h"

namespace sheaf::nccl {

// Made by all processes together, by a thread that uses the rank's GPU, whose index is `gpu`. `progress` is this
// rank's: a watchdog ends the run when it stands still for the processes' time limit, or when NCCL meets an error.
// Every message of the plan has been exchanged once when this returns: NCCL allocates what a message needs at its first
// use, and that memory is now taken.
Expected<std::unique_ptr<cuda::Communicators>> makeCommunicators(const plan::Plan& plan, const DeviceOptions& options,
                                                                 comm::AbortSignal& abort, cuda::Progress& progress,
                                                                 int gpu);

}  // namespace sheaf::nccl
