// The options of `sheaf compile`: their table, which of them exclude each other, and what follows from them.
#pragma once

#include <string>
#include <vector>

#include "codegen/emit/Emit.h"
#include "passes/Choose.h"
#include "runtime/base/Status.h"
#include "tools/sheaf/Command.h"
#include "tools/sheaf/Trained.h"

namespace sheaf::tool {

struct CompileOptions : TrainedOptions {
  std::string output, phase = "emit", format = "text";
  codegen::KernelTargets targets;
  ChooseOptions choose;
  std::string profile;
  std::string gemmEpilogues = "auto", keep = "auto", secondary = "auto";
  std::string like;  // path of a plan
  bool verbose = false, noWeightHashes = false, noGraph = false;
  double predictedSeconds = 0;  // the step's, on the profile
  std::string deepSpeed;        // path of a configuration
  std::vector<std::string> ignored;
};

options::Table compileTable();

// Refuses options that have no use together.
Status checkTogether(const CompileOptions& options, const options::Given& given);

// Refuses options of the command line that have no use in this job, or notes it on stderr where they are harmless.
// `typed`: without those of --like and --deepspeed.
Status checkUses(const CompileOptions& options, const options::Given& typed);

// Derives what follows from the options.
Status complete(CompileOptions& options);

}  // namespace sheaf::tool
