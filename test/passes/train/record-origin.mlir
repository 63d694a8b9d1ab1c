// What decides bits is recorded before the program is widened: the same for one and for two ranks, and not for other ops.
// RUN: sheaf-opt %s -split-input-file -train-record-origin | FileCheck %s

// CHECK-LABEL: module @two
// CHECK-SAME: train.origin = {hashes = ["[[X:.*]]", "[[W:.*]]", "[[RELU:.*]]", "[[END:.*]]"], leaves = 4 : i64, names = ["input x", "parameter w", "relu", ""]}
module @two attributes {train.ranks = 4 : i64, train.widen_to = 2 : i64} {
  train.parameter @w : tensor<3xf32> {trainable = true, source = #train.source<"a.onnx", 0, 12>}
  func.func @step(%x: tensor<2x3xf32> {train.name = "x"}) {
    %0 = train.relu %x : tensor<2x3xf32> loc("relu")
    return
  }
}

// -----

// The names of files are not recorded, nor locations within a node.
// CHECK-LABEL: module @one
// CHECK-SAME: train.origin = {hashes = ["[[X]]", "[[W]]", "[[RELU]]", "[[END]]"], leaves = 4 : i64
module @one attributes {train.ranks = 4 : i64, train.widen_to = 1 : i64, train.micro_batches = 2 : i64} {
  train.parameter @w : tensor<3xf32> {trainable = true, source = #train.source<"b.onnx", 128, 12>}
  func.func @step(%x: tensor<2x3xf32> {train.name = "x"}) {
    %0 = train.relu %x : tensor<2x3xf32> loc("relu")
    return
  }
}

// -----

// CHECK-LABEL: module @group
// CHECK-SAME: hashes = ["[[X]]", "[[W]]",
// CHECK-NOT: "[[RELU]]"
// CHECK-SAME: leaves = 4 : i64
module @group attributes {train.ranks = 4 : i64} {
  train.parameter @w : tensor<3xf32> {trainable = true}
  func.func @step(%x: tensor<2x3xf32> {train.name = "x"}) {
    %0 = train.relu %x {train.group = 1 : i64} : tensor<2x3xf32> loc("relu")
    return
  }
}

// -----

// CHECK-LABEL: module @constant
// CHECK-SAME: hashes = ["[[X]]", "[[SEVEN:.*]]", "{{.*}}"], leaves = 4
module @constant attributes {train.ranks = 4 : i64} {
  func.func @step(%x: tensor<2x3xf32> {train.name = "x"}) {
    %0 = train.constant dense<[7.0, 8.0]> : tensor<2xf32> loc("c")
    return
  }
}

// -----

// CHECK-LABEL: module @other_constant
// CHECK-SAME: hashes = ["[[X]]", "
// CHECK-NOT: "[[SEVEN]]"
// CHECK-SAME: leaves = 4
module @other_constant attributes {train.ranks = 4 : i64} {
  func.func @step(%x: tensor<2x3xf32> {train.name = "x"}) {
    %0 = train.constant dense<[7.0, 9.0]> : tensor<2xf32> loc("c")
    return
  }
}
