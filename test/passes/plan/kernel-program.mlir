// What kernels compute of one leaf of two: their rows are a part of a dimension, and of each entry of the dimensions before it.
// Where an op has rows of leaves and does not say where, nothing is stated.
// RUN: sheaf-opt %s -plan-lower | FileCheck %s

// CHECK: plan.kernel "kernel0" {{.*}} ops = ["operand f32 1x1x2", "operand f32 3x2x2 leaves 2 outer 3",
// CHECK-SAME: "spread broadcast f32 3x2x2 of 0", "map mul f32 3x2x2 of 1 2", "result f32 3x2x2 leaves 2 outer 3 of 3"]
// CHECK: plan.kernel "kernel1" {{.*}} ops = ["operand f32 4x2 leaves 2 outer 1", "splat constant f32 4x2 with [[HASH:[0-9a-f]+]]",
// CHECK-SAME: "map add f32 4x2 of 0 1", "whole reduce f32 2x2 with {{[0-9a-f]+}} of 2", "result f32 2x2 leaves 2 outer 1 of 3"]
// CHECK: plan.kernel "kernel2" rows 8 block 1 bytes [64, 64] attributes {operations = {{[0-9]+}} : i64, program
module attributes {train.ranks = 1 : i64, train.batch = 8 : i64, zero.stage = 0 : i64} {
  func.func @step(%b: tensor<1x1x2xf32> {train.name = "b"}, %x: tensor<3x4x2xf32> {train.name = "x"}, %y: tensor<8x2xf32> {train.name = "y"}) {
    %0 = train.fusion(%b, %x) rows 12 columns 2 block 1 {elementwise = array<i64: 1>} : (tensor<1x1x2xf32>, tensor<3x4x2xf32>) -> tensor<3x4x2xf32> {
    ^bb0(%c: tensor<1x1x2xf32>, %d: tensor<3x4x2xf32>):
      %1 = train.broadcast %c {train.leaf_rows = array<i64: 2, -1, 0, 1, 1>} : tensor<1x1x2xf32> -> tensor<3x4x2xf32>
      %2 = train.mul %d, %1 {train.leaf_rows = array<i64: 2, 1, 1, 1, 1, 1, 1>} : tensor<3x4x2xf32>
      train.yield %2 : tensor<3x4x2xf32>
    }
    %3 = train.fusion(%y) rows 8 columns 2 block 2 {elementwise = array<i64: 0>} : (tensor<8x2xf32>) -> tensor<4x2xf32> {
    ^bb0(%c: tensor<8x2xf32>):
      %1 = train.constant {train.leaf_rows = array<i64: 2, 0, 1>} dense<2.0> : tensor<8x2xf32>
      %2 = train.add %c, %1 {train.leaf_rows = array<i64: 2, 0, 1, 0, 1, 0, 1>} : tensor<8x2xf32>
      %4 = train.reduce sum %2 [0] {leaves = 2 : i64, train.leaf_rows = array<i64: 2, 0, 1, -1, 0>} : tensor<8x2xf32> -> tensor<2x1x2xf32>
      train.yield %4 : tensor<2x1x2xf32>
    }
    %5 = train.fusion(%y) rows 8 columns 2 block 1 {elementwise = array<i64: 0>} : (tensor<8x2xf32>) -> tensor<8x2xf32> {
    ^bb0(%c: tensor<8x2xf32>):
      %1 = train.exp %c {train.leaf_rows = array<i64: 2, 0, 1, 0, 1>} : tensor<8x2xf32>
      %2 = train.neg %1 : tensor<8x2xf32>
      train.yield %2 : tensor<8x2xf32>
    }
    return
  }
}
