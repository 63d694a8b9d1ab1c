// The digest is the same whatever the order of independent instructions, the streams and the offsets; it differs where an
// instruction reads something else.
// RUN: sheaf-opt %s -plan-digest-dataflow | FileCheck %s

// CHECK: plan.digests "dataflow" [[SAME:.*]]
plan.program attributes {ranks = 1 : i64} {
  %x = plan.buffer "x" activations offset 0 bytes 4
  %y = plan.buffer "y" activations offset 128 bytes 4
  plan.prologue {
  }
  plan.body {
    plan.read_scalars (w %x[0 : 4]) stream 0 ""
    plan.call "zero" {} (w %y[0 : 4]) stream 0 ""
    plan.call "copy" {} (r %x[0 : 4], rw %y[0 : 4]) stream 0 ""
    plan.write_output loss (r %y[0 : 4]) stream 0 ""
  }
  plan.epilogue {
  }
}

// CHECK: plan.digests "dataflow" [[SAME]]
plan.program attributes {ranks = 1 : i64} {
  %y = plan.buffer "y" activations offset 0 bytes 4
  %x = plan.buffer "x" activations offset 256 bytes 4
  plan.prologue {
  }
  plan.body {
    plan.call "zero" {} (w %y[0 : 4]) stream 0 "renamed"
    plan.read_scalars (w %x[0 : 4]) stream 1 ""
    plan.call "copy" {} (r %x[0 : 4], rw %y[0 : 4]) stream 0 ""
    plan.write_output loss (r %y[0 : 4]) stream 1 ""
  }
  plan.epilogue {
  }
}

// CHECK-NOT: [[SAME]]
plan.program attributes {ranks = 1 : i64} {
  %x = plan.buffer "x" activations offset 0 bytes 4
  %y = plan.buffer "y" activations offset 128 bytes 4
  plan.prologue {
  }
  plan.body {
    plan.read_scalars (w %x[0 : 4]) stream 0 ""
    plan.call "copy" {} (r %x[0 : 4], rw %y[0 : 4]) stream 0 ""
    plan.call "zero" {} (w %y[0 : 4]) stream 0 ""
    plan.write_output loss (r %y[0 : 4]) stream 0 ""
  }
  plan.epilogue {
  }
}
