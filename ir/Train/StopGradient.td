// The op that stops gradients. Apart from the other ops, which every pass sees: it is gone after train-differentiate.
#ifndef SHEAF_TRAIN_STOP_GRADIENT
#define SHEAF_TRAIN_STOP_GRADIENT

include "ir/Train/TrainBase.td"

def Train_StopGradientOp : Train_Op<"stop_gradient", [Pure, Elementwise, SameOperandsAndResultType]> {
  let summary = "its operand, through which no gradient passes";
  let description = [{
    PyTorch's `Tensor.detach`. The pass train-differentiate replaces it by its operand.
  }];
  let arguments = (ins Train_FloatTensor:$operand);
  let results = (outs Train_FloatTensor:$result);
  let assemblyFormat = "$operand attr-dict `:` type($result)";
  let hasFolder = 1;
}

#endif
