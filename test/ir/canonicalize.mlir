// Shape ops compose, and those that change nothing go.
// RUN: sheaf-opt %s -canonicalize | FileCheck %s

// CHECK-LABEL: func.func @transposes
// CHECK-SAME: (%[[X:.*]]: tensor<2x3x4xf32>)
func.func @transposes(%x: tensor<2x3x4xf32>) -> (tensor<2x3x4xf32>, tensor<4x2x3xf32>) {
  // CHECK-NEXT: %[[T:.*]] = train.transpose %[[X]] [2, 0, 1]
  // CHECK-NEXT: return %[[X]], %[[T]]
  %a = train.transpose %x [1, 0, 2] : tensor<2x3x4xf32> -> tensor<3x2x4xf32>
  %b = train.transpose %a [1, 0, 2] : tensor<3x2x4xf32> -> tensor<2x3x4xf32>
  %c = train.transpose %a [2, 1, 0] : tensor<3x2x4xf32> -> tensor<4x2x3xf32>
  return %b, %c : tensor<2x3x4xf32>, tensor<4x2x3xf32>
}

// Dimensions of size 1 may go anywhere, and what remains are reshapes that cancel.
// CHECK-LABEL: func.func @transpose_of_units
// CHECK-SAME: (%[[X:.*]]: tensor<2x1x4xf32>)
func.func @transpose_of_units(%x: tensor<2x1x4xf32>) -> (tensor<1x2x4xf32>, tensor<2x1x4xf32>) {
  // CHECK-NEXT: %[[R:.*]] = train.reshape %[[X]] : tensor<2x1x4xf32> -> tensor<1x2x4xf32>
  // CHECK-NEXT: return %[[R]], %[[X]]
  %a = train.transpose %x [1, 0, 2] : tensor<2x1x4xf32> -> tensor<1x2x4xf32>
  %b = train.reshape %a : tensor<1x2x4xf32> -> tensor<2x1x4xf32>
  return %a, %b : tensor<1x2x4xf32>, tensor<2x1x4xf32>
}

// CHECK-LABEL: func.func @reshapes
// CHECK-SAME: (%[[X:.*]]: tensor<2x6xf32>)
func.func @reshapes(%x: tensor<2x6xf32>) -> (tensor<3x4xf32>, tensor<2x6xf32>) {
  // CHECK-NEXT: %[[R:.*]] = train.reshape %[[X]] : tensor<2x6xf32> -> tensor<3x4xf32>
  // CHECK-NEXT: return %[[R]], %[[X]]
  %a = train.reshape %x : tensor<2x6xf32> -> tensor<12xf32>
  %b = train.reshape %a : tensor<12xf32> -> tensor<3x4xf32>
  %c = train.reshape %a : tensor<12xf32> -> tensor<2x6xf32>
  return %b, %c : tensor<3x4xf32>, tensor<2x6xf32>
}

// A reversal keeps the type but is not an identity.
// CHECK-LABEL: func.func @slices
// CHECK-SAME: (%[[X:.*]]: tensor<8xf32>)
func.func @slices(%x: tensor<8xf32>) -> (tensor<8xf32>, tensor<2xf32>, tensor<8xf32>) {
  // CHECK-NEXT: %[[S:.*]] = train.slice %[[X]] starts [5] sizes [2] steps [-4]
  // CHECK-NEXT: %[[R:.*]] = train.slice %[[X]] starts [7] sizes [8] steps [-1]
  // CHECK-NEXT: return %[[X]], %[[S]], %[[R]]
  %a = train.slice %x starts [0] sizes [8] steps [1] : tensor<8xf32> -> tensor<8xf32>
  %b = train.slice %x starts [7] sizes [4] steps [-2] : tensor<8xf32> -> tensor<4xf32>
  %c = train.slice %b starts [1] sizes [2] steps [2] : tensor<4xf32> -> tensor<2xf32>
  %d = train.slice %x starts [7] sizes [8] steps [-1] : tensor<8xf32> -> tensor<8xf32>
  return %a, %c, %d : tensor<8xf32>, tensor<2xf32>, tensor<8xf32>
}

// CHECK-LABEL: func.func @broadcasts
// CHECK-SAME: (%[[X:.*]]: tensor<1x1x4xf32>)
func.func @broadcasts(%x: tensor<1x1x4xf32>) -> tensor<2x3x4xf32> {
  // CHECK-NEXT: %[[B:.*]] = train.broadcast %[[X]] : tensor<1x1x4xf32> -> tensor<2x3x4xf32>
  // CHECK-NEXT: return %[[B]]
  %a = train.broadcast %x : tensor<1x1x4xf32> -> tensor<1x3x4xf32>
  %b = train.broadcast %a : tensor<1x3x4xf32> -> tensor<2x3x4xf32>
  return %b : tensor<2x3x4xf32>
}

// CHECK-LABEL: func.func @splats
func.func @splats() -> tensor<2x3xf32> {
  // CHECK-NEXT: %[[C:.*]] = train.constant dense<2.000000e+00> : tensor<2x3xf32>
  // CHECK-NEXT: return %[[C]]
  %c = train.constant dense<2.0> : tensor<f32>
  %r = train.reshape %c : tensor<f32> -> tensor<1x1xf32>
  %b = train.broadcast %r : tensor<1x1xf32> -> tensor<4x6xf32>
  %s = train.slice %b starts [0, 0] sizes [3, 2] steps [1, 1] : tensor<4x6xf32> -> tensor<3x2xf32>
  %t = train.transpose %s [1, 0] : tensor<3x2xf32> -> tensor<2x3xf32>
  return %t : tensor<2x3xf32>
}

// CHECK-LABEL: func.func @concats
// CHECK-SAME: (%[[X:.*]]: tensor<2x3xf32>, %[[E:.*]]: tensor<2x0xf32>)
func.func @concats(%x: tensor<2x3xf32>, %empty: tensor<2x0xf32>) -> (tensor<2x3xf32>, tensor<2x6xf32>) {
  // CHECK-NEXT: %[[C:.*]] = train.concat %[[X]], %[[X]] axis 1
  // CHECK-NEXT: return %[[X]], %[[C]]
  %a = train.concat %x, %empty axis 1 : (tensor<2x3xf32>, tensor<2x0xf32>) -> tensor<2x3xf32>
  %b = train.concat %a axis 0 : (tensor<2x3xf32>) -> tensor<2x3xf32>
  %c = train.concat %b, %empty, %x axis 1 : (tensor<2x3xf32>, tensor<2x0xf32>, tensor<2x3xf32>) -> tensor<2x6xf32>
  return %b, %c : tensor<2x3xf32>, tensor<2x6xf32>
}
