#include "runtime/exec/Machine.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace sheaf::exec {

std::string processorName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name"))
      if (size_t colon = line.find(": "); colon != std::string::npos) return line.substr(colon + 2);
  return "a processor of unknown name";
}

int availableCores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)));
}

uint64_t machineMemory() {
  uint64_t memory = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  uint64_t limit = 0;
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> limit && limit > 0) memory = std::min(memory, limit);
  return memory;
}

uint64_t peakResidentBytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_maxrss) * 1024;
}

uint64_t privateResidentBytes() {
  // Resident anonymous and shared-memory pages: arenas may be either.
  std::ifstream status("/proc/self/status");
  uint64_t bytes = 0, value = 0;
  std::string name;
  while (status >> name) {
    if ((name == "RssAnon:" || name == "RssShmem:") && status >> value) bytes += value * 1024;
    status.ignore(4096, '\n');
  }
  return bytes;
}

std::string machineId() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return std::string(name) + " " + boot;
}

std::string coresId() {
  cpu_set_t set;
  std::string text;
  if (sched_getaffinity(0, sizeof set, &set) == 0)
    for (int core = 0; core < CPU_SETSIZE; ++core)
      if (CPU_ISSET(core, &set)) text += std::to_string(core) + " ";
  return text;
}

}  // namespace sheaf::exec
