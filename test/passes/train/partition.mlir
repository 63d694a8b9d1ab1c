// The step of the global batch becomes that of a leaf: sums give terms, what has no rule is gathered, and each leaf keeps
// its rows of the result.
//
// RUN: sheaf-opt -train-partition -split-input-file %s | FileCheck %s

// A mean over the batch is a term of the global one; nothing is gathered.
// CHECK-LABEL: func.func @step
// CHECK-SAME: %[[X:.*]]: tensor<2x3xf32>
// CHECK-NOT: gather_rows
// CHECK: %[[MEAN:.*]] = train.reduce mean %[[X]] [0, 1] : tensor<2x3xf32> -> tensor<1x1xf32>
// CHECK: %[[PART:.*]] = train.constant dense<2.500000e-01>
// CHECK: %[[TERM:.*]] = train.mul %[[MEAN]], %[[PART]]
// CHECK: train.reshape %[[TERM]]
module attributes {train.ranks = 4 : i64} {
  func.func @step(%x: tensor<8x3xf32> {train.name = "x"}) {
    %mean = train.reduce mean %x [0, 1] : tensor<8x3xf32> -> tensor<1x1xf32>
    %loss = train.reshape %mean : tensor<1x1xf32> -> tensor<f32>
    train.loss %loss : tensor<f32>
    return
  }
}

// -----

// A running sum over the batch is computed by every leaf, of all rows; the next op has the leaf's rows again.
// CHECK-LABEL: func.func @step
// CHECK-SAME: %[[X:.*]]: tensor<2x3xf32> {train.name = "x"}, %[[ROWS:.*]]: tensor<2xi64> {train.name = "row_index", train.row_index}
// CHECK: %[[LEAF:.*]] = train.div {{.*}} : tensor<1xi64>
// CHECK: %[[ALL:.*]] = train.gather_rows %[[X]] leaf %[[LEAF]] : (tensor<2x3xf32>, tensor<1xi64>) -> tensor<8x3xf32>
// CHECK: %[[SUMS:.*]] = train.cumsum %[[ALL]] axis 0 : tensor<8x3xf32>
// CHECK: %[[PARTS:.*]] = train.reshape %[[SUMS]] : tensor<8x3xf32> -> tensor<1x4x6xf32>
// CHECK: %[[OWN:.*]] = train.gather %[[PARTS]][%[[LEAF]]] axis 1
// CHECK: %[[MINE:.*]] = train.reshape %[[OWN]] : tensor<1x1x6xf32> -> tensor<2x3xf32>
// CHECK: train.mul %[[MINE]], %[[X]] : tensor<2x3xf32>
module attributes {train.ranks = 4 : i64} {
  func.func @step(%x: tensor<8x3xf32> {train.name = "x"}) {
    %sums = train.cumsum %x axis 0 : tensor<8x3xf32>
    %y = train.mul %sums, %x : tensor<8x3xf32>
    %sum = train.reduce sum %y [0, 1] : tensor<8x3xf32> -> tensor<1x1xf32>
    %loss = train.reshape %sum : tensor<1x1xf32> -> tensor<f32>
    train.loss %loss : tensor<f32>
    return
  }
}

// -----

// Rows that are not in the first dimension: they come first where they are gathered, and go back.
// CHECK-LABEL: func.func @step
// CHECK: train.transpose {{.*}} [1, 0, 2] : tensor<3x2x1xf32> -> tensor<2x3x1xf32>
// CHECK: train.gather_rows {{.*}} -> tensor<8x3x1xf32>
// CHECK: train.transpose {{.*}} [1, 0, 2] : tensor<8x3x1xf32> -> tensor<3x8x1xf32>
// CHECK: train.softmax {{.*}} : tensor<3x8xf32>
module attributes {train.ranks = 4 : i64} {
  func.func @step(%x: tensor<8x3xf32> {train.name = "x"}) {
    %t = train.transpose %x [1, 0] : tensor<8x3xf32> -> tensor<3x8xf32>
    %s = train.softmax %t : tensor<3x8xf32>
    %m = train.mul %s, %t : tensor<3x8xf32>
    %sum = train.reduce sum %m [0, 1] : tensor<3x8xf32> -> tensor<1x1xf32>
    %loss = train.reshape %sum : tensor<1x1xf32> -> tensor<f32>
    train.loss %loss : tensor<f32>
    return
  }
}

