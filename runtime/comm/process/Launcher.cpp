#include "runtime/comm/process/Launcher.h"

#include <sys/socket.h>

#include <array>
#include <climits>
#include <cmath>
#include <optional>
#include <span>
#include <string_view>

#include "runtime/base/Hash.h"
#include "runtime/base/Text.h"
#include "runtime/comm/process/Secret.h"

namespace sheaf::comm {
namespace {

constexpr int64_t kMaxProcesses = 65536;

// Range of default ports: below the ephemeral ports of common systems, and used by few services.
constexpr uint16_t kFirstPort = 20000;
constexpr uint16_t kPorts = 10000;

struct Variables {
  const char* launcher;
  const char *rank, *size, *otherSize;  // otherSize is read if `size` is not set
  const char* localRank;
  const char* localSize;
  const char* alsoNeeded;  // the group counts only if this is set
  std::array<const char*, 2> job;
};

constexpr Variables kLaunchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE", nullptr, "LOCAL_RANK", "LOCAL_WORLD_SIZE", nullptr, {"TORCHELASTIC_RUN_ID"}},
    {"Open MPI",
     "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_SIZE",
     nullptr,
     "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE",
     nullptr,
     {"PMIX_NAMESPACE"}},
    {"MPICH", "PMI_RANK", "PMI_SIZE", nullptr, "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "MPI_LOCALRANKID", {}},
    {"Slurm",
     "SLURM_PROCID",
     "SLURM_STEP_NUM_TASKS",
     "SLURM_NTASKS",
     "SLURM_LOCALID",
     nullptr,
     "SLURM_STEP_ID",
     {"SLURM_JOB_ID", "SLURM_STEP_ID"}},
    // Other launchers with PMI. After Slurm, whose own variables say more than its PMI.
    {"PMI", "PMI_RANK", "PMI_SIZE", nullptr, "MPI_LOCALRANKID", "MPI_LOCALNRANKS", nullptr, {}},
    // An Indexed Job. Kubernetes does not say the number of completions.
    {"Kubernetes", "JOB_COMPLETION_INDEX", "SHEAF_PROCESSES", nullptr, nullptr, nullptr, "JOB_COMPLETION_INDEX", {}},
};

bool is(const Variables& names, std::string_view launcher) {
  return names.launcher == launcher;
}

class Reader {
 public:
  explicit Reader(const Environment& environment) : environment_(environment) {}

  const char* find(const char* name) const {
    const char* value = name ? environment_(name) : nullptr;
    return value && *value ? value : nullptr;
  }

  // An integer in [least, most]; empty if the variable is not set.
  Expected<std::optional<int64_t>> integer(const char* name, int64_t least, int64_t most) const {
    const char* text = find(name);
    if (!text) return std::optional<int64_t>();
    int64_t value = 0;
    if (!parseInteger(text, value) || value < least || value > most)
      return Status::error(cat(name, " is '", text, "': expected an integer from ", least, " to ", most));
    return std::optional<int64_t>(value);
  }

