// Rendezvous of a job's processes: process 0 listens, the others connect and identify themselves. When all have joined,
// process 0 sends each the list of all. With a secret (SHEAF_SECRET) both sides prove first that they know it:
//   process     kHello      protocol, number, job, host, nonce
//   process 0   kChallenge  nonce
//   process     kProof      joinProof
//   process 0   kWelcome    the members, welcomeProof
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/comm/process/Connection.h"
#include "runtime/comm/process/Launcher.h"

namespace sheaf::comm {

struct Member {
  std::string host;     // host name
  std::string address;  // numeric address at which other processes reach it
};

struct Joined {
  // On process 0: one per other process, in rank order. On the others: one, to process 0.
  std::vector<Connection> connections;
  std::vector<Member> members;
};

// Joins the job within launch.limit. `cancelled` (optional) is called several times per second; true gives up. `waits`
// (optional) is called after 10 seconds, or a third of the limit if that is less, and then every 30: on process 0 with
// a text that names the missing processes, on others while they do not reach process 0. Connections that do not belong
// to the job are refused; only a process that knows the secret gets a reason that names the job.
Expected<Joined> joinJob(const Launch& launch, const std::function<bool()>& cancelled,
                         const std::function<void(const std::string& text)>& waits = nullptr);

// They have more than one address, so there is a network between them.
bool onSeveralHosts(const std::vector<Member>& members);

}  // namespace sheaf::comm
