// safetensors: 8-byte little-endian length, JSON header, data. https://github.com/huggingface/safetensors
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/AtomicFile.h"
#include "runtime/base/Hash.h"
#include "runtime/base/MappedFile.h"
#include "runtime/base/Status.h"
#include "runtime/io/DataType.h"

namespace sheaf::io {

struct Tensor {
  DataType type = DataType::F32;
  std::vector<int64_t> shape;
  std::span<const std::byte> data;
};

// Mapped files. Opening checks everything that the header says: types, that each tensor has the bytes its shape needs,
// and that the tensors cover the data without gap or overlap.
class Safetensors {
 public:
  static Expected<Safetensors> open(const std::string& path);
  // A file; or the tensors of several, which an index names (SafetensorsShards.h); or a folder that has such an index,
  // or one file, under the names that Hugging Face's libraries give them.
  static Expected<Safetensors> openWeights(const std::string& path);
  // For tests: parses bytes that outlive the result.
  static Expected<Safetensors> parse(std::span<const std::byte> file);

  const std::map<std::string, Tensor>& tensors() const { return tensors_; }
  const Tensor* find(const std::string& name) const;
  const std::vector<MappedFile>& files() const { return files_; }
  // Gives back the memory of a tensor that has been read.
  void release(std::span<const std::byte> tensor) const {
    for (const MappedFile& file : files_) file.release(tensor);
  }

 private:
  static Expected<Safetensors> openIndex(const std::string& path);
  std::vector<MappedFile> files_;
  std::map<std::string, Tensor> tensors_;
};

struct SafetensorsHead;

// Writes tensors as a stream, in the order announced; the file appears when all are written.
class SafetensorsWriter {
 public:
  struct Entry {
    std::string name;
    DataType type = DataType::F32;
    std::vector<int64_t> shape;
  };
  static Expected<SafetensorsWriter> create(const std::string& path, const std::vector<Entry>& entries,
                                            const std::map<std::string, std::string>& metadata = {});
  // For what is not read soon: AtomicFile::createDirect().
  static Expected<SafetensorsWriter> createDirect(const std::string& path, const std::vector<Entry>& entries);
  // The next bytes of the data.
  Status write(std::span<const std::byte> bytes);
  // An error if fewer or more bytes were written than announced.
  Status commit();
  // Bytes that have been announced and not yet written.
  uint64_t remaining() const { return remaining_; }
  // Of everything written, header included.
  uint64_t checksum() const { return hash_.digest(); }
  uint64_t size() const { return file_.size(); }

 private:
  static Expected<SafetensorsWriter> begin(const SafetensorsHead& head, Expected<AtomicFile> file);
  explicit SafetensorsWriter(AtomicFile file) : file_(std::move(file)) {}
  AtomicFile file_;
  Xxh64 hash_;
  uint64_t remaining_ = 0;
};

// The beginning of a file: the header and its length.
struct SafetensorsHead {
  std::string bytes;
  std::vector<uint64_t> begins;  // where each entry's bytes begin in the file
  uint64_t fileBytes = 0;
};
Expected<SafetensorsHead> safetensorsHead(std::span<const SafetensorsWriter::Entry> entries,
                                          const std::map<std::string, std::string>& metadata);

}  // namespace sheaf::io
