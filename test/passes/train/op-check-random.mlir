// Random numbers of values whose rows are not first go by blocks, of which there are fewer at the small sizes of a try: [6, 2] of two
// leaves of one row becomes [12, 1], and is tried with four elements.
// RUN: sheaf-opt %s --pass-pipeline="builtin.module(train-partition,canonicalize,train-widen-leaves)" | FileCheck %s

// CHECK: "partition: 8 of 8 ops were tried on 2 leaves", "leaves: 4 of 4 ops were tried on 2 leaves"]
// CHECK: train.dropout {{.*}} {blocks = 6 : i64} : tensor<12x1xf32>
// CHECK: train.random_uniform {{.*}} {blocks = 6 : i64} : tensor<12x1xf32>
module attributes {train.ranks = 2 : i64, train.widen_to = 1 : i64, train.batch = 2 : i64} {
  train.parameter @w : tensor<6x6xf32> {trainable = true}
  func.func @step(%x: tensor<2x6xf32> {train.name = "x"}) {
    %w = train.read @w : tensor<6x6xf32>
    %h = train.matmul %x, %w : tensor<2x6xf32>, tensor<6x6xf32> -> tensor<2x6xf32>
    %t = train.transpose %h [1, 0] : tensor<2x6xf32> -> tensor<6x2xf32>
    %d = train.dropout %t ratio 0.5 node 3 : tensor<6x2xf32>
    %u = train.random_uniform like %t node 4 : tensor<6x2xf32> -> tensor<6x2xf32>
    %y = train.mul %d, %u : tensor<6x2xf32>
    %s = train.reduce sum %y [0, 1] : tensor<6x2xf32> -> tensor<1x1xf32>
    %l = train.reshape %s : tensor<1x1xf32> -> tensor<f32>
    train.loss %l : tensor<f32>
    return
  }
}
