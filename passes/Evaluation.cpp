#include "passes/Evaluation.h"

#include "ir/Train/TrainDialect.h"
#include "passes/StepModule.h"

using namespace mlir;

namespace sheaf {

void becomeEvaluation(ModuleOp module) {
  func::FuncOp function = zero::stepOf(module);
  for (int64_t i = int64_t(function.getNumArguments()) - 1; i >= 0; --i)
    // The mask also says that rows may be left out, which those of an output may even if nothing sums over them.
    if (function.getArgument(i).use_empty() && !function.getArgAttr(i, "train.row_mask"))
      (void)function.eraseArgument(i);
  function.setName("evaluation");
  for (auto parameter : module.getOps<train::ParameterOp>()) parameter.setTrainable(false);
  if (Attribute origin = module->removeAttr("train.origin")) module->setAttr("train.evaluation_origin", origin);
}

LogicalResult attachEvaluation(ModuleOp training, ModuleOp evaluation) {
  SymbolTable symbols(training);
  for (auto parameter : llvm::make_early_inc_range(evaluation.getOps<train::ParameterOp>())) {
    auto known = symbols.lookup<train::ParameterOp>(parameter.getSymName());
    if (!known) {
      parameter->moveBefore(zero::stepOf(training));
      continue;
    }
    if (known.getType() != parameter.getType() || known.getPermutation() != parameter.getPermutation())
      return parameter.emitError("parameter '" + parameter.getSymName() + "' has another type or layout in the " +
                                 "evaluation than in the training step; compile without --eval");
  }
  func::FuncOp function = zero::evaluationOf(evaluation), step = zero::stepOf(training);
  for (unsigned i = 0; i < function.getNumArguments(); ++i)
    for (unsigned j = 0; j < step.getNumArguments(); ++j)
      if (function.getArgAttr(i, "train.name") == step.getArgAttr(j, "train.name") &&
          (function.getArgument(i).getType() != step.getArgument(j).getType() || function.getArgAttr(i, "train.whole")))
        return function.emitError("input ")
               << function.getArgAttr(i, "train.name")
               << " has another type or shape in the evaluation than in the training step, or is the same for all "
                  "rows there; give --batch, or compile without --eval";
  function->remove();
  training.push_back(function);
  if (Attribute origin = evaluation->getAttr("train.evaluation_origin"))
    training->setAttr("train.evaluation_origin", origin);
  return success();
}

}  // namespace sheaf
