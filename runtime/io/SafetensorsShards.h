// Weights in several safetensors files with an index, as Hugging Face's libraries write and read them:
//
//   model.safetensors.index.json        {"metadata": {"saved_by": "sheaf", "total_size": BYTES},
//                                        "weight_map": {TENSOR: FILE, ...}}
//   model-00001-of-00002.safetensors
//   model-00002-of-00002.safetensors
//
// https://huggingface.co/docs/transformers/big_models
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/io/Safetensors.h"

namespace sheaf::io {

// Whether a path is that of an index.
bool isShardIndex(const std::string& path);
// True if a save as `index` may give its files the name of `file`.
bool isShardOf(const std::string& index, const std::string& file);

// Tensors are put into files in the order given, each file as full as `shardBytes` lets it be; a larger tensor has a
// file of its own. Any process that sees the folder may write any bytes of a tensor. The files have other names until
// commit(): before it nothing of what is there is touched.
class ShardWriter {
 public:
  enum class Part {
    kMake,  // makes the files, commits them, or removes them if there is no commit
    kJoin,  // writes into files that another process has made
  };
  static Expected<ShardWriter> create(const std::string& index, const std::vector<SafetensorsWriter::Entry>& entries,
                                      uint64_t shardBytes, Part part);
  ShardWriter(ShardWriter&& other) noexcept;
  ShardWriter& operator=(ShardWriter&& other) noexcept;
  ~ShardWriter();

  // Bytes of entry `tensor`, from `at` on. Write tensor after tensor: a file is open while its tensors are written.
  Status write(size_t tensor, uint64_t at, std::span<const std::byte> bytes);
  // What this object has written is on the disk.
  Status sync();
  // After all have synced: renames an old index (to `index`.replaced), gives the files their names, and writes the
  // index. So an index never stands for files of which some are of another save. Then it removes the old index, and,
  // if that says that a ShardWriter wrote it, the files that only the old index names.
  Status commit();

 private:
  ShardWriter() = default;
  Status make();
  Status open(size_t shard);
  std::string temporary(size_t shard) const;
  std::string replaced() const { return index_ + ".replaced"; }
  // Removes the renamed index and its files, but for those that the index now has.
  Status removeReplaced() const;

  struct Shard {
    std::string name;                     // in the folder
    size_t firstTensor = 0, tensors = 0;  // of the entries
    SafetensorsHead head;
  };
  struct Place {
    size_t shard = 0;
    uint64_t begin = 0, bytes = 0;
  };
  std::string index_, folder_, indexText_;
  std::vector<Shard> shards_;
  std::vector<Place> places_;  // of each entry
  size_t open_ = 0;            // the shard that descriptor_ is of
  int descriptor_ = -1;
  bool ours_ = false;  // the temporary files, to be removed
};

}  // namespace sheaf::io
