#include "runtime/exec/OutputConflicts.h"

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/AtomicFile.h"
#include "runtime/base/OutputPaths.h"
#include "runtime/base/Text.h"
#include "runtime/exec/OutputFiles.h"
#include "runtime/exec/WeightFiles.h"
#include "runtime/io/SafetensorsShards.h"
#include "runtime/io/StateFolder.h"
#include "runtime/plan/RankMemory.h"

namespace sheaf::exec {
namespace {

namespace fs = std::filesystem;

std::vector<NamedFile> filesRead(const RunOptions& options, const RunInputs& in) {
  std::vector<NamedFile> files{{"the plan", in.planPath}};
  for (const std::string& plan : options.plans) files.push_back({"the plan", plan});
  const WeightFiles weights(*in.plan, folderOf(in.planPath), options.weightsFolder);
  for (const plan::File& file : in.plan->files()) files.push_back({"the plan's initial weights", weights.pathOf(file)});
  if (in.weights) {
    for (const std::string& path : io::weightPaths(options.weights)) files.push_back({"--weights", path});
    for (const MappedFile& file : in.weights->files()) files.push_back({"--weights", file.path()});
  }
  for (const auto& [name, data] : {std::pair("--data", &in.data), std::pair("--eval-data", &in.evaluationData)})
    if (*data)
      for (const io::DataFile& file : (*data)->files()) files.push_back({name, file.path()});
  if (in.checkpoint)
    for (const std::string& path : io::checkpointFiles(*in.checkpoint)) files.push_back({"--resume", path});
  return files;
}

// Includes the folders step-N that already exist: evaluations between steps write into such folders.
Expected<std::vector<NamedFile>> outputsOf(const RunOptions& options, const plan::Plan& plan) {
  std::vector<NamedFile> files;
  if (options.outputs.empty()) return files;
  std::vector<std::string> folders{options.outputs};
  std::error_code error;
  if (!options.evaluate)
    for (const auto& entry : fs::directory_iterator(options.outputs, error))
      if (io::stepOfFolder(entry.path().filename())) folders.push_back(entry.path().string());
  for (const std::string& folder : folders) {
    SHEAF_RETURN_IF_ERROR(OutputFiles::check(plan, folder));
    if (options.evaluate || folder != options.outputs)
      for (std::string& path : OutputFiles::paths(plan, folder)) files.push_back({"--outputs", std::move(path)});
  }
  return files;
}

// The folders where the run itself names files, whose paths are resolved once for all files.
class NamingFolders {
 public:
  NamingFolders(const RunOptions& options, const plan::Plan& plan) : options_(options) {
    if (!options.saveState.empty()) states_ = canonicalPath(options.saveState);
    if (plan::peakBytes(plan, plan::Buffer::FILE) == 0) return;
    for (const std::string& given : options.offloadFolders) offload_.emplace_back(given, canonicalPath(given));
  }

  // Refuses a file whose name is one that the run gives there.
  Status check(const NamedFile& file, bool written) const {
    if (file.path.empty()) return {};
    const fs::path path = canonicalPath(file.path), folder = path.parent_path();
    const std::string name = path.filename();
    auto refused = [&](const char* option, const std::string& given) {
      return Status::error(cat(file.name, " ", file.path, " has the name of a file of ", option, " ", given,
                               ": give another name or folder"));
    };
    auto refusedAsFolder = [&](const char* option, const std::string& given) {
      return Status::error(
          cat(file.name, " ", file.path, " and ", option, " ", given, " have the same path: give one of them another"));
    };
    if (!options_.saveState.empty()) {
      if (path == states_) return refusedAsFolder("--save-state", options_.saveState);
      if (folder == states_ && (name == io::kLatestFile || io::stepOfFolder(name)))
        return refused("--save-state", options_.saveState);
      if (written && folder.parent_path() == states_ && io::stepOfFolder(folder.filename().string()) &&
          io::isStateFileName(name))
        return refused("--save-state", options_.saveState);
    }
    for (const auto& [given, where] : offload_) {
      if (path == where) return refusedAsFolder("--offload-dir", given);
      if (folder == where && name.starts_with("rank-") && (name.ends_with(".arena") || name.ends_with(".commit")))
        return refused("--offload-dir", given);
    }
    return {};
  }

 private:
  const RunOptions& options_;
  fs::path states_;
  std::vector<std::pair<std::string, fs::path>> offload_;  // as given, and resolved
};

}  // namespace

Status checkOutputConflicts(const RunOptions& options, const RunInputs& in) {
  std::vector<NamedFile> written{{"--log", options.log},    {"--metrics-file", options.metrics},
                                 {"--save", options.save},  {"--dump-gradients", options.gradients},
                                 {"--trace", in.tracePath}, {"--tuned", options.tuned}};
  if (io::isShardIndex(options.save)) {
    written.push_back({"--save", options.save + ".replaced"});
    constexpr size_t kMaxName = 240;  // a file system takes 255 bytes, and a save adds to the name
    if (fs::path(options.save).filename().string().size() > kMaxName)
      return Status::error(cat("--save ", options.save, ": give a name of at most ", kMaxName, " bytes"));
  }
  Expected<std::vector<NamedFile>> outputs = outputsOf(options, *in.plan);
  if (!outputs.ok()) return outputs.status();
  written.insert(written.end(), outputs->begin(), outputs->end());
  const std::vector<NamedFile> read = filesRead(options, in);
  SHEAF_RETURN_IF_ERROR(checkOutputPaths(written, read));
  const NamingFolders folders(options, *in.plan);
  for (const std::vector<NamedFile>* files : {&read, static_cast<const std::vector<NamedFile>*>(&written)})
    for (const NamedFile& file : *files) {
      SHEAF_RETURN_IF_ERROR(folders.check(file, files == &written));
      if (!file.path.empty() && io::isShardOf(options.save, file.path))
        return Status::error(cat("--save ", options.save, " would replace ", file.path, ", a file of ", file.name,
                                 ": give another folder or name"));
    }
  return {};
}

}  // namespace sheaf::exec
