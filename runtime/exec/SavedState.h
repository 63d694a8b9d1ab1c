// Saves and loads the whole state of a run; see io/Checkpoint.h for the format.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/exec/StateAccess.h"
#include "runtime/io/Checkpoint.h"

namespace sheaf::exec {

// The position of a run: steps, samples and seeds, and the length of its training.
struct RunPosition {
  int64_t step = 0, updates = 0;
  uint64_t samples = 0;
  std::optional<int64_t> shuffleSeed;
  std::optional<io::LossScaleState> lossScale;  // of a run that scales its loss
  std::optional<io::TrainingLength> length;     // absent in states of 0.1.0
  std::optional<plan::CpuIdentity> cpu;         // on which the run computes
  io::RunLineage run = {};
};

// Writes FOLDER/step-N with one file per rank, which holds its part of every bucket, and updates FOLDER/latest. Every
// process calls it and writes the files of its ranks; process 0 renames the folder when all are written. All get the
// same status.
Status saveState(const StateAccess& state, const std::string& folder, const RunPosition& position);

// The parts of saveState(), for saves that go on while the run does (StateSaver.h). Process 0 creates the folder and
// tells the others its name, so that every process calls openState().
Expected<io::CheckpointWriter> openState(const StateAccess& state, const std::string& folder, int64_t step);
io::Manifest manifestOf(const plan::Plan& plan, const RunPosition& position);  // without files
std::string rankFile(int64_t rank);
// Its tensors are in savedParts()' order.
Expected<io::SafetensorsWriter> createRankFile(const std::string& path, const plan::Plan& plan, int64_t rank);

// Names the parameters of a plan that differ from the state's, by what they begin with.
struct StateFit {
  std::vector<std::string> initial;  // frozen, and not in the state: their initial values
  std::vector<std::string> fresh;    // trained, and frozen in the state: optimizer states of zero
  std::vector<std::string> settled;  // frozen, and trained in the state: their optimizer states are left out
};
// An error unless the state has exactly the plan's parameters and, of those that both train, optimizer states, in the
// plan's layout. But what is frozen may be in one of them alone, as what only an evaluation reads. The error names the
// option that gave the state.
Expected<StateFit> checkState(const plan::Plan& plan, const io::Checkpoint& checkpoint, const char* option);
// Reads and writes the state of the loss scale, if the plan has one: the position's scale and number of updates. What a
// position lacks, or a plan fixes, is as at the start of a run. All ranks hold the same.
Status readLossScale(const StateAccess& state, RunPosition& position);
Status writeLossScale(const StateAccess& state, RunPosition& position);
// The same from the bytes of the buffer of its state.
void setLossScale(RunPosition& position, std::span<const std::byte> state);
// Loads parameters and optimizer states, saved by any number of ranks, into the ranks' storage.
Status loadState(const StateAccess& state, const io::Checkpoint& checkpoint);

}  // namespace sheaf::exec
