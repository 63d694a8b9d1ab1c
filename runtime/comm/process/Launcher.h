// This process's place in its job, from the environment variables of the launcher (torchrun, mpirun, srun, Kubernetes).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "runtime/base/Status.h"
#include "runtime/comm/socket/Socket.h"

namespace sheaf::comm {

struct Launch {
  int64_t rank = 0, size = 1;        // of this process; number of processes
  std::optional<int64_t> localRank;  // among the processes of this host; empty: the launcher does not say
  std::string localRankName;         // the variable that says it
  std::string launcher;              // "torchrun", "Open MPI", "MPICH", "Slurm", "Kubernetes"; empty: none
  Endpoint rendezvous;               // where process 0 listens; unused by a job of one process
  std::string job;                   // the launcher's job id, which distinguishes jobs on the same port; may be empty
  std::string secret;                // SHEAF_SECRET: what all processes must know to join; empty: none
  std::chrono::milliseconds limit{300'000};  // SHEAF_TIMEOUT
  std::string warning;                       // to be printed when the run starts; may be empty
};

// The value of an environment variable, or null.
using Environment = std::function<const char*(const char* name)>;

// The variables read; the first group that is set counts. Errors name the variable.
//   torchrun  RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT
//   Open MPI  OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK
//   MPICH     PMI_RANK, PMI_SIZE, MPI_LOCALRANKID (Hydra's, and Intel MPI's); its job id is the process id of the proxy
//             of PMI_FD
//   Slurm     SLURM_PROCID, SLURM_STEP_NUM_TASKS or SLURM_NTASKS, SLURM_LOCALID; only within a step (SLURM_STEP_ID),
//             because a batch script itself has them as well
//   PMI       PMI_RANK, PMI_SIZE
//   Kubernetes  JOB_COMPLETION_INDEX (of an Indexed Job), SHEAF_PROCESSES; a pod is a host of its own
// Process 0 listens on SHEAF_RENDEZVOUS (host:port), else on MASTER_ADDR and port MASTER_PORT + 1 (torchrun's agent
// uses MASTER_PORT), else on the first host of the job at a port derived from the job id.
Expected<Launch> findLaunch(const Environment& environment);

// Which MPI has started this process, "openmpi" or "mpich": SHEAF_MPI, else by the variables that its launcher, or
// `srun --mpi`, sets for MPI_Init.
Expected<std::string> findMpi(const Environment& environment);

// Launch::localRank, or an error that names the variables of all launchers.
Expected<int64_t> requireLocalRank(const Launch& launch);

}  // namespace sheaf::comm
