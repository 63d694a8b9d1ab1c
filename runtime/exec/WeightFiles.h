// The files of a plan's initial weights.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "runtime/base/MappedFile.h"
#include "runtime/base/Status.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::exec {

class WeightFiles {
 public:
  // Paths are relative to `planFolder`. With a non-empty `weightsFolder` they are searched there instead: first the
  // whole path, then the file name.
  WeightFiles(const plan::Plan& plan, std::string planFolder, std::string weightsFolder);

  // The bytes of a source. Maps the file at first use; its size and the hash of its head must be those in the plan.
  Expected<std::span<const std::byte>> bytes(const plan::Source& source);

 private:
  Expected<MappedFile> open(const plan::File& file) const;

  const plan::Plan& plan_;
  std::string planFolder_, weightsFolder_;
  std::vector<MappedFile> files_;
  std::vector<bool> opened_;
};

}  // namespace sheaf::exec
