// Layer norm and RMS norm in the forms exporters write, and near misses that must stay.
// RUN: sheaf-opt %s -split-input-file -train-lift-normalization | FileCheck %s

// RMS norm as PyTorch decomposes it, the scale on the left.
// CHECK: module attributes {train.decisions = ["lifted 1 RMS norm"]}
// CHECK-LABEL: func.func @rms
// CHECK-SAME: (%[[X:.*]]: tensor<2x4x8xf32>, %[[W:.*]]: tensor<8xf32>)
func.func @rms(%x: tensor<2x4x8xf32>, %w: tensor<8xf32>) -> tensor<2x4x8xf32> {
  // CHECK-NEXT: %[[Y:.*]] = train.rms_norm %[[X]], %[[W]] epsilon 9.9999999{{.*}}E-7 : (tensor<2x4x8xf32>, tensor<8xf32>) -> tensor<2x4x8xf32>
  // CHECK-NEXT: return %[[Y]]
  %two = train.constant dense<2.0> : tensor<2x4x8xf32>
  %square = train.pow %x, %two : tensor<2x4x8xf32>
  %mean = train.reduce mean %square [2] : tensor<2x4x8xf32> -> tensor<2x4x1xf32>
  %epsilon = train.constant dense<1.0e-6> : tensor<2x4x1xf32>
  %shifted = train.add %mean, %epsilon : tensor<2x4x1xf32>
  %root = train.sqrt %shifted : tensor<2x4x1xf32>
  %inverse = train.reciprocal %root : tensor<2x4x1xf32>
  %repeated = train.broadcast %inverse : tensor<2x4x1xf32> -> tensor<2x4x8xf32>
  %normalized = train.mul %x, %repeated : tensor<2x4x8xf32>
  %w1 = train.reshape %w : tensor<8xf32> -> tensor<1x1x8xf32>
  %w2 = train.broadcast %w1 : tensor<1x1x8xf32> -> tensor<2x4x8xf32>
  %y = train.mul %w2, %normalized : tensor<2x4x8xf32>
  return %y : tensor<2x4x8xf32>
}

// -----

// A model in bf16 normalizes in f32 between casts.
// CHECK-LABEL: func.func @rms_casts
// CHECK-SAME: (%[[X:.*]]: tensor<4x8xbf16>, %[[W:.*]]: tensor<8xbf16>)
func.func @rms_casts(%x: tensor<4x8xbf16>, %w: tensor<8xbf16>) -> tensor<4x8xbf16> {
  // CHECK-NEXT: train.rms_norm %[[X]], %[[W]] epsilon {{.*}} : (tensor<4x8xbf16>, tensor<8xbf16>) -> tensor<4x8xbf16>
  // CHECK-NEXT: return
  %xf = train.cast %x : tensor<4x8xbf16> -> tensor<4x8xf32>
  %square = train.mul %xf, %xf : tensor<4x8xf32>
  %mean = train.reduce mean %square [1] : tensor<4x8xf32> -> tensor<4x1xf32>
  %epsilon = train.constant dense<1.0e-5> : tensor<1x1xf32>
  %epsilons = train.broadcast %epsilon : tensor<1x1xf32> -> tensor<4x1xf32>
  %shifted = train.add %epsilons, %mean : tensor<4x1xf32>
  %inverse = train.rsqrt %shifted : tensor<4x1xf32>
  %repeated = train.broadcast %inverse : tensor<4x1xf32> -> tensor<4x8xf32>
  %normalized = train.mul %repeated, %xf : tensor<4x8xf32>
  %rounded = train.cast %normalized : tensor<4x8xf32> -> tensor<4x8xbf16>
  %w1 = train.reshape %w : tensor<8xbf16> -> tensor<1x8xbf16>
  %w2 = train.broadcast %w1 : tensor<1x8xbf16> -> tensor<4x8xbf16>
  %y = train.mul %rounded, %w2 : tensor<4x8xbf16>
  return %y : tensor<4x8xbf16>
}

// -----

