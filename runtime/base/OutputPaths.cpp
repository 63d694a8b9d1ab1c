#include "runtime/base/OutputPaths.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <string_view>

#include "runtime/base/Text.h"

namespace sheaf {
namespace {

namespace fs = std::filesystem;

// Endings that people and programs take for the name of a format.
constexpr std::string_view kFormats[] = {
    "bin",  "ckpt", "csv", "data", "gguf", "gz", "h5",  "hdf5",        "html", "json",   "jsonl", "mlir", "npy", "npz",
    "onnx", "pb",   "pkl", "plan", "prom", "pt", "pth", "safetensors", "tar",  "tflite", "tsv",   "yaml", "yml", "zip"};

bool isOneFile(const std::string& a, const std::string& b) {
  std::error_code error;
  if (fs::exists(a, error) && !fs::is_regular_file(a, error)) return false;
  if (fs::equivalent(a, b, error) && !error) return true;
  // A file that is still to be made may be named in two ways, too: by links to its folder.
  auto whole = [&](const std::string& path) { return fs::weakly_canonical(fs::absolute(path, error), error); };
  const fs::path first = whole(a);
  return !error && !first.empty() && first == whole(b) && !error;
}

}  // namespace

Status checkOutputPaths(std::span<const NamedFile> outputs, std::span<const NamedFile> inputs) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].path.empty()) continue;
    for (const NamedFile& input : inputs)
      if (!input.path.empty() && isOneFile(outputs[i].path, input.path))
        return Status::error(cat(outputs[i].name, " ", outputs[i].path, " is the file of ", input.name,
                                 ", which is read: give another name"));
    for (const NamedFile& other : outputs.first(i))
      if (!other.path.empty() && isOneFile(outputs[i].path, other.path))
        return Status::error(
            cat(outputs[i].name, " ", outputs[i].path, " is the file of ", other.name, ", too: give another name"));
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
