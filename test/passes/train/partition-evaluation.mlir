// In the evaluation sums over the batch leave out rows that do not count, and outputs say where their rows are.
// RUN: sheaf-opt %s -train-partition -split-input-file | FileCheck %s

// The mean divides by the rows that count, on all ranks, and that is what the batch's loss weighs.
// CHECK-LABEL: @step
// CHECK: %[[OWN:.*]] = train.reduce sum %arg1 [0]
// CHECK: %[[COUNT:.*]] = train.global_sum
// CHECK: %[[COUNTS:.*]] = train.compare gt
// CHECK: %[[KEPT:.*]] = train.select %[[COUNTS]], %arg0
// CHECK: %[[MEAN:.*]] = train.reduce mean %[[KEPT]] [0]
// CHECK: %[[SUM:.*]] = train.mul %[[MEAN]]
// CHECK: %[[LOSS:.*]] = train.div %[[SUM]]
// CHECK: train.loss
// CHECK: train.output "loss_weight" "loss weight" %[[COUNT]]
module attributes {train.ranks = 2 : i64} {
  func.func @step(%x: tensor<8xf32> {train.name = "x"}, %mask: tensor<8xf32> {train.name = "row_mask", train.row_mask}) {
    %m = train.reduce mean %x [0] : tensor<8xf32> -> tensor<1xf32>
    %l = train.reshape %m : tensor<1xf32> -> tensor<f32>
    train.loss %l : tensor<f32>
    return
  }
}

// -----

// A mean over labels weighs what it divides by; so it does on one rank.
// CHECK-LABEL: @step
// CHECK: %[[WEIGHT:.*]] = train.global_sum
// CHECK: train.div %{{.*}}, %[[WEIGHT]]
// CHECK: %[[W:.*]] = train.reshape %[[WEIGHT]]
// CHECK: train.output "loss_weight" "loss weight" %[[W]]
module attributes {train.ranks = 1 : i64} {
  func.func @step(%x: tensor<4xf32> {train.name = "x"}, %w: tensor<4xf32> {train.name = "w"},
                  %mask: tensor<4xf32> {train.name = "row_mask", train.row_mask}) {
    %p = train.mul %x, %w : tensor<4xf32>
    %s = train.reduce sum %p [0] : tensor<4xf32> -> tensor<1xf32>
    %n = train.reduce sum %w [0] : tensor<4xf32> -> tensor<1xf32>
    %q = train.div %s, %n : tensor<1xf32>
    %l = train.reshape %q : tensor<1xf32> -> tensor<f32>
    train.loss %l : tensor<f32>
    return
  }
}

// -----

// Rows of an output: two blocks of four rows of three elements in its first dimension, rows in its second, none.
// CHECK-LABEL: @step
// CHECK: train.output "tensor" "first" %{{.*}} {blocks = 1 : i64} : tensor<12xf32>
// CHECK: train.output "tensor" "second" %{{.*}} {axis = 1 : i64, blocks = 1 : i64} : tensor<3x4xf32>
// CHECK: train.output "tensor" "none" %{{.*}} : tensor<5xf32>
module attributes {train.ranks = 2 : i64} {
  func.func @step(%x: tensor<8x3xf32> {train.name = "x"}, %y: tensor<5xf32> {train.name = "y", train.whole},
                  %mask: tensor<8xf32> {train.name = "row_mask", train.row_mask}) {
    %first = train.reshape %x : tensor<8x3xf32> -> tensor<24xf32>
    %second = train.transpose %x [1, 0] : tensor<8x3xf32> -> tensor<3x8xf32>
    train.output "tensor" "first" %first : tensor<24xf32>
    train.output "tensor" "second" %second : tensor<3x8xf32>
    train.output "tensor" "none" %y : tensor<5xf32>
    return
  }
}

// -----

// Rows that depend on each other: on one rank there is no mask then.
// CHECK-LABEL: @step
// CHECK-SAME: (%arg0: tensor<4x3xf32> {train.name = "x"}) {
// CHECK: train.output "tensor" "largest" %{{.*}} : tensor<1x3xf32>
// CHECK: train.output "tensor" "rows" %{{.*}} {blocks = 1 : i64} : tensor<4x3xf32>
module attributes {train.ranks = 1 : i64} {
  func.func @step(%x: tensor<4x3xf32> {train.name = "x"}, %mask: tensor<4xf32> {train.name = "row_mask", train.row_mask}) {
    %m = train.reduce max %x [0] : tensor<4x3xf32> -> tensor<1x3xf32>
    %b = train.broadcast %m : tensor<1x3xf32> -> tensor<4x3xf32>
    %r = train.sub %x, %b : tensor<4x3xf32>
    train.output "tensor" "largest" %m : tensor<1x3xf32>
    train.output "tensor" "rows" %r : tensor<4x3xf32>
    return
  }
}

