// A whole run of a plan, from its files to its outputs: what `sheaf-run` does.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/device/FileLayer.h"
#include "runtime/io/DataSource.h"
#include "runtime/plan/Proof.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::exec {

struct RunOptions {
  std::string plan;
  std::vector<std::string> plans;      // several: the one for as many ranks as there are processes, or `ranks`
  int64_t ranks = 0;                   // of the plan; 0: any
  std::string weights, weightsFolder;  // replacing, and relocating, what the plan names
  bool weightsPartial = false;         // `weights` may lack parameters
  std::vector<io::DataArgument> data;
  int64_t steps = 0;   // of the whole training, those before a state that the run resumes included; 0: see `epochs`
  int64_t epochs = 0;  // passes over the data, counted from the start of the training; 0: `steps` says how long it runs
  std::optional<int64_t> shuffleSeed;
  std::optional<double> learningRate;
  std::optional<plan::Schedule> schedule;
  int64_t threadsPerRank = 0;  // 0: the machine's cores shared out
  bool poison = false;
  std::vector<std::string> offloadFolders;                 // of the plan's buffers in files
  bool unproved = false;                                   // run a plan that lacks digests, too
  std::string device;                                      // cpu or cuda; empty: that of the plan's first image
  std::string transport = "sockets";                       // between nodes of CPUs; or mpi
  bool allowMixedHosts = false;                            // processes may compute other bits than each other
  bool graphs = true;                                      // of GPUs
  std::optional<plan::Training::ReduceOrder> reduceOrder;  // between GPUs; empty: the plan's
  std::string tuned;  // the file of a table of matrix products on GPUs; made if it does not exist

  bool evaluate = false;  // instead of training
  std::vector<io::DataArgument> evaluationData;
  int64_t evaluateEvery = 0;  // steps between evaluations, of which one follows the last step; 0: none
  std::string outputs;        // folder of the evaluation's tensors

  std::string log, logFolder, metrics, save, saveState, resume, gradients, trace;
  std::string measure;  // instead of training: where the profile is written
  // Most bytes of a file of `save`, if that is an index. transformers 4 has the same default.
  uint64_t shardBytes = 5'000'000'000;
  int64_t saveEvery = 0;  // steps between saved states; 0: at the end only
  // Host memory of each rank through which states are saved while the run goes on, at most what its state takes; 0: the
  // run waits for saves.
  uint64_t saveStaging = 0;
  int64_t keepSaves = 0;  // newest saved states that are kept; 0: all
  bool quiet = false;     // prints warnings and errors alone
  bool silent = false;    // prints no warnings either; the log has them
};

inline plan::Undigested undigested(const RunOptions& options) {
  return options.unproved ? plan::Undigested::kAccepted : plan::Undigested::kRefused;
}

// Between a run and its program.
struct RunControl {
  // Set by the program: asks for an orderly end after the step under way.
  std::atomic<bool> interrupted{false};
  // Set by the run: it was interrupted, and ends in order before its last step.
  bool endedEarly = false;
  // Set by the run: it has failed and only ends. It saves nothing, so a signal need not wait.
  std::atomic<bool> aborting{false};
  // Set by the run: prints a note, from any thread.
  std::function<void(const std::string& text)> note;
  // Called at most once, from any thread, when another process is lost or fails: to report `why` at once, because a
  // launcher may kill this process before it can end (that of MPICH does within some 20 ms).
  std::function<void(const std::string& why)> lost;
  // Returns the program's command with --resume FOLDER. Null if there is no such command.
  std::function<std::string(const std::string& folder)> commandToResume;
  // What a run's files of --offload-dir lie on; null: the system's own.
  FileLayer* files = nullptr;
  // Called at most once, from any thread, if a run that has failed cannot end because the device does not let go: to
  // report `why` and end the process.
  std::function<void(const std::string& why)> abandon;
};

// What a launcher says in the environment makes it one process's part of a job: see Job.h.
Status run(const RunOptions& options, RunControl& control);

}  // namespace sheaf::exec
