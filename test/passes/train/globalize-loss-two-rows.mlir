// A leaf of one row is imported with two. The pass finds the batch there and keeps the first row.
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

// A replicated value that is computed for two rows is computed for one.
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

// Interleaved rows: every second element belongs to the first row.
// CHECK-LABEL: func.func @step(%arg0: tensor<1x4xf32>)
// CHECK: %[[F:.*]] = train.reshape {{.*}} : tensor<4x1xf32> -> tensor<4x1xf32>
// CHECK: %[[THREE:.*]] = train.constant dense<3.000000e+00> : tensor<4x1xf32>
// CHECK: train.mul %[[F]], %[[THREE]] : tensor<4x1xf32>
module attributes {train.ranks = 8 : i64, train.two_rows} {
  func.func @step(%x: tensor<2x4xf32>) {
    %t = train.transpose %x [1, 0] : tensor<2x4xf32> -> tensor<4x2xf32>
    %f = train.reshape %t : tensor<4x2xf32> -> tensor<8x1xf32>
    %three = train.constant dense<3.0> : tensor<8x1xf32>
    %a = train.mul %f, %three : tensor<8x1xf32>
    %m = train.reduce mean %a [0, 1] : tensor<8x1xf32> -> tensor<1x1xf32>
    %l = train.reshape %m : tensor<1x1xf32> -> tensor<f32>
    train.loss %l : tensor<f32>
    return
  }
}

// -----

// A range of the rows: every rank would use its first elements.
module attributes {train.ranks = 8 : i64, train.two_rows} {
  func.func @step(%x: tensor<2x1xf32>) {
    %perRow = train.constant dense<[[1.0], [2.0]]> : tensor<2x1xf32>
    // expected-error @+1 {{'train.mul' op takes a constant that differs from row to row of the batch, such as a range of its size, which is not supported with more than one rank: make it an input of the model, with a row for each row of the batch}}
    %a = train.mul %x, %perRow : tensor<2x1xf32>
    %m = train.reduce mean %a [0, 1] : tensor<2x1xf32> -> tensor<1x1xf32>
    %l = train.reshape %m : tensor<1x1xf32> -> tensor<f32>
    train.loss %l : tensor<f32>
    return
  }
}

// -----

// Interleaved rows may differ where the halves are equal.
module attributes {train.ranks = 8 : i64, train.two_rows} {
  func.func @step(%x: tensor<2x2xf32>) {
    %t = train.transpose %x [1, 0] : tensor<2x2xf32> -> tensor<2x2xf32>
    %f = train.reshape %t : tensor<2x2xf32> -> tensor<4x1xf32>
    %perRow = train.constant dense<[[1.0], [2.0], [1.0], [2.0]]> : tensor<4x1xf32>
    // expected-error @+1 {{'train.mul' op combines rows of the batch with a value that is the same on all ranks and may differ from row to row, which is not supported with more than one rank: make it an input of the model, with a row for each row of the batch}}
    %a = train.mul %f, %perRow : tensor<4x1xf32>
    %m = train.reduce mean %a [0, 1] : tensor<4x1xf32> -> tensor<1x1xf32>
    %l = train.reshape %m : tensor<1x1xf32> -> tensor<f32>
    train.loss %l : tensor<f32>
    return
  }
}

// -----

// A leaf of several rows. The range is looked up in a table, and repeated.
module attributes {train.ranks = 4 : i64} {
  func.func @step(%x: tensor<3x2xf32>) {
    %range = train.constant dense<[0, 1, 2]> : tensor<3xi64>
    %table = train.constant dense<1.0> : tensor<5x1xf32>
    %looked = train.gather %table[%range] axis 0 : tensor<5x1xf32>, tensor<3xi64> -> tensor<3x1xf32>
    %perRow = train.broadcast %looked : tensor<3x1xf32> -> tensor<3x2xf32>
    // expected-error @+1 {{'train.add' op takes a constant that differs from row to row of the batch, such as a range of its size, which is not supported with more than one rank: make it an input of the model, with a row for each row of the batch}}
    %a = train.add %x, %perRow : tensor<3x2xf32>
    %m = train.reduce mean %a [0, 1] : tensor<3x2xf32> -> tensor<1x1xf32>
    %l = train.reshape %m : tensor<1x1xf32> -> tensor<f32>
    train.loss %l : tensor<f32>
    return
  }
}

// -----

// Constants of a graph that is fixed to its rows belong to these: every rank uses them.
// CHECK-LABEL: func.func @step(%arg0: tensor<3x2xf32>)
// CHECK: train.add %arg0
module attributes {train.ranks = 4 : i64} {
  // expected-warning @below {{the number of rows is fixed in the model}}
  func.func @step(%x: tensor<3x2xf32>) attributes {train.fixed_rows} {
    %perRow = train.iota 0 : tensor<3x2xf32>
    %a = train.add %x, %perRow : tensor<3x2xf32>
    %m = train.reduce mean %a [0, 1] : tensor<3x2xf32> -> tensor<1x1xf32>
    %l = train.reshape %m : tensor<1x1xf32> -> tensor<f32>
    train.loss %l : tensor<f32>
    return
  }
}
