// What the launcher (torchrun, mpirun, srun) says in the environment about this process and its job.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "runtime/base/Status.h"
#include "runtime/comm/socket/Socket.h"

namespace sheaf::comm {

struct Launch {
  int64_t rank = 0, size = 1;                // of processes
  int64_t localRank = 0;                     // among the processes of this host
  std::string launcher;                      // "torchrun", "Open MPI", "MPICH", "Slurm"; empty: none
  Endpoint meeting;                          // where process 0 listens; unused by a job of one process
  std::string job;                           // tells jobs that use the same port apart, where the launcher does
  std::chrono::milliseconds limit{300'000};  // SHEAF_TIMEOUT
};

// The value of a variable of the environment, or null.
using Environment = std::function<const char*(const char* name)>;

// Variables, the first group that is there counts; each error names the variable.
//   torchrun  RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT
//   Open MPI  OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK
//   MPICH     PMI_RANK, PMI_SIZE, MPI_LOCALRANKID (Hydra's, and Intel MPI's)
//   Slurm     SLURM_PROCID, SLURM_STEP_NUM_TASKS or SLURM_NTASKS, SLURM_LOCALID; in a step only (SLURM_STEP_ID),
//   because
//             a batch script itself has them, too
//   PMI       PMI_RANK, PMI_SIZE
// Process 0 listens on SHEAF_RENDEZVOUS (host:port), else on MASTER_ADDR and port MASTER_PORT + 1 (torchrun's agent has
// MASTER_PORT itself), else on the first host of the job, with a port made from the job's number.
Expected<Launch> findLaunch(const Environment& environment);

}  // namespace sheaf::comm
