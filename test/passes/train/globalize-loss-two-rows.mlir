// A leaf of one row comes with two: where the batch is, is found in these, and the first of them stays.
// RUN: sheaf-opt %s -train-globalize-loss -split-input-file -verify-diagnostics | FileCheck %s

// The batch moves to another dimension, which with one row would change nothing. The sum is then over the other dimension:
// it is the row itself, not a term.
// CHECK-LABEL: func.func @step(%arg0: tensor<1x1x4xf32>)
// CHECK-NOT: train.reduce sum
// CHECK: train.reduce mean {{.*}} : tensor<1x1x4xf32>
// CHECK: train.constant dense<1.250000e-01>
// CHECK-NOT: train.global_sum
module attributes {train.ranks = 8 : i64, train.two_rows} {
  func.func @step(%x: tensor<2x1x4xf32>) {
    %y = train.reshape %x : tensor<2x1x4xf32> -> tensor<1x2x4xf32>
    %s = train.reduce sum %y [0] : tensor<1x2x4xf32> -> tensor<1x2x4xf32>
    %m = train.reduce mean %s [0, 1, 2] : tensor<1x2x4xf32> -> tensor<1x1x1xf32>
    %l = train.reshape %m : tensor<1x1x1xf32> -> tensor<f32>
    train.loss %l : tensor<f32>
    return
  }
}

// -----

// What is the same on all ranks, and computed for two rows, is computed for one where rows meet it.
// CHECK-LABEL: func.func @step(%arg0: tensor<1x4xf32>)
// CHECK: %[[ZEROS:.*]] = train.constant dense<0.000000e+00> : tensor<1x1x3xf32>
// CHECK: %[[H:.*]] = train.slice %[[ZEROS]] starts [0, 0, 0] sizes [1, 1, 2]
// CHECK: %[[R:.*]] = train.reshape %[[H]] : tensor<1x1x2xf32> -> tensor<1x2xf32>
// CHECK: %[[P:.*]] = train.matmul %[[R]], {{.*}} -> tensor<1x4xf32>
// CHECK: %[[S:.*]] = train.slice %arg0 starts [0, 1] sizes [1, 2]
// CHECK: %[[C:.*]] = train.concat %[[S]], %[[S]] axis 1
// CHECK: train.add %[[C]], %[[P]] : tensor<1x4xf32>
module attributes {train.ranks = 8 : i64, train.two_rows} {
  func.func @step(%x: tensor<2x4xf32>) {
    %zeros = train.constant dense<0.0> : tensor<1x2x3xf32>
    %h = train.slice %zeros starts [0, 0, 0] sizes [1, 2, 2] steps [1, 1, 1] : tensor<1x2x3xf32> -> tensor<1x2x2xf32>
    %r = train.reshape %h : tensor<1x2x2xf32> -> tensor<2x2xf32>
    %w = train.constant dense<[[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]]> : tensor<2x4xf32>
    %p = train.matmul %r, %w : tensor<2x2xf32>, tensor<2x4xf32> -> tensor<2x4xf32>
    %s = train.slice %x starts [0, 1] sizes [2, 2] steps [1, 1] : tensor<2x4xf32> -> tensor<2x2xf32>
    %c = train.concat %s, %s axis 1 : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x4xf32>
    %a = train.add %c, %p : tensor<2x4xf32>
    %m = train.reduce mean %a [0, 1] : tensor<2x4xf32> -> tensor<1x1xf32>
    %l = train.reshape %m : tensor<1x1xf32> -> tensor<f32>
    train.loss %l : tensor<f32>
    return
  }
}

// -----

