// While the batch is one row and has not been followed, a reshape may move it from one dimension of size 1 to another.
// RUN: sheaf-opt %s -canonicalize -split-input-file | FileCheck %s

// CHECK-LABEL: @one_row
// CHECK: train.reshape %{{.*}} : tensor<1x1x4xf32> -> tensor<1x1x4xf32>
// CHECK-LABEL: @one_dimension
// CHECK-NOT: train.reshape
module attributes {train.one_row} {
  func.func @one_row(%x: tensor<1x1x4xf32>) -> tensor<1x1x4xf32> {
    %a = train.reshape %x : tensor<1x1x4xf32> -> tensor<1x4xf32>
    %b = train.reshape %a : tensor<1x4xf32> -> tensor<1x1x4xf32>
    return %b : tensor<1x1x4xf32>
  }
  func.func @one_dimension(%x: tensor<1x4xf32>) -> tensor<1x4xf32> {
    %a = train.reshape %x : tensor<1x4xf32> -> tensor<4xf32>
    %b = train.reshape %a : tensor<4xf32> -> tensor<1x4xf32>
    return %b : tensor<1x4xf32>
  }
}

// -----

// CHECK-LABEL: @followed
// CHECK-NEXT: return
func.func @followed(%x: tensor<1x1x4xf32>) -> tensor<1x1x4xf32> {
  %a = train.reshape %x : tensor<1x1x4xf32> -> tensor<1x4xf32>
  %b = train.reshape %a : tensor<1x4xf32> -> tensor<1x1x4xf32>
  return %b : tensor<1x1x4xf32>
}
