// What a transport moves between two processes, one way: latency and bandwidth, by messages that go to and fro, as
// mpi4py's `python -m mpi4py.bench pingpong` measures it; and both ways at once, as collectives use it, with the time
// of cores that a process spends on it.
// usage: LAUNCHER -np 2 transport_bench sockets|mpi [BYTES_A_SECOND]     (test/bench/transports.py and nodes.py run it)
// With a rate, each process sends no faster, and messages have at most 4 MiB.
#include <dlfcn.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "runtime/base/Text.h"
#include "runtime/comm/process/Launcher.h"
#include "runtime/comm/process/TcpProcessGroup.h"
#include "runtime/comm/socket/SocketTransport.h"
#include "test/Paths.h"

namespace {

using sheaf::Status;
using sheaf::comm::Channel;
using sheaf::comm::TcpProcessGroup;
using Clock = std::chrono::steady_clock;

Status finish(Channel& channel, int64_t other) {
  while (!channel.idle(other)) {
    auto moved = channel.poll(std::chrono::milliseconds(100));
    if (!moved.ok()) return moved.status();
  }
  return {};
}

// User and system time of this process, in seconds.
double coreSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  auto seconds = [](const timeval& time) { return static_cast<double>(time.tv_sec) + 1e-6 * double(time.tv_usec); };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct Times {
  double oneWay, bothWays;  // seconds a message
  double cores;             // seconds of cores, of one process, for a message sent and one received
};

sheaf::Expected<Times> measure(Channel& channel, int64_t mine, std::vector<std::byte>& out,
                               std::vector<std::byte>& in) {
  const int64_t other = 1 - mine;
  const uint64_t bytes = out.size();
  const int rounds = bytes <= 1 << 16 ? 500 : bytes <= 1 << 22 ? 60 : 12, warm = std::max(rounds / 10, 2);
  std::vector<double> oneWay, bothWays;
  for (int i = -warm; i < rounds; ++i) {
    const auto begin = Clock::now();
    for (int turn = 0; turn < 2; ++turn) {
      if (turn == mine)
        channel.send(other, out);
      else
        channel.receive(other, in);
      SHEAF_RETURN_IF_ERROR(finish(channel, other));
    }
    if (i >= 0) oneWay.push_back(std::chrono::duration<double>(Clock::now() - begin).count() / 2);
  }
  double used = 0;
  for (int i = -warm; i < rounds; ++i) {
    if (i == 0) used = coreSeconds();
    const auto begin = Clock::now();
    channel.send(other, out);
    channel.receive(other, in);
    SHEAF_RETURN_IF_ERROR(finish(channel, other));
    if (i >= 0) bothWays.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  used = coreSeconds() - used;
  auto median = [](std::vector<double>& times) {
    std::nth_element(times.begin(), times.begin() + static_cast<ptrdiff_t>(times.size() / 2), times.end());
    return times[times.size() / 2];
  };
  return Times{median(oneWay), median(bothWays), used / rounds};
}

Status run(const std::string& name, double rate) {
  auto environment = [](const char* variable) { return std::getenv(variable); };
  auto launch = sheaf::comm::findLaunch(environment);
  if (!launch.ok()) return launch.status();
  if (launch->size != 2) return Status::error("two processes, please: a launcher is to start them");
  sheaf::comm::ConnectTransport connect = sheaf::comm::SocketTransport::connect;
  if (name == "mpi") {
    auto mpi = sheaf::comm::findMpi(environment);
    if (!mpi.ok()) return mpi.status();
    void* library =
        dlopen(sheaf::cat(sheaf::paths::kLibraries, "/libsheaf_mpi_", *mpi, ".so").c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) return Status::error(dlerror());
    connect = reinterpret_cast<sheaf::comm::ConnectTransport>(dlsym(library, "sheaf_connect_transport"));
  }
  auto group = TcpProcessGroup::join(*launch);
  if (!group.ok()) return group.status();
  sheaf::comm::AbortSignal abort;
  auto transport = connect(**group, {.sendRate = rate}, abort);
  if (!transport.ok()) return transport.status();
  const int64_t mine = (*group)->rank();
  if (mine == 0)
    std::printf("%12s %14s %14s %20s %20s\n", "bytes", "one way, us", "one way, MB/s", "each of both, MB/s",
                "core seconds per GB");
  for (uint64_t bytes : {uint64_t{1}, uint64_t{1} << 10, uint64_t{1} << 16, uint64_t{1} << 20, uint64_t{1} << 22,
                         uint64_t{1} << 24, uint64_t{1} << 26, uint64_t{1} << 28}) {
    if (rate > 0 && bytes > 1 << 22) break;
    std::vector<std::byte> out(bytes, std::byte{1}), in(bytes);
    auto times = measure((*transport)->channel(0, 0), mine, out, in);
    if (!times.ok()) return times.status();
    if (mine == 0)
      std::printf("%12llu %14.2f %14.1f %20.1f %20.3f\n", static_cast<unsigned long long>(bytes), times->oneWay * 1e6,
                  double(bytes) / times->oneWay / 1e6, double(bytes) / times->bothWays / 1e6,
                  times->cores / double(bytes) * 1e9);
    std::fflush(stdout);
  }
  return (*group)->leave();
}

}  // namespace

int main(int argc, char** argv) {
  const Status status = run(argc > 1 ? argv[1] : "sockets", argc > 2 ? std::atof(argv[2]) : 0);
  if (!status.ok()) std::fprintf(stderr, "transport_bench: %s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}
