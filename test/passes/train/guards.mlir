// Gradient rules guard a factor that may be infinite, and no other: a guard is an op in a kernel.
// RUN: sheaf-opt --train-differentiate --split-input-file %s | FileCheck %s

// Logarithm, root and quotient of a parameter: each has an infinite derivative at 0.
// CHECK-LABEL: @step
// CHECK: train.loss
// CHECK-COUNT-3: train.guard
// CHECK-NOT: train.guard
// CHECK: train.update
module {
  train.parameter @w : tensor<4xf32> {trainable = true}
  func.func @step() {
    %w = train.read @w : tensor<4xf32>
    %one = train.constant dense<1.0> : tensor<4xf32>
    %log = train.log %w : tensor<4xf32>
    %root = train.sqrt %w : tensor<4xf32>
    %inverse = train.reciprocal %w : tensor<4xf32>
    %a = train.add %log, %root : tensor<4xf32>
    %b = train.add %a, %inverse : tensor<4xf32>
    %s = train.reduce sum %b [0] : tensor<4xf32> -> tensor<1xf32>
    %l = train.reshape %s : tensor<1xf32> -> tensor<f32>
    train.loss %l : tensor<f32>
    return
  }
}

// -----

// A variance plus epsilon is positive, a softmax's exponentials are at most 1, |x| + 1 and constants are not 0, and what
// a product of matrices computes is not checked.
// CHECK-LABEL: @step
// CHECK: train.loss
// CHECK-NOT: train.guard
module {
  train.parameter @w : tensor<4x4xf32> {trainable = true}
  func.func @step(%x: tensor<3x4xf32>) {
    %w = train.read @w : tensor<4x4xf32>
    %p = train.matmul %x, %w : tensor<3x4xf32>, tensor<4x4xf32> -> tensor<3x4xf32>
    %mean = train.reduce mean %p [1] : tensor<3x4xf32> -> tensor<3x1xf32>
    %means = train.broadcast %mean : tensor<3x1xf32> -> tensor<3x4xf32>
    %d = train.sub %p, %means : tensor<3x4xf32>
    %q = train.mul %d, %d : tensor<3x4xf32>
    %v = train.reduce mean %q [1] : tensor<3x4xf32> -> tensor<3x1xf32>
    %epsilon = train.constant dense<1.0e-5> : tensor<3x1xf32>
    %shifted = train.add %v, %epsilon : tensor<3x1xf32>
    %deviation = train.sqrt %shifted : tensor<3x1xf32>
    %deviations = train.broadcast %deviation : tensor<3x1xf32> -> tensor<3x4xf32>
    %n = train.div %d, %deviations : tensor<3x4xf32>
    %m = train.reduce max %n [1] : tensor<3x4xf32> -> tensor<3x1xf32>
    %ms = train.broadcast %m : tensor<3x1xf32> -> tensor<3x4xf32>
    %below = train.sub %n, %ms : tensor<3x4xf32>
    %e = train.exp %below : tensor<3x4xf32>
    %one = train.constant dense<1.0> : tensor<3x4xf32>
    %size = train.abs %e : tensor<3x4xf32>
    %more = train.add %size, %one : tensor<3x4xf32>
    %ratio = train.div %e, %more : tensor<3x4xf32>
    %gate = train.sigmoid %p : tensor<3x4xf32>
    %y = train.mul %ratio, %gate : tensor<3x4xf32>
    %s = train.reduce sum %y [0, 1] : tensor<3x4xf32> -> tensor<1x1xf32>
    %l = train.reshape %s : tensor<1x1xf32> -> tensor<f32>
    train.loss %l : tensor<f32>
    return
  }
}
