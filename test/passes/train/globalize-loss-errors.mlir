// What one rank cannot compute from its own rows is refused, where it stands.
// RUN: sheaf-opt %s -train-globalize-loss -split-input-file -verify-diagnostics

module attributes {train.ranks = 2 : i64} {
  func.func @step(%x: tensor<4xf32>) {
    // expected-error @+1 {{'train.reduce' op takes the max over the batch, which is not supported with more than one rank}}
    %m = train.reduce max %x [0] : tensor<4xf32> -> tensor<1xf32>
    %l = train.reshape %m : tensor<1xf32> -> tensor<f32>
    train.loss %l : tensor<f32>
    return
  }
}

// -----

module attributes {train.ranks = 2 : i64} {
  func.func @step(%x: tensor<4xf32>) {
    // expected-error @+1 {{'train.loss' op has a value for every row: reduce it to a sum or mean over the batch}}
    train.loss %x : tensor<4xf32>
    return
  }
}

// -----

module attributes {train.ranks = 2 : i64} {
  func.func @step(%x: tensor<4x4xf32>) {
    // Contrasts every row with every other.
    // expected-error @+1 {{'train.matmul' op combines values that carry the batch in different dimensions}}
    %s = train.matmul %x, %x {transpose_b} : tensor<4x4xf32>, tensor<4x4xf32> -> tensor<4x4xf32>
    return
  }
}

// -----

module attributes {train.ranks = 2 : i64} {
  func.func @step(%x: tensor<4x3xf32>) {
    // expected-error @+1 {{'train.cumsum' op mixes rows of the batch that lie on different ranks}}
    %s = train.cumsum %x axis 0 : tensor<4x3xf32>
    return
  }
}

// -----

module attributes {train.ranks = 2 : i64} {
  func.func @step(%x: tensor<4x3xf32>) {
    %t = train.transpose %x [1, 0] : tensor<4x3xf32> -> tensor<3x4xf32>
    // expected-error @+1 {{'train.reshape' op takes rows of the batch apart}}
    %s = train.reshape %t : tensor<3x4xf32> -> tensor<2x6xf32>
    return
  }
}

// -----

// Logits of two steps of each of three rows, step by step, and labels row by row.
module attributes {train.ranks = 2 : i64} {
  func.func @step(%x: tensor<3x2x5xf32>, %y: tensor<3x2xi64>) {
    %t = train.transpose %x [1, 0, 2] : tensor<3x2x5xf32> -> tensor<2x3x5xf32>
    %logits = train.reshape %t : tensor<2x3x5xf32> -> tensor<6x5xf32>
    %labels = train.reshape %y : tensor<3x2xi64> -> tensor<6x1xi64>
    // expected-error @+1 {{'train.cross_entropy' op combines values that carry the batch in different dimensions}}
    %loss, %lse = train.cross_entropy %logits, %labels : (tensor<6x5xf32>, tensor<6x1xi64>) -> (tensor<6x1xf32>, tensor<6x1xf32>)
    return
  }
}

// -----

module attributes {train.ranks = 2 : i64} {
  train.parameter @w : tensor<4xf32> {trainable = true}
  func.func @step(%x: tensor<4xf32>) {
    %w = train.read @w : tensor<4xf32>
    // expected-error @+1 {{'train.dropout' op drops elements of a value whose leading dimension is not the batch}}
    %d = train.dropout %w ratio 1.0e-1 node 0 : tensor<4xf32>
    return
  }
}

// -----

module attributes {train.ranks = 2 : i64} {
  func.func @step(%x: tensor<4x8xf32>) {
    // expected-error @+1 {{'train.top_k' op mixes rows of the batch that lie on different ranks, which is not supported with more than one rank}}
    %i = train.top_k %x axis 0 k 2 {largest} : tensor<4x8xf32> -> tensor<2x8xi64>
    return
  }
}

// -----

// Which of two rows replaces an element would depend on the rank.
module attributes {train.ranks = 2 : i64} {
  train.parameter @w : tensor<3x8xf32> {trainable = true}
  func.func @step(%x: tensor<4x8xf32>, %i: tensor<4x1xi64>) {
    %w = train.read @w : tensor<3x8xf32>
    // expected-error @+1 {{'train.scatter' op mixes rows of the batch that lie on different ranks, which is not supported with more than one rank}}
    %r = train.scatter replace %x[%i] into %w axis 0 : (tensor<4x1xi64>, tensor<4x8xf32>, tensor<3x8xf32>) -> tensor<3x8xf32>
    return
  }
}

// -----

module attributes {train.ranks = 2 : i64} {
  train.parameter @w : tensor<4xf32> {trainable = true}
  func.func @step(%x: tensor<4xf32>) {
    %w = train.read @w : tensor<4xf32>
    // expected-error @+1 {{'train.random_uniform' op draws random numbers for a value whose leading dimension is not the batch}}
    %d = train.random_uniform like %w node 0 : tensor<4xf32> -> tensor<4xf32>
    return
  }
}

// -----

// One row, and two dimensions of size 1: the mean of the batch, or that of nothing?
module attributes {train.ranks = 8 : i64} {
  func.func @step(%x: tensor<1x4xf32>) {
    %u = train.reshape %x : tensor<1x4xf32> -> tensor<1x1x4xf32>
    // expected-error @+1 {{'train.reduce' op acts on one of several dimensions, any of which may be the batch, since the graph is fixed to one row of it for each leaf, or rank: export the model with a dynamic batch}}
    %m = train.reduce mean %u [0] : tensor<1x1x4xf32> -> tensor<1x1x4xf32>
    return
  }
}

// -----

// expected-error @+1 {{has no function @step whose loss could be globalized}}
module attributes {train.ranks = 2 : i64} {
}

// -----

module attributes {train.ranks = 2 : i64, train.gradients_given} {
  train.parameter @w : tensor<4xf32> {trainable = true}
  func.func @step(%x: tensor<4xf32>) {
    %m = train.reduce mean %x [0] : tensor<4xf32> -> tensor<1xf32>
    %l = train.reshape %m : tensor<1xf32> -> tensor<f32>
    train.loss %l : tensor<f32>
    // expected-error @+1 {{'train.update' op has a gradient for every row, not their sum}}
    train.update @w by @optimizer, %x : tensor<4xf32>
    return
  }
}
