// A TensorBoard event file: scalars by tag and step.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/Status.h"

namespace sheaf::io {

class EventFile {
 public:
  using Scalars = std::vector<std::pair<std::string, double>>;  // by tag

  // Makes the folder if it is missing, and a new file in it.
  static Expected<EventFile> create(const std::string& folder);

  // Each record is written at once, so that TensorBoard can follow a run.
  // `step` is the first that will be written: TensorBoard drops what earlier files of the folder have from there on.
  Status start(int64_t step);
  Status write(int64_t step, const Scalars& scalars);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  explicit EventFile(std::string path) : path_(std::move(path)) {}
  Status record(const std::string& bytes);

  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
};

// CRC-32C (RFC 3720, B.4).
uint32_t crc32c(std::string_view bytes);

}  // namespace sheaf::io
