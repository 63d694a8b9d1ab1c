// Buffers share bytes where all accesses are ordered, around the loop; a buffer in use on another stream is left alone.
// RUN: sheaf-opt %s -plan-allocate-arena | FileCheck %s

// CHECK: plan.program attributes {{{.*}}peak_bytes = 896
plan.program attributes {ranks = 1 : i64} {
  // CHECK: "p" parameters offset 0 bytes 100 persistent
  %p = plan.buffer "p" parameters offset 0 bytes 100 persistent
  // CHECK: "a" activations offset 128 bytes 512
  %a = plan.buffer "a" activations offset 0 bytes 512
  // CHECK: "b" activations offset 128 bytes 256
  %b = plan.buffer "b" activations offset 0 bytes 256
  // CHECK: "c" activations offset 640 bytes 256
  %c = plan.buffer "c" activations offset 0 bytes 256
  plan.prologue {
  }
  plan.body {
    plan.call "zero" {} (w %a[0 : 512]) stream 0 ""
    plan.call "zero" {} (w %b[0 : 256]) stream 0 ""
    plan.call "zero" {} (w %c[0 : 256]) stream 1 ""
  }
  plan.epilogue {
  }
}
