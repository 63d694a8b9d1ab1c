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

func.func @divide() -> tensor<2xi64> {
  %a = train.constant dense<[1, 2]> : tensor<2xi64>
  %b = train.constant dense<[1, 0]> : tensor<2xi64>
  // expected-error @+1 {{'train.div' op divides an integer by zero}}
  %c = train.div %a, %b : tensor<2xi64>
  return %c : tensor<2xi64>
}
