// Loads the library of a transport other than sockets.
#pragma once

#include "runtime/base/Status.h"
#include "runtime/comm/transport/ConnectTransport.h"

namespace sheaf::exec {

// For --transport mpi: libsheaf_mpi_openmpi.so or libsheaf_mpi_mpich.so, by which MPI has started this process.
Expected<comm::ConnectTransport> loadMpi();

}  // namespace sheaf::exec
