// Groups become fusions: their iteration space, operands, results and partial sums.
// RUN: sheaf-opt %s --train-fuse --split-input-file | FileCheck %s

// Intermediate values stay inside; splats are cloned in; both operands may be overwritten.
// CHECK-LABEL: @rows
// CHECK-SAME: %[[X:.*]]: tensor<4x8xf32>
func.func @rows(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  // CHECK: %[[F:.*]] = train.fusion(%[[X]]) rows 4 columns 8 block 1 {elementwise = array<i64: 0>}
  // CHECK-NEXT: ^bb0(%[[A:.*]]: tensor<4x8xf32>):
  // CHECK: %[[ONE:.*]] = train.constant dense<1.0
  // CHECK: %[[E:.*]] = train.add %[[A]], %[[ONE]]
  // CHECK-NOT: train.group
  // CHECK: train.yield
  // CHECK: return %[[F]]
  %one = train.constant dense<1.0> : tensor<4x8xf32>
  %e = train.add %x, %one {train.group = 0 : i64} : tensor<4x8xf32>
  %s = train.reduce sum %e [1] {train.group = 0 : i64} : tensor<4x8xf32> -> tensor<4x1xf32>
  %b = train.broadcast %s {train.group = 0 : i64} : tensor<4x1xf32> -> tensor<4x8xf32>
  %d = train.div %e, %b {train.group = 0 : i64} : tensor<4x8xf32>
  return %d : tensor<4x8xf32>
}

// -----

// Column sums come as one row a block, and are added outside.
// CHECK-LABEL: @partials
func.func @partials(%x: tensor<1024x768xf32>) -> (tensor<1024x768xf32>, tensor<1x768xf32>) {
  // CHECK: %[[F:.*]]:2 = train.fusion(%{{.*}}) rows 1024 columns 768 block 16
  // CHECK-SAME: -> (tensor<1024x768xf32>, tensor<64x768xf32>)
  // CHECK: %[[S:.*]] = train.sum_partials %[[F]]#1 : tensor<64x768xf32> -> tensor<1x768xf32>
  // CHECK: return %[[F]]#0, %[[S]]
  %n = train.neg %x {train.group = 3 : i64} : tensor<1024x768xf32>
  %s = train.reduce sum %n [0] {train.group = 3 : i64} : tensor<1024x768xf32> -> tensor<1x768xf32>
  return %n, %s : tensor<1024x768xf32>, tensor<1x768xf32>
}

// -----

// Partial sums of narrow floats are kept in f32.
// CHECK-LABEL: @narrow
func.func @narrow(%x: tensor<8x4xbf16>) -> tensor<1x4xbf16> {
  // CHECK: -> tensor<2x4xf32>
  // CHECK: train.sum_partials %{{.*}} : tensor<2x4xf32> -> tensor<1x4xbf16>
  %s = train.reduce sum %x [0] {train.group = 0 : i64} : tensor<8x4xbf16> -> tensor<1x4xbf16>
  return %s : tensor<1x4xbf16>
}

// -----

// Without reductions rows are cut at will; an operand of one element is read everywhere, so nothing may lie over it.
// CHECK-LABEL: @flat
func.func @flat(%x: tensor<1000000xf32>, %s: tensor<1xf32>) -> tensor<1000000xf32> {
  // CHECK: train.fusion(%{{.*}}) rows 245 columns 4096 block 3 {elementwise = array<i64: 1>}
  %b = train.broadcast %s {train.group = 0 : i64} : tensor<1xf32> -> tensor<1000000xf32>
  %d = train.mul %x, %b {train.group = 0 : i64} : tensor<1000000xf32>
  return %d : tensor<1000000xf32>
}

// -----

// What other passes put between groups stays there.
// CHECK-LABEL: @between
func.func @between(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  // CHECK: %[[A:.*]] = train.fusion(%{{.*}})
  // CHECK: %[[T:.*]] = train.transpose %[[A]]
  // CHECK: train.fusion(%[[T]])
  %a = train.neg %x {train.group = 0 : i64} : tensor<8x8xf32>
  %t = train.transpose %a [1, 0] : tensor<8x8xf32> -> tensor<8x8xf32>
  %b = train.abs %t {train.group = 1 : i64} : tensor<8x8xf32>
  return %b : tensor<8x8xf32>
}
