// An op that is something else for a leaf than for the batch is not tried, and named.
// RUN: sheaf-opt %s --pass-pipeline="builtin.module(train-partition)" | FileCheck %s

// CHECK: "partition: 4 of 5 ops were tried on 2 leaves"
// CHECK-SAME: "partition: not tried: norm: train.batch_norm, normalizes by the moments of a leaf's own rows, which the batch's op does not"
module attributes {train.ranks = 2 : i64} {
  train.parameter @scale : tensor<3xf32> {trainable = true}
  train.parameter @bias : tensor<3xf32> {trainable = true}
  func.func @step(%x: tensor<8x3x4x4xf32> {train.name = "x"}) {
    %scale = train.read @scale : tensor<3xf32>
    %bias = train.read @bias : tensor<3xf32>
    %y, %mean, %variance = train.batch_norm %x, %scale, %bias epsilon 1.0e-5 {local} : (tensor<8x3x4x4xf32>, tensor<3xf32>, tensor<3xf32>) -> (tensor<8x3x4x4xf32>, tensor<3xf32>, tensor<3xf32>) loc("norm")
    %e = train.exp %y : tensor<8x3x4x4xf32>
    %m = train.reduce mean %e [0, 1, 2, 3] : tensor<8x3x4x4xf32> -> tensor<1x1x1x1xf32>
    %l = train.reshape %m : tensor<1x1x1x1xf32> -> tensor<f32>
    train.loss %l : tensor<f32>
    return
  }
}
