// The loss scale: three numbers of state, scalars that follow from it before the step, and its change after all updates.
// RUN: sheaf-opt %s -zero-form-buckets="stage=0" -zero-gather-parameters -zero-reduce-gradients -zero-place-updates -plan-lower | FileCheck %s

// CHECK: %loss_scale = plan.buffer "loss_scale" optimizer offset 0 bytes 24 persistent
// CHECK: %update_scalars = plan.buffer "update_scalars" activations offset 0 bytes 16

// The host gives the learning rates alone; what depends on the number of updates is computed from the state.
// Gradients are not clipped, though the rule multiplies by the clip scale: there is no limit.
// CHECK-NOT: plan.scalar
// CHECK: plan.scalar lr_times 1.000000e+00{{$}}
// CHECK-NOT: plan.scalar
// CHECK: plan.loss_scale %loss_scale
// CHECK: plan.body
// CHECK-NEXT: plan.read_scalars
// CHECK-NEXT: plan.call "update_scalar" {value = 0.000000e+00 : f64}(r %loss_scale[0 : 24], w %update_scalars[0 : 4])
// CHECK-NEXT: plan.call "update_scalar" {kind = 3 : i64, value = 0.99{{.*}} : f64}(r %loss_scale[0 : 24], w %update_scalars[4 : 4])
// CHECK-NEXT: plan.call "update_scalar" {kind = 1 : i64, value = 9.000000e-01 : f64}(r %loss_scale[0 : 24], w %update_scalars[8 : 4], r %scalars[0 : 4])
// CHECK-NEXT: plan.call "update_scalar" {kind = 5 : i64, value = 0.000000e+00 : f64}(r %loss_scale[0 : 24], w %update_scalars[12 : 4])

// CHECK: plan.call "gradient_norm" {buckets = 1 : i64, ranks = 1 : i64, scaled = 1 : i64}({{.*}}r %update_scalars[0 : 4])
// CHECK: plan.write_output loss_scale(r %update_scalars[0 : 4])
// CHECK: plan.launch {{.*}}r %update_scalars[4 : 4], r %update_scalars[8 : 4], r %update_scalars[12 : 4], r %norm_scalars[0 : 4], r %norm_scalars[4 : 4]{{.*}} "update bucket0"
// CHECK: plan.call "advance_loss_scale" {backoff = 5.000000e-01 : f64, floor = 1.000000e+00 : f64, growth = 2.000000e+00 : f64, interval = 7 : i64}(r %norm_scalars[0 : 8], rw %loss_scale[0 : 24])
module attributes {train.ranks = 1 : i64, train.batch = 8 : i64, train.training = {loss_scale = "dynamic:interval=7"}} {
  train.parameter @w : tensor<128xf32> {trainable = true}
  train.optimizer @optimizer states [] scalars [#train.scalar<sqrt_bias_correction, 0.999 : f64>,
      #train.scalar<lr_over_bias_correction, 0.9 : f64>, #train.scalar<first_step, 0.0 : f64>,
      #train.scalar<clip_scale, 0.0 : f64>, #train.scalar<finite, 0.0 : f64>] {
  ^bb0(%p: tensor<f32>, %g: tensor<f32>, %r: tensor<f32>, %lr: tensor<f32>, %one: tensor<f32>, %c: tensor<f32>, %f: tensor<f32>):
    %0 = train.mul %g, %c : tensor<f32>
    %1 = train.div %0, %r : tensor<f32>
    %2 = train.fma %lr, %1, %p : tensor<f32>
    %3 = train.mul %2, %one : tensor<f32>
    %4 = train.mul %3, %f : tensor<f32>
    train.yield %4 : tensor<f32>
  }
  func.func @step(%x: tensor<8x128xf32> {train.name = "x"}) {
    %w = train.read @w : tensor<128xf32>
    %s = train.loss_scale : tensor<f32>
    %l = train.reshape %s : tensor<f32> -> tensor<1x1xf32>
    %v = train.reshape %w : tensor<128xf32> -> tensor<1x128xf32>
    %m = train.matmul %l, %v : tensor<1x1xf32>, tensor<1x128xf32> -> tensor<1x128xf32>
    %g = train.reshape %m : tensor<1x128xf32> -> tensor<128xf32>
    train.update @w by @optimizer, %g : tensor<128xf32>
    return
  }
}
