// Saves states of a run (SavedState.h), at once or while the run goes on.
//
// With a staging ring for each rank a save is a snapshot: between two steps, while the ranks are synchronized, every
// rank's state is copied into its ring, and threads write it to its file from there. The run goes on as soon as the
// last byte has been copied. So no step may change what is still to be saved. Where a ring is smaller than the rank's
// state, the copy waits for the disk until the rest fits.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/base/Threads.h"
#include "runtime/exec/SavedState.h"
#include "runtime/exec/StagingRing.h"
#include "runtime/exec/StateAccess.h"
#include "runtime/io/Checkpoint.h"

namespace sheaf::exec {

// A state that is on the disk.
struct CompleteSave {
  std::string folder;
  int64_t step = 0;
  double stalled = 0, seconds = 0;  // how long the run stood still, and until the state was whole
  Status afterwards;                // what `committed` returned
};

class StateSaver {
 public:
  struct Options {
    std::string folder;
    uint64_t staging = 0;  // bytes of host memory for each rank; 0: the run waits until a state is on the disk
    // Called on process 0 after each commit, perhaps from another thread.
    std::function<Status(int64_t step)> committed = {};
  };
  // `state` outlives this object. Memory and threads for staging are taken here; status() says if there are none.
  StateSaver(const StateAccess& state, Options options);
  // Abandons what is not complete: nothing remains of it.
  ~StateSaver();

  // Bytes of the rings of this process's ranks.
  uint64_t stagingBytes() const;

  // Begins to save; with staging it returns when everything is copied. Waits before for the one under way, so
  // that they never pile up. Only while the ranks are synchronized; every process calls it, and gets the same status.
  Status save(const RunPosition& position);
  // Waits for the save under way. Every process calls it, and gets the same status.
  Status finish();

  // Without waiting: the next complete save not yet returned; and the first error of any.
  std::optional<CompleteSave> takeComplete();
  Status status() const;

 private:
  struct Job;
  Status start(const RunPosition& position);
  Status await();
  void writeRank(Job& job, size_t rank);
  void complete(Job& job);
  Status gatherParts(Job& job);
  Status snapshot(size_t rank);
  void keep(const Status& status);
  Status takeSnapshot();
  void stop();

  const StateAccess& state_;
  const Options options_;
  std::vector<std::unique_ptr<StagingRing>> rings_;   // one per local rank
  std::unique_ptr<WorkerThreads> copiers_, writers_;  // one thread per local rank
  std::unique_ptr<Job> job_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::vector<CompleteSave> complete_;
  Status status_;
  // Set when another process is lost; outlives this object, because the group may still call.
  struct Lost;
  std::shared_ptr<Lost> lost_;
};

}  // namespace sheaf::exec
