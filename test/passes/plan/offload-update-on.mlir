// An update whose state something else uses stays on the device; so does one without state, and one whose state does not move.
// RUN: sheaf-opt %s -plan-offload="optimizer=host update-on=host profile=cpu" | FileCheck %s
// RUN: sheaf-opt %s -plan-offload="within=1048576 update-on=host profile=cpu" | FileCheck %s --check-prefix=ROOM

// CHECK: plan.body
// CHECK: plan.launch kernel 0 rows {{.*}} "update of state that is read"
// CHECK: plan.launch kernel 0 on host {{.*}} "update"
// CHECK: plan.launch kernel 1 rows {{.*}} "update without state"
// ROOM-NOT: on host

plan.program attributes {ranks = 1 : i64, zero = 0 : i64, streams = ["compute"]} {
  %p = plan.buffer "p" parameters offset 0 bytes 4096 persistent
  %m = plan.buffer "m" optimizer offset 0 bytes 4096 persistent
  %q = plan.buffer "q" parameters offset 0 bytes 4096 persistent
  %n = plan.buffer "n" optimizer offset 0 bytes 4096 persistent
  %o = plan.buffer "o" parameters offset 0 bytes 4096 persistent
  %g = plan.buffer "g" gradients offset 0 bytes 4096
  %y = plan.buffer "y" activations offset 0 bytes 4096
  plan.bucket "a" f32 elements 1024 parameters %p states(%m) ["m"] trainable
  plan.bucket "b" f32 elements 1024 parameters %q states(%n) ["m"] trainable
  plan.bucket "c" f32 elements 1024 parameters %o states() [] trainable
  plan.kernel "k" rows 1 block 1 bytes [4096, 4096, 4096]
  plan.kernel "l" rows 1 block 1 bytes [4096, 4096]
  plan.prologue {
  }
  plan.body {
    plan.call "zero" {} (w %g[0 : 4096]) stream 0 "gradient"
    plan.call "zero" {} (r %m[0 : 4096], w %y[0 : 4096]) stream 0 "norm of the state"
    plan.launch kernel 0 rows 1 block 1 (rw %p[0 : 4096], r %g[0 : 4096], rw %m[0 : 4096]) stream 0 "update of state that is read" {updates_bucket = 1 : i64}
    plan.launch kernel 0 rows 1 block 1 (rw %q[0 : 4096], r %g[0 : 4096], rw %n[0 : 4096]) stream 0 "update" {updates_bucket = 2 : i64}
    plan.launch kernel 1 rows 1 block 1 (rw %o[0 : 4096], r %g[0 : 4096]) stream 0 "update without state" {updates_bucket = 3 : i64}
  }
  plan.epilogue {
  }
}
