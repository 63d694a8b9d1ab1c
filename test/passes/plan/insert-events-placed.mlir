// A gather waits for the computation issued before it until memory is laid out; then for what shares its bytes alone, in
// whatever buffer. After the last step the host waits for what touches state.
// RUN: sheaf-opt %s -plan-insert-events -plan-elide-events | FileCheck %s --check-prefix=SCHEDULED
// RUN: sheaf-opt %s "-plan-insert-events=placed" -plan-elide-events | FileCheck %s --check-prefix=PLACED

plan.program attributes {ranks = 2 : i64} {
  %p = plan.buffer "p" parameters offset 0 bytes 128 persistent
  %g = plan.buffer "g" gathered offset 128 bytes 256
  %x = plan.buffer "x" activations offset 384 bytes 256
  %y = plan.buffer "y" activations offset 256 bytes 128
  plan.prologue {
  }
  // SCHEDULED: plan.call "zero" {{.*}} "y"
  // SCHEDULED-NEXT: plan.call "zero" {{.*}} "x"
  // SCHEDULED-NEXT: plan.record [[ISSUED:[0-9]+]] stream 0 "x"
  // SCHEDULED-NEXT: plan.wait [[ISSUED]] stream 1 "x"
  // SCHEDULED-NEXT: plan.all_gather

  // PLACED: plan.call "zero" {{.*}} "y"
  // PLACED-NEXT: plan.record [[FREE:[0-9]+]] stream 0 "y"
  // PLACED-NEXT: plan.call "zero" {{.*}} "x"
  // PLACED-NEXT: plan.wait [[FREE]] stream 1 "y"
  // PLACED-NEXT: plan.all_gather
  // PLACED-NEXT: plan.record [[FULL:[0-9]+]] stream 1 "gather"
  // PLACED-NEXT: plan.wait [[FULL]] stream 0 "gather"
  // PLACED-NEXT: plan.call "zero" {{.*}} "use"
  plan.body {
    plan.call "zero" {} (w %y[0 : 128]) stream 0 "y"
    plan.call "zero" {} (w %x[0 : 256]) stream 0 "x"
    plan.all_gather "b" forward f32 count 32 communicator 0 (r %p[0 : 128], w %g[0 : 256]) stream 1 "gather"
    plan.call "zero" {} (r %g[0 : 256], w %x[0 : 256]) stream 0 "use"
  }
  // The use has waited for the gather, so the host need not.
  // PLACED: plan.epilogue {
  // PLACED-NEXT: }
  plan.epilogue {
  }
}
