// With a loss scale the norm is that of scaled gradients, and all updates wait for it.
// RUN: sheaf-opt %s -zero-form-buckets="stage=2" -zero-gather-parameters -zero-reduce-gradients -zero-place-updates -zero-verify-stage | FileCheck %s

// CHECK: %[[G:.*]] = zero.reduce_scatter @bucket0
// CHECK: %[[P:.*]] = zero.square_sum @bucket0 %[[G]]
// CHECK: %{{.*}}, %[[SCALARS:.*]] = zero.gradient_norm %[[P]] clip scaled :
// CHECK: zero.update @bucket0 %[[G]] scalars %[[SCALARS]]
module attributes {train.ranks = 2 : i64} {
  train.parameter @w : tensor<128xf32> {trainable = true}
  train.optimizer @sgd states [] scalars [#train.scalar<clip_scale, 0.0 : f64>, #train.scalar<finite, 0.0 : f64>] {
  ^bb0(%p: tensor<f32>, %g: tensor<f32>, %c: tensor<f32>, %f: tensor<f32>):
    %n = train.mul %g, %c : tensor<f32>
    train.yield %n : tensor<f32>
  }
  func.func @step(%x: tensor<128xf32> {train.name = "x"}) {
    %w = train.read @w : tensor<128xf32>
    %y = train.mul %w, %x : tensor<128xf32>
    %z = train.reduce sum %y [0] : tensor<128xf32> -> tensor<1xf32>
    %l = train.reshape %z : tensor<1xf32> -> tensor<f32>
    train.loss %l : tensor<f32>
    %s = train.loss_scale : tensor<f32>
    %r = train.reshape %s : tensor<f32> -> tensor<1xf32>
    %b = train.broadcast %r : tensor<1xf32> -> tensor<128xf32>
    %d = train.mul %b, %x : tensor<128xf32>
    train.update @w by @sgd, %d : tensor<128xf32>
    return
  }
}
