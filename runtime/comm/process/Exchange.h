// One exchange of messages, as process 0 collects it: which processes have contributed what, and whether all of them
// are in the same exchange.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/comm/process/Connection.h"

namespace sheaf::comm {

// Who receives the messages: all processes, process 0, or none (the last exchange of a job).
enum class ExchangeKind : uint64_t { kAll = 1, kFirst, kLeave };

struct Contribution {
  ExchangeKind kind = ExchangeKind::kAll;
  std::string what, message;
};

std::string pack(const Contribution& contribution);
// Empty if the bytes are not a contribution.
std::optional<Contribution> unpackContribution(const std::string& bytes);

class Exchange {
 public:
  Exchange(int64_t size, uint32_t sequence) : sequence_(sequence), parts_(static_cast<size_t>(size)) {}

  // False if the process has contributed already.
  bool add(int64_t process, Contribution contribution);
  bool complete() const { return present_ == parts_.size(); }
  bool begun() const { return present_ > 0; }
  Clock::time_point began() const { return began_; }
  uint32_t sequence() const { return sequence_; }
  std::vector<int64_t> missing() const;
  // The name of the exchange.
  std::string what() const;
  // Whether a process has announced that it leaves.
  bool leaves(int64_t process) const;

  // Once complete: the first process that is in another exchange than process 0, or -1.
  int64_t mismatch() const;
  const Contribution& part(int64_t process) const { return *parts_[static_cast<size_t>(process)]; }
  std::vector<std::string> messages() const;
  uint64_t messageBytes() const;

 private:
  const uint32_t sequence_;
  std::vector<std::optional<Contribution>> parts_;
  size_t present_ = 0;
  Clock::time_point began_;
};

}  // namespace sheaf::comm
