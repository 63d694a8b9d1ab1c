// Sums over the batch become terms, and are added where a value of the whole batch is needed.
// RUN: sheaf-opt %s -train-partition -split-input-file | FileCheck %s

// One row a leaf: a reduction over the batch is not an identity, although it is over one element. It is the row, as a term.
// CHECK-LABEL: @step
// CHECK-NOT: train.reduce
// CHECK: %[[Q:.*]] = train.constant dense<1.250000e-01>
// CHECK: %[[S:.*]] = train.mul %arg0, %[[Q]]
// CHECK: %[[L:.*]] = train.reshape %[[S]]
// CHECK: train.loss %[[L]]
module attributes {train.ranks = 8 : i64} {
  func.func @step(%x: tensor<8xf32>) {
    %m = train.reduce mean %x [0] : tensor<8xf32> -> tensor<1xf32>
    %l = train.reshape %m : tensor<1xf32> -> tensor<f32>
    train.loss %l : tensor<f32>
    return
  }
}

// -----

// What is divided by a sum over the batch is divided by that of all ranks, one row or not; a dimension of size 1 that
// is not the batch stays one row's.
// CHECK-LABEL: @step
// CHECK-NOT: train.reduce
// CHECK: %[[ALL:.*]] = train.global_sum %arg1 : tensor<1x1xf32>
// CHECK: train.div %arg0, %[[ALL]]
// CHECK-NOT: train.global_sum
// CHECK: train.loss
module attributes {train.ranks = 8 : i64} {
  func.func @step(%x: tensor<8x1xf32>, %weight: tensor<8x1xf32>) {
    %own = train.reduce sum %x [1] : tensor<8x1xf32> -> tensor<8x1xf32>
    %sum = train.reduce sum %own [0, 1] : tensor<8x1xf32> -> tensor<1x1xf32>
    %all = train.reduce sum %weight [0, 1] : tensor<8x1xf32> -> tensor<1x1xf32>
    %mean = train.div %sum, %all : tensor<1x1xf32>
    %l = train.reshape %mean : tensor<1x1xf32> -> tensor<f32>
    train.loss %l : tensor<f32>
    return
  }
}

// -----

// A mean over the labels that count: the sum is this rank's, the number all ranks'. The batch is followed through
// reshape, transpose and slice.
// CHECK-LABEL: @step
// CHECK: %[[SUM:.*]] = train.reduce sum %{{.*}} [0, 1] : tensor<12x1xf32>
// CHECK: %[[COUNT:.*]] = train.reduce sum %{{.*}} [0, 1] : tensor<12x1xf32>
// CHECK: %[[ALL:.*]] = train.global_sum %[[COUNT]]
// CHECK: %[[MEAN:.*]] = train.div %[[SUM]], %[[ALL]]
// CHECK-NOT: train.global_sum
// CHECK-NOT: train.mul
// CHECK: train.loss
module attributes {train.ranks = 2 : i64} {
  func.func @step(%x: tensor<8x5x7xf32>, %y: tensor<8x4xi64>) {
    %t = train.transpose %x [1, 0, 2] : tensor<8x5x7xf32> -> tensor<5x8x7xf32>
    %s = train.slice %t starts [0, 0, 0] sizes [3, 8, 7] steps [1, 1, 1] : tensor<5x8x7xf32> -> tensor<3x8x7xf32>
    %u = train.transpose %s [1, 0, 2] : tensor<3x8x7xf32> -> tensor<8x3x7xf32>
    %logits = train.reshape %u : tensor<8x3x7xf32> -> tensor<24x7xf32>
    %z = train.slice %y starts [0, 1] sizes [8, 3] steps [1, 1] : tensor<8x4xi64> -> tensor<8x3xi64>
    %labels = train.reshape %z : tensor<8x3xi64> -> tensor<24x1xi64>
    %ce, %lse = train.cross_entropy %logits, %labels {ignore_index = -100 : i64} : (tensor<24x7xf32>, tensor<24x1xi64>) -> (tensor<24x1xf32>, tensor<24x1xf32>)
    %i = train.constant dense<-100> : tensor<24x1xi64>
    %v = train.compare ne %labels, %i : tensor<24x1xi64>
    %o = train.cast %v : tensor<24x1xi1> -> tensor<24x1xf32>
    %sum = train.reduce sum %ce [0, 1] : tensor<24x1xf32> -> tensor<1x1xf32>
    %count = train.reduce sum %o [0, 1] : tensor<24x1xf32> -> tensor<1x1xf32>
    %mean = train.div %sum, %count : tensor<1x1xf32>
    %l = train.reshape %mean : tensor<1x1xf32> -> tensor<f32>
    train.loss %l : tensor<f32>
    return
  }
}

