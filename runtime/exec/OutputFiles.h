// The tensors of an evaluation as .npy files: the rows of all batches and ranks in the order of the data.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/exec/Job.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::exec {

class OutputFiles {
 public:
  // Returns an error unless `folder` is one or can be made, and no output would replace a folder. Makes nothing.
  static Status check(const plan::Plan& plan, const std::string& folder);
  // Returns the paths of the files in the order of Plan.outputs.
  static std::vector<std::string> paths(const plan::Plan& plan, const std::string& folder);

  // Makes `folder` and in it a file NAME.npy for each entry of Plan.outputs; characters that a file's name should not
  // have become '_'. Process 0 creates them, so that every process must see the folder. An output without rows has one
  // entry for each batch, or, of a single batch, just its own shape.
  static Expected<std::unique_ptr<OutputFiles>> create(const plan::Plan& plan, const std::string& folder, uint64_t rows,
                                                       Job& job);
  ~OutputFiles();
  OutputFiles(const OutputFiles&) = delete;

  // A rank's tensor of a batch; rows that only fill the last batch are left out. Threads may call it together.
  Status write(int64_t rank, uint32_t output, int64_t batch, std::span<const std::byte> tensor) const;

  // After the last write of all ranks: gives the files their names. Files that have none by the end are removed.
  Status commit();
  std::vector<std::string> paths() const;

 private:
  struct File {
    std::string path, temporary;
    int descriptor = -1;
    bool made = false;   // `temporary`, by this process, and not yet renamed
    uint64_t begin = 0;  // of the elements
    // The tensor is outer x (rows of a rank) x inner bytes; without rows all of it is `inner`.
    uint64_t outer = 1, inner = 0;
    bool hasRows = false;
  };
  OutputFiles(const plan::Plan& plan, uint64_t rows, Job& job) : plan_(plan), rows_(rows), job_(job) {}
  Status open(File& file, const std::string& header, uint64_t bytes);

  const plan::Plan& plan_;
  const uint64_t rows_;  // of the data
  Job& job_;
  std::string folder_, random_;  // the random name of all temporary files
  std::vector<File> files_;
};

}  // namespace sheaf::exec
