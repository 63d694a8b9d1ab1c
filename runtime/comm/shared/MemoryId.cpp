#include "runtime/comm/shared/MemoryId.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "runtime/base/Text.h"

namespace sheaf::comm {

std::string memoryId(const char* sheafHost) {
  if (sheafHost && *sheafHost) {
    std::string name = cat("SHEAF_HOST=", sheafHost);
    std::replace(name.begin(), name.end(), '\n', ' ');  // it travels as a line
    return name;
  }
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  // Abstract sockets are those of a network name space.
  char space[64] = "";
  if (readlink("/proc/self/ns/net", space, sizeof space - 1) < 0) space[0] = 0;
  return cat(boot, " ", space, " ", geteuid());
}

int64_t processesPerNode(const std::vector<std::string>& ids) {
  const int64_t processes = static_cast<int64_t>(ids.size());
  for (int64_t size = processes; size > 1; --size) {
    if (processes % size != 0) continue;
    bool alike = true;
    for (int64_t process = 0; process < processes; ++process)
      alike &= ids[static_cast<size_t>(process)] == ids[static_cast<size_t>(process / size * size)];
    if (alike) return size;
  }
  return 1;
}

}  // namespace sheaf::comm