// Layer norm by Pow, Sqrt and Div.
// CHECK: module attributes {train.decisions = ["lifted 1 layer norm"]}
// CHECK-LABEL: func.func @layer
// CHECK-SAME: (%[[X:.*]]: tensor<2x4x8xf32>, %[[W:.*]]: tensor<8xf32>, %[[B:.*]]: tensor<8xf32>)
func.func @layer(%x: tensor<2x4x8xf32>, %w: tensor<8xf32>, %b: tensor<8xf32>) -> tensor<2x4x8xf32> {
  // CHECK-NEXT: train.layer_norm %[[X]], %[[W]], %[[B]] epsilon {{.*}} : (tensor<2x4x8xf32>, tensor<8xf32>, tensor<8xf32>) -> tensor<2x4x8xf32>
  // CHECK-NEXT: return
  %two = train.constant dense<2.0> : tensor<2x4x8xf32>
  %epsilon = train.constant dense<1.0e-5> : tensor<2x4x1xf32>
  %mean = train.reduce mean %x [2] : tensor<2x4x8xf32> -> tensor<2x4x1xf32>
  %means = train.broadcast %mean : tensor<2x4x1xf32> -> tensor<2x4x8xf32>
  %centered = train.sub %x, %means : tensor<2x4x8xf32>
  %square = train.pow %centered, %two : tensor<2x4x8xf32>
  %variance = train.reduce mean %square [2] : tensor<2x4x8xf32> -> tensor<2x4x1xf32>
  %shifted = train.add %variance, %epsilon : tensor<2x4x1xf32>
  %deviation = train.sqrt %shifted : tensor<2x4x1xf32>
  %deviations = train.broadcast %deviation : tensor<2x4x1xf32> -> tensor<2x4x8xf32>
  %normalized = train.div %centered, %deviations : tensor<2x4x8xf32>
  %w1 = train.reshape %w : tensor<8xf32> -> tensor<1x1x8xf32>
  %w2 = train.broadcast %w1 : tensor<1x1x8xf32> -> tensor<2x4x8xf32>
  %scaled = train.mul %normalized, %w2 : tensor<2x4x8xf32>
  %b1 = train.reshape %b : tensor<8xf32> -> tensor<1x1x8xf32>
  %b2 = train.broadcast %b1 : tensor<1x1x8xf32> -> tensor<2x4x8xf32>
  %y = train.add %b2, %scaled : tensor<2x4x8xf32>
  return %y : tensor<2x4x8xf32>
}

// -----

// Sums divided by the number of columns, a reciprocal, two normalized dimensions, no bias, the mean computed twice.
// CHECK-LABEL: func.func @layer_sums
// CHECK-SAME: (%[[X:.*]]: tensor<4x2x8xf32>, %[[W:.*]]: tensor<2x8xf32>)
func.func @layer_sums(%x: tensor<4x2x8xf32>, %w: tensor<2x8xf32>) -> tensor<4x2x8xf32> {
  // CHECK-DAG: %[[ROWS:.*]] = train.reshape %[[X]] : tensor<4x2x8xf32> -> tensor<4x16xf32>
  // CHECK-DAG: %[[SCALE:.*]] = train.reshape %[[W]] : tensor<2x8xf32> -> tensor<16xf32>
  // CHECK: %[[Y:.*]] = train.layer_norm %[[ROWS]], %[[SCALE]] epsilon
  // CHECK-NEXT: train.reshape %[[Y]] : tensor<4x16xf32> -> tensor<4x2x8xf32>
  // CHECK-NEXT: return
  %count = train.constant dense<16.0> : tensor<4x1x1xf32>
  %epsilon = train.constant dense<1.0e-5> : tensor<4x1x1xf32>
  %sum = train.reduce sum %x [1, 2] : tensor<4x2x8xf32> -> tensor<4x1x1xf32>
  %mean = train.div %sum, %count : tensor<4x1x1xf32>
  %means = train.broadcast %mean : tensor<4x1x1xf32> -> tensor<4x2x8xf32>
  %centered = train.sub %x, %means : tensor<4x2x8xf32>
  %means2 = train.broadcast %mean : tensor<4x1x1xf32> -> tensor<4x2x8xf32>
  %centered2 = train.sub %x, %means2 : tensor<4x2x8xf32>
  %square = train.mul %centered, %centered : tensor<4x2x8xf32>
  %sum2 = train.reduce sum %square [1, 2] : tensor<4x2x8xf32> -> tensor<4x1x1xf32>
  %variance = train.div %sum2, %count : tensor<4x1x1xf32>
  %shifted = train.add %variance, %epsilon : tensor<4x1x1xf32>
  %deviation = train.sqrt %shifted : tensor<4x1x1xf32>
  %inverse = train.reciprocal %deviation : tensor<4x1x1xf32>
  %inverses = train.broadcast %inverse : tensor<4x1x1xf32> -> tensor<4x2x8xf32>
  %normalized = train.mul %centered2, %inverses : tensor<4x2x8xf32>
  %w1 = train.reshape %w : tensor<2x8xf32> -> tensor<1x2x8xf32>
  %w2 = train.broadcast %w1 : tensor<1x2x8xf32> -> tensor<4x2x8xf32>
  %y = train.mul %normalized, %w2 : tensor<4x2x8xf32>
  return %y : tensor<4x2x8xf32>
}

