// Composites become elementwise ops and reductions; reductions become row reductions and column sums.
// RUN: sheaf-opt %s --train-decompose --split-input-file | FileCheck %s

// The row's maximum is subtracted before the exponential.
// CHECK-LABEL: @softmax
// CHECK-SAME: %[[X:.*]]: tensor<4x8xf32>
func.func @softmax(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  // CHECK: %[[MAX:.*]] = train.reduce max %[[X]] [1]
  // CHECK: %[[MAXES:.*]] = train.broadcast %[[MAX]]
  // CHECK: %[[D:.*]] = train.sub %[[X]], %[[MAXES]]
  // CHECK: %[[E:.*]] = train.exp %[[D]]
  // CHECK: %[[SUM:.*]] = train.reduce sum %[[E]] [1]
  // CHECK: %[[R:.*]] = train.reciprocal %[[SUM]]
  // CHECK: %[[RS:.*]] = train.broadcast %[[R]]
  // CHECK: train.mul %[[E]], %[[RS]]
  %y = train.softmax %x : tensor<4x8xf32>
  return %y : tensor<4x8xf32>
}

// -----

// The variance is that of the differences from the mean.
// CHECK-LABEL: @layer_norm
// CHECK-SAME: %[[X:.*]]: tensor<2x4x8xf32>, %[[G:.*]]: tensor<8xf32>, %[[B:.*]]: tensor<8xf32>
func.func @layer_norm(%x: tensor<2x4x8xf32>, %g: tensor<8xf32>, %b: tensor<8xf32>) -> tensor<2x4x8xf32> {
  // CHECK: %[[SUM:.*]] = train.reduce sum %[[X]] [2]
  // CHECK: %[[MEAN:.*]] = train.div %[[SUM]]
  // CHECK: %[[MEANS:.*]] = train.broadcast %[[MEAN]]
  // CHECK: %[[D:.*]] = train.sub %[[X]], %[[MEANS]]
  // CHECK: %[[DD:.*]] = train.mul %[[D]], %[[D]]
  // CHECK: train.reduce sum %[[DD]] [2]
  // CHECK: train.rsqrt
  // CHECK: train.reshape %[[G]] : tensor<8xf32> -> tensor<1x1x8xf32>
  // CHECK: train.reshape %[[B]] : tensor<8xf32> -> tensor<1x1x8xf32>
  // CHECK-NOT: train.layer_norm
  %y = train.layer_norm %x, %g, %b epsilon 1.0e-5 : (tensor<2x4x8xf32>, tensor<8xf32>, tensor<8xf32>) -> tensor<2x4x8xf32>
  return %y : tensor<2x4x8xf32>
}

// -----

// The label is picked by comparing it with the column's index. Of large logits the maximum and the logarithm are subtracted
// one after the other.
// CHECK-LABEL: @cross_entropy
// CHECK-SAME: %[[X:.*]]: tensor<4x8xf32>, %[[L:.*]]: tensor<4x1xi64>
func.func @cross_entropy(%x: tensor<4x8xf32>, %l: tensor<4x1xi64>) -> tensor<4x1xf32> {
  // CHECK: %[[MAX:.*]] = train.reduce max
  // CHECK: %[[LOG:.*]] = train.log
  // CHECK: %[[LSE:.*]] = train.add %[[MAX]], %[[LOG]]
  // CHECK: %[[SIZE:.*]] = train.abs %[[LSE]]
  // CHECK: %[[SMALL:.*]] = train.compare lt %[[SIZE]]
  // CHECK: %[[FIRST:.*]] = train.select %[[SMALL]], %[[LSE]], %[[MAX]]
  // CHECK: %[[SECOND:.*]] = train.select %[[SMALL]], %{{.*}}, %[[LOG]]
  // CHECK: %[[I:.*]] = train.iota 1
  // CHECK: %[[LS:.*]] = train.broadcast %[[L]]
  // CHECK: %[[HIT:.*]] = train.compare eq %[[I]], %[[LS]]
  // CHECK: %[[PICK:.*]] = train.select %[[HIT]], %[[X]]
  // CHECK: %[[PICKED:.*]] = train.reduce sum %[[PICK]] [1]
  // CHECK: %[[ROUNDED:.*]] = train.sub %[[FIRST]], %[[PICKED]]
  // CHECK: %[[LOSS:.*]] = train.add %[[ROUNDED]], %[[SECOND]]
  // CHECK: %[[SKIP:.*]] = train.compare eq %[[L]]
  // CHECK: train.select %[[SKIP]], %{{.*}}, %[[LOSS]]
  %loss, %lse = train.cross_entropy %x, %l {ignore_index = -100 : i64} : (tensor<4x8xf32>, tensor<4x1xi64>) -> (tensor<4x1xf32>, tensor<4x1xf32>)
  return %loss : tensor<4x1xf32>
}

