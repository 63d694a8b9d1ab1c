// The backward pass: one update per trainable parameter, in reverse order, nothing else.
// RUN: sheaf-opt %s -train-differentiate -split-input-file | FileCheck %s

// No gradient of the data, none of the frozen parameter; a parameter the loss ignores is frozen.
// CHECK: module attributes {train.decisions = ["imported", "frozen: unused (the loss does not depend on it)"]}
// CHECK: train.parameter @unused {{.*}} {trainable = false}
// CHECK-LABEL: @step
// CHECK: %[[W1:.*]] = train.read @w1
// CHECK: %[[H:.*]] = train.matmul %arg0, %[[W1]]
// CHECK: %[[R:.*]] = train.relu %[[H]]
// CHECK: train.loss
// CHECK: %[[DY:.*]] = train.matmul %{{.*}}, %{{.*}} {transpose_b} : tensor<5x2xf32>, tensor<2x2xf32>
// CHECK: %[[DR:.*]] = train.matmul %[[DY]], %{{.*}} {transpose_b}
// CHECK: %[[DW2:.*]] = train.matmul %[[R]], %[[DY]] {transpose_a}
// CHECK: train.update @w2 by @mine, %[[DW2]]
// CHECK: %[[DH:.*]] = train.select %{{.*}}, %{{.*}}, %[[DR]]
// CHECK: %[[DW1:.*]] = train.matmul %arg0, %[[DH]] {transpose_a}
// CHECK: train.update @w1 by @optimizer, %[[DW1]]
// CHECK-NEXT: return
module attributes {train.decisions = ["imported"]} {
  train.parameter @w1 : tensor<3x4xf32> {trainable = true}
  train.parameter @w2 : tensor<4x2xf32> {trainable = true, train.optimizer = @mine}
  train.parameter @frozen : tensor<2x2xf32> {trainable = false}
  train.parameter @unused : tensor<2xf32> {trainable = true}
  func.func @step(%x: tensor<5x3xf32>) {
    %w1 = train.read @w1 : tensor<3x4xf32>
    %w2 = train.read @w2 : tensor<4x2xf32>
    %f = train.read @frozen : tensor<2x2xf32>
    %u = train.read @unused : tensor<2xf32>
    %h = train.matmul %x, %w1 : tensor<5x3xf32>, tensor<3x4xf32> -> tensor<5x4xf32>
    %r = train.relu %h : tensor<5x4xf32>
    %y = train.matmul %r, %w2 : tensor<5x4xf32>, tensor<4x2xf32> -> tensor<5x2xf32>
    %z = train.matmul %y, %f : tensor<5x2xf32>, tensor<2x2xf32> -> tensor<5x2xf32>
    %s = train.reduce sum %z [0, 1] : tensor<5x2xf32> -> tensor<1x1xf32>
    %l = train.reshape %s : tensor<1x1xf32> -> tensor<f32>
    train.loss %l : tensor<f32>
    return
  }
}

// -----

// A tied weight has one gradient: the sum of those of its reads, in the order in which they are complete.
// CHECK-LABEL: @step
// CHECK: train.loss
// CHECK: %[[HEAD:.*]] = train.matmul %{{.*}}, %{{.*}} {transpose_a}
// CHECK: %[[EMBED:.*]] = train.scatter_add %{{.*}}[%arg0] axis 0
// CHECK-NEXT: %[[SUM:.*]] = train.add %[[HEAD]], %[[EMBED]]
// CHECK-NEXT: train.update @w by @optimizer, %[[SUM]]
// CHECK-NOT: train.update
module {
  train.parameter @w : tensor<7x4xf32> {trainable = true}
  func.func @step(%ids: tensor<5xi64>, %labels: tensor<5x1xi64>) {
    %w = train.read @w : tensor<7x4xf32>
    %e = train.gather %w[%ids] axis 0 : tensor<7x4xf32>, tensor<5xi64> -> tensor<5x4xf32>
    %t = train.tanh %e : tensor<5x4xf32>
    %v = train.read @w : tensor<7x4xf32>
    %logits = train.matmul %t, %v {transpose_b} : tensor<5x4xf32>, tensor<7x4xf32> -> tensor<5x7xf32>
    %ce, %lse = train.cross_entropy %logits, %labels : (tensor<5x7xf32>, tensor<5x1xi64>) -> (tensor<5x1xf32>, tensor<5x1xf32>)
    %m = train.reduce mean %ce [0, 1] : tensor<5x1xf32> -> tensor<1x1xf32>
    %l = train.reshape %m : tensor<1x1xf32> -> tensor<f32>
    train.loss %l : tensor<f32>
    return
  }
}

// -----