// -----

// What is the same on all ranks counts once: each rank takes its share.
// CHECK-LABEL: @step
// CHECK: %[[HALF:.*]] = train.constant dense<5.000000e-01> : tensor<f32>
// CHECK: %[[SHARE:.*]] = train.mul %{{.*}}, %[[HALF]]
// CHECK: train.add %{{.*}}, %[[SHARE]]
module attributes {train.ranks = 2 : i64} {
  train.parameter @w : tensor<f32> {trainable = true}
  func.func @step(%x: tensor<8xf32>) {
    %w = train.read @w : tensor<f32>
    %s = train.reduce sum %x [0] : tensor<8xf32> -> tensor<1xf32>
    %t = train.reshape %s : tensor<1xf32> -> tensor<f32>
    %l = train.add %t, %w : tensor<f32>
    train.loss %l : tensor<f32>
    return
  }
}

// -----

// A loss of parameters alone.
// CHECK-LABEL: @step
// CHECK: %[[SHARE:.*]] = train.mul %{{.*}}, %{{.*}} : tensor<f32>
// CHECK: train.loss %[[SHARE]]
module attributes {train.ranks = 2 : i64} {
  train.parameter @w : tensor<f32> {trainable = true}
  func.func @step(%x: tensor<8xf32>) {
    %w = train.read @w : tensor<f32>
    train.loss %w : tensor<f32>
    return
  }
}

// -----

// Sums of products over the batch are terms, and the square of one needs the whole, once.
// CHECK-LABEL: @step
// CHECK: %[[G:.*]] = train.matmul %arg0, %arg0 {transpose_a}
// CHECK: %[[W:.*]] = train.global_sum %[[G]]
// CHECK-NOT: train.global_sum
// CHECK: train.mul %[[W]], %[[W]]
// CHECK: train.loss
module attributes {train.ranks = 2 : i64} {
  func.func @step(%x: tensor<8x3xf32>) {
    %g = train.matmul %x, %x {transpose_a} : tensor<8x3xf32>, tensor<8x3xf32> -> tensor<3x3xf32>
    %q = train.mul %g, %g : tensor<3x3xf32>
    %s = train.reduce sum %q [0, 1] : tensor<3x3xf32> -> tensor<1x1xf32>
    %l = train.reshape %s : tensor<1x1xf32> -> tensor<f32>
    train.loss %l : tensor<f32>
    return
  }
}

// -----

// The batch may lie inside a dimension, as where the sequence comes first: rows are still this rank's.
// CHECK-LABEL: @step
// CHECK-NOT: train.global_sum
// CHECK: train.loss
module attributes {train.ranks = 2 : i64} {
  func.func @step(%x: tensor<8x3xf32> {train.name = "x"}) {
    %0 = train.transpose %x [1, 0] : tensor<8x3xf32> -> tensor<3x8xf32>
    %1 = train.reshape %0 : tensor<3x8xf32> -> tensor<24x1xf32>
    %2 = train.exp %1 : tensor<24x1xf32>
    %3 = train.reshape %2 : tensor<24x1xf32> -> tensor<3x8xf32>
    %4 = train.transpose %3 [1, 0] : tensor<3x8xf32> -> tensor<8x3xf32>
    %5 = train.add %4, %x : tensor<8x3xf32>
    %6 = train.reduce sum %5 [0, 1] : tensor<8x3xf32> -> tensor<1x1xf32>
    train.loss %6 : tensor<1x1xf32>
    return
  }
}

