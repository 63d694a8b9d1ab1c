// GELU in its erf and tanh forms, however associated, and near misses that must stay.
// RUN: sheaf-opt %s -split-input-file -train-lift-gelu | FileCheck %s

// x * 0.5 * (1 + erf(x / sqrt 2)), and 0.5 * (x * (erf(x * 0.7071) + 1)).
// CHECK: train.decisions = ["lifted 2 GELUs in their erf form"]
// CHECK-LABEL: func.func @erf
// CHECK-SAME: (%[[X:.*]]: tensor<4x8xf32>, %[[Y:.*]]: tensor<4x8xf32>)
func.func @erf(%x: tensor<4x8xf32>, %y: tensor<4x8xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>) {
  // CHECK-DAG: %[[A:.*]] = train.gelu %[[X]] : tensor<4x8xf32>
  // CHECK-DAG: %[[B:.*]] = train.gelu %[[Y]] : tensor<4x8xf32>
  // CHECK-NEXT: return %[[A]], %[[B]]
  %half = train.constant dense<0.5> : tensor<4x8xf32>
  %one = train.constant dense<1.0> : tensor<4x8xf32>
  %root = train.constant dense<1.41421354> : tensor<f32>
  %root1 = train.reshape %root : tensor<f32> -> tensor<1x1xf32>
  %root2 = train.broadcast %root1 : tensor<1x1xf32> -> tensor<4x8xf32>
  %a = train.div %x, %root2 : tensor<4x8xf32>
  %b = train.erf %a : tensor<4x8xf32>
  %c = train.add %one, %b : tensor<4x8xf32>
  %d = train.mul %x, %half : tensor<4x8xf32>
  %e = train.mul %d, %c : tensor<4x8xf32>
  %inverse = train.constant dense<0.7071> : tensor<4x8xf32>
  %f = train.mul %y, %inverse : tensor<4x8xf32>
  %g = train.erf %f : tensor<4x8xf32>
  %h = train.add %g, %one : tensor<4x8xf32>
  %i = train.mul %y, %h : tensor<4x8xf32>
  %j = train.mul %half, %i : tensor<4x8xf32>
  return %e, %j : tensor<4x8xf32>, tensor<4x8xf32>
}

// -----

// The tanh form with Pow, as GPT-2 writes it, x itself a product and the result gated.
// CHECK: train.decisions = ["lifted 1 GELU in its tanh form"]
// CHECK-LABEL: func.func @tanh
// CHECK-SAME: (%[[A:.*]]: tensor<4x8xf32>, %[[B:.*]]: tensor<4x8xf32>)
func.func @tanh(%a: tensor<4x8xf32>, %b: tensor<4x8xf32>) -> tensor<4x8xf32> {
  // CHECK-NEXT: %[[X:.*]] = train.mul %[[A]], %[[B]]
  // CHECK-NEXT: %[[G:.*]] = train.gelu %[[X]] {approximate}
  // CHECK-NEXT: train.mul %[[G]], %[[B]]
  // CHECK-NEXT: return
  %x = train.mul %a, %b : tensor<4x8xf32>
  %half = train.constant dense<0.5> : tensor<4x8xf32>
  %one = train.constant dense<1.0> : tensor<4x8xf32>
  %three = train.constant dense<3.0> : tensor<4x8xf32>
  %cubic = train.constant dense<0.044715> : tensor<4x8xf32>
  %linear = train.constant dense<0.797884583> : tensor<4x8xf32>
  %0 = train.mul %x, %half : tensor<4x8xf32>
  %1 = train.pow %x, %three : tensor<4x8xf32>
  %2 = train.mul %1, %cubic : tensor<4x8xf32>
  %3 = train.add %x, %2 : tensor<4x8xf32>
  %4 = train.mul %3, %linear : tensor<4x8xf32>
  %5 = train.tanh %4 : tensor<4x8xf32>
  %6 = train.add %5, %one : tensor<4x8xf32>
  %7 = train.mul %0, %6 : tensor<4x8xf32>
  %8 = train.mul %7, %b : tensor<4x8xf32>
  return %8 : tensor<4x8xf32>
}

// -----

// 0.5 + 0.5 tanh(0.79788 x (1 + 0.044715 x x)), and x after a reshape.
// CHECK-LABEL: func.func @tanh_factored
// CHECK-SAME: (%[[X:.*]]: tensor<32xf32>)
func.func @tanh_factored(%x: tensor<32xf32>) -> tensor<4x8xf32> {
  // CHECK-NEXT: %[[R:.*]] = train.reshape %[[X]]
  // CHECK-NEXT: train.gelu %[[R]] {approximate}
  // CHECK-NEXT: return
  %one = train.constant dense<1.0> : tensor<4x8xf32>
  %half = train.constant dense<0.5> : tensor<4x8xf32>
  %cubic = train.constant dense<0.044715> : tensor<4x8xf32>
  %linear = train.constant dense<0.797884583> : tensor<4x8xf32>
  %r = train.reshape %x : tensor<32xf32> -> tensor<4x8xf32>
  %0 = train.mul %r, %r : tensor<4x8xf32>
  %1 = train.mul %cubic, %0 : tensor<4x8xf32>
  %2 = train.add %one, %1 : tensor<4x8xf32>
  %3 = train.mul %linear, %r : tensor<4x8xf32>
  %4 = train.mul %3, %2 : tensor<4x8xf32>
  %5 = train.tanh %4 : tensor<4x8xf32>
  %6 = train.mul %half, %5 : tensor<4x8xf32>
  %7 = train.add %half, %6 : tensor<4x8xf32>
  %r2 = train.reshape %x : tensor<32xf32> -> tensor<4x8xf32>
  %8 = train.mul %7, %r2 : tensor<4x8xf32>
  return %8 : tensor<4x8xf32>
}

// -----

// Half of it missing, another x, another cubic coefficient: no GELU.
// CHECK-NOT: train.decisions
// CHECK-LABEL: func.func @no_gelu
// CHECK-NOT: train.gelu
func.func @no_gelu(%x: tensor<8xf32>, %z: tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>, tensor<8xf32>) {
  %half = train.constant dense<0.5> : tensor<8xf32>
  %one = train.constant dense<1.0> : tensor<8xf32>
  %inverse = train.constant dense<0.70710678> : tensor<8xf32>
  %three = train.constant dense<3.0> : tensor<8xf32>
  %cubic = train.constant dense<0.05> : tensor<8xf32>
  %linear = train.constant dense<0.797884583> : tensor<8xf32>
  %0 = train.mul %x, %inverse : tensor<8xf32>
  %1 = train.erf %0 : tensor<8xf32>
  %2 = train.add %1, %one : tensor<8xf32>
  %3 = train.mul %x, %2 : tensor<8xf32>
  %4 = train.mul %half, %2 : tensor<8xf32>
  %5 = train.mul %z, %4 : tensor<8xf32>
  %6 = train.pow %x, %three : tensor<8xf32>
  %7 = train.mul %6, %cubic : tensor<8xf32>
  %8 = train.add %x, %7 : tensor<8xf32>
  %9 = train.mul %8, %linear : tensor<8xf32>
  %10 = train.tanh %9 : tensor<8xf32>
  %11 = train.add %10, %one : tensor<8xf32>
  %12 = train.mul %x, %half : tensor<8xf32>
  %13 = train.mul %12, %11 : tensor<8xf32>
  return %3, %5, %13 : tensor<8xf32>, tensor<8xf32>, tensor<8xf32>
}