// A bias is broadcast over rows: its gradient is a sum of columns. What rounds has no gradient, nor has what only decides.
// CHECK-LABEL: @step
// CHECK: train.loss
// CHECK: train.reduce sum %{{.*}} [0] : tensor<6x4xf32> -> tensor<1x4xf32>
// CHECK: train.update @b
// CHECK-NOT: train.update
module {
  train.parameter @b : tensor<4xf32> {trainable = true}
  train.parameter @rounded : tensor<2x3x4xf32> {trainable = true}
  func.func @step(%x: tensor<2x3x4xf32>) {
    %b = train.read @b : tensor<4xf32>
    %c = train.reshape %b : tensor<4xf32> -> tensor<1x1x4xf32>
    %d = train.broadcast %c : tensor<1x1x4xf32> -> tensor<2x3x4xf32>
    %y = train.mul %x, %d : tensor<2x3x4xf32>
    %w = train.read @rounded : tensor<2x3x4xf32>
    %f = train.floor %w : tensor<2x3x4xf32>
    %z = train.add %y, %f : tensor<2x3x4xf32>
    %p = train.compare gt %w, %x : tensor<2x3x4xf32>
    %q = train.select %p, %z, %x : tensor<2x3x4xi1>, tensor<2x3x4xf32>
    %s = train.reduce sum %q [0, 1, 2] : tensor<2x3x4xf32> -> tensor<1x1x1xf32>
    %l = train.reshape %s : tensor<1x1x1xf32> -> tensor<f32>
    train.loss %l : tensor<f32>
    return
  }
}

// -----

// The model has its own gradients.
// CHECK-LABEL: @step
// CHECK: train.loss
// CHECK-NEXT: train.update @w by @optimizer, %arg0
// CHECK-NEXT: return
module attributes {train.gradients_given} {
  train.parameter @w : tensor<f32> {trainable = true}
  func.func @step(%g: tensor<f32>) {
    %w = train.read @w : tensor<f32>
    train.loss %w : tensor<f32>
    train.update @w by @optimizer, %g : tensor<f32>
    return
  }
}

// -----

// Random numbers depend on the shape of their operand alone, and what is chosen by its size on nothing: the gradient of
// the values goes back through their indices.
// CHECK-LABEL: @step
// CHECK: %[[I:.*]] = train.top_k
// CHECK: train.loss
// CHECK: %[[G:.*]] = train.mul %{{.*}}, %{{.*}} : tensor<5x2xf32>
// CHECK: %[[D:.*]] = train.scatter add %[[G]][%[[I]]] axis 1
// CHECK-NEXT: train.update @w by @optimizer, %[[D]]
// CHECK-NEXT: return
module {
  train.parameter @w : tensor<5x4xf32> {trainable = true}
  func.func @step() {
    %w = train.read @w : tensor<5x4xf32>
    %i = train.top_k %w axis 1 k 2 {largest} : tensor<5x4xf32> -> tensor<5x2xi64>
    %v = train.gather_elements %w[%i] axis 1 : tensor<5x4xf32>, tensor<5x2xi64> -> tensor<5x2xf32>
    %u = train.random_uniform like %v node 0 : tensor<5x2xf32> -> tensor<5x2xf32>
    %m = train.mul %v, %u : tensor<5x2xf32>
    %s = train.reduce sum %m [0, 1] : tensor<5x2xf32> -> tensor<1x1xf32>
    %l = train.reshape %s : tensor<1x1xf32> -> tensor<f32>
    train.loss %l : tensor<f32>
    return
  }
}

// -----

// No gradient passes train.stop_gradient, which then is its operand: that of w x stop(w) is stop(w). A choice between
// a value and its stopped self is the value, in the forward pass.
// CHECK-LABEL: @step
// CHECK-NOT: train.stop_gradient
// CHECK: %[[W:.*]] = train.read @w
// CHECK: %[[P:.*]] = train.mul %[[W]], %[[W]]
// CHECK-NOT: train.select
// CHECK: train.reduce sum %[[P]]
// CHECK: train.loss
// CHECK: %[[G:.*]] = train.select %arg0
// CHECK: %[[D:.*]] = train.mul %[[G]], %[[W]]
// CHECK-NEXT: %[[H:.*]] = train.guard %[[G]], %[[W]], %[[D]]
// CHECK-NEXT: train.update @w by @optimizer, %[[H]]
// CHECK-NEXT: return
module {
  train.parameter @w : tensor<4xf32> {trainable = true}
  func.func @step(%c: tensor<4xi1>) {
    %w = train.read @w : tensor<4xf32>
    %s = train.stop_gradient %w : tensor<4xf32>
    %p = train.mul %w, %s : tensor<4xf32>
    %q = train.stop_gradient %p : tensor<4xf32>
    %r = train.select %c, %q, %p : tensor<4xi1>, tensor<4xf32>
    %t = train.reduce sum %r [0] : tensor<4xf32> -> tensor<1xf32>
    %l = train.reshape %t : tensor<1xf32> -> tensor<f32>
    train.loss %l : tensor<f32>
    return
  }
}
