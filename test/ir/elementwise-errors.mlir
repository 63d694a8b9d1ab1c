// Elementwise ops are defined on certain element types only.
// RUN: sheaf-opt %s --split-input-file --verify-diagnostics

func.func @function_of_integers(%x: tensor<2xi64>) {
  // expected-error @below {{'train.sqrt' op operand #0 must be statically shaped tensor of 32-bit float}}
  %0 = train.sqrt %x : tensor<2xi64>
  return
}

// -----

func.func @negated_booleans(%x: tensor<2xi1>) {
  // expected-error @below {{'train.neg' op operand #0 must be statically shaped tensor of 32-bit float}}
  %0 = train.neg %x : tensor<2xi1>
  return
}

// -----

func.func @logic_of_floats(%x: tensor<2xf32>) {
  // expected-error @below {{'train.and' op operand #0 must be statically shaped tensor of}}
  %0 = train.and %x, %x : tensor<2xf32>
  return
}

// -----

func.func @sum_of_booleans(%x: tensor<2xi1>) {
  // expected-error @below {{'train.add' op operand #0 must be statically shaped tensor of 32-bit float}}
  %0 = train.add %x, %x : tensor<2xi1>
  return
}
