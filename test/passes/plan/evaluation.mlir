// The evaluation: batches are ordered one after the other, what reads state comes before the host, and its buffers lie where the
// step's do.
// RUN: sheaf-opt %s -plan-insert-events -plan-elide-events | FileCheck %s --check-prefix=EVENTS
// RUN: sheaf-opt %s -plan-insert-events -plan-elide-events -plan-allocate-arena | FileCheck %s --check-prefix=ARENA

// ARENA: plan.program attributes {{{.*}}peak_bytes = 1152
plan.program attributes {ranks = 2 : i64} {
  // ARENA-DAG: "p" parameters offset 0 bytes 128 persistent
  // ARENA-DAG: "step" activations offset 128 bytes 1024
  // ARENA-DAG: "g" gathered offset 128 bytes 256
  // ARENA-DAG: "y" activations offset 384 bytes 256
  %p = plan.buffer "p" parameters offset 0 bytes 128 persistent
  %step = plan.buffer "step" activations offset 0 bytes 1024
  %g = plan.buffer "g" gathered offset 0 bytes 256
  %y = plan.buffer "y" activations offset 0 bytes 256
  plan.prologue {
  }
  plan.body {
    plan.call "zero" {} (w %step[0 : 1024]) stream 0 "step"
  }
  plan.epilogue {
  }
  // The second gather writes what was read; the next batch's first one follows it on its stream.
  // EVENTS: plan.evaluation
  // EVENTS-NEXT: plan.all_gather
  // EVENTS-NEXT: plan.record [[FULL:[0-9]+]] stream 1
  // EVENTS-NEXT: plan.wait [[FULL]] stream 0
  // EVENTS-NEXT: plan.call "zero"
  // EVENTS-NEXT: plan.record [[READ:[0-9]+]] stream 0
  // EVENTS-NEXT: plan.wait [[READ]] stream 1
  // EVENTS-NEXT: plan.all_gather
  // EVENTS-NEXT: plan.record [[LAST:[0-9]+]] stream 1
  // EVENTS-NEXT: plan.wait [[LAST]] stream 0
  // EVENTS-NEXT: }
  plan.evaluation {
    plan.all_gather "b" forward f32 count 32 communicator 0 (r %p[0 : 128], w %g[0 : 256]) stream 1 "gather"
    plan.call "zero" {} (r %g[0 : 256], w %y[0 : 256]) stream 0 "use"
    plan.all_gather "b" forward f32 count 32 communicator 0 (r %p[0 : 128], w %g[0 : 256]) stream 1 "again"
  }
}
