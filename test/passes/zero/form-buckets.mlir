// Buckets hold parameters of one kind in order of first use, members and shards at multiples of 128 bytes.
// RUN: sheaf-opt %s -zero-form-buckets="stage=3 bucket-bytes=4096" | FileCheck %s

// CHECK: module attributes {{.*}}zero.stage = 3
module attributes {train.ranks = 4 : i64} {
  train.parameter @late : tensor<32xf32> {trainable = true}
  train.parameter @first : tensor<10xf32> {trainable = true}
  train.parameter @frozen : tensor<7xf32> {trainable = false}
  train.parameter @large : tensor<1024xf32> {trainable = true}
  train.optimizer @sgd states [] scalars [] {
  ^bb0(%p: tensor<f32>, %g: tensor<f32>):
    train.yield %p : tensor<f32>
  }
  // 10 elements, padded to 32 before the next member; 1056 elements need 1152 for four shards of 128-byte multiples.
  // CHECK: zero.bucket @bucket0 f32 elements 1152 parameters [@first, @large] offsets [0, 32] {optimizer = @sgd}
  // CHECK: zero.bucket @bucket1 f32 elements 128 parameters [@late] offsets [0] {optimizer = @sgd}
  // CHECK: zero.bucket @bucket2 f32 elements 128 parameters [@frozen] offsets [0]
  // CHECK-NOT: optimizer
  func.func @step() {
    %0 = train.read @first : tensor<10xf32>
    %1 = train.read @frozen : tensor<7xf32>
    %2 = train.read @large : tensor<1024xf32>
    %3 = train.read @late : tensor<32xf32>
    train.update @first by @sgd, %0 : tensor<10xf32>
    train.update @large by @sgd, %2 : tensor<1024xf32>
    train.update @late by @sgd, %3 : tensor<32xf32>
    return
  }
}
