// RUN: sheaf-opt -train-partition -split-input-file -verify-diagnostics %s

module attributes {train.ranks = 2 : i64} {
  func.func @step(%x: tensor<4xf32> {train.name = "x"}) {
    // expected-error @+1 {{has a value for every row: reduce it to a sum or mean over the batch}}
    train.loss %x : tensor<4xf32>
    return
  }
}

// -----

module attributes {train.ranks = 3 : i64} {
  // expected-error @+1 {{input "x" has 4 rows, which do not divide into 3 equal parts}}
  func.func @step(%x: tensor<4x3xf32> {train.name = "x"}) {
    %sum = train.reduce sum %x [0, 1] : tensor<4x3xf32> -> tensor<1x1xf32>
    %loss = train.reshape %sum : tensor<1x1xf32> -> tensor<f32>
    train.loss %loss : tensor<f32>
    return
  }
}

// -----

module attributes {train.ranks = 1 : i64} {
  func.func @step(%x: tensor<4x3xf32> {train.name = "x"}) {
    // expected-error @+1 {{must have the operand's type, but a multiple of its dimension 0}}
    %all = train.gather_rows %x : (tensor<4x3xf32>) -> tensor<6x3xf32>
    return
  }
}

// -----

// The values of a leaf have a maximum size.
module attributes {train.ranks = 2 : i64} {
  func.func @step(%x: tensor<4x1x3xf32> {train.name = "x"}) {
    // expected-error @+1 {{1099511627776, 3] is too large for one rank: give smaller sizes, or a smaller batch per rank; at most 4398046511104 elements are possible}}
    %wide = train.broadcast %x : tensor<4x1x3xf32> -> tensor<4x1099511627776x3xf32>
    %sum = train.reduce sum %wide [0, 1, 2] : tensor<4x1099511627776x3xf32> -> tensor<1x1x1xf32>
    %loss = train.reshape %sum : tensor<1x1x1xf32> -> tensor<f32>
    train.loss %loss : tensor<f32>
    return
  }
}

// -----

// Neither of two leaves is too large, although both together are.
module attributes {train.ranks = 2 : i64} {
  func.func @step(%x: tensor<4x1xf32> {train.name = "x"}) {
    %wide = train.broadcast %x : tensor<4x1xf32> -> tensor<4x1099511627777xf32>
    %sum = train.reduce sum %wide [0, 1] : tensor<4x1099511627777xf32> -> tensor<1x1xf32>
    %loss = train.reshape %sum : tensor<1x1xf32> -> tensor<f32>
    train.loss %loss : tensor<f32>
    return
  }
}
