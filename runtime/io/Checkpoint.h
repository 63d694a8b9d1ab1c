// Saved training state.
//
//   DIR/latest               the name of the newest state's folder
//   DIR/step-00000100/
//     manifest.json          {"checksum", "state": step, samples, updates, length, seeds, ranks, run, files, ...}
//     rank-00000.safetensors pieces of parameters and optimizer states, named KIND/BEGIN/PARAMETER: KIND is `parameter`
//                            or the state's name, BEGIN the piece's first element in the plan's layout of the parameter
//
// Pieces are ranges of a parameter's elements, so a state can be read back on any number of ranks, at any stage and
// with any buckets. A folder is written under a temporary name, synced, and renamed when whole.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/Json.h"
#include "runtime/base/Status.h"
#include "runtime/io/Safetensors.h"
#include "runtime/plan/CpuIdentity.h"

namespace sheaf::io {

inline constexpr const char* kParameterKind = "parameter";

struct SavedParameter {
  std::string name;
  DataType type = DataType::F32;
  std::vector<int64_t> shape, permutation;  // as in the plan
  std::vector<std::string> states;          // f32 each
  bool frozen = false;                      // the run did not change it
  bool operator==(const SavedParameter&) const = default;
};

// Of a run that scales its loss.
struct LossScaleState {
  double scale = 0;       // of the next step
  int64_t goodSteps = 0;  // since it last changed
  bool operator==(const LossScaleState&) const = default;
};

// The length of the training that a state is of, and what its steps count.
struct TrainingLength {
  int64_t steps = 0;     // number of steps of the whole training
  std::string schedule;  // of the learning rate, with its own length
  int64_t batch = 1;     // rows per step
  int64_t rows = 0;      // number of rows of the data; 0: they come through a pipe
  bool operator==(const TrainingLength&) const = default;
};
// Returns an error unless a state after `step` steps can be of such a training.
Status checkLength(const TrainingLength& length, int64_t step);

// The run that saved a state. A training that is interrupted and resumed is several runs.
struct RunLineage {
  uint64_t number = 0;                 // random; 0 in states of 0.1.0, which do not have it
  std::vector<uint64_t> earlier = {};  // the runs that it goes on from, the oldest first: the last kMostEarlierRuns
  bool operator==(const RunLineage&) const = default;
};
inline constexpr size_t kMostEarlierRuns = 64;

struct Manifest {
  int64_t step = 0;     // steps done: the number of the next one
  int64_t samples = 0;  // read so far
  int64_t updates = 0;  // applied so far
  int64_t seed = 0;
  std::optional<int64_t> shuffleSeed;
  std::optional<LossScaleState> lossScale;
  std::optional<TrainingLength> length;  // absent in states of 0.1.0
  RunLineage run = {};
  std::optional<plan::CpuIdentity> cpu;  // on which the run computed; absent in states of 0.1.0 and of GPUs
  int64_t ranks = 1, zeroStage = 0;      // of the run that saved it
  std::string model, optimizer;
  std::vector<SavedParameter> parameters;
  struct File {
    std::string name;
    uint64_t size = 0, checksum = 0;  // XXH64
  };
  std::vector<File> files;
};

std::string manifestText(const Manifest& manifest);
Expected<Manifest> parseManifest(std::string_view text);

// The folder's name for a step, and the step of such a name.
std::string stepFolder(int64_t step);
std::optional<int64_t> stepOfFolder(const std::string& name);
// Whether a state's folder has a manifest and every file that it names, with its size. What is in them is not read.
bool hasAllFiles(const std::string& folder);
// Returns true if the folder itself is a saved state, even a damaged one: it has a manifest.json and another file of a
// state, or the manifest is valid. The manifest.json of another program does not count.
bool isState(const std::string& folder);
// Returns the manifest of the state in a folder. The error names the file.
Expected<Manifest> readManifest(const std::string& folder);

class CheckpointWriter {
 public:
  static Expected<CheckpointWriter> create(const std::string& folder, int64_t step);
  // A part of what another process has created under a name: files can be written, but not committed.
  static Expected<CheckpointWriter> join(const std::string& folder, const std::string& name);
  CheckpointWriter(CheckpointWriter&&) noexcept;
  CheckpointWriter& operator=(CheckpointWriter&&) noexcept;
  ~CheckpointWriter();  // without commit(), nothing remains

  // The name of the temporary folder, for join().
  std::string name() const { return temporary_.substr(temporary_.rfind('/') + 1); }
  // Where a file of the state is to be written.
  std::string path(const std::string& file) const { return temporary_ + "/" + file; }
  // Writes the manifest, gives the folder its name and updates `latest`.
  Status commit(const Manifest& manifest);

 private:
  CheckpointWriter() = default;
  std::string folder_, name_, temporary_;
  bool ours_ = true;  // to remove or commit
};

// Several processes may open a state together: each verifies the checksums of every count-th file, and agree() settles
// whether the state is whole: it returns the same for all, given each one's opinion of a state.
struct SharedReading {
  size_t index = 0, count = 1;
  std::function<Status(const std::string& state, const Status& mine)> agree;
};

// A state that was read and found whole: every file has its size and checksum, and the pieces cover every parameter and
// state exactly once.
class Checkpoint {
 public:
  static Expected<Checkpoint> open(const std::string& folder, const SharedReading& shared = {});
  // The newest state in a folder of states (or that folder itself, if it is one state's): the one that `latest` names,
  // else the one with most steps. If it is damaged, the error names it and the newest of the others that is not. A
  // folder without a manifest is passed over with a warning.
  static Expected<Checkpoint> openNewest(const std::string& folder, const std::function<void(const std::string&)>& warn,
                                         const SharedReading& shared = {});

  const Manifest& manifest() const { return manifest_; }
  const std::string& folder() const { return folder_; }

  struct Piece {
    uint64_t begin = 0;
    std::span<const std::byte> data;
  };
  // The pieces of a parameter's values (kParameterKind) or of one of its states, in order.
  const std::vector<Piece>& pieces(const std::string& kind, const std::string& parameter) const;
  // Gives back the memory of a piece that has been read.
  void release(const Piece& piece) const;

 private:
  static Expected<Checkpoint> openAlone(const std::string& folder, const SharedReading& shared);
  Status openFile(const Manifest::File& file, bool verify);
  Status checkCoverage() const;

  std::string folder_;
  Manifest manifest_;
  std::vector<Safetensors> files_;
  std::map<std::pair<std::string, std::string>, std::vector<Piece>> pieces_;
};

// The paths of the files of a state.
std::vector<std::string> checkpointFiles(const Checkpoint& checkpoint);

}  // namespace sheaf::io
