// How a transport is made; see Transport.h.
#pragma once

#include <memory>

#include "runtime/base/Status.h"

namespace sheaf::comm {

class AbortSignal;
class ProcessGroup;
class Transport;
struct TransportOptions;

// Connects the processes of the group with each other. Every process calls it with the same numbers. Ends early with
// the signal. The group must outlive the transport.
using ConnectTransport = Expected<std::unique_ptr<Transport>> (*)(ProcessGroup& group, const TransportOptions& options,
                                                                  const AbortSignal& abort);

}  // namespace sheaf::comm