// -----

// Without an affine part; the normalized value is used twice, so it and what scales it are both kept.
// CHECK-LABEL: func.func @no_affine
// CHECK-SAME: (%[[X:.*]]: tensor<4x8xf32>, %{{.*}}: tensor<4x8xf32>)
func.func @no_affine(%x: tensor<4x8xf32>, %w: tensor<4x8xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>) {
  // CHECK-DAG: %[[ONES:.*]] = train.constant dense<1.000000e+00> : tensor<8xf32>
  // CHECK: %[[Y:.*]] = train.rms_norm %[[X]], %[[ONES]]
  // CHECK: %[[Z:.*]] = train.mul %[[Y]]
  // CHECK: return %[[Y]], %[[Z]]
  %epsilon = train.constant dense<1.0e-5> : tensor<4x1xf32>
  %half = train.constant dense<-0.5> : tensor<4x1xf32>
  %square = train.mul %x, %x : tensor<4x8xf32>
  %mean = train.reduce mean %square [1] : tensor<4x8xf32> -> tensor<4x1xf32>
  %shifted = train.add %mean, %epsilon : tensor<4x1xf32>
  %inverse = train.pow %shifted, %half : tensor<4x1xf32>
  %inverses = train.broadcast %inverse : tensor<4x1xf32> -> tensor<4x8xf32>
  %y = train.mul %x, %inverses : tensor<4x8xf32>
  %z = train.mul %y, %w : tensor<4x8xf32>
  return %y, %z : tensor<4x8xf32>, tensor<4x8xf32>
}

// -----

// The mean is of another value, or over another dimension: no norm.
// CHECK-NOT: train.decisions
// CHECK-LABEL: func.func @no_norm
// CHECK-NOT: train.rms_norm
// CHECK-NOT: train.layer_norm
func.func @no_norm(%x: tensor<8x8xf32>, %z: tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32>) {
  %epsilon = train.constant dense<1.0e-5> : tensor<8x1xf32>
  %square = train.mul %z, %z : tensor<8x8xf32>
  %mean = train.reduce mean %square [1] : tensor<8x8xf32> -> tensor<8x1xf32>
  %shifted = train.add %mean, %epsilon : tensor<8x1xf32>
  %inverse = train.rsqrt %shifted : tensor<8x1xf32>
  %inverses = train.broadcast %inverse : tensor<8x1xf32> -> tensor<8x8xf32>
  %y = train.mul %x, %inverses : tensor<8x8xf32>
  %square2 = train.mul %x, %x : tensor<8x8xf32>
  %mean2 = train.reduce mean %square2 [0] : tensor<8x8xf32> -> tensor<1x8xf32>
  %turned = train.reshape %mean2 : tensor<1x8xf32> -> tensor<8x1xf32>
  %shifted2 = train.add %turned, %epsilon : tensor<8x1xf32>
  %inverse2 = train.rsqrt %shifted2 : tensor<8x1xf32>
  %inverses2 = train.broadcast %inverse2 : tensor<8x1xf32> -> tensor<8x8xf32>
  %y2 = train.mul %x, %inverses2 : tensor<8x8xf32>
  return %y, %y2 : tensor<8x8xf32>, tensor<8x8xf32>
}
