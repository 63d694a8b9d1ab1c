// What takes more than max-bytes stays as it is: operand, result, and all elements in 8 bytes meanwhile.
// RUN: sheaf-opt %s -train-fold-constants=max-bytes=64 | FileCheck %s

// CHECK-LABEL: @sizes
// CHECK-DAG: train.cumsum {{.*}} : tensor<4xf32>
// CHECK-DAG: train.constant dense<[1.000000e+00, 3.000000e+00, 6.000000e+00]> : tensor<3xf32>
func.func @sizes() -> (tensor<4xf32>, tensor<3xf32>) {
  %a = train.constant dense<[1.0, 2.0, 3.0, 4.0]> : tensor<4xf32>
  %b = train.constant dense<[1.0, 2.0, 3.0]> : tensor<3xf32>
  %c = train.cumsum %a axis 0 : tensor<4xf32>
  %d = train.cumsum %b axis 0 : tensor<3xf32>
  return %c, %d : tensor<4xf32>, tensor<3xf32>
}
