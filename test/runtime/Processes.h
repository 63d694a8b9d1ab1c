// Jobs whose processes are threads of one process, on the loopback address.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "runtime/comm/process/TcpProcessGroup.h"
#include "test/runtime/Numbers.h"

namespace sheaf::testing {

inline uint16_t freePort() {
  auto listener = comm::listenOn({"127.0.0.1", 0});
  EXPECT_TRUE(listener.ok()) << listener.status().message();
  return comm::localPort(*listener);
}

inline comm::Launch launchFor(int64_t rank, int64_t size, uint16_t port, std::chrono::milliseconds limit) {
  comm::Launch launch;
  launch.rank = rank;
  launch.size = size;
  launch.localRank = rank;
  launch.rendezvous = {"127.0.0.1", port};
  launch.limit = limit;
  return launch;
}

// Runs body(group) on a thread for each process.
template <typename Body>
void onProcesses(int64_t size, std::chrono::milliseconds limit, Body body) {
  uint16_t port = freePort();
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      auto group = comm::TcpProcessGroup::join(launchFor(rank, size, port, limit));
      ASSERT_TRUE(group.ok()) << group.status().message();
      body(**group);
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace sheaf::testing
