// Cores and memory of this machine and this process, from the operating system.
#pragma once

#include <cstdint>
#include <string>

namespace sheaf::exec {

std::string processorName();      // its model; "a processor of unknown name" where the system names none
int availableCores();             // cores that this process may run on
uint64_t machineMemory();         // bytes of RAM, or the container's limit if that is lower
uint64_t peakResidentBytes();     // largest resident set of this process so far, including mapped files
uint64_t privateResidentBytes();  // resident bytes now, without mapped files

// Two processes have the same machineId if they share a machine (and its container's memory limit), and the same
// coresId if they may also run on the same cores.
std::string machineId();
std::string coresId();

}  // namespace sheaf::exec