// -----

// Rows that are added to what has no batch, and sums of convolutions over samples.
// CHECK-LABEL: @step
// CHECK: %[[ROWS:.*]] = train.select %{{.*}}, %arg0
// CHECK: train.scatter add %[[ROWS]][%arg1]
// CHECK: %[[SAMPLES:.*]] = train.select %{{.*}}, %arg3
// CHECK: train.conv_grad_filter %arg2, %[[SAMPLES]]
module attributes {train.ranks = 2 : i64} {
  func.func @step(%x: tensor<8x8xf32> {train.name = "x"}, %i: tensor<8x1xi64> {train.name = "i"},
                  %y: tensor<8x1x5x5xf32> {train.name = "y"}, %z: tensor<8x1x3x3xf32> {train.name = "z"},
                  %w: tensor<3x8xf32> {train.name = "w", train.whole},
                  %mask: tensor<8xf32> {train.name = "row_mask", train.row_mask}) {
    %r = train.scatter add %x[%i] into %w axis 0 : (tensor<8x1xi64>, tensor<8x8xf32>, tensor<3x8xf32>) -> tensor<3x8xf32>
    %g = train.conv_grad_filter %y, %z {strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, groups = 1 : i64} : (tensor<8x1x5x5xf32>, tensor<8x1x3x3xf32>) -> tensor<1x1x3x3xf32>
    train.output "tensor" "added" %r : tensor<3x8xf32>
    train.output "tensor" "filter" %g : tensor<1x1x3x3xf32>
    return
  }
}

// -----

// Updates that are the same for all leaves, at places that are rows: those of rows that do not count are left out.
// CHECK-LABEL: @step
// CHECK: %[[OWN:.*]] = train.reshape %{{.*}} -> tensor<4x8xf32>
// CHECK: %[[ROWS:.*]] = train.select %{{.*}}, %[[OWN]], 
// CHECK: train.scatter add %[[ROWS]][%arg0]
module attributes {train.ranks = 2 : i64} {
  func.func @step(%i: tensor<8x1xi64> {train.name = "i"}, %u: tensor<8x8xf32> {train.name = "u", train.whole},
                  %w: tensor<3x8xf32> {train.name = "w", train.whole},
                  %mask: tensor<8xf32> {train.name = "row_mask", train.row_mask}) {
    %r = train.scatter add %u[%i] into %w axis 0 : (tensor<8x1xi64>, tensor<8x8xf32>, tensor<3x8xf32>) -> tensor<3x8xf32>
    train.output "tensor" "r" %r : tensor<3x8xf32>
    return
  }
}

// -----

// The divisor is found past scaling, a value that every batch adds, and a reciprocal.
// CHECK-LABEL: @step
// CHECK: %[[COUNT:.*]] = train.global_sum
// CHECK: %[[INVERSE:.*]] = train.reciprocal %[[COUNT]]
// CHECK: %[[W:.*]] = train.reshape %[[COUNT]]
// CHECK-NEXT: train.output "loss_weight" "loss weight" %[[W]]
module attributes {train.ranks = 2 : i64} {
  func.func @step(%x: tensor<8xf32> {train.name = "x"}, %w: tensor<8xf32> {train.name = "w"},
                  %p: tensor<1xf32> {train.name = "p", train.whole},
                  %mask: tensor<8xf32> {train.name = "row_mask", train.row_mask}) {
    %four = train.constant dense<4.0> : tensor<1xf32>
    %s = train.reduce sum %x [0] : tensor<8xf32> -> tensor<1xf32>
    %n = train.reduce sum %w [0] : tensor<8xf32> -> tensor<1xf32>
    %i = train.reciprocal %n : tensor<1xf32>
    %q = train.mul %s, %i : tensor<1xf32>
    %d = train.div %q, %four : tensor<1xf32>
    %m = train.neg %d : tensor<1xf32>
    %r = train.sub %p, %m : tensor<1xf32>
    %l = train.reshape %r : tensor<1xf32> -> tensor<f32>
    train.loss %l : tensor<f32>
    return
  }
}

// -----

