// The rules by name, their scalars, and the guards; numbers are checked in test/ir/training_test.cpp.
// RUN: sheaf-opt %s -train-add-optimizer=optimizer=sgd:lr=0.1,momentum=0.9 | FileCheck %s --check-prefix=SGD
// RUN: sheaf-opt %s -train-add-optimizer=optimizer=adamw | FileCheck %s --check-prefix=ADAMW
// RUN: sheaf-opt %s -train-add-optimizer="clip=true skip=true" | FileCheck %s --check-prefix=OWN

// SGD: module attributes {train.lr = 1.000000e-01 : f64, train.rule = "sgd:lr=0.1,momentum=0.9"}
// SGD-NOT: @own
// SGD: train.optimizer @optimizer states ["momentum"]
// SGD-SAME: scalars [#train.scalar<constant, 9.000000e-01 : f64>, #train.scalar<lr_times, -1.000000e+00 : f64>]
// SGD: ^bb0(%[[P:.*]]: tensor<f32>, %[[G:.*]]: tensor<f32>, %[[M:.*]]: tensor<f32>, %[[MU:.*]]: tensor<f32>, %[[LR:.*]]: tensor<f32>):
// SGD-NEXT: %[[NEXT:.*]] = train.fma %[[MU]], %[[M]], %[[G]]
// SGD-NEXT: %[[NEW:.*]] = train.fma %[[LR]], %[[NEXT]], %[[P]]
// SGD-NEXT: train.yield %[[NEW]], %[[NEXT]]
// SGD: train.update @w by @optimizer

// ADAMW: module attributes {train.lr = 1.000000e-03 : f64, train.rule = "adamw"}
// ADAMW: train.optimizer @optimizer states ["exp_avg", "exp_avg_sq"]
// ADAMW-SAME: #train.scalar<one_minus_lr_times, 1.000000e-02 : f64>
// ADAMW-SAME: #train.scalar<sqrt_bias_correction, 0.99899
// ADAMW-SAME: #train.scalar<lr_over_bias_correction, 9.000000e-01 : f64>

// The model's own optimizer is kept, and guarded: the gradient is scaled first, and every result chosen last.
// OWN-NOT: train.lr
// OWN-NOT: @optimizer
// OWN: train.optimizer @own states ["sum"]
// OWN-SAME: #train.scalar<lr_times, 2.000000e+00 : f64>, #train.scalar<clip_scale, 0.000000e+00 : f64>, #train.scalar<finite, 0.000000e+00 : f64>]
// OWN: ^bb0(%[[P:.*]]: tensor<f32>, %[[G:.*]]: tensor<f32>, %[[S:.*]]: tensor<f32>, %[[LR:.*]]: tensor<f32>, %[[SCALE:.*]]: tensor<f32>, %[[FINITE:.*]]: tensor<f32>):
// OWN-NEXT: %[[SCALED:.*]] = train.mul %[[G]], %[[SCALE]]
// OWN-NEXT: %[[SUM:.*]] = train.fma %[[SCALED]], %[[SCALED]], %[[S]]
// OWN-NEXT: %[[STEP:.*]] = train.mul %[[SCALED]], %[[LR]]
// OWN-NEXT: %[[NEW:.*]] = train.sub %[[P]], %[[STEP]]
// OWN: %[[APPLY:.*]] = train.compare gt %[[FINITE]]
// OWN: %[[KEPT:.*]] = train.select %[[APPLY]], %[[NEW]], %[[P]]
// OWN: %[[KEPTS:.*]] = train.select %[[APPLY]], %[[SUM]], %[[S]]
// OWN: train.yield %[[KEPT]], %[[KEPTS]]
// OWN: train.update @w by @own
module {
  train.parameter @w : tensor<4xf32> {trainable = true}
  train.optimizer @own states ["sum"] scalars [#train.scalar<lr_times, 2.0 : f64>] {
  ^bb0(%p: tensor<f32>, %g: tensor<f32>, %s: tensor<f32>, %lr: tensor<f32>):
    %0 = train.fma %g, %g, %s : tensor<f32>
    %1 = train.mul %g, %lr : tensor<f32>
    %2 = train.sub %p, %1 : tensor<f32>
    train.yield %2, %0 : tensor<f32>, tensor<f32>
  }
  func.func @step(%g: tensor<4xf32>) {
    train.update @w by @own, %g : tensor<4xf32>
    return
  }
}
