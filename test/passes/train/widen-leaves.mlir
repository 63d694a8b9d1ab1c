// RUN: sheaf-opt %s -train-widen-leaves | FileCheck %s

// Two leaves of two rows become one rank's four. A product is computed for each leaf, a kernel has all rows, and what is a
// sum over rows has a term for each leaf, which the tree adds: two are one addition. Ops of kernels say where the rows are.

// CHECK: module attributes {train.batch = 4 : i64, {{.*}}train.leaves = 2 : i64, train.ranks = 1 : i64}
// CHECK: func.func @step(%[[X:.*]]: tensor<4x3xf32>
// CHECK: %[[FIRST:.*]] = train.slice %[[X]] starts [0, 0] sizes [2, 3]
// CHECK: %[[A:.*]] = train.matmul %[[FIRST]]
// CHECK: %[[SECOND:.*]] = train.slice %[[X]] starts [2, 0] sizes [2, 3]
// CHECK: %[[B:.*]] = train.matmul %[[SECOND]]
// CHECK: train.concat %[[A]], %[[B]] axis 0 : {{.*}} -> tensor<4x2xf32>
// CHECK-NOT: tensor<2x2xf32>
// CHECK: train.broadcast {{.*}} {train.group = 0 : i64, train.leaf_rows = array<i64: 2, -1, 0, 0, 1>} : tensor<1x2xf32> -> tensor<4x2xf32>
// CHECK: train.constant {train.group = 0 : i64, train.leaf_rows = array<i64: 2, 0, 1>} dense<5.000000e-01> : tensor<4x2xf32>
// CHECK: %[[WIDE:.*]] = train.mul {{.*}} {train.group = 0 : i64, train.leaf_rows = array<i64: 2, 0, 1, 0, 1, 0, 1>} : tensor<4x2xf32>
// CHECK: %[[SUMS:.*]] = train.reduce {{ *}}sum %[[WIDE]] [0] {leaves = 2 : i64, train.group = 0 : i64, train.leaf_rows = array<i64: 2, 0, 1, -1, 0>} : {{.*}} -> tensor<2x1x2xf32>
// CHECK: train.slice %[[SUMS]] starts [0, 0, 0]
// CHECK: train.slice %[[SUMS]] starts [1, 0, 0]
// CHECK: %[[BIAS:.*]] = train.add {{.*}} {train.group = 2 : i64} : tensor<2xf32>
// CHECK: train.update @b by @o, %[[BIAS]]
// CHECK: %[[C:.*]] = train.matmul {{.*}} {transpose_a}
// CHECK: %[[D:.*]] = train.matmul {{.*}} {transpose_a}
// CHECK: %[[WEIGHT:.*]] = train.add %[[C]], %[[D]]
// CHECK: train.update @w by @o, %[[WEIGHT]]
module attributes {train.ranks = 2 : i64, train.widen_to = 1 : i64, train.batch = 4 : i64} {
  train.parameter @w : tensor<3x2xf32> {trainable = true}
  train.parameter @b : tensor<2xf32> {trainable = true}
  func.func @step(%x: tensor<2x3xf32> {train.name = "x"}) {
    %w = train.read @w : tensor<3x2xf32>
    %b = train.read @b : tensor<2xf32>
    %product = train.matmul %x, %w : tensor<2x3xf32>, tensor<3x2xf32> -> tensor<2x2xf32>
    %row = train.reshape %b : tensor<2xf32> -> tensor<1x2xf32>
    %wide = train.broadcast %row {train.group = 0 : i64} : tensor<1x2xf32> -> tensor<2x2xf32>
    %half = train.constant {train.group = 0 : i64} dense<5.000000e-01> : tensor<2x2xf32>
    %sum = train.add %product, %wide {train.group = 0 : i64} : tensor<2x2xf32>
    %scaled = train.mul %sum, %half {train.group = 0 : i64} : tensor<2x2xf32>
    %columns = train.reduce sum %scaled [0] {train.group = 0 : i64} : tensor<2x2xf32> -> tensor<1x2xf32>
    %gradient = train.reshape %columns : tensor<1x2xf32> -> tensor<2xf32>
    train.update @b by @o, %gradient : tensor<2xf32>
    %product_gradient = train.matmul %x, %scaled {transpose_a} : tensor<2x3xf32>, tensor<2x2xf32> -> tensor<3x2xf32>
    train.update @w by @o, %product_gradient : tensor<3x2xf32>
    return
  }
}
