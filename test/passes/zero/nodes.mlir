// A stage within nodes and one between them: what a rank updates, and what it gathers afterwards.
// RUN: sheaf-opt %s -zero-form-buckets="stage=3 ranks-per-node=2 network-stage=3" -zero-gather-parameters -zero-reduce-gradients -zero-place-updates -zero-verify-stage | FileCheck %s --check-prefix=S33
// RUN: sheaf-opt %s -zero-form-buckets="stage=3 ranks-per-node=2 network-stage=1" -zero-gather-parameters -zero-reduce-gradients -zero-place-updates -zero-verify-stage | FileCheck %s --check-prefix=S31
// RUN: sheaf-opt %s -zero-form-buckets="stage=3 ranks-per-node=2 network-stage=0" -zero-gather-parameters -zero-reduce-gradients -zero-place-updates -zero-verify-stage | FileCheck %s --check-prefix=S30
// RUN: sheaf-opt %s -zero-form-buckets="stage=1 ranks-per-node=2 network-stage=0" -zero-gather-parameters -zero-reduce-gradients -zero-place-updates -zero-verify-stage | FileCheck %s --check-prefix=S10
// RUN: not sheaf-opt %s -zero-form-buckets="stage=3 ranks-per-node=3" 2>&1 | FileCheck %s --check-prefix=THREE
// RUN: not sheaf-opt %s -zero-form-buckets="stage=1 ranks-per-node=2 network-stage=3" 2>&1 | FileCheck %s --check-prefix=ABOVE
// RUN: not sheaf-opt %s -zero-form-buckets="stage=3 ranks-per-node=8 network-stage=1" 2>&1 | FileCheck %s --check-prefix=ONE
// RUN: not sheaf-opt %s -zero-form-buckets="stage=3 network-stage=1" 2>&1 | FileCheck %s --check-prefix=NONE

// THREE: nodes of 3 ranks do not divide 8 ranks by a power of two
// ABOVE: the stage between nodes, 3, is above that within them, 1
// ONE: two stages need several nodes of several ranks, not 1 of 8
// NONE: a stage between nodes needs nodes: give --ranks-per-node

module attributes {train.ranks = 8 : i64} {
  train.parameter @w : tensor<256xf32> {trainable = true}
  train.optimizer @sgd states [] scalars [] {
  ^bb0(%p: tensor<f32>, %g: tensor<f32>):
    train.yield %p : tensor<f32>
  }
  // S33: module attributes {{{.*}}zero.network_stage = 3 : i64, zero.ranks_per_node = 2 : i64, zero.stage = 3 : i64}
  // S33: zero.all_gather @bucket0 forward
  // S33: %[[G:.*]] = zero.reduce_scatter @bucket0({{[^)]*}}) : (tensor<256xf32>) -> tensor<32xf32>
  // S33: zero.update @bucket0 %[[G]] : tensor<32xf32>
  // S33-NOT: zero.gather_updated

  // S31: zero.all_gather @bucket0 forward
  // S31: %[[G:.*]] = zero.reduce_scatter @bucket0({{[^)]*}}) : (tensor<256xf32>) -> tensor<32xf32>
  // S31: zero.update @bucket0 %[[G]] : tensor<32xf32>
  // S31: zero.gather_updated @bucket0

  // S30: zero.all_gather @bucket0 forward
  // S30: %[[G:.*]] = zero.reduce_scatter @bucket0({{[^)]*}}) : (tensor<256xf32>) -> tensor<128xf32>
  // S30: zero.update @bucket0 %[[G]] : tensor<128xf32>
  // S30-NOT: zero.gather_updated

  // S10: zero.parameters @bucket0
  // S10: %[[G:.*]] = zero.reduce_scatter @bucket0({{[^)]*}}) whole : (tensor<256xf32>) -> tensor<128xf32>
  // S10: zero.update @bucket0 %[[G]] : tensor<128xf32>
  // S10: zero.gather_updated @bucket0
  func.func @step(%x: tensor<256xf32> {train.name = "x"}) {
    %w = train.read @w : tensor<256xf32>
    %y = train.mul %w, %x : tensor<256xf32>
    %z = train.reduce sum %y [0] : tensor<256xf32> -> tensor<1xf32>
    train.loss %z : tensor<1xf32>
    train.update @w by @sgd, %x : tensor<256xf32>
    return
  }
}
