// Each space has a layout of its own. In files buffers lie at multiples of 4,096, and so does what is read from there.
// RUN: sheaf-opt %s -plan-allocate-arena | FileCheck %s

// CHECK: plan.program attributes {{{.*}}peak_bytes = 4352 : i64, {{.*}}spaces = {file = {{{.*}}peak_bytes = 8202 : i64}, host = {{{.*}}peak_bytes = 266 : i64}}
plan.program attributes {ranks = 1 : i64} {
  // CHECK: "p" parameters offset 0 bytes 100 persistent
  %p = plan.buffer "p" parameters offset 0 bytes 100 persistent
  // CHECK: "h" optimizer in host offset 0 bytes 130 persistent
  %h = plan.buffer "h" optimizer in host offset 0 bytes 130 persistent
  // CHECK: "i" optimizer in host offset 256 bytes 10 persistent
  %i = plan.buffer "i" optimizer in host offset 0 bytes 10 persistent
  // CHECK: "f" optimizer in file offset 0 bytes 10 persistent
  %f = plan.buffer "f" optimizer in file offset 0 bytes 10 persistent
  // CHECK: "e" optimizer in file offset 4096 bytes 256 persistent
  %e = plan.buffer "e" optimizer in file offset 0 bytes 256 persistent
  // CHECK: "d" optimizer in file offset 8192 bytes 10 persistent
  %d = plan.buffer "d" optimizer in file offset 0 bytes 10 persistent
  // CHECK: "a" activations offset 4096 bytes 256
  %a = plan.buffer "a" activations offset 0 bytes 256
  // CHECK: "b" activations offset 128 bytes 128
  %b = plan.buffer "b" activations offset 0 bytes 128
  plan.prologue {
  }
  plan.body {
    plan.transfer read_file(r %e[0 : 256], w %a[0 : 256]) stream 0 ""
    plan.call "zero" {} (w %b[0 : 128]) stream 1 ""
    plan.call "zero" {} (r %b[0 : 128]) stream 1 ""
    plan.call "zero" {} (r %a[0 : 256]) stream 0 ""
  }
  plan.epilogue {
  }
}
