// Processes with an emulated GPU each, played by threads.
#pragma once

#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "test/runtime/CudaTesting.h"
#include "test/runtime/ThreadGroup.h"

namespace sheaf::testing {

// A variable of the environment, while the object lives.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Variable() { unsetenv(name_); }

 private:
  const char* name_;
};

// The ranks of a plan, each with a device, a GPU and a thread of its own, as in processes.
class Processes {
 public:
  Processes(const plan::Plan& plan, int64_t ranks, DeviceOptions options = {},
            std::chrono::milliseconds limit = std::chrono::seconds(300))
      : group(ranks, limit), contexts(static_cast<size_t>(ranks)) {
    for (int64_t rank = 0; rank < ranks; ++rank) members.push_back(group.member(rank));
    onEach([&](size_t rank) {
      DeviceOptions mine = options;
      mine.ranks = ranks;
      mine.firstRank = static_cast<int64_t>(rank);
      mine.localRanks = 1;
      mine.processesPerNode = options.processesPerNode > 1 ? options.processesPerNode : ranks;
      mine.processes = members[rank].get();
      contexts[rank] = openCuda(plan, mine);
    });
  }
  ~Processes() {
    // Closing is something they do together.
    onEach([&](size_t rank) { contexts[rank].clear(); });
  }

  template <typename Body>
  void onEach(Body body) {
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < contexts.size(); ++rank) threads.emplace_back([&body, rank] { body(rank); });
    for (std::thread& thread : threads) thread.join();
  }
  RankContext& rank(size_t rank) { return *contexts[rank][0]; }

  ThreadGroup group;
  std::vector<std::unique_ptr<comm::ProcessGroup>> members;
  std::vector<Contexts> contexts;
};

}  // namespace sheaf::testing
