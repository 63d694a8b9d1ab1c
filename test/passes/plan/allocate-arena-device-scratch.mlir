// The scratch of a call on a GPU starts at a multiple of 256 bytes; the scratch of a call on the CPU, and everything
// else, at one of 128.
// RUN: sheaf-opt %s -plan-allocate-arena | FileCheck %s

// CHECK: plan.program attributes {{{.*}}peak_bytes = 1664
plan.program attributes {ranks = 1 : i64} {
  // CHECK: "p" parameters offset 0 bytes 100 persistent
  %p = plan.buffer "p" parameters offset 0 bytes 100 persistent
  // Free bytes begin at 128.
  // CHECK: "scratch" workspace offset 256 bytes 1024
  %scratch = plan.buffer "scratch" workspace offset 0 bytes 1024
  // CHECK: "cpu" workspace offset 1280 bytes 256
  %cpu = plan.buffer "cpu" workspace offset 0 bytes 256
  // The hole before the first scratch is large enough for another one, but does not start where it must.
  // CHECK: "second" workspace offset 1536 bytes 128
  %second = plan.buffer "second" workspace offset 0 bytes 128
  // CHECK: "b" activations offset 128 bytes 128
  %b = plan.buffer "b" activations offset 0 bytes 128
  plan.prologue {
  }
  plan.body {
    plan.call "square_sum" {count = 1} (r %b[0 : 128], w %b[0 : 128], rw %scratch[0 : 1024]) stream 0 "" {device_scratch = 1024 : i64}
    plan.call "square_sum" {count = 1} (r %b[0 : 128], w %b[0 : 128], rw %cpu[0 : 256]) stream 1 "" {scratch_per_thread = 256 : i64}
    plan.call "square_sum" {count = 1} (r %b[0 : 128], w %b[0 : 128], rw %second[0 : 128]) stream 2 "" {device_scratch = 128 : i64}
  }
  plan.epilogue {
  }
}
