// Buckets and step scalars name their parameter group. Groups without a learning rate of their own share its scalars.
// RUN: sheaf-opt %s -zero-form-buckets="stage=0" -zero-gather-parameters -zero-reduce-gradients -zero-place-updates -plan-lower | FileCheck %s

// CHECK: plan.bucket "bucket0" {{.*}} trainable{{$}}
// CHECK: plan.bucket "bucket1" {{.*}} trainable group 1{{$}}
// CHECK: plan.bucket "bucket2" {{.*}} trainable group 2{{$}}
// CHECK: plan.scalar lr_times -1.000000e+00{{$}}
// CHECK-NEXT: plan.scalar lr_times -1.000000e+00 group 2{{$}}
// CHECK-NOT: plan.scalar
// CHECK: plan.body
// CHECK: plan.launch {{.*}}%scalars[0 : 4]{{.*}} "update bucket0"
// CHECK: plan.launch {{.*}}%scalars[0 : 4]{{.*}} "update bucket1"
// CHECK: plan.launch {{.*}}%scalars[4 : 4]{{.*}} "update bucket2"
module attributes {train.ranks = 1 : i64, train.batch = 8 : i64, train.groups = [
    {name = "default", optimizer = @optimizer, settings = ""},
    {name = "default, no decay", optimizer = @optimizer.1, settings = "weight_decay=0"},
    {name = "head", optimizer = @optimizer.2, settings = "", learning_rate = 0.5 : f64}]} {
  train.parameter @a : tensor<64x64xf32> {trainable = true}
  train.parameter @b : tensor<64x64xf32> {trainable = true}
  train.parameter @c : tensor<64x64xf32> {trainable = true}
  train.optimizer @optimizer states [] scalars [#train.scalar<lr_times, -1.0 : f64>] {
  ^bb0(%p: tensor<f32>, %g: tensor<f32>, %lr: tensor<f32>):
    %0 = train.fma %lr, %p, %g : tensor<f32>
    %1 = train.fma %lr, %0, %p : tensor<f32>
    train.yield %1 : tensor<f32>
  }
  train.optimizer @optimizer.1 states [] scalars [#train.scalar<lr_times, -1.0 : f64>] {
  ^bb0(%p: tensor<f32>, %g: tensor<f32>, %lr: tensor<f32>):
    %0 = train.fma %lr, %g, %p : tensor<f32>
    train.yield %0 : tensor<f32>
  }
  train.optimizer @optimizer.2 states [] scalars [#train.scalar<lr_times, -1.0 : f64>] {
  ^bb0(%p: tensor<f32>, %g: tensor<f32>, %lr: tensor<f32>):
    %0 = train.fma %lr, %g, %p : tensor<f32>
    train.yield %0 : tensor<f32>
  }
  func.func @step(%x: tensor<8x64xf32> {train.name = "x"}) {
    %a = train.read @a : tensor<64x64xf32>
    %b = train.read @b : tensor<64x64xf32>
    %c = train.read @c : tensor<64x64xf32>
    %0 = train.matmul %x, %a : tensor<8x64xf32>, tensor<64x64xf32> -> tensor<8x64xf32>
    %1 = train.matmul %0, %b : tensor<8x64xf32>, tensor<64x64xf32> -> tensor<8x64xf32>
    %2 = train.matmul %1, %c : tensor<8x64xf32>, tensor<64x64xf32> -> tensor<8x64xf32>
    %3 = train.matmul %0, %2 {transpose_a} : tensor<8x64xf32>, tensor<8x64xf32> -> tensor<64x64xf32>
    %4 = train.matmul %1, %2 {transpose_a} : tensor<8x64xf32>, tensor<8x64xf32> -> tensor<64x64xf32>
    %5 = train.matmul %x, %2 {transpose_a} : tensor<8x64xf32>, tensor<8x64xf32> -> tensor<64x64xf32>
    train.update @a by @optimizer, %5 : tensor<64x64xf32>
    train.update @b by @optimizer.1, %3 : tensor<64x64xf32>
    train.update @c by @optimizer.2, %4 : tensor<64x64xf32>
    return
  }
}
