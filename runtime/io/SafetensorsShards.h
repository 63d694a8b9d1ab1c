// Weights in several safetensors files with an index, as Hugging Face's libraries write and read them:
//
//   model.safetensors.index.json        {"metadata": {"saved_by": "sheaf", "total_size": BYTES},
//                                        "weight_map": {TENSOR: FILE, ...}}
//   model-00001-of-00002.safetensors
//   model-00002-of-00002.safetensors
//
// https://huggingface.co/docs/transformers/big_models
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/io/Safetensors.h"

namespace sheaf::io {

// Whether a path is that of an index.
bool isShardIndex(const std::string& path);
// True if a save as `index` may replace `file` (links are resolved) with one of its files.
bool isShardOf(const std::string& index, const std::string& file);

// The paths where Safetensors::openWeights() looks for weights, besides the files that an index names.
std::vector<std::string> weightPaths(const std::string& path);

// Tensors are put into files in the order given, each file as full as `shardBytes` lets it be; a larger tensor has a
// file of its own. Any process that sees the folder may write any bytes of a tensor. The files have other names until
// commit(), which contain a random name: before it nothing of what is there is touched, and two saves to one index do
// not write to each other's files.
class ShardWriter {
 public:
  using Entries = std::vector<SafetensorsWriter::Entry>;
  // Makes the files, commits them, or removes them if there is no commit.
  static Expected<ShardWriter> make(const std::string& index, const Entries& entries, uint64_t shardBytes);
  // Writes into files that another process has made, whose random name is `random`.
  static Expected<ShardWriter> join(const std::string& index, const Entries& entries, uint64_t shardBytes,
                                    const std::string& random);
  ShardWriter(ShardWriter&& other) noexcept;
  ShardWriter& operator=(ShardWriter&& other) noexcept;
  ~ShardWriter();

  const std::string& random() const { return random_; }
  // Bytes of entry `tensor`, from `at` on. Write tensor after tensor: a file is open while its tensors are written.
  Status write(size_t tensor, uint64_t at, std::span<const std::byte> bytes);
  // What this object has written is on the disk.
  Status sync();
  // After all have synced: renames an old index (to `index`.replaced), gives the files their names, and writes the
  // index. So an index never stands for files of which some are of another save. Then it removes the old index, and,
  // if that says that a ShardWriter wrote it, the files that only the old index names. One save at a time does all
  // this: it holds a lock. If another one has the lock for longer than `limit`, the weights get an index and files of
  // names of their own, PREFIX.RANDOM, which the error says.
  Status commit(std::chrono::milliseconds limit = std::chrono::minutes(1));

 private:
  ShardWriter() = default;
  static Expected<ShardWriter> layOut(const std::string& index, const Entries& entries, uint64_t shardBytes,
                                      std::string random);
  Status makeFiles();
  Status open(size_t shard);
  std::string temporary(size_t shard) const;
  std::string replaced() const { return index_ + ".replaced"; }
  std::string indexText() const;
  // Gives the files their names, and writes the index.
  Status nameFiles();
  Status commitSeparately(const Status& why);
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
  std::string index_, folder_, random_;
  std::map<std::string, size_t> shardOf_;  // by tensor: sorted, as Hugging Face's libraries write indexes
  uint64_t total_ = 0;                     // bytes of all tensors
  std::vector<Shard> shards_;
  std::vector<Place> places_;  // of each entry
  size_t open_ = 0;            // the shard that descriptor_ is of
  int descriptor_ = -1;
  size_t made_ = 0;  // temporary files, to be removed
};

}  // namespace sheaf::io