// -----

// CHECK-LABEL: @square
func.func @square(%x: tensor<4xf32>) -> tensor<4xf32> {
  // CHECK: train.mul %[[X:.*]], %[[X]]
  %two = train.constant dense<2.0> : tensor<4xf32>
  %y = train.pow %x, %two : tensor<4xf32>
  return %y : tensor<4xf32>
}

// -----

// All dimensions but the last: a column sum, as it stands.
// CHECK-LABEL: @columns
func.func @columns(%x: tensor<2x4x8xf32>) -> tensor<1x1x8xf32> {
  // CHECK-NEXT: train.reduce sum %{{.*}} [0, 1]
  // CHECK-NEXT: return
  %y = train.reduce sum %x [0, 1] : tensor<2x4x8xf32> -> tensor<1x1x8xf32>
  return %y : tensor<1x1x8xf32>
}

// -----

// A leading dimension: the others become columns.
// CHECK-LABEL: @leading
func.func @leading(%x: tensor<2x4x8xf32>) -> tensor<1x4x8xf32> {
  // CHECK: %[[M:.*]] = train.reshape %{{.*}} -> tensor<2x32xf32>
  // CHECK: train.reduce sum %[[M]] [0] : tensor<2x32xf32> -> tensor<1x32xf32>
  // CHECK: train.reshape %{{.*}} -> tensor<1x4x8xf32>
  %y = train.reduce sum %x [0] : tensor<2x4x8xf32> -> tensor<1x4x8xf32>
  return %y : tensor<1x4x8xf32>
}

// -----

// A dimension in the middle changes places with the one after it.
// CHECK-LABEL: @middle
func.func @middle(%x: tensor<2x4x8xf32>) -> tensor<2x1x8xf32> {
  // CHECK: %[[T:.*]] = train.transpose %{{.*}} [0, 2, 1]
  // CHECK: %[[M:.*]] = train.reshape %[[T]] : tensor<2x8x4xf32> -> tensor<16x4xf32>
  // CHECK: train.reduce sum %[[M]] [1]
  %y = train.reduce sum %x [1] : tensor<2x4x8xf32> -> tensor<2x1x8xf32>
  return %y : tensor<2x1x8xf32>
}

// -----

// Rows first, then the column of their sums; the mean divides once.
// CHECK-LABEL: @whole
func.func @whole(%x: tensor<64x128xf32>) -> tensor<1x1xf32> {
  // CHECK: %[[R:.*]] = train.reduce sum %{{.*}} [1] : tensor<64x128xf32> -> tensor<64x1xf32>
  // CHECK: %[[S:.*]] = train.reduce sum %[[R]] [0] : tensor<64x1xf32> -> tensor<1x1xf32>
  // CHECK: %[[N:.*]] = train.constant dense<8.192000e+03>
  // CHECK: train.div %[[S]], %[[N]]
  %y = train.reduce mean %x [0, 1] : tensor<64x128xf32> -> tensor<1x1xf32>
  return %y : tensor<1x1xf32>
}

// -----

// A maximum over columns is not a sum of partial results: it is turned into rows.
// CHECK-LABEL: @column_maximum
func.func @column_maximum(%x: tensor<4x8xf32>) -> tensor<1x8xf32> {
  // CHECK: %[[T:.*]] = train.transpose %{{.*}} [1, 0]
  // CHECK: train.reduce max %[[T]] [1]
  %y = train.reduce max %x [0] : tensor<4x8xf32> -> tensor<1x8xf32>
  return %y : tensor<1x8xf32>
}
