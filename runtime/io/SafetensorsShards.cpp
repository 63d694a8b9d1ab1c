#include "runtime/io/SafetensorsShards.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "runtime/base/AtomicFile.h"
#include "runtime/base/FileLock.h"
#include "runtime/base/Json.h"
#include "runtime/base/NewFiles.h"
#include "runtime/base/Text.h"
#include "runtime/base/WriteAt.h"
#include "runtime/plan/Types.h"

namespace sheaf::io {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kIndexEnding = ".safetensors.index.json";
constexpr const char* kIndexOfFolder = "model.safetensors.index.json";
constexpr const char* kFileOfFolder = "model.safetensors";
constexpr uint64_t kMaxIndexBytes = 1 << 28;
// In the index's metadata: of a save of ours, whose files are ours to remove.
constexpr const char* kSavedBy = "saved_by";
constexpr const char* kSheaf = "sheaf";

Status cannot(const char* what, const std::string& path) {
  return Status::error(cat("cannot ", what, " ", path, ": ", std::strerror(errno)));
}

std::string shardName(const std::string& prefix, size_t number, size_t count) {
  char text[64];
  std::snprintf(text, sizeof text, "-%05zu-of-%05zu.safetensors", number, count);
  return prefix + text;
}

// What stands before the ending of an index's name, and in front of its files' names.
std::string prefixOf(const std::string& index) {
  const std::string name = fs::path(index).filename().string();
  return name.substr(0, name.size() - kIndexEnding.size());
}

bool isShardName(const std::string& name, const std::string& prefix) {
  if (!name.starts_with(prefix + "-")) return false;
  const std::string rest = name.substr(prefix.size());
  size_t number = 0, count = 0;
  return std::sscanf(rest.c_str(), "-%zu-of-%zu.", &number, &count) == 2 && shardName("", number, count) == rest;
}

Expected<json::Value> readIndex(const std::string& path) {
  Expected<MappedFile> file = MappedFile::open(path);
  if (!file.ok()) return file.status();
  if (file->bytes().size() > kMaxIndexBytes) return Status::error(cat(path, ": it is too large for an index"));
  Expected<json::Value> index =
      json::parse({reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size()});
  return index.ok() ? std::move(index) : Status::error(cat(path, ": ", index.status().message()));
}

// The files that an index of ours names, in the way in which it names files. None of an index that is not ours.
std::set<std::string> ownFiles(const std::string& path, const std::string& prefix) {
  std::set<std::string> files;
  Expected<json::Value> index = readIndex(path);
  const json::Object* root = index.ok() ? index->object() : nullptr;
  const json::Value *metadata = root ? root->find("metadata") : nullptr,
                    *map = root ? root->find("weight_map") : nullptr;
  if (!metadata || !metadata->object() || !map || !map->object()) return files;
  const json::Value* by = metadata->object()->find(kSavedBy);
  if (!by || !by->string() || *by->string() != kSheaf) return files;
  for (const auto& [tensor, file] : map->object()->members())
    if (file.string() && isShardName(*file.string(), prefix)) files.insert(*file.string());
  return files;
}

}  // namespace

bool isShardIndex(const std::string& path) {
  return path.ends_with(kIndexEnding) && fs::path(path).filename() != kIndexEnding;
}

bool isShardOf(const std::string& index, const std::string& file) {
  if (!isShardIndex(index)) return false;
  std::error_code error;
  for (const fs::path& path : {fs::path(file), fs::weakly_canonical(file, error)})
    if (isShardName(path.filename().string(), prefixOf(index)) &&
        fs::equivalent(folderOf(index), folderOf(path.string()), error) && !error)
      return true;
  return false;
}

std::vector<std::string> weightPaths(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return {path};
  return {cat(path, "/", kIndexOfFolder), cat(path, "/", kFileOfFolder)};
}

Expected<ShardWriter> ShardWriter::make(const std::string& index, const Entries& entries, uint64_t shardBytes) {
  Expected<std::string> random = randomSuffix();
  if (!random.ok()) return random.status();
  Expected<ShardWriter> writer = layOut(index, entries, shardBytes, std::move(*random));
  if (writer.ok()) SHEAF_RETURN_IF_ERROR(writer->makeFiles());
  return writer;
}

Expected<ShardWriter> ShardWriter::join(const std::string& index, const Entries& entries, uint64_t shardBytes,
                                        const std::string& random) {
  // It comes from another process, and becomes a part of a path.
  if (!isRandomSuffix(random))
    return Status::error(cat("'", random.substr(0, 100), "' is not a random name of files of ", index));
  return layOut(index, entries, shardBytes, random);
}

