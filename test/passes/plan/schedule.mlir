// A gather is issued so that it ends when it is needed, and one that the step needs first stands at the end of the body
// and, for the first step, in the prologue.
// RUN: sheaf-opt %s -plan-schedule="profile=cpu" | FileCheck %s
// RUN: sheaf-opt %s -plan-schedule="profile=cpu prefetch=0" | FileCheck %s --check-prefix=USE
// RUN: not sheaf-opt %s -plan-schedule="profile=nowhere" 2>&1 | FileCheck %s --check-prefix=BAD

// BAD: error: {{.*}}nowhere

plan.program attributes {ranks = 2 : i64, zero = 3 : i64, streams = ["compute", "communication"], communicators = 1 : i64} {
  %pa = plan.buffer "a.parameters" parameters offset 0 bytes 524288 persistent
  %pb = plan.buffer "b.parameters" parameters offset 0 bytes 524288 persistent
  %ga = plan.buffer "a.gathered" gathered offset 0 bytes 1048576
  %gb = plan.buffer "b.gathered" gathered offset 0 bytes 1048576
  %x = plan.buffer "x" activations offset 0 bytes 1048576
  %y = plan.buffer "y" activations offset 0 bytes 1048576
  // CHECK: plan.prologue {
  // CHECK-NEXT: plan.all_gather "a"
  // CHECK: plan.body {
  // The second gather runs under the first product, the next step's first one under the second.
  // CHECK: plan.all_gather "b"
  // CHECK: plan.call "gemm" {{.*}} "first"
  // CHECK: plan.all_gather "a"
  // CHECK: plan.call "gemm" {{.*}} "second"
  // USE: plan.prologue {
  // USE-NOT: plan.all_gather
  // USE: plan.body
  // USE: plan.all_gather "a"
  // USE: "first"
  // USE: plan.all_gather "b"
  // USE: "second"
  plan.prologue {
  }
  plan.body {
    plan.call "zero" {} (w %x[0 : 1048576]) stream 0 "input"
    plan.all_gather "a" forward f32 count 131072 communicator 0 (r %pa[0 : 524288], w %ga[0 : 1048576]) stream 1 "a"
    plan.call "gemm" {m = 512 : i64, n = 512 : i64, k = 512 : i64, batch = 1 : i64, lda = 512 : i64, ldb = 512 : i64, ldc = 512 : i64} (r %x[0 : 1048576], r %ga[0 : 1048576], w %y[0 : 1048576]) stream 0 "first"
    plan.all_gather "b" forward f32 count 131072 communicator 0 (r %pb[0 : 524288], w %gb[0 : 1048576]) stream 1 "b"
    plan.call "gemm" {m = 512 : i64, n = 512 : i64, k = 512 : i64, batch = 1 : i64, lda = 512 : i64, ldb = 512 : i64, ldc = 512 : i64} (r %y[0 : 1048576], r %gb[0 : 1048576], w %x[0 : 1048576]) stream 0 "second"
  }
  plan.epilogue {
  }
}
