// The backward pass starts from the loss scale; every rule divides by it and keeps what it had where gradients overflow.
// RUN: sheaf-opt %s -train-differentiate=scaled=true -train-add-optimizer="optimizer=sgd:lr=0.1,momentum=0.9 scaled=true" | FileCheck %s
// RUN: sheaf-opt %s -train-differentiate=scaled=true -train-add-optimizer="optimizer=sgd:lr=0.1 clip=true scaled=true" | FileCheck %s --check-prefix=CLIPPED
// RUN: sheaf-opt %s -train-differentiate -train-add-optimizer="optimizer=sgd:lr=0.1" | FileCheck %s --check-prefix=NONE

// Running statistics are not gradients of the loss: their rule is not scaled, but a skipped step leaves them, too.
// CHECK: train.optimizer @running_statistics states [] scalars [#train.scalar<finite, 0.000000e+00 : f64>]
// CHECK: train.optimizer @optimizer states ["momentum"] scalars [{{.*}}#train.scalar<clip_scale, 0.000000e+00 : f64>, #train.scalar<finite, 0.000000e+00 : f64>]
// CHECK: ^bb0(%[[P:.*]]: tensor<f32>, %[[G:.*]]: tensor<f32>, %[[M:.*]]: tensor<f32>, %[[MU:.*]]: tensor<f32>, %{{.*}}: tensor<f32>, %[[SCALE:.*]]: tensor<f32>, %[[FINITE:.*]]: tensor<f32>):
// CHECK-NEXT: %[[SCALED:.*]] = train.mul %[[G]], %[[SCALE]]
// CHECK-NEXT: %[[NEXT:.*]] = train.fma %[[MU]], %[[M]], %[[SCALED]]
// CHECK: %[[APPLY:.*]] = train.compare gt %[[FINITE]]
// CHECK: train.select %[[APPLY]], %{{.*}}, %[[P]]
// CHECK: train.select %[[APPLY]], %[[NEXT]], %[[M]]
// CHECK-LABEL: func.func @step
// CHECK: train.loss
// CHECK: %[[SEED:.*]] = train.loss_scale : tensor<f32>
// CHECK: train.broadcast %{{.*}} : tensor<1xf32> -> tensor<128xf32>
// CHECK: train.update @w by @optimizer
// CLIPPED: #train.scalar<clip_scale
// CLIPPED-NOT: #train.scalar<clip_scale
// CLIPPED: train.loss_scale
// NONE-NOT: clip_scale
// NONE-NOT: finite
// NONE-NOT: train.loss_scale
module {
  train.parameter @w : tensor<128xf32> {trainable = true}
  train.parameter @mean : tensor<128xf32> {trainable = false, train.statistics}
  train.optimizer @running_statistics states [] scalars [] attributes {train.statistics} {
  ^bb0(%old: tensor<f32>, %moment: tensor<f32>):
    train.yield %moment : tensor<f32>
  }
  func.func @step(%x: tensor<128xf32>) {
    train.update @mean by @running_statistics, %x {train.statistics} : tensor<128xf32>
    %w = train.read @w : tensor<128xf32>
    %y = train.mul %w, %x : tensor<128xf32>
    %z = train.reduce sum %y [0] : tensor<128xf32> -> tensor<1xf32>
    %l = train.reshape %z : tensor<1xf32> -> tensor<f32>
    train.loss %l : tensor<f32>
    return
  }
}
