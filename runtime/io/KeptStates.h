// A folder of saved states (Checkpoint.h) of which only the newest are kept: `sheaf-run --keep-saves`.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/base/Status.h"

namespace sheaf::io {

class KeptStates {
 public:
  // Makes the folder if there is none, and locks it where the file system can: a second run in it is refused.
  static Expected<KeptStates> open(const std::string& folder, int64_t keep);
  KeptStates(KeptStates&& other) noexcept;
  KeptStates& operator=(KeptStates&& other) noexcept;
  ~KeptStates();

  // After the state of `step` has been committed: removes all but the newest `keep` whole states of at most so many
  // steps, and what killed runs have left. States of later steps, which an earlier run may have saved, stay. A state
  // that is to be removed first loses its name, so that a name never stands for a part of a state.
  Status prune(int64_t step) const;

 private:
  KeptStates() = default;
  std::string folder_;
  int64_t keep_ = 0;
  int descriptor_ = -1;
  bool locked_ = false;
};

}  // namespace sheaf::io
