// Which ops become one kernel.
// RUN: sheaf-opt %s --train-assign-fusions --split-input-file | FileCheck %s

// A row reduction stays with what it reduces and with what uses it; the matrix product belongs to no kernel.
// CHECK-LABEL: @rows
func.func @rows(%x: tensor<4x8xf32>, %w: tensor<8x8xf32>) -> tensor<4x8xf32> {
  // CHECK: train.exp %{{.*}} {train.group = 0 : i64}
  // CHECK: train.reduce sum %{{.*}} [1] {train.group = 0 : i64}
  // CHECK: train.broadcast %{{.*}} {train.group = 0 : i64}
  // CHECK: train.div %{{.*}} {train.group = 0 : i64}
  // CHECK: train.matmul
  // CHECK-NOT: train.group
  // CHECK: train.neg %{{.*}} {train.group = 1 : i64}
  %e = train.exp %x : tensor<4x8xf32>
  %s = train.reduce sum %e [1] : tensor<4x8xf32> -> tensor<4x1xf32>
  %b = train.broadcast %s : tensor<4x1xf32> -> tensor<4x8xf32>
  %d = train.div %e, %b : tensor<4x8xf32>
  %m = train.matmul %d, %w : tensor<4x8xf32>, tensor<8x8xf32> -> tensor<4x8xf32>
  %n = train.neg %m : tensor<4x8xf32>
  return %n : tensor<4x8xf32>
}

// -----

// No cycles: what depends on the product of the first kernel's result is another kernel, though both share it.
// CHECK-LABEL: @no_cycle
func.func @no_cycle(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  // CHECK: train.exp %{{.*}} {train.group = 0 : i64}
  // CHECK: train.matmul
  // CHECK: train.add %{{.*}} {train.group = 1 : i64}
  %e = train.exp %x : tensor<8x8xf32>
  %m = train.matmul %e, %x : tensor<8x8xf32>, tensor<8x8xf32> -> tensor<8x8xf32>
  %a = train.add %e, %m : tensor<8x8xf32>
  return %a : tensor<8x8xf32>
}

// -----

// What only the backward pass needs of a forward value is computed there, not kept.
// CHECK-LABEL: @mask
func.func @mask(%x: tensor<8x8xf32>, %w: tensor<8x8xf32>) -> tensor<8x8xf32> {
  // CHECK: %[[R:.*]] = train.relu %{{.*}} {train.group = 0 : i64}
  // CHECK: %[[G:.*]] = train.matmul %[[R]]
  // CHECK: train.compare gt %[[R]], %{{.*}} {train.group = 1 : i64}
  // CHECK: train.select %{{.*}}, %[[G]], %{{.*}} {train.group = 1 : i64}
  %zero = train.constant dense<0.0> : tensor<8x8xf32>
  %r = train.relu %x : tensor<8x8xf32>
  %p = train.compare gt %r, %zero : tensor<8x8xf32>
  %g = train.matmul %r, %w : tensor<8x8xf32>, tensor<8x8xf32> -> tensor<8x8xf32>
  %s = train.select %p, %g, %zero : tensor<8x8xi1>, tensor<8x8xf32>
  return %s : tensor<8x8xf32>
}

// -----

// Column sums of a tensor join the kernel that reads it (siblings); members are neighbours.
// CHECK-LABEL: @siblings
func.func @siblings(%x: tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32>, tensor<1x8xf32>) {
  // CHECK-DAG: train.neg %{{.*}} {train.group = 0 : i64}
  // CHECK-DAG: train.reduce sum %{{.*}} [0] {train.group = 0 : i64}
  %n = train.neg %x : tensor<8x8xf32>
  %m = train.matmul %x, %x : tensor<8x8xf32>, tensor<8x8xf32> -> tensor<8x8xf32>
  %s = train.reduce sum %x [0] : tensor<8x8xf32> -> tensor<1x8xf32>
  return %n, %m, %s : tensor<8x8xf32>, tensor<8x8xf32>, tensor<1x8xf32>
}

// -----

