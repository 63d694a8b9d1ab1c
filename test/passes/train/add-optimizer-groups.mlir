// Parameter groups: the last pattern that matches wins, --no-decay is for vectors and for tables that are only looked up.
// RUN: sheaf-opt %s -train-add-optimizer='optimizer=adamw:lr=0.1,weight_decay=0.5 no-decay=true groups={fc:lr=0.2},{fc2:beta1=0.5,weight_decay=3}' | FileCheck %s
// RUN: sheaf-opt %s -train-add-optimizer='optimizer=adamw:lr=0.1,weight_decay=0.5 no-decay=true groups={fc:lr=0.2},{fc2:beta1=0.5,weight_decay=3}' | FileCheck %s --check-prefix=ATTRIBUTES
// RUN: sheaf-opt %s -train-add-optimizer='optimizer=sgd:lr=0.1 no-decay=true clip=true' 2>&1 | FileCheck %s --check-prefix=NOTHING
// RUN: sheaf-opt %s -train-add-optimizer='optimizer=sgd:lr=0.1,momentum=0.9 clip=true groups={bias$:momentum=0}' | FileCheck %s --check-prefix=CLIP

// ATTRIBUTES: module attributes {train.groups = [
// ATTRIBUTES-SAME: {name = "default", optimizer = @optimizer, settings = ""},
// ATTRIBUTES-SAME: {name = "default, no decay", optimizer = @optimizer.1, settings = "weight_decay=0"},
// ATTRIBUTES-SAME: {learning_rate = 2.000000e-01 : f64, name = "fc", optimizer = @optimizer.2, settings = ""},
// ATTRIBUTES-SAME: {learning_rate = 2.000000e-01 : f64, name = "fc, no decay", optimizer = @optimizer.3, settings = "weight_decay=0"},
// ATTRIBUTES-SAME: {name = "fc2", optimizer = @optimizer.4, settings = "beta1=0.5,weight_decay=3"}]
// ATTRIBUTES-SAME: train.lr = 1.000000e-01

// CHECK: train.optimizer @optimizer states
// CHECK-SAME: one_minus_lr_times, 5.000000e-01
// CHECK: train.optimizer @optimizer.1 states
// CHECK-NOT: one_minus_lr_times
// CHECK: train.optimizer @optimizer.2 states
// CHECK-SAME: one_minus_lr_times, 5.000000e-01
// CHECK: train.optimizer @optimizer.3 states
// CHECK-NOT: one_minus_lr_times
// A group that sets the weight decay keeps it for its biases, too.
// CHECK: train.optimizer @optimizer.4 states
// CHECK-SAME: one_minus_lr_times, 3.000000e+00
// CHECK-SAME: lr_over_bias_correction, 5.000000e-01
// CHECK: train.update @embedding by @optimizer.1
// CHECK: train.update @tied by @optimizer,
// CHECK: train.update @half by @optimizer,
// CHECK: train.update @norm by @optimizer.1
// CHECK: train.update @fc1.weight by @optimizer.2
// CHECK: train.update @fc1.bias by @optimizer.3
// CHECK: train.update @fc2.bias by @optimizer.4

// Without a weight decay there is nothing to take away, and one group.
// NOTHING: warning: --no-decay changes nothing
// NOTHING-NOT: train.groups
// NOTHING-NOT: @optimizer.1

// The gradients of all groups are scaled by the norm over all of them.
// CLIP: train.optimizer @optimizer states ["momentum"]
// CLIP-SAME: clip_scale
// CLIP: train.optimizer @optimizer.1 states []
// CLIP-SAME: clip_scale
// CLIP: train.update @norm by @optimizer,
// CLIP: train.update @fc1.bias by @optimizer.1
module {
  train.parameter @embedding : tensor<8x4xf32> {trainable = true}
  train.parameter @tied : tensor<8x4xf32> {trainable = true}
  train.parameter @half : tensor<8x4xf32> {trainable = true}
  train.parameter @norm : tensor<4xf32> {trainable = true}
  train.parameter @fc1.weight : tensor<4x4xf32> {trainable = true}
  train.parameter @fc1.bias : tensor<4xf32> {trainable = true}
  train.parameter @fc2.bias : tensor<4xf32> {trainable = true}
  func.func @step(%ids: tensor<3xi64>, %t: tensor<8x4xf32>, %w: tensor<4x4xf32>, %b: tensor<4xf32>) {
    %0 = train.read @embedding : tensor<8x4xf32>
    %1 = train.gather %0[%ids] axis 0 : tensor<8x4xf32>, tensor<3xi64> -> tensor<3x4xf32>
    %2 = train.read @tied : tensor<8x4xf32>
    %3 = train.gather %2[%ids] axis 0 : tensor<8x4xf32>, tensor<3xi64> -> tensor<3x4xf32>
    %4 = train.matmul %3, %2 {transpose_b} : tensor<3x4xf32>, tensor<8x4xf32> -> tensor<3x8xf32>
    // Another read counts as well.
    %5 = train.read @half : tensor<8x4xf32>
    %6 = train.gather %5[%ids] axis 0 : tensor<8x4xf32>, tensor<3xi64> -> tensor<3x4xf32>
    %7 = train.read @half : tensor<8x4xf32>
    %8 = train.relu %7 : tensor<8x4xf32>
    train.update @embedding by @optimizer, %t : tensor<8x4xf32>
    train.update @tied by @optimizer, %t : tensor<8x4xf32>
    train.update @half by @optimizer, %t : tensor<8x4xf32>
    train.update @norm by @optimizer, %b : tensor<4xf32>
    train.update @fc1.weight by @optimizer, %w : tensor<4x4xf32>
    train.update @fc1.bias by @optimizer, %b : tensor<4xf32>
    train.update @fc2.bias by @optimizer, %b : tensor<4xf32>
    return
  }
}
