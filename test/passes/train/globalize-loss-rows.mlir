// Ops say where the batch is: imports of the graph with different numbers of rows were compared.
// RUN: sheaf-opt %s -train-globalize-loss -split-input-file -verify-diagnostics | FileCheck %s

// A parameter that is repeated for each row: its sum over the rows is this rank's term.
// CHECK-LABEL: func.func @step
// CHECK: %[[TERM:.*]] = train.reduce sum {{.*}} [0, 1] : tensor<2x4xf32> -> tensor<1x1xf32>
// CHECK: train.reshape %[[TERM]]
// CHECK-NOT: train.rows
module attributes {train.ranks = 4 : i64, train.rows_known} {
  train.parameter @p : tensor<1x4xf32> {trainable = true}
  func.func @step(%x: tensor<2x4xf32>) {
    %p = train.read @p : tensor<1x4xf32>
    %e = train.broadcast %p {train.rows = array<i64: 0>} : tensor<1x4xf32> -> tensor<2x4xf32>
    %s = train.reduce sum %e [0, 1] : tensor<2x4xf32> -> tensor<1x1xf32>
    %l = train.reshape %s : tensor<1x1xf32> -> tensor<f32>
    train.loss %l : tensor<f32>
    return
  }
}

// -----

// Without rows it is not a sum over the batch, although the parameter is repeated as often: each rank adds its share.
// CHECK-LABEL: func.func @step
// CHECK: train.reduce sum
// CHECK: train.constant dense<2.500000e-01>
module attributes {train.ranks = 4 : i64, train.rows_known} {
  train.parameter @p : tensor<1x4xf32> {trainable = true}
  func.func @step(%x: tensor<2x4xf32>) {
    %p = train.read @p : tensor<1x4xf32>
    %e = train.broadcast %p : tensor<1x4xf32> -> tensor<2x4xf32>
    %s = train.reduce sum %e [0, 1] : tensor<2x4xf32> -> tensor<1x1xf32>
    %l = train.reshape %s : tensor<1x1xf32> -> tensor<f32>
    train.loss %l : tensor<f32>
    return
  }
}

// -----

// The sum over the batch is repeated for each row: the rows' sum is again one over the batch, of the whole sum.
// CHECK-LABEL: func.func @step
// CHECK: %[[E:.*]] = train.broadcast {{.*}} : tensor<1x4xf32> -> tensor<2x4xf32>
// CHECK: %[[WHOLE:.*]] = train.global_sum %[[E]]
// CHECK: train.reduce sum %[[WHOLE]] [0, 1]
// CHECK-NOT: train.global_sum
module attributes {train.ranks = 4 : i64, train.rows_known} {
  func.func @step(%x: tensor<2x4xf32>) {
    %t = train.reduce sum %x [0] : tensor<2x4xf32> -> tensor<1x4xf32>
    %e = train.broadcast %t {train.rows = array<i64: 0>} : tensor<1x4xf32> -> tensor<2x4xf32>
    %s = train.reduce sum %e [0, 1] : tensor<2x4xf32> -> tensor<1x1xf32>
    %l = train.reshape %s : tensor<1x1xf32> -> tensor<f32>
    train.loss %l : tensor<f32>
    return
  }
}

// -----

// As many groups as rows, by their size alone.
module attributes {train.ranks = 4 : i64, train.rows_known} {
  func.func @step(%x: tensor<4x4xf32>) {
    // expected-error @below {{'train.reshape' op groups rows of the batch, which is not supported with more than one rank}}
    %g = train.reshape %x {train.rows = array<i64: 0>} : tensor<4x4xf32> -> tensor<1x4x4xf32>
    %m = train.reduce mean %g [0, 1, 2] : tensor<1x4x4xf32> -> tensor<1x1x1xf32>
    %l = train.reshape %m : tensor<1x1x1xf32> -> tensor<f32>
    train.loss %l : tensor<f32>
    return
  }
}

// -----

// The comparison of the imports found what cannot be divided.
// expected-error @unknown {{does something else}}
module attributes {train.ranks = 2 : i64} {
  func.func @step(%x: tensor<2x4xf32>) attributes {train.rows_refused = {at = loc("here"), why = "does something else"}} {
    %s = train.reduce mean %x [0, 1] : tensor<2x4xf32> -> tensor<1x1xf32>
    %l = train.reshape %s : tensor<1x1xf32> -> tensor<f32>
    train.loss %l : tensor<f32>
    return
  }
}
