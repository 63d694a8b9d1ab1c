// Jobs over each transport: sockets between threads of this process, and MPI between processes that its mpirun starts
// from this very program (see comm_transport_test.cpp's main).
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "runtime/base/Hash.h"
#include "runtime/base/Text.h"
#include "runtime/comm/process/Launcher.h"
#include "runtime/comm/process/TcpProcessGroup.h"
#include "runtime/comm/socket/SocketTransport.h"
#include "test/Paths.h"
#include "test/runtime/Processes.h"

namespace sheaf::testing {

// One process's part of a job: what to connect with.
using Check = std::function<void(comm::ProcessGroup& group, comm::ConnectTransport connect)>;

// By name, so that processes that mpirun starts find theirs.
inline std::map<std::string, Check>& checks() {
  static std::map<std::string, Check> all;
  return all;
}

// A way to run a job. launcher: of the MPI whose library it is; empty: sockets.
struct Way {
  const char *name, *launcher, *library;
};

inline constexpr Way kSockets{"sockets", "", ""};
inline constexpr Way kWays[] = {
    kSockets,
    {"openmpi", "mpirun.openmpi --oversubscribe", "libsheaf_mpi_openmpi.so"},
    {"mpich", "mpirun.mpich", "libsheaf_mpi_mpich.so"},
};

constexpr const char* kPassed = "this process has passed";

// Where this build has the way's library; empty if its MPI was not there.
inline std::string libraryOf(const Way& way) {
  const std::string path = std::string(sheaf::paths::kLibraries) + "/" + way.library;
  return access(path.c_str(), R_OK) == 0 ? path : "";
}

// How a check's job ends. MPI's mpirun calls a job failed whose processes do not end MPI, as after an abort.
enum class Ends { kInOrder, kAborted };

// Runs the check in each process of a job of `size`.
inline void everywhere(const Way& way, const std::string& check, int64_t size, std::chrono::milliseconds limit,
                       Ends ends) {
  if (!*way.launcher) {
    onProcesses(size, limit,
                [&](comm::TcpProcessGroup& group) { checks().at(check)(group, comm::SocketTransport::connect); });
    return;
  }
  char self[4096] = "";
  ASSERT_GT(readlink("/proc/self/exe", self, sizeof self - 1), 0);
  const std::string root = geteuid() == 0 && std::string(way.name) == "openmpi" ? " --allow-run-as-root" : "";
  // MPI's libraries keep memory until the end.
  const std::string command =
      cat("ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0 SHEAF_TIMEOUT=", double(limit.count()) / 1000,
          " SHEAF_CHECK=", check, " timeout 100 ", way.launcher, root, " -np ", size, " ", self, " 2>&1");
  FILE* pipe = popen(command.c_str(), "r");
  ASSERT_TRUE(pipe);
  std::string output;
  std::array<char, 4096> piece;
  while (size_t count = fread(piece.data(), 1, piece.size(), pipe)) output.append(piece.data(), count);
  const int status = pclose(pipe);
  int64_t passed = 0;
  for (size_t at = 0; (at = output.find(kPassed, at)) != std::string::npos; ++at) ++passed;
  EXPECT_EQ(passed, size) << command << "\n" << output;
  if (ends == Ends::kInOrder) {
    EXPECT_EQ(status, 0) << command << "\n" << output;
  }
}

// The part of a process that mpirun has started: its exit status.
inline int runCheck(const std::string& name) {
  auto environment = [](const char* variable) { return std::getenv(variable); };
  auto launch = comm::findLaunch(environment);
  auto mpi = comm::findMpi(environment);
  if (!launch.ok() || !mpi.ok()) {
    std::printf("%s %s\n", launch.status().message().c_str(), mpi.status().message().c_str());
    return 1;
  }
  auto group = comm::TcpProcessGroup::join(*launch);
  void* library = dlopen(cat(sheaf::paths::kLibraries, "/libsheaf_mpi_", *mpi, ".so").c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!group.ok() || !library) {
    std::printf("%s %s\n", group.status().message().c_str(), library ? "" : dlerror());
    return 1;
  }
  checks().at(name)(**group, reinterpret_cast<comm::ConnectTransport>(dlsym(library, "sheaf_connect_transport")));
  return ::testing::UnitTest::GetInstance()->Failed();
}

}  // namespace sheaf::testing
