#include "runtime/exec/TransportLibrary.h"

#include <cstdlib>

#include "runtime/base/Text.h"
#include "runtime/comm/process/Launcher.h"
#include "runtime/exec/LoadedLibrary.h"

namespace sheaf::exec {

Expected<comm::ConnectTransport> loadMpi() {
  Expected<std::string> mpi = comm::findMpi([](const char* name) { return std::getenv(name); });
  if (!mpi.ok()) return Status::error(cat("--transport mpi: ", mpi.status().message()));
  const std::string name = cat("libsheaf_mpi_", *mpi, ".so");
  Expected<void*> connect = loadFunction(name, "sheaf_connect_transport");
  if (!connect.ok())
    return Status::error(cat("--transport mpi: cannot load ", name, ": ", connect.status().message(),
                             "; it is built where Debian's lib", *mpi,
                             "-dev is installed (`make setup`), and SHEAF_LIBRARY_PATH names its folder"));
  return reinterpret_cast<comm::ConnectTransport>(*connect);
}

}  // namespace sheaf::exec
