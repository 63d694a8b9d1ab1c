// Seven of eight rows do not divide into leaves, so every leaf multiplies all of them. Where the product comes first, each has its own.
// RUN: sheaf-opt %s --split-input-file --pass-pipeline="builtin.module(train-partition)" --verify-diagnostics -o /dev/null

module attributes {train.ranks = 4 : i64} {
  train.parameter @w : tensor<6x6xf32> {trainable = true}
  func.func @step(%x: tensor<8x6xf32> {train.name = "x"}) {
    %w = train.read @w : tensor<6x6xf32>
    %s = train.slice %x starts [0, 0] sizes [7, 6] steps [1, 1] : tensor<8x6xf32> -> tensor<7x6xf32>
    // expected-warning@+1 {{every leaf computes this product for the rows of all leaves, since what it reads does not divide into them: with others like it 100 % of a leaf's multiplications; if rows are left out or added before it, do so after it}}
    %h = train.matmul %s, %w : tensor<7x6xf32>, tensor<6x6xf32> -> tensor<7x6xf32>
    %m = train.reduce mean %h [0, 1] : tensor<7x6xf32> -> tensor<1x1xf32>
    %l = train.reshape %m : tensor<1x1xf32> -> tensor<f32>
    train.loss %l : tensor<f32>
    return
  }
}

// -----

module attributes {train.ranks = 4 : i64} {
  train.parameter @w : tensor<6x6xf32> {trainable = true}
  func.func @step(%x: tensor<8x6xf32> {train.name = "x"}) {
    %w = train.read @w : tensor<6x6xf32>
    %h = train.matmul %x, %w : tensor<8x6xf32>, tensor<6x6xf32> -> tensor<8x6xf32>
    %s = train.slice %h starts [0, 0] sizes [7, 6] steps [1, 1] : tensor<8x6xf32> -> tensor<7x6xf32>
    %m = train.reduce mean %s [0, 1] : tensor<7x6xf32> -> tensor<1x1xf32>
    %l = train.reshape %m : tensor<1x1xf32> -> tensor<f32>
    train.loss %l : tensor<f32>
    return
  }
}
