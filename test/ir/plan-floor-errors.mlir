// A floor has its own fields, none of them negative, and products of types that there are.
// RUN: not sheaf-opt %s -plan-digest-dataflow -split-input-file 2>&1 | FileCheck %s

// CHECK: [[@LINE+1]]:{{[0-9]+}}: there are no products of type 'bf17'
plan.program attributes {floor = {products = {bf17 = 1 : i64}}} {
  %x = plan.buffer "x" activations offset 0 bytes 4
}

// -----

// CHECK: [[@LINE+1]]:{{[0-9]+}}: 'state' is not one of gathered_bytes, products, reduced_bytes, state_bytes
plan.program attributes {floor = {state = 1 : i64}} {
  %x = plan.buffer "x" activations offset 0 bytes 4
}

// -----

// CHECK: [[@LINE+1]]:{{[0-9]+}}: '-1' is not a whole number from 0 to 9223372036854775807
plan.program attributes {floor = {products = {f32 = -1 : i64}}} {
  %x = plan.buffer "x" activations offset 0 bytes 4
}

// -----

// CHECK: [[@LINE+1]]:{{[0-9]+}}: got '"many"', expected a whole number
plan.program attributes {floor = {reduced_bytes = "many"}} {
  %x = plan.buffer "x" activations offset 0 bytes 4
}
