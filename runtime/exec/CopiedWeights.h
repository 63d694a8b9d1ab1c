// Tensors of the model that are in no bucket (Plan.copied), for files of weights.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/comm/process/ProcessGroup.h"
#include "runtime/exec/WeightFiles.h"
#include "runtime/io/Safetensors.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::exec {

class CopiedWeights {
 public:
  // Looks for the tensors in `replacement` (null: there is none), then where the plan says that they lie; constants of
  // the step only there. `note` gets the names of those in neither, which are left out. All processes call it; what
  // process 0 can read decides. The arguments must outlive this object.
  static Expected<CopiedWeights> find(const plan::Plan& plan, WeightFiles& files, const io::Safetensors* replacement,
                                      comm::ProcessGroup* processes,
                                      const std::function<void(const std::string&)>& note);

  // The tensors that were found, in the plan's order.
  const std::vector<const plan::Parameter*>& tensors() const { return tensors_; }
  std::vector<io::SafetensorsWriter::Entry> entries() const;
  // Passes a tensor's bytes, in the type and the layout of its entry, to `visit`. On process 0 only.
  Status read(const plan::Parameter& tensor, const std::function<Status(std::span<const std::byte>)>& visit) const;

 private:
  CopiedWeights(WeightFiles& files, const io::Safetensors* replacement) : files_(&files), replacement_(replacement) {}
  // The tensor in the file that replaces the model's; null if it is not there.
  Expected<const io::Tensor*> replaced(const plan::Parameter& tensor) const;
  // An error says why the tensor cannot be had.
  Status available(const plan::Parameter& tensor) const;

  WeightFiles* files_;
  const io::Safetensors* replacement_;
  std::vector<const plan::Parameter*> tensors_;
};

}  // namespace sheaf::exec
