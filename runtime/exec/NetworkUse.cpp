#include "runtime/exec/NetworkUse.h"

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "runtime/base/Text.h"

namespace sheaf::exec {

Expected<uint64_t> networkRate(const char* value) {
  if (!value) return uint64_t{0};
  constexpr uint64_t kLeast = 1000;
  uint64_t rate = 0;
  if (parseBytes(value, rate) && rate >= kLeast) return rate;
  return Status::error(
      cat("SHEAF_NETWORK_RATE is '", value, "': expected bytes a second, at least ", kLeast, ", such as 100MiB"));
}

Expected<json::Object> networkUse(comm::Traffic& mine, comm::ProcessGroup& group, int64_t steps) {
  // Of this process: the values sent on each communicator, and the headers.
  std::vector<uint64_t> communicators(static_cast<size_t>(mine.communicators()));
  uint64_t headers = 0;
  std::string message;
  for (size_t i = 0; i < communicators.size(); ++i) {
    uint64_t values = 0;
    for (int64_t process = 0; process < mine.processes(); ++process) {
      comm::Traffic::Counts& counts = mine.of(static_cast<int64_t>(i), process);
      values += counts.values();
      headers += counts.headers;
    }
    message += cat(values, " ");
  }
  Expected<std::vector<std::string>> all = group.gather(cat(message, headers), "the bytes sent");
  if (!all.ok()) return all.status();
  json::Array byProcess, byCommunicator;
  uint64_t bytes = 0, allHeaders = 0;
  for (const std::string& numbers : *all) {
    std::istringstream in(numbers);
    uint64_t ofProcess = 0, value = 0;
    for (uint64_t& sum : communicators)
      if (in >> value) sum += value, ofProcess += value;
    if (in >> value) allHeaders += value;
    byProcess.emplace_back(ofProcess);
    bytes += ofProcess;
  }
  for (uint64_t sum : communicators) byCommunicator.emplace_back(sum);
  return json::Object{{"bytes", bytes},
                      {"bytes_per_step", static_cast<double>(bytes) / static_cast<double>(std::max<int64_t>(steps, 1))},
                      {"header_bytes", allHeaders},
                      {"by_communicator", std::move(byCommunicator)},
                      {"by_process", std::move(byProcess)}};
}

}  // namespace sheaf::exec