Expected<ShardWriter> ShardWriter::layOut(const std::string& index, const Entries& entries, uint64_t shardBytes,
                                          std::string random) {
  ShardWriter writer;
  writer.random_ = std::move(random);
  writer.index_ = index;
  writer.folder_ = folderOf(index);
  uint64_t total = 0, inShard = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    std::optional<uint64_t> count = plan::elementCount(entries[i].shape);
    const uint64_t size = bytesOf(entries[i].type);
    if (!count || *count > INT64_MAX / size)
      return Status::error(cat("tensor '", entries[i].name, "': shape ", shapeText(entries[i].shape), " is too large"));
    const uint64_t bytes = *count * size;
    if (writer.shards_.empty() || (inShard > 0 && (bytes > shardBytes || inShard > shardBytes - bytes))) {
      writer.shards_.emplace_back().firstTensor = i;
      inShard = 0;
    }
    inShard += bytes;
    total += bytes;
    ++writer.shards_.back().tensors;
  }
  const std::string prefix = prefixOf(index);
  for (size_t s = 0; s < writer.shards_.size(); ++s) {
    Shard& shard = writer.shards_[s];
    shard.name = shardName(prefix, s + 1, writer.shards_.size());
    Expected<SafetensorsHead> head =
        safetensorsHead(std::span(entries).subspan(shard.firstTensor, shard.tensors), {{"format", "pt"}});
    if (!head.ok()) return head.status();
    shard.head = std::move(*head);
    for (size_t t = 0; t < shard.tensors; ++t) {
      const uint64_t begin = shard.head.begins[t];
      const uint64_t end = t + 1 < shard.tensors ? shard.head.begins[t + 1] : shard.head.fileBytes;
      writer.places_.push_back({s, begin, end - begin});
      writer.shardOf_[entries[shard.firstTensor + t].name] = s;
    }
  }
  writer.total_ = total;
  return writer;
}

std::string ShardWriter::indexText() const {
  json::Object map;
  for (const auto& [tensor, shard] : shardOf_) map.set(tensor, shards_[shard].name);
  return json::write(json::Object{{"metadata", json::Object{{kSavedBy, kSheaf}, {"total_size", total_}}},
                                  {"weight_map", std::move(map)}},
                     2) +
         "\n";
}

std::string ShardWriter::temporary(size_t shard) const {
  return temporaryPath(cat(folder_, "/", shards_[shard].name), random_);
}

// With room for all of it: a full disk is noticed before anything is computed for it.
Status ShardWriter::makeFiles() {
  for (size_t s = 0; s < shards_.size(); ++s) {
    const std::string path = temporary(s);
    const int file = createExclusive(path);
    if (file < 0) return cannot("write", cat(folder_, "/", shards_[s].name));
    made_ = s + 1;
    const off_t bytes = static_cast<off_t>(shards_[s].head.fileBytes);
    Status status;
    if (fallocate(file, 0, 0, bytes) != 0 && (errno != EOPNOTSUPP || ftruncate(file, bytes) != 0))
      status = cannot("make room for", path);
    if (status.ok() && !writeAt(file, std::as_bytes(std::span(shards_[s].head.bytes)), 0))
      status = cannot("write", path);
    if (status.ok() && fsync(file) != 0) status = cannot("sync", path);
    close(file);
    SHEAF_RETURN_IF_ERROR(status);
  }
  return {};
}

ShardWriter::ShardWriter(ShardWriter&& other) noexcept {
  *this = std::move(other);
}

