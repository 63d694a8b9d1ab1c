// What memory holds: bf16 where kernels meet, f32 inside them and for statistics, sums on their way and the loss.
// RUN: sheaf-opt %s -split-input-file --train-assign-fusions --train-set-precision=precision=bf16 | FileCheck %s
// RUN: sheaf-opt %s -split-input-file --train-assign-fusions --train-set-precision="precision=bf16 reduce-precision=f32" | FileCheck %s --check-prefix=WIDE
// RUN: sheaf-opt %s -split-input-file --train-assign-fusions --train-set-precision | FileCheck %s --check-prefix=F32
// RUN: sheaf-opt %s -split-input-file --train-assign-fusions --train-set-precision=precision=bf16 --train-fuse | FileCheck %s --check-prefix=FUSED
// RUN: sheaf-opt %s -split-input-file --train-assign-fusions --train-set-precision=precision=f16 | FileCheck %s --check-prefix=F16
// RUN: sheaf-opt %s -split-input-file --train-assign-fusions --train-set-precision=precision=tf32 | FileCheck %s --check-prefix=TF32

// A kernel between two products widens what it loads and rounds what it stores, and a parameter is widened before it
// is broadcast; the data input is rounded by a kernel of its own.

// CHECK: train.parameter @w : tensor<64x64xbf16> {train.source_type = f32, trainable = true}
// CHECK-LABEL: func.func @step(%arg0: tensor<8x64xf32>)
// CHECK: %[[X:.+]] = train.cast %arg0 {train.group = [[#]] : i64} : tensor<8x64xf32> -> tensor<8x64xbf16>
// CHECK: %[[FIRST:.+]] = train.matmul %[[X]], %{{.+}} : tensor<8x64xbf16>, tensor<64x64xbf16> -> tensor<8x64xbf16>
// CHECK-DAG: %[[FIRST_WIDE:.+]] = train.cast %[[FIRST]] {train.group = [[#]] : i64} : tensor<8x64xbf16> -> tensor<8x64xf32>
// CHECK-DAG: train.cast %{{.+}} {train.group = [[#]] : i64} : tensor<1x64xbf16> -> tensor<1x64xf32>
// CHECK: train.add {{.*}} : tensor<8x64xf32>
// CHECK: %[[R:.+]] = train.relu {{.*}} : tensor<8x64xf32>
// CHECK: %[[R_HALF:.+]] = train.cast %[[R]] {train.group = [[#]] : i64} : tensor<8x64xf32> -> tensor<8x64xbf16>
// CHECK: train.matmul %[[R_HALF]], {{.*}} -> tensor<8x64xbf16>
// F32-NOT: bf16
// TF32-NOT: bf16
// F16-NOT: bf16
// F16: train.parameter @w : tensor<64x64xf16> {train.source_type = f32, trainable = true}
// F16: train.matmul %{{.+}}, %{{.+}} : tensor<8x64xf16>, tensor<64x64xf16> -> tensor<8x64xf16>
// TF32: train.matmul {{.*}} {train.tf32} : tensor<8x64xf32>
train.parameter @w : tensor<64x64xf32> {trainable = true}
train.parameter @b : tensor<64xf32> {trainable = true}
func.func @step(%x: tensor<8x64xf32>) {
  %w = train.read @w : tensor<64x64xf32>
  %b = train.read @b : tensor<64xf32>
  %p = train.matmul %x, %w : tensor<8x64xf32>, tensor<64x64xf32> -> tensor<8x64xf32>
  %c = train.reshape %b : tensor<64xf32> -> tensor<1x64xf32>
  %d = train.broadcast %c : tensor<1x64xf32> -> tensor<8x64xf32>
  %s = train.add %p, %d : tensor<8x64xf32>
  %r = train.relu %s : tensor<8x64xf32>
  %q = train.matmul %r, %w : tensor<8x64xf32>, tensor<64x64xf32> -> tensor<8x64xf32>
  train.update @w by @optimizer, %q : tensor<8x64xf32>
  return
}

// -----

// The gradient of a bias is summed in f32 and rounded by what completes the sum; summed in f32 over ranks, not at all.

