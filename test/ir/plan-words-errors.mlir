// What has a few values takes their words alone, and says which.
// RUN: sheaf-opt %s -split-input-file -verify-diagnostics

plan.program {
  // expected-error @below {{'heap' is not one of parameters, gradients, optimizer, gathered, activations, workspace, constants}}
  %x = plan.buffer "x" heap offset 0 bytes 4
}

// -----

plan.program {
  // expected-error @below {{'lr' is not one of constant, lr_times, one_minus_lr_times, lr_over_bias_correction, bias_correction, sqrt_bias_correction, step, first_step, max_norm}}
  plan.scalar lr 0.0
}

// -----

plan.program {
  // A word is not quoted.
  // expected-error @below {{expected valid keyword}}
  plan.input "ids" "I64" [2, 8]
}

// -----

// expected-error @below {{'pray' is not one of stop, skip}}
plan.program attributes {training = {on_nan = #plan<on_nan pray>}} {
}

// -----

plan.program {
  // expected-error @below {{expected r, w or rw}}
  plan.kernel "k" rows 4 block 2 bytes [64] access [x]
}
