// Threads and memory that a run takes of its machine: what it cannot have is an error before the run takes anything.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/base/Status.h"
#include "runtime/exec/Job.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::exec {

// Returns the threads of each rank: `wanted`, or, if that is 0, the machine's cores divided among its ranks. `target`
// is "cpu" or "cuda".
Expected<int64_t> threadsOfRanks(const plan::Plan& plan, const Job& job, const std::string& target, int64_t wanted);

// Returns the bytes that this process takes for collectives with other nodes; 0 on GPUs, which count theirs themselves.
uint64_t exchangeBytes(const plan::Plan& plan, const Job& job, const std::string& target);

// Compares what the ranks of all processes on this machine take with its memory. On GPUs that is host memory for
// --offload, which is pinned: beyond what there is the system would end some process. `staging` is in bytes, for the
// saves of a rank of the CPU.
Status checkMemory(const plan::Plan& plan, const Job& job, const std::string& target, uint64_t staging);

// Checks that the address space has room for what libraries take on the CPU once the ranks run.
Status checkLibraryMemory(const plan::Plan& plan, const Job& job);

}  // namespace sheaf::exec