 private:
  const Environment& environment_;
};

Status readNumbers(const Reader& reader, const Variables& names, Launch& launch) {
  const char* sizeName = names.otherSize && !reader.find(names.size) ? names.otherSize : names.size;
  auto size = reader.integer(sizeName, 1, kMaxProcesses);
  if (!size.ok()) return size.status();
  const bool pod = is(names, "Kubernetes");
  if (!*size)
    return Status::error(cat(names.rank, " is set, but ", sizeName, " is not (", names.launcher, ")",
                             pod ? ": set it to the Job's completions, or to 1 if each pod is a run of its own" : ""));
  launch.launcher = names.launcher;
  launch.size = **size;
  if (pod && launch.size == 1) return {};
  auto rank = reader.integer(names.rank, 0, **size - 1);
  if (!rank.ok()) return rank.status();
  if (!*rank) return Status::error(cat(sizeName, " is set, but ", names.rank, " is not (", names.launcher, ")"));
  auto local = reader.integer(names.localRank, 0, **size - 1);
  if (!local.ok()) return local.status();
  launch.rank = **rank;
  launch.localRank = *local;
  if (pod)
    launch.localRank = 0;  // a pod is a host of its own, with one process
  else
    launch.localRankName = names.localRank;
  for (const char* name : names.job)
    if (const char* value = reader.find(name)) launch.job += cat(launch.job.empty() ? "" : ".", value);
  return {};
}

// Hydra (MPICH, Intel MPI) sets no job id. The proxy that starts all processes of a host is at the other end of their
// connections PMI_FD, so its process id distinguishes jobs on one host. Empty for jobs on several hosts, each of which
// has a proxy, and where there is no such connection.
std::string hydraJob(const Reader& reader, const Variables& names, int64_t size) {
  auto together = reader.integer(names.localSize, 1, kMaxProcesses);
  auto connection = reader.integer("PMI_FD", 0, INT_MAX);
  if (!together.ok() || together->value_or(0) != size || !connection.ok() || !*connection) return "";
  ucred proxy{};
  socklen_t bytes = sizeof proxy;
  const int descriptor = static_cast<int>(**connection);
  if (getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &proxy, &bytes) != 0 || proxy.pid <= 0) return "";
  return cat("hydra.", proxy.pid);
}

// The first host of Slurm's "node[07-09,12]-ib,other": node07-ib.
std::string firstHost(std::string_view list) {
  size_t bracket = list.find_first_of("[,");
  std::string host(list.substr(0, bracket));
  if (bracket == std::string_view::npos || list[bracket] == ',') return host;
  std::string_view numbers = list.substr(bracket + 1);
  host += numbers.substr(0, numbers.find_first_of("-,]"));
  size_t end = numbers.find(']');
  if (end == std::string_view::npos) return host;
  std::string_view rest = numbers.substr(end + 1);
  return host.append(rest.substr(0, rest.find(',')));
}

Status findRendezvous(const Reader& reader, const Variables& names, Launch& launch) {
  if (const char* text = reader.find("SHEAF_RENDEZVOUS")) {
    Expected<Endpoint> endpoint = parseEndpoint(text);
    if (!endpoint.ok()) return Status::error(cat("SHEAF_RENDEZVOUS: ", endpoint.status().message()));
    launch.rendezvous = *endpoint;
    return {};
  }
  const bool torchrun = is(names, "torchrun");
  auto port = reader.integer("MASTER_PORT", 1, 65534);
  if (!port.ok()) return port.status();
  if (torchrun && !*port) return Status::error("MASTER_PORT is not set; it, or SHEAF_RENDEZVOUS=host:port, is needed");
  launch.rendezvous.port =
      *port ? static_cast<uint16_t>(**port + 1) : static_cast<uint16_t>(kFirstPort + xxh64(launch.job) % kPorts);
  if (const char* host = reader.find("MASTER_ADDR")) {
    launch.rendezvous.host = host;
    return {};
  }
  if (is(names, "Slurm")) {
    for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"})
      if (const char* list = reader.find(name); list && launch.rendezvous.host.empty())
        launch.rendezvous.host = firstHost(list);
    if (const char* host = reader.find("SLURM_LAUNCH_NODE_IPADDR"); host && launch.rendezvous.host.empty())
      launch.rendezvous.host = host;
    if (!launch.rendezvous.host.empty()) return {};
    return Status::error("neither SLURM_STEP_NODELIST nor SLURM_JOB_NODELIST is set; set SHEAF_RENDEZVOUS=host:port");
  }
  if (torchrun) return Status::error("MASTER_ADDR is not set; it, or SHEAF_RENDEZVOUS=host:port, is needed");
  if (is(names, "Kubernetes"))
    return Status::error(
        "SHEAF_RENDEZVOUS is not set; it is JOB-0.SERVICE:PORT, with the names of the Job and of its headless Service");
  auto together = reader.integer(names.localSize, 1, kMaxProcesses);
  if (!together.ok()) return together.status();
  if (together->value_or(0) != launch.size)
    return Status::error(cat("the processes are not all on this host (", names.localSize, " is ",
                             *together ? std::to_string(**together) : "not set", ", ", names.size, " is ", launch.size,
                             "); set SHEAF_RENDEZVOUS=host:port, with the first process's host and a free port of it"));
  launch.rendezvous.host = "127.0.0.1";
  return {};
}

}  // namespace

