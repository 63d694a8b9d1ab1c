// Constants that have no value are errors of the model.
// RUN: sheaf-opt %s -train-fold-constants -split-input-file -verify-diagnostics

func.func @gather() -> tensor<1xf32> {
  %d = train.constant dense<[1.0, 2.0]> : tensor<2xf32>
  %i = train.constant dense<2> : tensor<1xi64>
  // expected-error @+1 {{'train.gather' op index 2 lies outside a dimension of 2}}
  %g = train.gather %d[%i] axis 0 : tensor<2xf32>, tensor<1xi64> -> tensor<1xf32>
  return %g : tensor<1xf32>
}

// -----

func.func @mean() -> tensor<1x2xf32> {
  %a = train.constant dense<> : tensor<0x2xf32>
  // expected-error @+1 {{'train.reduce' op takes the mean of no elements}}
  %c = train.reduce mean %a [0] : tensor<0x2xf32> -> tensor<1x2xf32>
  return %c : tensor<1x2xf32>
}
