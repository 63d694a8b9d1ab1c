// 16-bit floats of the graph become f32; parameters remember the type of their bytes.
// RUN: sheaf-opt %s --train-widen-floats --canonicalize | FileCheck %s

// CHECK: train.parameter @w : tensor<4xf32> {source = #train.source<"m.onnx", 0, 8>, train.source_type = bf16, trainable = true}
// CHECK: train.parameter @h : tensor<4xf32> {train.source_type = f16, trainable = false, value = dense<1.500000e+00> : tensor<4xf16>}
// CHECK: train.parameter @s : tensor<4xf32> {trainable = true}
train.parameter @w : tensor<4xbf16> {trainable = true, source = #train.source<"m.onnx", 0, 8>}
train.parameter @h : tensor<4xf16> {trainable = false, value = dense<1.5> : tensor<4xf16>}
train.parameter @s : tensor<4xf32> {trainable = true}

// CHECK: func.func @step(%[[X:.+]]: tensor<4xf32>
// CHECK: train.constant dense<[1.000000e+00, 2.500000e-01, 0.000000e+00, -3.000000e+00]> : tensor<4xf32>
// CHECK: %[[W:.+]] = train.read @w : tensor<4xf32>
// CHECK: %[[P:.+]] = train.mul %[[X]], %[[W]] : tensor<4xf32>
// CHECK-NOT: train.cast
// CHECK: train.loss
func.func @step(%x: tensor<4xbf16> {train.name = "x"}) {
  %k = train.constant dense<[1.0, 0.25, 0.0, -3.0]> : tensor<4xbf16>
  %w = train.read @w : tensor<4xbf16>
  %p = train.mul %x, %w : tensor<4xbf16>
  %q = train.add %p, %k : tensor<4xbf16>
  %c = train.cast %q : tensor<4xbf16> -> tensor<4xf32>
  %s = train.reduce sum %c [0] : tensor<4xf32> -> tensor<1xf32>
  %l = train.reshape %s : tensor<1xf32> -> tensor<f32>
  train.loss %l : tensor<f32>
  return
}
