// Conflicting accesses of two streams are ordered by an event, into the next round too; waits that other order implies go.
// RUN: sheaf-opt %s -plan-insert-events | FileCheck %s --check-prefix=INSERT
// RUN: sheaf-opt %s -plan-insert-events -plan-elide-events | FileCheck %s --check-prefix=ELIDE

plan.program attributes {ranks = 2 : i64} {
  %g = plan.buffer "g" gathered offset 0 bytes 256
  %x = plan.buffer "x" activations offset 0 bytes 256
  %p = plan.buffer "p" parameters offset 0 bytes 128 persistent
  plan.prologue {
  }
  // The gather writes what the calls of the round before read: it waits for the last of them. Two calls read what the
  // gather wrote: the second wait is implied by the first.
  // INSERT: plan.body
  // INSERT: plan.wait [[DONE:[0-9]+]] stream 1
  // INSERT: plan.all_gather
  // INSERT: plan.record [[FULL:[0-9]+]] stream 1
  // INSERT: plan.wait [[FULL]] stream 0
  // INSERT: plan.call "zero"
  // INSERT: plan.wait [[FULL]] stream 0
  // INSERT: plan.call "zero"
  // INSERT: plan.record [[DONE]] stream 0

  // ELIDE: plan.body
  // ELIDE: plan.wait [[DONE:[0-9]+]] stream 1
  // ELIDE: plan.all_gather
  // ELIDE: plan.record [[FULL:[0-9]+]] stream 1
  // ELIDE: plan.wait [[FULL]] stream 0
  // ELIDE: plan.call "zero"
  // ELIDE-NOT: plan.wait [[FULL]] stream 0
  // ELIDE: plan.call "zero"
  // ELIDE: plan.record [[DONE]] stream 0
  plan.body {
    plan.all_gather "b" forward f32 count 32 communicator 0 (r %p[0 : 128], w %g[0 : 256]) stream 1 "gather"
    plan.call "zero" {} (r %g[0 : 256], w %x[0 : 256]) stream 0 "first"
    plan.call "zero" {} (r %g[0 : 256], w %x[0 : 256]) stream 0 "second"
  }
  plan.epilogue {
  }
}
