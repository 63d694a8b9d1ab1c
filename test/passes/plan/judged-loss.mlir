// Rules that skip updates of bad steps read scalars that follow from the gradient norm and from the loss of all ranks.
// RUN: sheaf-opt %s -split-input-file -zero-form-buckets="stage=2" -zero-gather-parameters -zero-reduce-gradients -zero-place-updates -plan-lower | FileCheck %s

// CHECK: plan.all_reduce {{.*}}w %loss[0 : 4]) stream 1 "loss"
// CHECK: plan.write_output loss(r %loss[0 : 4])
// CHECK: plan.call "gradient_norm" {buckets = 1 : i64, judged = 1 : i64, ranks = 2 : i64}({{.*}}w %norm_scalars[0 : 8], r %loss[0 : 4])
// CHECK: plan.launch {{.*}}r %norm_scalars[4 : 4]
module attributes {train.ranks = 2 : i64, train.batch = 8 : i64} {
  train.parameter @w : tensor<128xf32> {trainable = true}
  train.optimizer @sgd states [] scalars [#train.scalar<finite, 0.0 : f64>] {
  ^bb0(%p: tensor<f32>, %g: tensor<f32>, %f: tensor<f32>):
    %n = train.mul %g, %f : tensor<f32>
    train.yield %n : tensor<f32>
  }
  func.func @step(%x: tensor<128xf32> {train.name = "x"}) {
    %w = train.read @w : tensor<128xf32>
    %z = train.reshape %w : tensor<128xf32> -> tensor<128x1xf32>
    %o = train.reshape %x : tensor<128xf32> -> tensor<1x128xf32>
    %m = train.matmul %o, %z : tensor<1x128xf32>, tensor<128x1xf32> -> tensor<1x1xf32>
    %l = train.reshape %m : tensor<1x1xf32> -> tensor<f32>
    train.loss %l : tensor<f32>
    train.update @w by @sgd, %x : tensor<128xf32>
    return
  }
}

// -----

// If a bad step ends the run, the host looks at the loss.
// CHECK: plan.call "gradient_norm" {buckets = 1 : i64, ranks = 2 : i64}
module attributes {train.ranks = 2 : i64, train.batch = 8 : i64} {
  train.parameter @w : tensor<128xf32> {trainable = true}
  train.optimizer @sgd states [] scalars [] {
  ^bb0(%p: tensor<f32>, %g: tensor<f32>):
    train.yield %g : tensor<f32>
  }
  func.func @step(%x: tensor<128xf32> {train.name = "x"}) {
    %w = train.read @w : tensor<128xf32>
    %z = train.reshape %w : tensor<128xf32> -> tensor<128x1xf32>
    %o = train.reshape %x : tensor<128xf32> -> tensor<1x128xf32>
    %m = train.matmul %o, %z : tensor<1x128xf32>, tensor<128x1xf32> -> tensor<1x1xf32>
    %l = train.reshape %m : tensor<1x1xf32> -> tensor<f32>
    train.loss %l : tensor<f32>
    train.update @w by @sgd, %x : tensor<128xf32>
    return
  }
}