// -----

// Gradients that came with the model: a sum over the rows is a term already; what is the same on all ranks is shared.
// CHECK-LABEL: @step
// CHECK: train.update @w by @optimizer, %[[G:.*]] : tensor<4xf32>
// CHECK: %[[Q:.*]] = train.constant dense<2.500000e-01>
// CHECK: %[[SHARE:.*]] = train.mul %{{.*}}, %[[Q]]
// CHECK: train.update @b by @optimizer, %[[SHARE]]
module attributes {train.ranks = 4 : i64, train.gradients_given} {
  train.parameter @w : tensor<4xf32> {trainable = true}
  train.parameter @b : tensor<4xf32> {trainable = true}
  func.func @step(%x: tensor<32x4xf32>) {
    %b = train.read @b : tensor<4xf32>
    %m = train.reduce mean %x [0, 1] : tensor<32x4xf32> -> tensor<1x1xf32>
    %l = train.reshape %m : tensor<1x1xf32> -> tensor<f32>
    train.loss %l : tensor<f32>
    %s = train.reduce sum %x [0] : tensor<32x4xf32> -> tensor<1x4xf32>
    %g = train.reshape %s : tensor<1x4xf32> -> tensor<4xf32>
    train.update @w by @optimizer, %g : tensor<4xf32>
    train.update @b by @optimizer, %b : tensor<4xf32>
    return
  }
}

// -----

// A filter's gradient is a sum over samples, an input's is not.
// CHECK-LABEL: @step
// CHECK-NOT: global_sum
// CHECK: train.update @w
module attributes {train.ranks = 2 : i64, train.gradients_given} {
  train.parameter @w : tensor<1x1x3x3xf32> {trainable = true}
  func.func @step(%x: tensor<4x1x5x5xf32>) {
    %w = train.read @w : tensor<1x1x3x3xf32>
    %y = train.conv %x, %w {strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, groups = 1 : i64} : (tensor<4x1x5x5xf32>, tensor<1x1x3x3xf32>) -> tensor<4x1x3x3xf32>
    %m = train.reduce mean %y [0, 1, 2, 3] : tensor<4x1x3x3xf32> -> tensor<1x1x1x1xf32>
    %l = train.reshape %m : tensor<1x1x1x1xf32> -> tensor<f32>
    train.loss %l : tensor<f32>
    %dx = train.conv_grad_input %y, %w {strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, groups = 1 : i64} : (tensor<4x1x3x3xf32>, tensor<1x1x3x3xf32>) -> tensor<4x1x5x5xf32>
    %g = train.conv_grad_filter %dx, %y {strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, groups = 1 : i64} : (tensor<4x1x5x5xf32>, tensor<4x1x3x3xf32>) -> tensor<1x1x3x3xf32>
    train.update @w by @optimizer, %g : tensor<1x1x3x3xf32>
    return
  }
}

// -----