ShardWriter& ShardWriter::operator=(ShardWriter&& other) noexcept {
  std::swap(index_, other.index_);
  std::swap(folder_, other.folder_);
  std::swap(shardOf_, other.shardOf_);
  std::swap(total_, other.total_);
  std::swap(shards_, other.shards_);
  std::swap(places_, other.places_);
  std::swap(open_, other.open_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(random_, other.random_);
  std::swap(made_, other.made_);
  return *this;
}

ShardWriter::~ShardWriter() {
  if (descriptor_ >= 0) close(descriptor_);
  for (size_t s = 0; s < made_; ++s) unlink(temporary(s).c_str());
}

Status ShardWriter::open(size_t shard) {
  if (descriptor_ >= 0 && open_ == shard) return {};
  SHEAF_RETURN_IF_ERROR(sync());
  const std::string path = temporary(shard);
  descriptor_ = openExisting(path);
  if (descriptor_ < 0 && errno == ENOENT)
    return Status::error(cat(path, " is not there, though process 0 has made it: the folder must be on a file system ",
                             "that all processes share"));
  if (descriptor_ < 0) return cannot("write", path);
  open_ = shard;
  return {};
}

Status ShardWriter::write(size_t tensor, uint64_t at, std::span<const std::byte> bytes) {
  const Place& place = places_[tensor];
  if (at > place.bytes || bytes.size() > place.bytes - at)
    return Status::error("more bytes of a tensor are written than it has");
  SHEAF_RETURN_IF_ERROR(open(place.shard));
  return writeAt(descriptor_, bytes, place.begin + at) ? Status() : cannot("write", temporary(place.shard));
}

Status ShardWriter::sync() {
  if (descriptor_ < 0) return {};
  const int file = std::exchange(descriptor_, -1);
  Status status;
  if (fsync(file) != 0) status = cannot("sync", temporary(open_));
  if (close(file) != 0 && status.ok()) status = cannot("close", temporary(open_));
  return status;
}

Status ShardWriter::commit(std::chrono::milliseconds limit) {
  SHEAF_RETURN_IF_ERROR(sync());
  // Serialises the renames: two saves must not interleave them.
  Expected<FileLock> lock = FileLock::take(lockPath(index_), limit);
  if (!lock.ok()) return commitSeparately(lock.status());
  // A run that was killed in a save may have left one. If its new index is there, what it had still to remove is
  // removed now; else at the end of this save.
  if (access(index_.c_str(), F_OK) == 0) SHEAF_RETURN_IF_ERROR(removeReplaced());
  if (rename(index_.c_str(), replaced().c_str()) != 0 && errno != ENOENT) return cannot("replace", index_);
  SHEAF_RETURN_IF_ERROR(syncFolder(folder_));
  SHEAF_RETURN_IF_ERROR(nameFiles());
  return removeReplaced();
}

Status ShardWriter::commitSeparately(const Status& why) {
  std::vector<std::string> made;
  for (size_t s = 0; s < shards_.size(); ++s) made.push_back(temporary(s));
  const std::string prefix = cat(prefixOf(index_), ".", random_);
  for (size_t s = 0; s < shards_.size(); ++s) {
    shards_[s].name = shardName(prefix, s + 1, shards_.size());
    if (rename(made[s].c_str(), temporary(s).c_str()) != 0) return cannot("name", made[s]);
  }
  index_ = cat(folder_, "/", prefix, kIndexEnding);
  Status status = nameFiles();
  return status.ok() ? Status::error(cat(why.message(), "; these weights are in ", index_)) : status;
}

Status ShardWriter::nameFiles() {
  for (size_t s = 0; s < shards_.size(); ++s)
    if (const std::string path = cat(folder_, "/", shards_[s].name); rename(temporary(s).c_str(), path.c_str()) != 0)
      return cannot("name", path);
  made_ = 0;
  SHEAF_RETURN_IF_ERROR(syncFolder(folder_));
  Expected<AtomicFile> index = AtomicFile::create(index_);
  if (!index.ok()) return index.status();
  SHEAF_RETURN_IF_ERROR(index->write(std::as_bytes(std::span<const char>(indexText()))));
  return index->commit();
}

Status ShardWriter::removeReplaced() const {
  const std::string prefix = prefixOf(index_);
  std::set<std::string> files = ownFiles(replaced(), prefix);
  for (const std::string& file : ownFiles(index_, prefix)) files.erase(file);
  for (const std::string& file : files)
    if (const std::string path = cat(folder_, "/", file); unlink(path.c_str()) != 0 && errno != ENOENT)
      return cannot("remove the file of an earlier save,", path);
  return unlink(replaced().c_str()) == 0 || errno == ENOENT ? Status() : cannot("remove", replaced());
}

Expected<Safetensors> Safetensors::openWeights(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return isShardIndex(path) ? openIndex(path) : open(path);
  const fs::path index = fs::path(path) / kIndexOfFolder, file = fs::path(path) / kFileOfFolder;
  if (fs::exists(index, error)) return openIndex(index.string());
  if (fs::exists(file, error)) return open(file.string());
  return Status::error(cat(path, " is a folder with neither ", kIndexOfFolder, " nor ", kFileOfFolder));
}

Expected<Safetensors> Safetensors::openIndex(const std::string& path) {
  Expected<json::Value> index = readIndex(path);
  if (!index.ok()) return index.status();
  auto wrong = [&](const std::string& why) { return Status::error(cat(path, ": ", why)); };
  const json::Value* map = index->object() ? index->object()->find("weight_map") : nullptr;
  if (!map || !map->object()) return wrong("it has no object 'weight_map', so it is not an index of safetensors files");
  Safetensors result;
  std::map<std::string, Safetensors> shards;
  for (const auto& [name, value] : map->object()->members()) {
    const std::string* shard = value.string();
    // It is joined to the folder's path: it must be a name, not a path.
    if (!shard || shard->empty() || shard->front() == '.' || shard->find('/') != std::string::npos ||
        shard->find('\0') != std::string::npos)
      return wrong(cat("tensor '", name.substr(0, 200), "' is not in a file of this folder"));
    auto found = shards.find(*shard);
    if (found == shards.end()) {
      Expected<Safetensors> opened = open(cat(folderOf(path), "/", *shard));
      if (!opened.ok()) return wrong(cat("of the files that it names: ", opened.status().message()));
      found = shards.emplace(*shard, std::move(*opened)).first;
    }
    const Tensor* tensor = found->second.find(name);
    if (!tensor) return wrong(cat("tensor '", name.substr(0, 200), "' is not in ", *shard, ", where it is said to be"));
    result.tensors_.emplace(name, *tensor);
  }
  for (auto& [name, shard] : shards)
    for (MappedFile& mapped : shard.files_) result.files_.push_back(std::move(mapped));
  return result;
}

}  // namespace sheaf::io