// Column sums cross rows: who broadcasts them back is another kernel.
// CHECK-LABEL: @across_rows
func.func @across_rows(%x: tensor<8x4xf32>) -> tensor<8x4xf32> {
  // CHECK: train.reduce sum %{{.*}} [0] {train.group = 0 : i64}
  // CHECK: train.broadcast %{{.*}} {train.group = 1 : i64}
  // CHECK: train.sub %{{.*}} {train.group = 1 : i64}
  %s = train.reduce sum %x [0] : tensor<8x4xf32> -> tensor<1x4xf32>
  %b = train.broadcast %s : tensor<1x4xf32> -> tensor<8x4xf32>
  %d = train.sub %x, %b : tensor<8x4xf32>
  return %d : tensor<8x4xf32>
}

// -----

// Broadcasts are cloned into each kernel; one that a library call reads is a kernel by itself.
// CHECK-LABEL: @broadcasts
func.func @broadcasts(%x: tensor<8x4xf32>, %b: tensor<1x4xf32>) -> (tensor<8x4xf32>, tensor<8x8xf32>) {
  // CHECK: %[[B:.*]] = train.broadcast %{{.*}} {train.group = 0 : i64}
  // CHECK: train.broadcast %{{.*}} {train.group = 1 : i64}
  // CHECK: train.add %{{.*}} {train.group = 1 : i64}
  // CHECK: train.matmul %{{.*}}, %[[B]]
  %bs = train.broadcast %b : tensor<1x4xf32> -> tensor<8x4xf32>
  %a = train.add %x, %bs : tensor<8x4xf32>
  %m = train.matmul %a, %bs {transpose_b} : tensor<8x4xf32>, tensor<8x4xf32> -> tensor<8x8xf32>
  return %a, %m : tensor<8x4xf32>, tensor<8x8xf32>
}

// -----

// A reshape that keeps the rows is looked through; one that moves the last dimension separates kernels, at no cost.
// CHECK-LABEL: @reshapes
func.func @reshapes(%x: tensor<2x4x8xf32>) -> tensor<64xf32> {
  // CHECK: train.exp %{{.*}} {train.group = 0 : i64}
  // CHECK: train.reshape %{{.*}} {train.group = 0 : i64}
  // CHECK: train.neg %{{.*}} {train.group = 0 : i64}
  // CHECK: train.reshape %{{[^{]*}} : tensor<8x8xf32> -> tensor<64xf32>
  // CHECK: train.abs %{{.*}} {train.group = 1 : i64}
  %e = train.exp %x : tensor<2x4x8xf32>
  %r = train.reshape %e : tensor<2x4x8xf32> -> tensor<8x8xf32>
  %n = train.neg %r : tensor<8x8xf32>
  %f = train.reshape %n : tensor<8x8xf32> -> tensor<64xf32>
  %a = train.abs %f : tensor<64xf32>
  return %a : tensor<64xf32>
}

// -----

// What a later kernel can compute from a tensor it reads anyway is computed there again: %s is not kept.
// CHECK-LABEL: @recompute
func.func @recompute(%x: tensor<8x8xf32>, %w: tensor<8x8xf32>) -> tensor<8x8xf32> {
  // CHECK: train.mul %arg0, %arg0 {train.group = 0 : i64}
  // CHECK: train.exp
  // CHECK: train.matmul
  // CHECK: %[[S:.*]] = train.mul %arg0, %arg0 {train.group = 1 : i64}
  // CHECK: %[[P:.*]] = train.mul %[[S]], %arg0 {train.group = 1 : i64}
  // CHECK: train.add %[[P]], %{{.*}} {train.group = 1 : i64}
  %s = train.mul %x, %x : tensor<8x8xf32>
  %e = train.exp %s : tensor<8x8xf32>
  %m = train.matmul %e, %w : tensor<8x8xf32>, tensor<8x8xf32> -> tensor<8x8xf32>
  %p = train.mul %s, %x : tensor<8x8xf32>
  %a = train.add %p, %m : tensor<8x8xf32>
  return %a : tensor<8x8xf32>
}
