// What cannot be differentiated says why, where it stands.
// RUN: sheaf-opt %s -train-differentiate -split-input-file -verify-diagnostics

module {
  train.parameter @w : tensor<f32> {trainable = false}
  func.func @step(%x: tensor<f32>) {
    %w = train.read @w : tensor<f32>
    %y = train.mul %x, %w : tensor<f32>
    // expected-error @+1 {{nothing trainable: the loss depends on no trainable parameter; see --train and --freeze, or choose another loss with --loss}}
    train.loss %y : tensor<f32>
    return
  }
}

// -----

module {
  train.parameter @w : tensor<2xf32> {trainable = true}
  func.func @step() {
    %w = train.read @w : tensor<2xf32>
    // expected-error @+1 {{'train.loss' op must be a single number to be differentiated, and is 'tensor<2xf32>'}}
    train.loss %w : tensor<2xf32>
    return
  }
}

// -----

module {
  // expected-error @+1 {{needs exactly one train.loss, and has 0}}
  func.func @step() {
    return
  }
}

// -----

// expected-error @+1 {{has no function @step to differentiate}}
module {
}

// -----

module {
  train.parameter @w : tensor<2x3xf32> {trainable = true}
  func.func @step() {
    %w = train.read @w : tensor<2x3xf32>
    // expected-error @+1 {{'train.sum_partials' op has no gradient rule, but the loss depends on it}}
    %s = train.sum_partials %w : tensor<2x3xf32> -> tensor<3xf32>
    %t = train.reduce sum %s [0] : tensor<3xf32> -> tensor<1xf32>
    train.loss %t : tensor<1xf32>
    return
  }
}

// -----

module {
  train.parameter @w : tensor<f32> {trainable = true}
  func.func @step() {
    %w = train.read @w : tensor<f32>
    train.loss %w : tensor<f32>
    // expected-error @+1 {{'train.update' op is already in the step that is to be differentiated}}
    train.update @w by @optimizer, %w : tensor<f32>
    return
  }
}
