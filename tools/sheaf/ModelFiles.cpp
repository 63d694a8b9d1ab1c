#include "tools/sheaf/ModelFiles.h"

#include <filesystem>
#include <vector>

#include "frontend/onnx/export/Export.h"
#include "runtime/base/OutputPaths.h"
#include "runtime/base/Text.h"
#include "tools/sheaf/Trained.h"

namespace sheaf::tool {

Status keepModelFiles(const std::string& model, const std::string& output) {
  auto context = makeContext();
  // Whatever is wrong with the model is said when it is read.
  mlir::ScopedDiagnosticHandler quiet(context.get(), [](mlir::Diagnostic&) { return mlir::success(); });
  std::vector<NamedFile> inputs{{"the model", model}};
  for (const std::string& file : frontend::externalFiles(*context, model))
    inputs.push_back({"the model's external data", (std::filesystem::path(model).parent_path() / file).string()});
  const std::vector<NamedFile> outputs{{"-o", output}, {cat("the data of -o ", output, ","), output + ".data"}};
  return checkOutputPaths(outputs, inputs);
}

}  // namespace sheaf::tool
