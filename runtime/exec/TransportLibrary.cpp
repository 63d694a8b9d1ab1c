#include "runtime/exec/TransportLibrary.h"

#include <dlfcn.h>

#include <cstdlib>

#include "runtime/base/Text.h"
#include "runtime/comm/process/Launcher.h"
#include "runtime/exec/DeviceLibrary.h"

namespace sheaf::exec {

Expected<comm::ConnectTransport> loadMpi() {
  Expected<std::string> mpi = comm::findMpi([](const char* name) { return std::getenv(name); });
  if (!mpi.ok()) return Status::error(cat("--transport mpi: ", mpi.status().message()));
  const std::string name = cat("libsheaf_mpi_", *mpi, ".so");
  Expected<void*> library = openLibrary(name);
  if (!library.ok())
    return Status::error(cat("--transport mpi: cannot load ", name, ": ", library.status().message(),
                             "; it is built where Debian's lib", *mpi,
                             "-dev is installed (`make setup`), and SHEAF_LIBRARY_PATH names its folder"));
  auto connect = reinterpret_cast<comm::ConnectTransport>(dlsym(*library, "sheaf_connect_transport"));
  if (!connect) return Status::error(cat(name, " is not a transport: it does not export sheaf_connect_transport"));
  return connect;
}

}  // namespace sheaf::exec