Expected<Launch> findLaunch(const Environment& environment) {
  Reader reader(environment);
  Launch launch;
  if (const char* text = reader.find("SHEAF_TIMEOUT")) {
    double seconds = 0;
    if (!parseReal(text, seconds) || !(seconds >= 0.1 && seconds <= 1e6))
      return Status::error(cat("SHEAF_TIMEOUT is '", text, "': expected seconds, from 0.1 to 1000000"));
    launch.limit = std::chrono::milliseconds(std::llround(seconds * 1000));
  }
  if (const char* secret = environment("SHEAF_SECRET")) {
    launch.secret = secret;
    // A command that should have printed the secret has failed, perhaps. To join without one must be a decision.
    if (launch.secret.empty())
      return Status::error(cat("SHEAF_SECRET is set, but empty: give all processes one text of at least ",
                               kMinSecretBytes, " random characters, or unset it, and processes join without"));
    if (launch.secret.size() < kMinSecretBytes)
      return Status::error(cat("SHEAF_SECRET has ", launch.secret.size(), " characters: it needs at least ",
                               kMinSecretBytes, ", random ones"));
  }
  for (const Variables& names : kLaunchers) {
    bool there = reader.find(names.rank) || (!names.alsoNeeded && reader.find(names.size));
    if (!there || (names.alsoNeeded && !reader.find(names.alsoNeeded))) continue;
    SHEAF_RETURN_IF_ERROR(readNumbers(reader, names, launch));
    if (launch.job.empty() && !names.job[0]) launch.job = hydraJob(reader, names, launch.size);
    if (launch.size > 1) SHEAF_RETURN_IF_ERROR(findRendezvous(reader, names, launch));
    return launch;
  }
  // A Job that is not Indexed: each of its pods would train alone, into the same files.
  const auto processes = reader.integer("SHEAF_PROCESSES", 1, kMaxProcesses);
  if (!processes.ok()) return processes.status();
  if (processes->value_or(1) != 1)
    return Status::error(
        cat("SHEAF_PROCESSES is '", **processes,
            "', but no launcher has set the rank of this process: JOB_COMPLETION_INDEX is not set, ",
            "nor are variables of another launcher. Set completionMode: Indexed in the Job; torchrun, mpirun and srun ",
            "need no SHEAF_PROCESSES"));
  if (!*processes && reader.find("SHEAF_RENDEZVOUS"))
    launch.warning =
        "SHEAF_RENDEZVOUS has no effect: no launcher has set the rank of this process, so it trains alone. Start it "
        "with torchrun, mpirun or srun, or in an Indexed Job with SHEAF_PROCESSES";
  return launch;
}

Expected<int64_t> requireLocalRank(const Launch& launch) {
  if (launch.localRank) return *launch.localRank;
  std::string known;
  for (const Variables& names : kLaunchers)
    if (names.localRank && known.find(names.localRank) == std::string::npos)
      known += cat(known.empty() ? "" : ", ", names.localRank, " (", names.launcher, ")");
  return Status::error(cat(launch.localRankName.empty() ? "a local rank" : launch.localRankName,
                           " is not set; launchers number the processes of a host with ", known));
}

Expected<std::string> findMpi(const Environment& environment) {
  Reader reader(environment);
  if (const char* chosen = reader.find("SHEAF_MPI")) {
    const std::string name = chosen;
    if (name == "openmpi" || name == "mpich") return name;
    return Status::error(cat("SHEAF_MPI is '", name, "': expected openmpi or mpich"));
  }
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK"})
    if (reader.find(name)) return std::string("openmpi");
  if (reader.find("PMI_RANK")) return std::string("mpich");
  return Status::error(
      "no MPI has started this process: start it with mpirun, or with srun --mpi=pmix (Open MPI) or srun --mpi=pmi2 "
      "(MPICH); SHEAF_MPI=openmpi or mpich says which one to use where this cannot be seen");
}

}  // namespace sheaf::comm
