// What a job of CPUs sends between its nodes: a limit for tests, and what the log says of it.
#pragma once

#include <cstdint>

#include "runtime/base/Json.h"
#include "runtime/base/Status.h"
#include "runtime/comm/process/ProcessGroup.h"
#include "runtime/comm/transport/Traffic.h"

namespace sheaf::exec {

// SHEAF_NETWORK_RATE, with null for one that is not set: bytes a second that each process sends at most; 0: no limit.
Expected<uint64_t> networkRate(const char* value);

// Bytes that all processes of the group have sent in so many steps, without and with the transfers' headers, and how
// they are divided among communicators and processes. All processes call it; complete in the first one only.
Expected<json::Object> networkUse(comm::Traffic& mine, comm::ProcessGroup& group, int64_t steps);

}  // namespace sheaf::exec