// Rows choose among their own elements, by indices of their own: the routing of a mixture of experts.
// CHECK-LABEL: @step
// CHECK-NOT: train.global_sum
// CHECK: train.loss
module attributes {train.ranks = 2 : i64} {
  func.func @step(%x: tensor<8x8xf32>) {
    %z = train.constant dense<0.0> : tensor<8x8xf32>
    %i = train.top_k %x axis 1 k 2 {largest} : tensor<8x8xf32> -> tensor<8x2xi64>
    %v = train.gather_elements %x[%i] axis 1 : tensor<8x8xf32>, tensor<8x2xi64> -> tensor<8x2xf32>
    %g = train.scatter replace %v[%i] into %z axis 1 : (tensor<8x2xi64>, tensor<8x2xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    %s = train.reduce sum %g [0, 1] : tensor<8x8xf32> -> tensor<1x1xf32>
    %l = train.reshape %s : tensor<1x1xf32> -> tensor<f32>
    train.loss %l : tensor<f32>
    return
  }
}

// -----

// Rows that are added to what has no batch are terms, and every rank adds its share of what they are added to.
// CHECK-LABEL: @step
// CHECK: %[[HALF:.*]] = train.constant dense<5.000000e-01>
// CHECK: %[[SHARE:.*]] = train.mul %{{.*}}, %[[HALF]]
// CHECK: %[[R:.*]] = train.scatter add %arg0[%arg1] into %[[SHARE]]
// CHECK: %[[W:.*]] = train.global_sum %[[R]]
// CHECK: train.exp %[[W]]
module attributes {train.ranks = 2 : i64} {
  train.parameter @w : tensor<3x8xf32> {trainable = true}
  func.func @step(%x: tensor<8x8xf32>, %i: tensor<8x1xi64>) {
    %w = train.read @w : tensor<3x8xf32>
    %r = train.scatter add %x[%i] into %w axis 0 : (tensor<8x1xi64>, tensor<8x8xf32>, tensor<3x8xf32>) -> tensor<3x8xf32>
    %e = train.exp %r : tensor<3x8xf32>
    %s = train.reduce sum %e [0, 1] : tensor<3x8xf32> -> tensor<1x1xf32>
    %l = train.reshape %s : tensor<1x1xf32> -> tensor<f32>
    train.loss %l : tensor<f32>
    return
  }
}

// -----

// A transposed convolution takes samples, as a convolution does.
// CHECK-LABEL: @step
// CHECK-NOT: train.global_sum
// CHECK: train.loss
module attributes {train.ranks = 2 : i64} {
  train.parameter @w : tensor<2x3x2x2xf32> {trainable = true}
  func.func @step(%x: tensor<8x2x5x5xf32>) {
    %w = train.read @w : tensor<2x3x2x2xf32>
    %y = train.conv_grad_input %x, %w {strides = array<i64: 2, 2>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, groups = 1 : i64} : (tensor<8x2x5x5xf32>, tensor<2x3x2x2xf32>) -> tensor<8x3x10x10xf32>
    %s = train.reduce sum %y [0, 1, 2, 3] : tensor<8x3x10x10xf32> -> tensor<1x1x1x1xf32>
    %l = train.reshape %s : tensor<1x1x1x1xf32> -> tensor<f32>
    train.loss %l : tensor<f32>
    return
  }
}

// -----

// A sum of integers is made in f64. What adds a number to it, divides it or bounds it takes the whole sum; a multiple is a
// rank's term.
// CHECK-LABEL: func.func @step
// CHECK: %[[TERM:.*]] = train.reduce sum
// CHECK: %[[WIDE:.*]] = train.cast %[[TERM]] : tensor<1xi64> -> tensor<1xf64>
// CHECK: %[[SUM:.*]] = train.global_sum %[[WIDE]] : tensor<1xf64>
// CHECK: %[[K:.*]] = train.cast %[[SUM]] : tensor<1xf64> -> tensor<1xi64>
// CHECK: train.add %[[K]], %{{.*}} : tensor<1xi64>
// CHECK: train.div %[[K]], %{{.*}} : tensor<1xi64>
// CHECK: train.max %[[K]], %{{.*}} : tensor<1xi64>
// CHECK: train.mul %[[TERM]], %{{.*}} : tensor<1xi64>
module attributes {train.ranks = 2 : i64} {
  func.func @step(%x: tensor<8xi64>) {
    %two = train.constant dense<2> : tensor<1xi64>
    %k = train.reduce sum %x [0] : tensor<8xi64> -> tensor<1xi64>
    %a = train.add %k, %two : tensor<1xi64>
    %b = train.div %k, %two : tensor<1xi64>
    %c = train.max %k, %two : tensor<1xi64>
    %d = train.mul %k, %two : tensor<1xi64>
    train.output "tensor" "a" %a : tensor<1xi64>
    train.output "tensor" "b" %b : tensor<1xi64>
    train.output "tensor" "c" %c : tensor<1xi64>
    train.output "tensor" "d" %d : tensor<1xi64>
    return
  }
}
