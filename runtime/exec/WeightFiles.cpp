#include "runtime/exec/WeightFiles.h"

#include <unistd.h>

#include "runtime/base/Hash.h"
#include "runtime/base/Text.h"

namespace sheaf::exec {

WeightFiles::WeightFiles(const plan::Plan& plan, std::string planFolder, std::string weightsFolder)
    : plan_(plan),
      planFolder_(std::move(planFolder)),
      weightsFolder_(std::move(weightsFolder)),
      files_(static_cast<size_t>(plan.files_size())),
      opened_(static_cast<size_t>(plan.files_size())) {}

std::string WeightFiles::pathOf(const plan::File& file) const {
  if (weightsFolder_.empty()) return planFolder_ + "/" + file.path();
  const std::string path = weightsFolder_ + "/" + file.path();
  if (access(path.c_str(), F_OK) == 0) return path;
  return weightsFolder_ + "/" + file.path().substr(file.path().rfind('/') + 1);
}

Expected<MappedFile> WeightFiles::open(const plan::File& file) const {
  const std::string path = pathOf(file);
  Expected<MappedFile> mapped = MappedFile::open(path);
  if (!mapped.ok())
    return Status::error(
        cat("initial weights: ", mapped.status().message(),
            "; --weights-dir DIR says where the weight files are, --weights W.safetensors replaces them"));
  if (file.size() == 0) return mapped;  // the file did not exist when the plan was compiled
  if (mapped->bytes().size() != file.size())
    return Status::error(cat("initial weights: ", path, " has ", mapped->bytes().size(),
                             " bytes, the plan was made from ", file.size(), "; compile again or restore the file"));
  if (fileHash(mapped->bytes()) != file.hash())
    return Status::error(cat("initial weights: ", path, " has changed since the plan was made: its first ",
                             bytesText(std::min<uint64_t>(file.size(), kFileHashBytes)),
                             " have another hash; compile again or restore the file"));
  return mapped;
}

Expected<std::span<const std::byte>> WeightFiles::bytes(
    const plan::Source& source, const std::function<bool(uint64_t begin, uint64_t end)>& reads) {
  size_t index = source.file();
  if (!opened_[index]) {
    Expected<MappedFile> file = open(plan_.files(static_cast<int>(index)));
    if (!file.ok()) return file.status();
    files_[index] = std::move(*file);
    opened_[index] = true;
  }
  Expected<std::span<const std::byte>> slice = files_[index].slice(source.offset(), source.length());
  if (!slice.ok()) return Status::error(cat("initial weights: ", slice.status().message()));
  const std::span<const std::byte> bytes = *slice;
  for (int i = 0; i < source.hashes_size(); ++i) {
    const uint64_t begin = static_cast<uint64_t>(i) * kSourceHashBytes;
    const uint64_t end = std::min(begin + kSourceHashBytes, source.length());
    if (reads(begin, end) && xxh64(bytes.subspan(begin, end - begin)) != source.hashes(i))
      return Status::error(cat("initial weights: ", files_[index].path(),
                               " has changed since the plan was made: its bytes [", source.offset() + begin, ", ",
                               source.offset() + end, ") have another hash; compile again or restore the file"));
  }
  return bytes;
}

}  // namespace sheaf::exec
