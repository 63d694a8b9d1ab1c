// A bucket holds parameters of one group, which has an optimizer of its own, in the order of first use.
// RUN: sheaf-opt %s -zero-form-buckets="stage=3 bucket-bytes=4096" | FileCheck %s

// CHECK: zero.bucket @bucket0 f32 elements 128 parameters [@w1, @w2] offsets [0, 64] {optimizer = @optimizer}
// CHECK: zero.bucket @bucket1 f32 elements 64 parameters [@b1, @b2] offsets [0, 32] {optimizer = @optimizer.1}
// CHECK: zero.bucket @bucket2 f32 elements 64 parameters [@head] offsets [0] {optimizer = @optimizer.2}
// CHECK-NOT: zero.bucket
module attributes {train.ranks = 2 : i64} {
  train.parameter @w1 : tensor<64xf32> {trainable = true}
  train.parameter @b1 : tensor<32xf32> {trainable = true}
  train.parameter @w2 : tensor<64xf32> {trainable = true}
  train.parameter @b2 : tensor<32xf32> {trainable = true}
  train.parameter @head : tensor<64xf32> {trainable = true}
  train.optimizer @optimizer states [] scalars [] {
  ^bb0(%p: tensor<f32>, %g: tensor<f32>):
    train.yield %p : tensor<f32>
  }
  train.optimizer @optimizer.1 states [] scalars [] {
  ^bb0(%p: tensor<f32>, %g: tensor<f32>):
    train.yield %g : tensor<f32>
  }
  train.optimizer @optimizer.2 states [] scalars [] {
  ^bb0(%p: tensor<f32>, %g: tensor<f32>):
    train.yield %g : tensor<f32>
  }
  func.func @step() {
    %0 = train.read @w1 : tensor<64xf32>
    %1 = train.read @b1 : tensor<32xf32>
    %2 = train.read @w2 : tensor<64xf32>
    %3 = train.read @b2 : tensor<32xf32>
    %4 = train.read @head : tensor<64xf32>
    train.update @w1 by @optimizer, %0 : tensor<64xf32>
    train.update @b1 by @optimizer.1, %1 : tensor<32xf32>
    train.update @w2 by @optimizer, %2 : tensor<64xf32>
    train.update @b2 by @optimizer.1, %3 : tensor<32xf32>
    train.update @head by @optimizer.2, %4 : tensor<64xf32>
    return
  }
}
