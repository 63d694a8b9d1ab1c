// What the operating system says about this process and this machine.
#pragma once

#include <cstdint>
#include <string>

namespace sheaf::exec {

int availableCores();             // that this process may run on
uint64_t machineMemory();         // bytes of RAM, or of the container's limit if that is lower
uint64_t peakResidentBytes();     // of this process so far, mapped files included
uint64_t privateResidentBytes();  // now, without mapped files

// The same for processes on one machine (within one container's memory limit), and for those that may run on the same
// of its cores.
std::string machineId();
std::string coresId();

}  // namespace sheaf::exec
