// Products take over biases, GELUs and their gradients, and sums of gradients that no kernel computes at no extra cost.
// RUN: sheaf-opt %s --train-fuse-gemm-epilogues --split-input-file | FileCheck %s

// CHECK: module attributes {train.decisions = ["matrix products with an epilogue: 2"]}
// CHECK-LABEL: @step
// CHECK: %[[C:.*]] = train.matmul_epilogue bias %arg0, %arg1 side %arg2
// CHECK: %[[R:.*]] = train.reshape %[[C]] : tensor<8x6xf32> -> tensor<2x4x6xf32>
// CHECK: %[[X:.*]], %[[U:.*]] = train.matmul_epilogue bias_gelu %arg0, %arg1 side %arg2
// CHECK-DAG: %[[XS:.*]] = train.reshape %[[X]] :
// CHECK-DAG: %[[US:.*]] = train.reshape %[[U]] :
// CHECK: return %[[R]], %[[XS]], %[[US]]
func.func @step(%a: tensor<8x5xf32>, %w: tensor<5x6xf32>, %b: tensor<6xf32>) -> (tensor<2x4x6xf32>, tensor<2x4x6xf32>, tensor<2x4x6xf32>) {
  %rows = train.reshape %b : tensor<6xf32> -> tensor<1x1x6xf32>
  %biases = train.broadcast %rows : tensor<1x1x6xf32> -> tensor<2x4x6xf32>
  %0 = train.matmul %a, %w : tensor<8x5xf32>, tensor<5x6xf32> -> tensor<8x6xf32>
  %1 = train.reshape %0 : tensor<8x6xf32> -> tensor<2x4x6xf32>
  %2 = train.add %biases, %1 : tensor<2x4x6xf32>
  %3 = train.matmul %a, %w : tensor<8x5xf32>, tensor<5x6xf32> -> tensor<8x6xf32>
  %4 = train.reshape %3 : tensor<8x6xf32> -> tensor<2x4x6xf32>
  %5 = train.add %4, %biases : tensor<2x4x6xf32>
  %6 = train.gelu %5 {approximate} : tensor<2x4x6xf32>
  return %2, %6, %5 : tensor<2x4x6xf32>, tensor<2x4x6xf32>, tensor<2x4x6xf32>
}

// -----

// A GELU without a bias; the gradient of one; and the bias gradient together with the weight's, once the gradient is a
// product's own.
// CHECK-LABEL: @backward
// CHECK: %[[G:.*]], %[[U:.*]] = train.matmul_epilogue gelu %arg0, %arg1 :
// CHECK: %[[D:.*]] = train.matmul_epilogue gelu_grad %[[G]], %arg2 side %[[U]] {transpose_b}
// CHECK: %[[DW:.*]], %[[DB:.*]] = train.matmul_epilogue sum_rhs %arg0, %[[D]] {transpose_a}
// CHECK: return %[[DW]]
func.func @backward(%a: tensor<8x5xf32>, %w: tensor<5x6xf32>, %v: tensor<6x6xf32>) -> (tensor<5x6xf32>, tensor<6xf32>) {
  %0 = train.matmul %a, %w : tensor<8x5xf32>, tensor<5x6xf32> -> tensor<8x6xf32>
  %1 = train.gelu %0 {approximate} : tensor<8x6xf32>
  %2 = train.matmul %1, %v {transpose_b} : tensor<8x6xf32>, tensor<6x6xf32> -> tensor<8x6xf32>
  %3 = train.gelu_grad %0, %2 {approximate} : tensor<8x6xf32>
  %4 = train.reduce sum %3 [0] : tensor<8x6xf32> -> tensor<1x6xf32>
  %5 = train.reshape %4 : tensor<1x6xf32> -> tensor<6xf32>
  %6 = train.matmul %a, %3 {transpose_a} : tensor<8x5xf32>, tensor<8x6xf32> -> tensor<5x6xf32>
  return %6, %5 : tensor<5x6xf32>, tensor<6xf32>
}

// -----

// A weight that is stored transposed: the summed operand comes first.
// CHECK-LABEL: @transposed
// CHECK: train.matmul_epilogue sum_lhs %{{.*}}, %arg2 {transpose_a}
func.func @transposed(%g: tensor<8x7xf32>, %v: tensor<7x6xf32>, %a: tensor<8x5xf32>) -> (tensor<6x5xf32>, tensor<1x6xf32>) {
  %0 = train.matmul %g, %v : tensor<8x7xf32>, tensor<7x6xf32> -> tensor<8x6xf32>
  %1 = train.matmul %0, %a {transpose_a} : tensor<8x6xf32>, tensor<8x5xf32> -> tensor<6x5xf32>
  %2 = train.reduce sum %0 [0] : tensor<8x6xf32> -> tensor<1x6xf32>
  return %1, %2 : tensor<6x5xf32>, tensor<1x6xf32>
}

// -----

// What stays: the erf form; a product with another user; a sum that a kernel computes at no extra cost; a bias of rows.
// CHECK-LABEL: @others
// CHECK-NOT: train.matmul_epilogue
// CHECK: return
func.func @others(%a: tensor<8x5xf32>, %w: tensor<5x8xf32>, %b: tensor<8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<5x8xf32>, tensor<1x8xf32>) {
  %0 = train.matmul %a, %w : tensor<8x5xf32>, tensor<5x8xf32> -> tensor<8x8xf32>
  %1 = train.gelu %0 : tensor<8x8xf32>
  %2 = train.reshape %b : tensor<8xf32> -> tensor<1x8xf32>
  %3 = train.broadcast %2 : tensor<1x8xf32> -> tensor<8x8xf32>
  %4 = train.add %0, %3 : tensor<8x8xf32>
  %5 = train.matmul %a, %w : tensor<8x5xf32>, tensor<5x8xf32> -> tensor<8x8xf32>
  %6 = train.reshape %b : tensor<8xf32> -> tensor<8x1xf32>
  %7 = train.broadcast %6 : tensor<8x1xf32> -> tensor<8x8xf32>
  %8 = train.add %5, %7 : tensor<8x8xf32>
  %9 = train.mul %8, %8 : tensor<8x8xf32>
  %10 = train.matmul %a, %9 {transpose_a} : tensor<8x5xf32>, tensor<8x8xf32> -> tensor<5x8xf32>
  %11 = train.reduce sum %9 [0] : tensor<8x8xf32> -> tensor<1x8xf32>
  return %1, %4, %8, %9, %10, %11 : tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<5x8xf32>, tensor<1x8xf32>
}
