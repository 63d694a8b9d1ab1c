// What has a few values takes their words alone, and says which.
// RUN: not sheaf-opt %s -split-input-file 2>&1 | FileCheck %s

plan.program {
  // CHECK: [[@LINE+1]]:{{[0-9]+}}: 'heap' is not one of parameters, gradients, optimizer, gathered, activations, workspace, constants
  %x = plan.buffer "x" heap offset 0 bytes 4
}

// -----

plan.program {
  // CHECK: [[@LINE+1]]:{{[0-9]+}}: 'lr' is not one of constant, lr_times, one_minus_lr_times, lr_over_bias_correction, bias_correction, sqrt_bias_correction, step, first_step, max_norm
  plan.scalar lr 0.0
}

// -----

plan.program {
  // A word is not quoted.
  // CHECK: [[@LINE+1]]:{{[0-9]+}}: got '"I64"', expected a word
  plan.input "ids" "I64" [2, 8]
}

// -----

// CHECK: [[@LINE+1]]:{{[0-9]+}}: 'pray' is not one of stop, skip
plan.program attributes {training = {on_nan = #plan<on_nan pray>}} {
}

// -----

plan.program {
  // CHECK: [[@LINE+1]]:{{[0-9]+}}: 'x' is not one of r, w, rw
  plan.kernel "k" rows 4 block 2 bytes [64] access [x]
}
