// Of the waits between two instructions those stay that no other wait implies, and of the events those that are waited for.
// RUN: sheaf-opt %s -plan-elide-events | FileCheck %s

// CHECK: events = 2
plan.program attributes {ranks = 1 : i64, events = 4 : i64} {
  %x = plan.buffer "x" activations offset 0 bytes 256
  %y = plan.buffer "y" activations offset 256 bytes 256
  %z = plan.buffer "z" activations offset 512 bytes 256
  plan.prologue {
  }
  // The consumer waits for both producers: the second record implies the first. The step's first wait is needed from the
  // second round on. Nothing waits for event 3.
  // CHECK: plan.body
  // CHECK-NEXT: plan.wait [[READ:[0-9]+]] stream 0 "consumer"
  // CHECK-NEXT: plan.call "zero" {{.*}} "first"
  // CHECK-NEXT: plan.call "zero" {{.*}} "second"
  // CHECK-NEXT: plan.record [[WRITTEN:[0-9]+]] stream 0 "second"
  // CHECK-NEXT: plan.wait [[WRITTEN]] stream 1 "second"
  // CHECK-NEXT: plan.call "zero" {{.*}} "consumer"
  // CHECK-NEXT: plan.record [[READ]] stream 1 "consumer"
  // CHECK-NEXT: }
  plan.body {
    plan.wait 2 stream 0 "consumer"
    plan.call "zero" {} (w %x[0 : 256]) stream 0 "first"
    plan.record 0 stream 0 "first"
    plan.call "zero" {} (w %y[0 : 256]) stream 0 "second"
    plan.record 1 stream 0 "second"
    plan.wait 0 stream 1 "first"
    plan.wait 1 stream 1 "second"
    plan.call "zero" {} (r %x[0 : 256], r %y[0 : 256], w %z[0 : 256]) stream 1 "consumer"
    plan.record 2 stream 1 "consumer"
    plan.record 3 stream 1 "consumer"
  }
  plan.epilogue {
  }
}
