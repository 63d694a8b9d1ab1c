// The files of a plan's initial weights.
#pragma once

#include <functional>
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

  // The bytes of a source. Maps the file at first use; its size and the hash of its head must be those in the plan, if
  // it states them. So must be the hash of each piece [begin, end) of the source of which `reads` says that it is read.
  Expected<std::span<const std::byte>> bytes(const plan::Source& source,
                                             const std::function<bool(uint64_t begin, uint64_t end)>& reads);
  // Returns the path of a file.
  std::string pathOf(const plan::File& file) const;
  // Gives back the memory of a source's bytes, which have been read.
  void release(const plan::Source& source, std::span<const std::byte> bytes) const {
    files_[source.file()].release(bytes);
  }

 private:
  Expected<MappedFile> open(const plan::File& file) const;

  const plan::Plan& plan_;
  std::string planFolder_, weightsFolder_;
  std::vector<MappedFile> files_;
  std::vector<bool> opened_;
};

}  // namespace sheaf::exec
