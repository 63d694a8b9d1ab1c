// The files that a plan names for its initial weights.
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
  // Paths are taken relative to `planFolder`, or, if `weightsFolder` is not empty, looked up there, first with their
  // folders, then by their last part.
  WeightFiles(const plan::Plan& plan, std::string planFolder, std::string weightsFolder);

  // The source's bytes. The file is mapped at first use; its size and hash must be those that the plan was made from.
  Expected<std::span<const std::byte>> bytes(const plan::Source& source);

 private:
  Expected<MappedFile> open(const plan::File& file) const;

  const plan::Plan& plan_;
  std::string planFolder_, weightsFolder_;
  std::vector<MappedFile> files_;
  std::vector<bool> opened_;
};

}  // namespace sheaf::exec
