// How the processes of a job find each other: process 0 listens, the others connect and say who they are, and when all
// have come each is told who the others are.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/comm/process/Connection.h"
#include "runtime/comm/process/Launcher.h"

namespace sheaf::comm {

struct Member {
  std::string host;     // its name
  std::string address;  // numeric, where other processes reach it
};

struct Joined {
  // Process 0 has one for each other process, in rank order; the others have one, to process 0.
  std::vector<Connection> connections;
  std::vector<Member> members;
};

// Within launch.limit; `cancelled` (if set) is asked several times a second whether to give up. Strangers are sent
// away.
Expected<Joined> joinJob(const Launch& launch, const std::function<bool()>& cancelled);

}  // namespace sheaf::comm