// Rows that are not together: every second element is one of the first row.
// CHECK-LABEL: func.func @step(%arg0: tensor<1x4xf32>)
// CHECK: %[[F:.*]] = train.reshape {{.*}} : tensor<4x1xf32> -> tensor<4x1xf32>
// CHECK: %[[THREE:.*]] = train.constant dense<3.000000e+00> : tensor<4x1xf32>
// CHECK: train.mul %[[F]], %[[THREE]] : tensor<4x1xf32>
module attributes {train.ranks = 8 : i64, train.two_rows} {
  func.func @step(%x: tensor<2x4xf32>) {
    %t = train.transpose %x [1, 0] : tensor<2x4xf32> -> tensor<4x2xf32>
    %f = train.reshape %t : tensor<4x2xf32> -> tensor<8x1xf32>
    %one = train.constant dense<3.0> : tensor<8x1xf32>
    %a = train.mul %f, %one : tensor<8x1xf32>
    %m = train.reduce mean %a [0, 1] : tensor<8x1xf32> -> tensor<1x1xf32>
    %l = train.reshape %m : tensor<1x1xf32> -> tensor<f32>
    train.loss %l : tensor<f32>
    return
  }
}

// -----

// A range of the rows: every rank would take its first elements.
module attributes {train.ranks = 8 : i64, train.two_rows} {
  func.func @step(%x: tensor<2x1xf32>) {
    %own = train.constant dense<[[1.0], [2.0]]> : tensor<2x1xf32>
    // expected-error @+1 {{'train.mul' op takes a constant that differs from row to row of the batch, as a range of its size does, which is not supported with more than one rank: make it an input of the model, with a row for each of the batch's}}
    %a = train.mul %x, %own : tensor<2x1xf32>
    %m = train.reduce mean %a [0, 1] : tensor<2x1xf32> -> tensor<1x1xf32>
    %l = train.reshape %m : tensor<1x1xf32> -> tensor<f32>
    train.loss %l : tensor<f32>
    return
  }
}

// -----

// Halves that are equal do not have equal rows, where the elements of a row are not together.
module attributes {train.ranks = 8 : i64, train.two_rows} {
  func.func @step(%x: tensor<2x2xf32>) {
    %t = train.transpose %x [1, 0] : tensor<2x2xf32> -> tensor<2x2xf32>
    %f = train.reshape %t : tensor<2x2xf32> -> tensor<4x1xf32>
    %own = train.constant dense<[[1.0], [2.0], [1.0], [2.0]]> : tensor<4x1xf32>
    // expected-error @+1 {{'train.mul' op takes a value that is the same on all ranks, but may be another for every row of the batch}}
    %a = train.mul %f, %own : tensor<4x1xf32>
    %m = train.reduce mean %a [0, 1] : tensor<4x1xf32> -> tensor<1x1xf32>
    %l = train.reshape %m : tensor<1x1xf32> -> tensor<f32>
    train.loss %l : tensor<f32>
    return
  }
}

// -----

// The same without two rows, through a broadcast; a graph that is fixed to its rows has its constants for each of them.
module attributes {train.ranks = 4 : i64} {
  func.func @step(%x: tensor<3x2xf32>) {
    %range = train.iota 0 : tensor<3x1xf32>
    %own = train.broadcast %range : tensor<3x1xf32> -> tensor<3x2xf32>
    // expected-error @+1 {{'train.add' op takes a constant that differs from row to row of the batch, as a range of its size does, which is not supported with more than one rank: make it an input of the model, with a row for each of the batch's}}
    %a = train.add %x, %own : tensor<3x2xf32>
    %m = train.reduce mean %a [0, 1] : tensor<3x2xf32> -> tensor<1x1xf32>
    %l = train.reshape %m : tensor<1x1xf32> -> tensor<f32>
    train.loss %l : tensor<f32>
    return
  }
}

// -----

// CHECK-LABEL: func.func @step(%arg0: tensor<3x2xf32>)
// CHECK: train.add %arg0
module attributes {train.ranks = 4 : i64} {
  func.func @step(%x: tensor<3x2xf32>) attributes {train.fixed_rows} {
    %own = train.iota 0 : tensor<3x2xf32>
    %a = train.add %x, %own : tensor<3x2xf32>
    %m = train.reduce mean %a [0, 1] : tensor<3x2xf32> -> tensor<1x1xf32>
    %l = train.reshape %m : tensor<1x1xf32> -> tensor<f32>
    train.loss %l : tensor<f32>
    return
  }
}
