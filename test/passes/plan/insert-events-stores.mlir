// Before memory is laid out, computation and fetches that are issued after a second store of a stream wait for the first
// one, whose bytes are then free; afterwards only what shares bytes waits.
// RUN: sheaf-opt %s -plan-insert-events | FileCheck %s
// RUN: sheaf-opt %s -plan-insert-events=placed | FileCheck %s --check-prefix=PLACED

plan.program attributes {ranks = 1 : i64, streams = ["compute", "to_device", "to_host"]} {
  %h = plan.buffer "h" optimizer in host offset 0 bytes 128 persistent
  %i = plan.buffer "i" optimizer in host offset 128 bytes 128 persistent
  %a = plan.buffer "a" optimizer offset 0 bytes 128
  %b = plan.buffer "b" optimizer offset 128 bytes 128
  %c = plan.buffer "c" activations offset 256 bytes 128
  // CHECK: plan.body
  // CHECK: plan.transfer to_host(r %a
  // CHECK: plan.record [[A:[0-9]+]] stream 2 "store a"
  // CHECK: plan.transfer to_host(r %b
  // CHECK: plan.record [[B:[0-9]+]] stream 2 "store b"
  // CHECK: plan.wait [[A]] stream 0
  // CHECK: "after"
  // CHECK-NOT: plan.wait [[A]] stream 0
  // CHECK: "later"
  // CHECK: plan.wait [[A]] stream 1
  // CHECK: "fetch"
  // PLACED: plan.body
  // PLACED: plan.transfer to_host(r %b
  // PLACED-NOT: plan.wait {{[0-9]+}} stream 0 "store
  // PLACED: "after"
  // PLACED-NOT: plan.wait {{[0-9]+}} stream 0 "store
  // PLACED: "later"
  plan.prologue {
  }
  plan.body {
    plan.call "zero" {} (w %a[0 : 128]) stream 0 "first"
    plan.transfer to_host(r %a[0 : 128], w %h[0 : 128]) stream 2 "store a"
    plan.call "zero" {} (w %b[0 : 128]) stream 0 "second"
    plan.transfer to_host(r %b[0 : 128], w %i[0 : 128]) stream 2 "store b"
    plan.call "zero" {} (w %c[0 : 128]) stream 0 "after"
    plan.call "zero" {} (r %c[0 : 128]) stream 0 "later"
    plan.transfer to_device(r %h[0 : 128], w %a[0 : 128]) stream 1 "fetch"
  }
  plan.epilogue {
  }
}
