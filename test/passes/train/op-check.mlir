// A claim that is made wrong is an error that names the node, and what was wrong is a remark.
// RUN: not sheaf-opt %s --pass-pipeline="builtin.module(train-partition{fault=0})" 2>&1 | FileCheck %s --check-prefix=WRONG
// RUN: sheaf-opt %s --pass-pipeline="builtin.module(train-partition)" | FileCheck %s
// RUN: sheaf-opt %s --pass-pipeline="builtin.module(train-partition{check=false})" | FileCheck %s --check-prefix=OFF

// WRONG: error: loc("scores"): 'train.matmul' op is not divided rightly among 4 leaves: operand 0 of [8, 6] has the shape [2, 6] on a leaf, which is not all of it
// WRONG: remark: fault: train.matmul: operand 0 as all of it, not its part along dimension 0, in runs of 2
// CHECK: train.decisions = ["partition: 5 of 5 ops were tried on 4 leaves"]
// OFF-NOT: tried
module attributes {train.ranks = 4 : i64} {
  train.parameter @w : tensor<6x6xf32> {trainable = true}
  func.func @step(%x: tensor<8x6xf32> {train.name = "x"}) {
    %w = train.read @w : tensor<6x6xf32>
    %h = train.matmul %x, %w : tensor<8x6xf32>, tensor<6x6xf32> -> tensor<8x6xf32> loc("scores")
    %s = train.mul %h, %h : tensor<8x6xf32>
    %m = train.reduce mean %s [0, 1] : tensor<8x6xf32> -> tensor<1x1xf32>
    %l = train.reshape %m : tensor<1x1xf32> -> tensor<f32>
    train.loss %l : tensor<f32>
    return
  }
}
