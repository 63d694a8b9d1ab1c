#include "runtime/base/OutputPaths.h"

#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <optional>
#include <string_view>

#include "runtime/base/Text.h"

namespace sheaf {
namespace {

namespace fs = std::filesystem;

// Endings that people and programs take for the name of a format.
constexpr std::string_view kFormats[] = {"bin",  "ckpt", "csv",    "data", "gguf", "gz",  "h5",   "hdf5",
                                         "html", "json", "jsonl",  "mlir", "npy",  "npz", "onnx", "pb",
                                         "pdf",  "pkl",  "plan",   "png",  "prom", "pt",  "pth",  "safetensors",
                                         "svg",  "tar",  "tflite", "tsv",  "yaml", "yml", "zip"};

// Says which file a path stands for.
struct Identity {
  bool special = false;             // a device, such as /dev/null, or a socket: nothing is replaced there
  std::optional<struct stat> file;  // links are followed
  fs::path canonical;
};

Identity identityOf(const std::string& path) {
  Identity identity;
  struct stat info;
  if (::stat(path.c_str(), &info) == 0) {
    identity.special = S_ISCHR(info.st_mode) || S_ISBLK(info.st_mode) || S_ISSOCK(info.st_mode);
    identity.file = info;
  }
  identity.canonical = canonicalPath(path);
  return identity;
}

bool isOneFile(const Identity& a, const Identity& b) {
  if (a.special || b.special) return false;
  if (a.file && b.file && a.file->st_dev == b.file->st_dev && a.file->st_ino == b.file->st_ino) return true;
  return !a.canonical.empty() && a.canonical == b.canonical;
}

std::vector<Identity> identitiesOf(std::span<const NamedFile> files) {
  std::vector<Identity> identities;
  for (const NamedFile& file : files) identities.push_back(file.path.empty() ? Identity() : identityOf(file.path));
  return identities;
}

}  // namespace

fs::path canonicalPath(const fs::path& path) {
  std::error_code error;
  const fs::path absolute = fs::absolute(path, error);
  fs::path canonical = error ? fs::path() : fs::weakly_canonical(absolute, error);
  if (error) return {};
  // A path that does not exist and ends in a slash keeps an empty last component.
  return canonical.has_filename() || !canonical.has_relative_path() ? canonical : canonical.parent_path();
}

Status checkOutputPaths(std::span<const NamedFile> outputs, std::span<const NamedFile> inputs) {
  const std::vector<Identity> written = identitiesOf(outputs), read = identitiesOf(inputs);
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].path.empty()) continue;
    for (size_t k = 0; k < inputs.size(); ++k)
      if (isOneFile(written[i], read[k]))
        return Status::error(cat(outputs[i].name, " ", outputs[i].path, " is the file of ", inputs[k].name,
                                 ", which is read: give another name"));
    for (size_t k = 0; k < i; ++k)
      if (isOneFile(written[i], written[k]))
        return Status::error(cat(outputs[i].name, " ", outputs[i].path, " is the file of ", outputs[k].name,
                                 ", too: give another name"));
  }
  return {};
}

Status checkOutputEnding(const NamedFile& output, std::span<const std::string> endings) {
  std::string name = fs::path(output.path).filename().string();
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const std::string extension = fs::path(name).extension().string();
  if (endings.empty() || extension.empty()) return {};
  for (const std::string& good : endings)
    if (name.ends_with("." + good)) return {};
  if (std::find(std::begin(kFormats), std::end(kFormats), extension.substr(1)) == std::end(kFormats)) return {};
  std::vector<std::string> dotted;
  for (const std::string& good : endings) dotted.push_back("." + good);
  return Status::error(cat(output.name, " ", output.path, ": ", extension,
                           " says another format than the one that is written; give a name that ends in ",
                           listText(dotted)));
}

}  // namespace sheaf
