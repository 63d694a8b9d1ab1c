// A model that has its gradients computed itself.
// RUN: sheaf-opt %s -train-differentiate=scaled=true -verify-diagnostics
// expected-error @below {{the model computes its gradients itself, so its loss cannot be scaled: give --loss-scale none or another --precision than f16}}
module attributes {train.gradients_given} {
  func.func @step(%x: tensor<f32>) {
    train.loss %x : tensor<f32>
    return
  }
}
