// What a run reads and settles before it takes memory. Everything that can be wrong with its files and options is found
// here, except what cannot be written.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/Json.h"
#include "runtime/base/Status.h"
#include "runtime/device/Device.h"
#include "runtime/exec/Job.h"
#include "runtime/exec/Run.h"
#include "runtime/exec/SavedState.h"
#include "runtime/io/Checkpoint.h"
#include "runtime/io/DataSource.h"
#include "runtime/io/Safetensors.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::exec {

struct RunInputs {
  std::string planPath;
  std::unique_ptr<plan::Plan> plan;  // proved
  uint64_t planHash = 0;             // the hash of its file
  plan::Training training;           // the plan's, with what options replace
  plan::Training::ReduceOrder reduceOrder = plan::Training::TREE;
  std::string target;                        // the device: cpu or cuda
  RunPosition position;                      // at which it starts
  int64_t steps = 0;                         // of the whole training: the step at which the run ends
  std::optional<FileState> fileState;        // of files that outlive the run, if it resumes them
  std::optional<io::Checkpoint> checkpoint;  // that it resumes
  bool initialValues = false;                // of parameters that the checkpoint lacks
  std::optional<io::DataSource> data, evaluationData;
  std::optional<io::Safetensors> weights;
  std::string lastSaved;  // the newest saved state, if there is one
  std::string tracePath;  // of this process
  uint64_t sendRate = 0;  // see networkRate()
  std::vector<std::string> warnings, notes;
};

// Processes of a job call it together.
Expected<RunInputs> readInputs(const RunOptions& options, RunControl& control, Job& job);

// What must be the same in all processes, a line for each option and input.
Expected<std::vector<std::string>> factsOf(const RunInputs& inputs, const RunOptions& options);

// Fails if --tuned, --transport or --allow-mixed-hosts means nothing to this device.
Status checkDeviceOptions(const RunOptions& options, std::string_view device);

// Returns the bytes of host memory of each rank through which states are saved.
uint64_t stagingOfARank(const plan::Plan& plan, const RunOptions& options);

// Returns the folder that --resume goes on from after this run; empty if it leaves no state.
const std::string& stateFolder(const RunInputs& inputs, const RunOptions& options);

// Returns the log's event of a run that starts.
json::Object startEvent(const RunInputs& inputs, const RunOptions& options, const Job& job);

}  // namespace sheaf::exec
