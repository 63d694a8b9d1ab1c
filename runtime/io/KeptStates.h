// The folder in which a run saves its states (Checkpoint.h), and how many of them it keeps: `sheaf-run --save-state`
// and
// `--keep-saves`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/Status.h"

namespace sheaf::io {

class KeptStates {
 public:
  // Makes the folder if there is none, and holds a lock on it. `keep`: how many states are kept; 0: all of them.
  //
  // A run that keeps only some removes others, also states that another run is saving. So it is refused a folder that
  // any other run saves into, and no other run can begin to do so. Runs that keep all states may share a folder. Where
  // the file system has no locks (flock), no run is refused.
  static Expected<KeptStates> open(const std::string& folder, int64_t keep);
  KeptStates(KeptStates&& other) noexcept;
  KeptStates& operator=(KeptStates&& other) noexcept;
  // Gives up the lock, and removes the folders that open() has made, if they are empty and no other run saves here.
  ~KeptStates();

  // Call it when the state of `step` has been committed. Removes two things:
  //
  // - states that are not among the newest `keep`. Only states of at most `step` steps count and are removed: an
  //   earlier run that went further may have saved later ones. A damaged state does not count;
  // - what killed runs have left: states that they had not finished to save or to remove.
  //
  // A state is renamed before its files are removed, so that the name of a state never stands for a part of one. Only
  // files of states are removed (StateFolder.h); a folder that holds something else besides stays with that.
  Status prune(int64_t step) const;

 private:
  KeptStates() = default;
  std::string folder_;
  int64_t keep_ = 0;
  int descriptor_ = -1;            // the folder, which the lock is on
  bool locked_ = false;            // no other run saves here
  std::vector<std::string> made_;  // folders, the outermost first
};

}  // namespace sheaf::io
