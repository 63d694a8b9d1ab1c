// A plan's text is read back as it was printed.
// RUN: sheaf-opt %s | sheaf-opt | FileCheck %s

// CHECK: plan.program attributes {{{.*}}ranks = 2 : i64
plan.program attributes {ranks = 2 : i64} {
  // CHECK: %[[P:.*]] = plan.buffer "p" "parameters" offset 128 bytes 256 persistent
  %p = plan.buffer "p" "parameters" offset 128 bytes 256 persistent
  // CHECK: %[[X:.*]] = plan.buffer "x" "activations" offset 384 bytes 64
  %x = plan.buffer "x" "activations" offset 384 bytes 64
  // CHECK: plan.kernel "k" rows 4 block 2 bytes [64, 64]
  plan.kernel "k" rows 4 block 2 bytes [64, 64]
  plan.prologue {
  }
  plan.body {
    // CHECK: plan.launch kernel 0 rows 4 block 2(r %[[P]][0 : 64 + rank * 128], rw %[[X]][0 : 64]) stream 0 "mul"
    plan.launch kernel 0 rows 4 block 2 (r %p[0 : 64 + rank * 128], rw %x[0 : 64]) stream 0 "mul"
    // CHECK: plan.record 3 stream 0 "mul"
    plan.record 3 stream 0 "mul"
    // CHECK: plan.wait 3 stream 1 "mul"
    plan.wait 3 stream 1 "mul"
    // CHECK: plan.all_gather "bucket0" "forward" "F32" count 32 communicator 0(r %[[P]]{{.*}}, w %[[P]][0 : 256]) stream 1 "bucket0"
    plan.all_gather "bucket0" "forward" "F32" count 32 communicator 0 (r %p[0 : 128 + rank * 128], w %p[0 : 256]) stream 1 "bucket0"
    // CHECK: plan.call "zero" {}(w %[[X]][0 : 64]) stream 0 ""
    plan.call "zero" {} (w %x[0 : 64]) stream 0 ""
  }
  plan.epilogue {
  }
}
