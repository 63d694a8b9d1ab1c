// Collectives of ranks in nodes: hops whose operands are shards, pieces and the whole, all in their place.
// RUN: sheaf-opt %s -zero-form-buckets="stage=3 ranks-per-node=2" -zero-gather-parameters -zero-reduce-gradients -zero-place-updates -plan-lower | FileCheck %s --check-prefixes=CHECK,S33
// RUN: sheaf-opt %s -zero-form-buckets="stage=3 ranks-per-node=2 network-stage=1" -zero-gather-parameters -zero-reduce-gradients -zero-place-updates -plan-lower | FileCheck %s --check-prefixes=CHECK,S31
// RUN: sheaf-opt %s -zero-form-buckets="stage=3 ranks-per-node=2 network-stage=0" -zero-gather-parameters -zero-reduce-gradients -zero-place-updates -plan-lower | FileCheck %s --check-prefix=S30
// RUN: sheaf-opt %s -zero-form-buckets="stage=1 ranks-per-node=2" -zero-gather-parameters -zero-reduce-gradients -zero-place-updates -plan-lower | FileCheck %s --check-prefix=S11
// RUN: sheaf-opt %s -zero-form-buckets="stage=0 ranks-per-node=2" -zero-gather-parameters -zero-reduce-gradients -zero-place-updates -plan-lower | FileCheck %s --check-prefix=S00

// The bucket has 16,384 bytes, a piece 8,192 and a shard 2,048.
// S33: plan.program attributes {{{.*}}communicator_axes = ["network", "node", "node", "network"], communicators = 4 : i64{{.*}}network_zero = 3 : i64{{.*}}ranks_per_node = 2 : i64
// S33: plan.all_gather "bucket0" {{.*}} count 512 communicator 0(r %bucket0.parameters[0 : 2048], w %[[G:.*]][0 : 8192 + local * 8192]) stream 2
// S33: plan.all_gather "bucket0" {{.*}} count 2048 communicator 1(r %[[G]][0 : 8192 + local * 8192], w %[[G]][0 : 16384]) stream 1
// S33: plan.reduce_scatter "bucket0" {{.*}} count 2048 communicator 2(r %bucket0.gradients[0 : 16384], w %bucket0.gradients[0 : 8192 + local * 8192])
// S33: plan.reduce_scatter "bucket0" {{.*}} count 512 communicator 3(r %bucket0.gradients[0 : 8192 + local * 8192], w %bucket0.reduced[0 : 2048])
// S33: plan.call "square_sum" {{.*}}(r %bucket0.reduced[0 : 2048], w %norm_partials[0 : 8 + rank * 8])

// Parameters are a piece, and the update is of the shard in it.
// S31: communicator_axes = ["node", "node", "network", "network"]
// S31: plan.all_gather "bucket0" {{.*}} communicator 0(r %bucket0.parameters[0 : 8192], w %{{.*}}[0 : 16384])
// S31: plan.reduce_scatter "bucket0" {{.*}} communicator 1(r %bucket0.gradients[0 : 16384], w %bucket0.reduced[0 : 8192])
// S31: plan.reduce_scatter "bucket0" {{.*}} communicator 2(r %bucket0.reduced[0 : 8192], w %bucket0.reduced[0 : 2048 + node * 2048])
// S31: plan.launch {{.*}}w %bucket0.parameters[0 : 2048 + node * 2048]
// S31: plan.all_gather "bucket0" update {{.*}} communicator 3(r %bucket0.parameters[0 : 2048 + node * 2048], w %bucket0.parameters[0 : 8192])

// CHECK: plan.all_gather "" update f64 {{.*}}(r %norm_partials[0 : 8 + rank * 8], w %norm_partials[0 : 32 + local * 32])
// CHECK: plan.all_gather "" update f64 {{.*}}(r %norm_partials[0 : 32 + local * 32], w %norm_partials[0 : 64])

// S30: plan.reduce_scatter "bucket0" {{.*}} communicator [[NODE:.*]](r %bucket0.gradients[0 : 16384], w %bucket0.reduced[0 : 8192])
// S30: plan.all_reduce "bucket0" {{.*}} count 2048 communicator {{.*}}(r %bucket0.reduced[0 : 8192], w %bucket0.reduced[0 : 8192])
// S30: plan.call "square_sum" {{.*}}(r %bucket0.reduced[0 : 2048 + node * 2048],
// S30: plan.launch {{.*}}w %bucket0.parameters[0 : 8192]
// S30-NOT: plan.all_gather "bucket0" update

// S11: plan.reduce_scatter "bucket0" {{.*}}(r %bucket0.gradients[0 : 16384], w %bucket0.gradients[0 : 8192 + local * 8192])
// S11: plan.reduce_scatter "bucket0" {{.*}}(r %bucket0.gradients[0 : 8192 + local * 8192], w %bucket0.gradients[0 : 2048 + rank * 2048])
// S11: plan.launch {{.*}}w %bucket0.parameters[0 : 2048 + rank * 2048]
// S11: plan.all_gather "bucket0" update {{.*}}(r %bucket0.parameters[0 : 2048 + rank * 2048], w %bucket0.parameters[0 : 8192 + local * 8192])
// S11: plan.all_gather "bucket0" update {{.*}}(r %bucket0.parameters[0 : 8192 + local * 8192], w %bucket0.parameters[0 : 16384])

// S00: plan.reduce_scatter "bucket0" {{.*}}(r %bucket0.gradients[0 : 16384], w %bucket0.gradients[0 : 8192 + local * 8192])
// S00: plan.all_reduce "bucket0" {{.*}}(r %bucket0.gradients[0 : 8192 + local * 8192], w %bucket0.gradients[0 : 8192 + local * 8192])
// S00: plan.all_gather "bucket0" {{.*}}(r %bucket0.gradients[0 : 8192 + local * 8192], w %bucket0.gradients[0 : 16384])
// S00: plan.call "square_sum" {{.*}}(r %bucket0.gradients[0 : 2048 + rank * 2048],
module attributes {train.ranks = 8 : i64, train.batch = 64 : i64} {
  train.parameter @a : tensor<64x64xf32> {trainable = true}
  train.optimizer @optimizer states [] scalars [#train.scalar<lr_times, -1.0 : f64>] {
  ^bb0(%p: tensor<f32>, %g: tensor<f32>, %lr: tensor<f32>):
    %0 = train.fma %lr, %g, %p : tensor<f32>
    train.yield %0 : tensor<f32>
  }
  func.func @step(%x: tensor<8x64xf32> {train.name = "x"}) {
    %a = train.read @a : tensor<64x64xf32>
    %0 = train.matmul %x, %a : tensor<8x64xf32>, tensor<64x64xf32> -> tensor<8x64xf32>
    %1 = train.matmul %x, %0 {transpose_a} : tensor<8x64xf32>, tensor<8x64xf32> -> tensor<64x64xf32>
    train.update @a by @optimizer, %1 : tensor<64x64xf32>
    return
  }
}