// CHECK-LABEL: func.func @step
// CHECK: %[[SUM:.+]] = train.reduce sum {{.*}} : tensor<64x32xf32> -> tensor<1x32xf32>
// CHECK: %[[HALF:.+]] = train.cast %[[SUM]] : tensor<1x32xf32> -> tensor<1x32xbf16>
// CHECK: %[[FLAT:.+]] = train.reshape %[[HALF]] : tensor<1x32xbf16> -> tensor<32xbf16>
// CHECK: train.update @b by @optimizer, %[[FLAT]] : tensor<32xbf16>
// WIDE-LABEL: func.func @step
// WIDE: train.update @w by @optimizer, %{{.+}} : tensor<8x64xf32>
// WIDE-LABEL: func.func @step
// WIDE: train.update @b by @optimizer, %{{.+}} : tensor<32xf32>
// FUSED-LABEL: func.func @step
// FUSED-LABEL: func.func @step
// FUSED: %[[PARTS:.+]] = train.fusion(%{{.+}}) {{.*}} (tensor<64x32xbf16>) -> tensor<[[#]]x32xf32>
// FUSED: train.sum_partials %[[PARTS]] : tensor<[[#]]x32xf32> -> tensor<1x32xbf16>
// FUSED-NOT: train.cast %{{.+}} : tensor<1x32xf32>
train.parameter @b : tensor<32xf32> {trainable = true}
train.parameter @v : tensor<64x32xf32> {trainable = true}
func.func @step() {
  %x = train.read @v : tensor<64x32xf32>
  %e = train.exp %x : tensor<64x32xf32>
  %s = train.reduce sum %e [0] : tensor<64x32xf32> -> tensor<1x32xf32>
  %g = train.reshape %s : tensor<1x32xf32> -> tensor<32xf32>
  train.update @b by @optimizer, %g : tensor<32xf32>
  return
}

// -----

// Statistics of rows stay f32 from kernel to kernel; what takes f32 only gets it; what moves elements takes any type.

// CHECK-LABEL: func.func @step
// CHECK: %[[READ:.+]] = train.read @v : tensor<64x32xbf16>
// CHECK: %[[MOVED:.+]] = train.transpose %[[READ]] {{.*}} : tensor<64x32xbf16> -> tensor<32x64xbf16>
// CHECK: train.reduce max {{.*}} : tensor<32x64xf32> -> tensor<32x1xf32>
// CHECK: train.cumsum {{.*}} : tensor<32x1xf32>
// CHECK: %[[SINGLE:.+]] = train.cast %{{.+}} : tensor<32x64xbf16> -> tensor<32x64xf32>
// CHECK: train.dropout %[[SINGLE]] {{.*}} : tensor<32x64xf32>
// CHECK: train.loss %{{.+}} : tensor<f32>
train.parameter @v : tensor<64x32xf32> {trainable = true}
func.func @step() {
  %x = train.read @v : tensor<64x32xf32>
  %t = train.transpose %x [1, 0] : tensor<64x32xf32> -> tensor<32x64xf32>
  %m = train.reduce max %t [1] : tensor<32x64xf32> -> tensor<32x1xf32>
  %c = train.cumsum %m axis 0 : tensor<32x1xf32>
  %d = train.dropout %t ratio 0.5 node 1 : tensor<32x64xf32>
  %n = train.broadcast %c : tensor<32x1xf32> -> tensor<32x64xf32>
  %s = train.add %d, %n : tensor<32x64xf32>
  %r = train.reduce sum %s [1] : tensor<32x64xf32> -> tensor<32x1xf32>
  %a = train.reduce sum %r [0] : tensor<32x1xf32> -> tensor<1x1xf32>
  %l = train.reshape %a : tensor<1x1xf32> -> tensor<f32>
  train.loss %l : tensor<f32>
  return
}

// -----

// A product with an epilogue takes and gives bf16, and so do its bias and its second result.

// CHECK-LABEL: func.func @step
// CHECK: train.matmul_epilogue bias_gelu {{.*}} : (tensor<8x64xbf16>, tensor<64x64xbf16>, tensor<64xbf16>) -> (tensor<8x64xbf16>, tensor<8x64xbf16>)
// CHECK: %[[DW:.+]], %[[DB:.+]] = train.matmul_epilogue sum_rhs {{.*}} -> (tensor<64x64xbf16>, tensor<64xbf16>)
// CHECK: train.update @b by @optimizer, %[[DB]] : tensor<64xbf16>
// WIDE-LABEL: func.func @step
// WIDE: train.update @b by @optimizer, %{{.+}} : tensor<64xf32>
// FUSED-LABEL: func.func @step
train.parameter @w : tensor<64x64xf32> {trainable = true}
train.parameter @b : tensor<64xf32> {trainable = true}
func.func @step(%x: tensor<8x64xf32>) {
  %w = train.read @w : tensor<64x64xf32>
  %b = train.read @b : tensor<64xf32>
  %g, %u = train.matmul_epilogue bias_gelu %x, %w side %b : (tensor<8x64xf32>, tensor<64x64xf32>, tensor<64xf32>) -> (tensor<8x64xf32>, tensor<8x64xf32>)
  %dw, %db = train.matmul_epilogue sum_rhs %u, %g {transpose_a} : (tensor<8x64xf32>, tensor<8x64xf32>) -> (tensor<64x64xf32>, tensor<64xf32>)
  train.update @w by @optimizer, %dw : tensor<64x64xf32>
  train.update @b by @optimizer, %db : tensor<64xf32>
  return
}
