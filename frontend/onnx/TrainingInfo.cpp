#include "frontend/onnx/TrainingInfo.h"

using namespace mlir;

namespace sheaf::frontend {

FailureOr<std::unique_ptr<TrainingForm>> TrainingForm::read(const Model& model) {
  auto error = [&] { return emitError(model.location()) << "training_info: "; };
  if (model.proto().training_info_size() != 1)
    return error() << "only one training algorithm is supported, the model has " << model.proto().training_info_size();
  const onnx::TrainingInfoProto& info = model.proto().training_info(0);
  std::unique_ptr<TrainingForm> form(new TrainingForm(info.algorithm()));
  return form;
}

LogicalResult TrainingForm::emitOptimizers(Emitter& emit, ModuleOp module, const Model& model) const {
  return success();
}

}  // namespace sheaf::frontend
