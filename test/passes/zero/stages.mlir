// The stage decides where the collectives stand, and nothing else.
// RUN: sheaf-opt %s -zero-form-buckets="stage=0" -zero-gather-parameters -zero-reduce-gradients -zero-place-updates -zero-verify-stage | FileCheck %s --check-prefix=S0
// RUN: sheaf-opt %s -zero-form-buckets="stage=1" -zero-gather-parameters -zero-reduce-gradients -zero-place-updates -zero-verify-stage | FileCheck %s --check-prefix=S1
// RUN: sheaf-opt %s -zero-form-buckets="stage=2" -zero-gather-parameters -zero-reduce-gradients -zero-place-updates -zero-verify-stage | FileCheck %s --check-prefix=S2
// RUN: sheaf-opt %s -zero-form-buckets="stage=3" -zero-gather-parameters -zero-reduce-gradients -zero-place-updates -zero-verify-stage | FileCheck %s --check-prefix=S3

module attributes {train.ranks = 4 : i64} {
  train.parameter @w : tensor<128xf32> {trainable = true}
  train.optimizer @sgd states [] scalars [] {
  ^bb0(%p: tensor<f32>, %g: tensor<f32>):
    train.yield %p : tensor<f32>
  }
  // S0: %[[P:.*]] = zero.parameters @bucket0
  // S0: zero.view %[[P]] at 0
  // S0: %[[G:.*]] = zero.all_reduce @bucket0({{.*}}) : (tensor<128xf32>) -> tensor<128xf32>
  // S0: zero.square_sum @bucket0 %[[G]]
  // S0: zero.update @bucket0 %[[G]] : tensor<128xf32>
  // S0-NOT: zero.gather_updated

  // S1: zero.parameters @bucket0
  // S1: %[[G:.*]] = zero.reduce_scatter @bucket0({{.*}}) whole : (tensor<128xf32>) -> tensor<32xf32>
  // S1: zero.update @bucket0 %[[G]] : tensor<32xf32>
  // S1: zero.gather_updated @bucket0

  // S2: zero.parameters @bucket0
  // S2: %[[G:.*]] = zero.reduce_scatter @bucket0({{[^)]*}}) : (tensor<128xf32>) -> tensor<32xf32>
  // S2: zero.update @bucket0 %[[G]] : tensor<32xf32>
  // S2: zero.gather_updated @bucket0

  // S3: %[[P:.*]] = zero.all_gather @bucket0 forward : tensor<128xf32>
  // S3: zero.view %[[P]] at 0
  // S3: train.mul
  // S3-NEXT: zero.release %[[P]]
  // S3: %[[G:.*]] = zero.reduce_scatter @bucket0
  // S3: zero.update @bucket0 %[[G]] : tensor<32xf32>
  // S3-NOT: zero.gather_updated
  func.func @step(%x: tensor<128xf32> {train.name = "x"}) {
    %w = train.read @w : tensor<128xf32>
    %y = train.mul %w, %x : tensor<128xf32>
    %z = train.reduce sum %y [0] : tensor<128xf32> -> tensor<1xf32>
    train.loss %z : tensor<1xf32>
    train.update @w by @sgd, %x : tensor<128xf32>
    return
  }
}
