// A floor has its own fields, none of them negative, and products of types that there are.
// RUN: sheaf-opt %s -plan-digest-dataflow -split-input-file -verify-diagnostics

// expected-error @below {{floor: there are no products of type 'bf17'}}
plan.program attributes {floor = {products = {bf17 = 1 : i64}}} {
  %x = plan.buffer "x" activations offset 0 bytes 4
}

// -----

// expected-error @below {{floor: 'state' is not one of its fields}}
plan.program attributes {floor = {state = 1 : i64}} {
  %x = plan.buffer "x" activations offset 0 bytes 4
}

// -----

// expected-error @below {{floor: 'f32' must be a number that is not negative}}
plan.program attributes {floor = {products = {f32 = -1 : i64}}} {
  %x = plan.buffer "x" activations offset 0 bytes 4
}

// -----

// expected-error @below {{floor: 'reduced_bytes' must be a number that is not negative}}
plan.program attributes {floor = {reduced_bytes = "many"}} {
  %x = plan.buffer "x" activations offset 0 bytes 4
}
