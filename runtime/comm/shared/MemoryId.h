// Finds the processes of a job that can share memory (SharedMemory.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sheaf::comm {

// Names the memory that this process can share: equal for two processes that can reach each other by UNIX sockets and
// belong to one user. The environment variable SHEAF_HOST, if it is set, replaces it.
std::string memoryId(const char* sheafHost);

// Returns the number of consecutive processes that share memory, given their memoryIds in rank order: the largest one
// that divides the job into blocks of processes with equal names.
int64_t processesPerNode(const std::vector<std::string>& ids);

}  // namespace sheaf::comm