// -----

// A product of rows with rows gathers one side; the numbers of the rows are this leaf's.
// CHECK-LABEL: func.func @step
// CHECK: %[[ALL:.*]] = train.gather_rows {{.*}} -> tensor<8x3xf32>
// CHECK: train.matmul {{.*}}, %[[ALL]] {transpose_b} : tensor<2x3xf32>, tensor<8x3xf32> -> tensor<2x8xf32>
// CHECK: %[[OWN:.*]] = train.iota 0 : tensor<2x1xi64>
// CHECK: %[[NUMBERS:.*]] = train.add %[[OWN]], {{.*}} : tensor<2x1xi64>
// CHECK: train.cross_entropy {{.*}}, %[[NUMBERS]]
module attributes {train.ranks = 4 : i64} {
  func.func @step(%x: tensor<8x3xf32> {train.name = "x"}) {
    %scores = train.matmul %x, %x {transpose_b} : tensor<8x3xf32>, tensor<8x3xf32> -> tensor<8x8xf32>
    %labels = train.iota 0 : tensor<8x1xi64>
    %rows, %log = train.cross_entropy %scores, %labels : (tensor<8x8xf32>, tensor<8x1xi64>) -> (tensor<8x1xf32>, tensor<8x1xf32>)
    %mean = train.reduce mean %rows [0, 1] : tensor<8x1xf32> -> tensor<1x1xf32>
    %loss = train.reshape %mean : tensor<1x1xf32> -> tensor<f32>
    train.loss %loss : tensor<f32>
    return
  }
}

// -----

// The divisor of the whole batch stays; what repeats a sum is made of the sum.
// CHECK-LABEL: func.func @step
// CHECK: train.constant dense<8.000000e+00> : tensor<1x3xf32>
// CHECK: %[[SUM:.*]] = train.global_sum {{.*}} : tensor<1x3xf32>
// CHECK: train.broadcast %[[SUM]] : tensor<1x3xf32> -> tensor<2x3xf32>
module attributes {train.ranks = 4 : i64} {
  func.func @step(%x: tensor<8x3xf32> {train.name = "x"}) {
    %rows = train.constant dense<8.0> : tensor<1x3xf32>
    %sum = train.reduce sum %x [0] : tensor<8x3xf32> -> tensor<1x3xf32>
    %mean = train.div %sum, %rows : tensor<1x3xf32>
    %all = train.broadcast %mean : tensor<1x3xf32> -> tensor<8x3xf32>
    %centred = train.sub %x, %all : tensor<8x3xf32>
    %square = train.mul %centred, %centred : tensor<8x3xf32>
    %total = train.reduce sum %square [0, 1] : tensor<8x3xf32> -> tensor<1x1xf32>
    %loss = train.reshape %total : tensor<1x1xf32> -> tensor<f32>
    train.loss %loss : tensor<f32>
    return
  }
}

// -----

// One leaf is the global batch.
// CHECK-LABEL: func.func @step
// CHECK-SAME: tensor<8x3xf32>
// CHECK-NOT: gather_rows
// CHECK: train.cumsum {{.*}} : tensor<8x3xf32>
module attributes {train.ranks = 1 : i64} {
  func.func @step(%x: tensor<8x3xf32> {train.name = "x"}) {
    %sums = train.cumsum %x axis 0 : tensor<8x3xf32>
    %sum = train.reduce sum %sums [0, 1] : tensor<8x3xf32> -> tensor<1x1xf32>
    %loss = train.reshape %sum : tensor<1x1xf32> -> tensor<f32>
    train.loss %loss : tensor<f32>
    return
  }
}
