// Ops on constants are evaluated; splats stay splats; other ops stay.
// RUN: sheaf-opt %s -train-fold-constants -split-input-file | FileCheck %s

// A causal mask, from running indices.
// CHECK-LABEL: @mask
// CHECK-NEXT: %[[M:.*]] = train.constant dense<{{\[\[}}0.000000e+00, -1.000000e+00], [0.000000e+00, 0.000000e+00]]>
// CHECK-NEXT: return %[[M]]
func.func @mask() -> tensor<2x2xf32> {
  %i = train.iota 0 : tensor<2x2xi64>
  %j = train.iota 1 : tensor<2x2xi64>
  %c = train.compare ge %i, %j : tensor<2x2xi64>
  %z = train.constant dense<0.0> : tensor<2x2xf32>
  %n = train.constant dense<-1.0> : tensor<2x2xf32>
  %m = train.select %c, %z, %n : tensor<2x2xi1>, tensor<2x2xf32>
  return %m : tensor<2x2xf32>
}

// -----

// Far larger than --max-bytes, but each value is one number. Rounded to f32 at every op.
// CHECK-LABEL: @splat
// CHECK-NEXT: %[[C:.*]] = train.constant dense<0.333333343> : tensor<1048576x1048576xf32>
// CHECK-NEXT: return %[[C]]
func.func @splat() -> tensor<1048576x1048576xf32> {
  %a = train.constant dense<1.0> : tensor<1x1048576xf32>
  %b = train.constant dense<3.0> : tensor<1x1048576xf32>
  %d = train.div %a, %b : tensor<1x1048576xf32>
  %e = train.broadcast %d : tensor<1x1048576xf32> -> tensor<1048576x1048576xf32>
  return %e : tensor<1048576x1048576xf32>
}

// -----

// Used by an op that stays and by one that folds.
// CHECK-LABEL: @shared
// CHECK-NEXT: %[[S:.*]] = train.constant dense<[3, 5]> : tensor<2xi64>
// CHECK-NEXT: %[[G:.*]] = train.gather %arg0[%[[S]]]
// CHECK-NEXT: %[[N:.*]] = train.constant dense<[-3, -5]> : tensor<2xi64>
// CHECK: return %[[G]], %[[N]]
func.func @shared(%x: tensor<9xf32>) -> (tensor<2xf32>, tensor<2xi64>) {
  %a = train.constant dense<[1, 2]> : tensor<2xi64>
  %b = train.constant dense<[2, 3]> : tensor<2xi64>
  %s = train.add %a, %b : tensor<2xi64>
  %g = train.gather %x[%s] axis 0 : tensor<9xf32>, tensor<2xi64> -> tensor<2xf32>
  %n = train.neg %s : tensor<2xi64>
  return %g, %n : tensor<2xf32>, tensor<2xi64>
}

// -----

// A running index costs nothing where it is used; a mask of random numbers changes from step to step.
// CHECK-LABEL: @stays
// CHECK: train.iota
// CHECK: train.dropout
func.func @stays(%x: tensor<4xi64>) -> (tensor<4xi1>, tensor<2xf32>) {
  %i = train.iota 0 : tensor<4xi64>
  %c = train.compare eq %x, %i : tensor<4xi64>
  %a = train.constant dense<[1.0, 2.0]> : tensor<2xf32>
  %d = train.dropout %a ratio 1.0e-1 node 0 : tensor<2xf32>
  return %c, %d : tensor<4xi1>, tensor<2xf32>
}

// -----

// What repeats is computed and stored once: here one row, whatever --max-bytes says of all of them.
// CHECK-LABEL: @repeated
// CHECK-NEXT: %[[C:.*]] = train.constant dense<{{\[\[}}2, 4, 6]]> : tensor<1x3xi64>
// CHECK-NEXT: %[[B:.*]] = train.broadcast %[[C]] : tensor<1x3xi64> -> tensor<16777216x3xi64>
// CHECK-NEXT: return %[[B]]
func.func @repeated() -> tensor<16777216x3xi64> {
  %a = train.constant dense<[[1, 2, 3]]> : tensor<1x3xi64>
  %b = train.broadcast %a : tensor<1x3xi64> -> tensor<16777216x3xi64>
  %c = train.add %b, %b : tensor<16777216x3xi64>
  return %c : tensor<16777216x3xi64>
}

// -----

// Casts saturate, and a division by zero is zero, as in kernels.
// CHECK-LABEL: @edges
// CHECK-DAG: train.constant dense<[2147483647, -2147483648, 0]> : tensor<3xi32>
// CHECK-DAG: train.constant dense<[3, 0, -2147483648]> : tensor<3xi32>
func.func @edges() -> (tensor<3xi32>, tensor<3xi32>) {
  %x = train.constant dense<[3.0e9, -3.0e9, 0x7FC00000]> : tensor<3xf32>
  %c = train.cast %x : tensor<3xf32> -> tensor<3xi32>
  %a = train.constant dense<[7, 7, -2147483648]> : tensor<3xi32>
  %b = train.constant dense<[2, 0, -1]> : tensor<3xi32>
  %d = train.div %a, %b : tensor<3xi32>
  return %c, %d : tensor<3xi32>, tensor<3xi32>
}
