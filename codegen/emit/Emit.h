// Completes a draft before it is written: kernels are compiled, files are found, and the plan is proved.
#pragma once

#include <string>

#include "codegen/emit/Targets.h"
#include "ir/Plan/Draft.h"
#include "runtime/base/Status.h"

namespace sheaf::codegen {

// Compiles the draft's fusions into one image for each target. The plan's kernels are entries of the images. `notes`
// receives a line about each image. The fusions report what fails.
mlir::LogicalResult compileKernels(plan_ir::Draft& draft, const KernelTargets& targets,
                                   std::vector<std::string>& notes);

// Finds the draft's files, whose paths are relative to `modelFolder`, records size and hash of those that exist and
// makes their paths relative to the folder of `planPath`. Values that lie in no file (computed while importing) are
// written to `planPath`.data; `wroteData` says whether there were any. The caller removes that file if it fails later.
// Then every initial byte of parameters and constants is read, on so many threads, and hashed; with no threads, none
// is.
Status resolveFiles(plan_ir::Draft& draft, const std::string& modelFolder, const std::string& planPath,
                    unsigned hashThreads, bool& wroteData);

// Declares what follows from the rest of a plan, the memory of libraries, memory by kind and the digests of its tables,
// and proves the plan as every program that loads it does. It must not change afterwards. An error is a bug of the
// compiler, but for a batch whose sizes are beyond the limit of library calls.
Status sealPlan(plan::Plan& plan);

}  // namespace sheaf::codegen
