// Running statistics have a bucket of their own, which is reduced and updated like any other, but does not count in the norm.
// RUN: sheaf-opt %s -zero-form-buckets="stage=0" -zero-gather-parameters -zero-reduce-gradients -zero-place-updates -zero-verify-stage | FileCheck %s --check-prefix=S0
// RUN: sheaf-opt %s -zero-form-buckets="stage=3" -zero-gather-parameters -zero-reduce-gradients -zero-place-updates -zero-verify-stage | FileCheck %s --check-prefix=S3

// S0: zero.bucket @statistics0 f32 elements 256 parameters [@mean, @variance] offsets [0, 128] {optimizer = @running_statistics}
// S0: zero.bucket @bucket1 f32 elements 128 parameters [@w] offsets [0] {optimizer = @sgd}
// S0: %[[M:.*]] = zero.all_reduce @statistics0(%arg0, %arg0)
// S0-NOT: zero.square_sum @statistics0
// S0: zero.update @statistics0 %[[M]] : tensor<256xf32>
// S0: %[[G:.*]] = zero.all_reduce @bucket1
// S0: %[[P:.*]] = zero.square_sum @bucket1 %[[G]]
// S0: zero.gradient_norm %[[P]] clip :
// S0: zero.update @bucket1

// Nothing gathers what the step does not read.
// S3-NOT: zero.all_gather @statistics0
// S3: %[[M:.*]] = zero.reduce_scatter @statistics0(%arg0, %arg0) : (tensor<128xf32>, tensor<128xf32>) -> tensor<64xf32>
// S3-NOT: zero.square_sum @statistics0
// S3: zero.update @statistics0 %[[M]] : tensor<64xf32>
// S3: zero.update @bucket1
module attributes {train.ranks = 4 : i64} {
  train.parameter @w : tensor<128xf32> {trainable = true}
  train.parameter @mean : tensor<128xf32> {trainable = false, train.statistics}
  train.parameter @variance : tensor<128xf32> {trainable = false, train.statistics}
  train.optimizer @running_statistics states [] scalars [] attributes {train.statistics} {
  ^bb0(%old: tensor<f32>, %moment: tensor<f32>):
    train.yield %moment : tensor<f32>
  }
  train.optimizer @sgd states [] scalars [#train.scalar<clip_scale, 0.0 : f64>] {
  ^bb0(%p: tensor<f32>, %g: tensor<f32>, %c: tensor<f32>):
    %n = train.mul %g, %c : tensor<f32>
    train.yield %n : tensor<f32>
  }
  func.func @step(%x: tensor<128xf32> {train.name = "x"}) {
    train.update @mean by @running_statistics, %x {train.statistics} : tensor<128xf32>
    train.update @variance by @running_statistics, %x {train.statistics} : tensor<128xf32>
    %w = train.read @w : tensor<128xf32>
    %y = train.mul %w, %x : tensor<128xf32>
    %z = train.reduce sum %y [0] : tensor<128xf32> -> tensor<1xf32>
    train.loss %z : tensor<1xf32>
    train.update @w by @sgd, %x : tensor<128xf32>
    return
  }
}