// Rows that are divided before they are summed; the divisor is a count of at least 1, of which the count is the weight.
// CHECK-LABEL: @step
// CHECK: %[[COUNT:.*]] = train.global_sum
// CHECK: train.max %[[COUNT]]
// CHECK: %[[W:.*]] = train.reshape %[[COUNT]]
// CHECK-NEXT: train.output "loss_weight" "loss weight" %[[W]]
module attributes {train.ranks = 2 : i64} {
  func.func @step(%x: tensor<8xf32> {train.name = "x"}, %valid: tensor<8xi1> {train.name = "valid"},
                  %mask: tensor<8xf32> {train.name = "row_mask", train.row_mask}) {
    %one = train.constant dense<1.0> : tensor<1xf32>
    %v = train.cast %valid : tensor<8xi1> -> tensor<8xf32>
    %n = train.reduce sum %v [0] : tensor<8xf32> -> tensor<1xf32>
    %m = train.max %n, %one : tensor<1xf32>
    %b = train.broadcast %m : tensor<1xf32> -> tensor<8xf32>
    %q = train.div %x, %b : tensor<8xf32>
    %s = train.reduce sum %q [0] : tensor<8xf32> -> tensor<1xf32>
    %l = train.reshape %s : tensor<1xf32> -> tensor<f32>
    train.loss %l : tensor<f32>
    return
  }
}

// -----

// A sum over rows is scaled to a full batch of eight.
// CHECK-LABEL: @step
// CHECK: %[[COUNT:.*]] = train.global_sum
// CHECK: %[[EIGHT:.*]] = train.constant dense<8.000000e+00>
// CHECK: %[[SUM:.*]] = train.mul %{{.*}}, %[[EIGHT]]
// CHECK: %[[FULL:.*]] = train.div %[[SUM]], %[[COUNT]]
// CHECK: train.loss %[[FULL]]
// CHECK: train.output "loss_weight" "loss weight" %[[COUNT]]
module attributes {train.ranks = 2 : i64} {
  func.func @step(%x: tensor<8xf32> {train.name = "x"}, %mask: tensor<8xf32> {train.name = "row_mask", train.row_mask}) {
    %s = train.reduce sum %x [0] : tensor<8xf32> -> tensor<1xf32>
    %l = train.reshape %s : tensor<1xf32> -> tensor<f32>
    train.loss %l : tensor<f32>
    return
  }
}

// -----

// No weight makes a mean of these the loss of all rows: the root of a mean, a sum of two means by different divisors,
// and a divisor of at least 1 that does not count.
// CHECK-LABEL: @step
// CHECK: train.loss
// CHECK-NOT: loss_weight
module attributes {train.ranks = 2 : i64} {
  func.func @step(%x: tensor<8xf32> {train.name = "x"}, %mask: tensor<8xf32> {train.name = "row_mask", train.row_mask}) {
    %m = train.reduce mean %x [0] : tensor<8xf32> -> tensor<1xf32>
    %r = train.sqrt %m : tensor<1xf32>
    %l = train.reshape %r : tensor<1xf32> -> tensor<f32>
    train.loss %l : tensor<f32>
    return
  }
}

// -----

// CHECK-LABEL: @step
// CHECK: train.loss
// CHECK-NOT: loss_weight
module attributes {train.ranks = 2 : i64} {
  func.func @step(%x: tensor<8xf32> {train.name = "x"}, %w: tensor<8xf32> {train.name = "w"},
                  %mask: tensor<8xf32> {train.name = "row_mask", train.row_mask}) {
    %m = train.reduce mean %x [0] : tensor<8xf32> -> tensor<1xf32>
    %n = train.reduce sum %w [0] : tensor<8xf32> -> tensor<1xf32>
    %s = train.reduce sum %x [0] : tensor<8xf32> -> tensor<1xf32>
    %q = train.div %s, %n : tensor<1xf32>
    %t = train.add %m, %q : tensor<1xf32>
    %l = train.reshape %t : tensor<1xf32> -> tensor<f32>
    train.loss %l : tensor<f32>
    return
  }
}

// -----

// CHECK-LABEL: @step
// CHECK: train.loss
// CHECK-NOT: loss_weight
module attributes {train.ranks = 2 : i64} {
  func.func @step(%x: tensor<8xf32> {train.name = "x"}, %w: tensor<8xf32> {train.name = "w"},
                  %mask: tensor<8xf32> {train.name = "row_mask", train.row_mask}) {
    %one = train.constant dense<1.0> : tensor<1xf32>
    %s = train.reduce sum %x [0] : tensor<8xf32> -> tensor<1xf32>
    %n = train.reduce sum %w [0] : tensor<8xf32> -> tensor<1xf32>
    %m = train.max %n, %one : tensor<1xf32>
    %q = train.div %s, %m : tensor<1xf32>
    %l = train.reshape %q : tensor<1xf32> -> tensor<f32>
    train.loss %l : tensor<f32>
    return
  }
}
