// One error, which names the group.
// RUN: not sheaf-opt %s -train-add-optimizer='optimizer=sgd groups={w:speed=3}' 2>&1 | FileCheck %s --check-prefix=KEY
// RUN: not sheaf-opt %s -train-add-optimizer='optimizer=sgd groups={w:lr=-1}' 2>&1 | FileCheck %s --check-prefix=RANGE
// RUN: not sheaf-opt %s -train-add-optimizer='optimizer=sgd groups={w:nesterov=true}' 2>&1 | FileCheck %s --check-prefix=NESTEROV
// RUN: not sheaf-opt %s -train-add-optimizer='optimizer=sgd groups={w:lr=1},{head:lr=0.1}' 2>&1 | FileCheck %s --check-prefix=NOTHING
// RUN: sheaf-opt %s -train-add-optimizer='optimizer=sgd groups={w:lr=1},{.:nesterov=false}' 2>&1 | FileCheck %s --check-prefix=HIDDEN
// RUN: not sheaf-opt %s -train-add-optimizer='optimizer=sgd groups={*:lr=0.1}' 2>&1 | FileCheck %s --check-prefix=PATTERN
// RUN: not sheaf-opt %s -train-add-optimizer='optimizer=sgd groups=w' 2>&1 | FileCheck %s --check-prefix=FORM
// RUN: not sheaf-opt %s -train-add-optimizer='groups={w:lr=1}' 2>&1 | FileCheck %s --check-prefix=OWN
// RUN: not sheaf-opt %s -train-add-optimizer='no-decay=true' 2>&1 | FileCheck %s --check-prefix=OWN-DECAY

// KEY: error: --group 'w:speed=3': optimizer sgd has no 'speed': it takes lr, momentum, nesterov, weight_decay, dampening
// RANGE: error: --group 'w:lr=-1': optimizer sgd: 'lr' is '-1', not a number of at least 0
// NESTEROV: error: --group 'w:nesterov=true': optimizer sgd: nesterov needs a momentum greater than 0
// NOTHING: error: --group 'head:lr=0.1' matches no parameter that is trained: there are w, v
// HIDDEN: warning: --group 'w:lr=1' has no effect: later ones match each of its parameters, and only the last one that matches counts; give it after them, or put all settings into one
// PATTERN: error: --group '*:lr=0.1': '*' is not a regular expression
// FORM: error: --group 'w': expected REGEX:key=value,...
// OWN: error: --group changes an optimizer's hyperparameters, and the model has update rules of its own: name one with --optimizer
// OWN-DECAY: error: --no-decay changes an optimizer's hyperparameters
module {
  train.parameter @w : tensor<4xf32> {trainable = true}
  train.parameter @v : tensor<4xf32> {trainable = true}
  train.optimizer @own states [] scalars [] {
  ^bb0(%p: tensor<f32>, %g: tensor<f32>):
    train.yield %p : tensor<f32>
  }
  func.func @step(%g: tensor<4xf32>) {
    train.update @w by @own, %g : tensor<4xf32>
    train.update @v by @own, %g : tensor<4xf32>
    return
  }
}
