// A plan's text is read back as it was printed.
// RUN: sheaf-opt %s | sheaf-opt | FileCheck %s
// RUN: sheaf-opt %s | FileCheck %s --check-prefix=EXACT --strict-whitespace

// CHECK: plan.program attributes {{{.*}}floor = {gathered_bytes = 0 : i64, products = {bf16 = 12 : i64, tf32 = 7 : i64}, reduced_bytes = 4 : i64, state_bytes = 0 : i64}{{.*}}ranks = 2 : i64, {{.*}}training = {{{.*}}on_nan = #plan<on_nan skip>, optimizer = "", reduce_order = #plan<reduce_order ring>, schedule = "cosine:steps=9", seed = 0 : i64}
plan.program attributes {floor = {products = {bf16 = 12 : i64, tf32 = 7 : i64}, reduced_bytes = 4 : i64}, ranks = 2 : i64, training = {on_nan = #plan<on_nan skip>, reduce_order = #plan<reduce_order ring>, schedule = "cosine:steps=9"}} {
  // CHECK: %[[P:.*]] = plan.buffer "p" parameters offset 128 bytes 256 persistent
  %p = plan.buffer "p" parameters offset 128 bytes 256 persistent
  // CHECK: %[[X:.*]] = plan.buffer "x" activations offset 384 bytes 64
  %x = plan.buffer "x" activations offset 384 bytes 64
  // CHECK: %[[M:.*]] = plan.buffer "m" optimizer
  %m = plan.buffer "m" optimizer offset 512 bytes 256 persistent
  // CHECK: plan.bucket "b" bf16 elements 64 parameters %[[P]] states(%[[M]]) ["master"] trainable master gradients f32 group 1
  plan.bucket "b" bf16 elements 64 parameters %p states (%m) ["master"] trainable master gradients f32 group 1
  // CHECK: plan.parameter "w" bf16 [8, 8] trainable bucket 0 at 0 permutation [] source [0, 0, 256] as f32
  plan.parameter "w" bf16 [8, 8] trainable bucket 0 at 0 permutation [] source [0, 0, 256] as f32
  // EXACT: plan.parameter "w" bf16 [8, 8] trainable bucket 0 at 0 permutation [] source [0, 0, 256] as f32
  // CHECK: plan.parameter "t" bf16 [8] bucket 0 at 8 permutation [] source [] aliases ["a.t", "b.t"]
  plan.parameter "t" bf16 [8] bucket 0 at 8 permutation [] source [] aliases ["a.t", "b.t"]
  // CHECK: plan.input "ids" i64 [2, 8]
  plan.input "ids" i64 [2, 8]
  // CHECK: plan.input "rows" i64 [2, 8] classes 7 tokens ids shifted
  plan.input "rows" i64 [2, 8] classes 7 tokens ids shifted
  // EXACT: plan.scalar one_minus_lr_times 1.000000e-02
  // CHECK: plan.scalar one_minus_lr_times 1.000000e-02
  plan.scalar one_minus_lr_times 0.01
  // CHECK: plan.scalar lr_times -1.000000e+00 group 2
  plan.scalar lr_times -1.0 group 2
  // CHECK: plan.kernel "k" rows 4 block 2 bytes [64, 64]
  plan.kernel "k" rows 4 block 2 bytes [64, 64]
  // CHECK: plan.kernel "l" rows 4 block 2 bytes [64, 64, 64] access [r, rw, w] in_place [1, 0, 1] attributes {operations = 9 : i64}
  plan.kernel "l" rows 4 block 2 bytes [64, 64, 64] access [r, rw, w] in_place [1, 0, 1] attributes {operations = 9 : i64}
  // CHECK: plan.kernel "m" rows 4 block 2 bytes [64] access [w] attributes {ops = ["result f32 4x4 of 0"]}
  plan.kernel "m" rows 4 block 2 bytes [64] access [w] attributes {ops = ["result f32 4x4 of 0"]}
  plan.prologue {
  }
  plan.body {
    // CHECK: plan.launch kernel 0 rows 4 block 2(r %[[P]][0 : 64 + rank * 128], rw %[[X]][0 : 64]) stream 0 "mul"
    plan.launch kernel 0 rows 4 block 2 (r %p[0 : 64 + rank * 128], rw %x[0 : 64]) stream 0 "mul"
    // CHECK: plan.record 3 stream 0 "mul"
    plan.record 3 stream 0 "mul"
    // CHECK: plan.wait 3 stream 1 "mul"
    plan.wait 3 stream 1 "mul"
    // EXACT: plan.all_gather "bucket0" forward f32 count 32
    // CHECK: plan.all_gather "bucket0" forward f32 count 32 communicator 0(r %[[P]]{{.*}}, w %[[P]][0 : 256]) stream 1 "bucket0"
    plan.all_gather "bucket0" forward f32 count 32 communicator 0 (r %p[0 : 128 + rank * 128], w %p[0 : 256]) stream 1 "bucket0"
    // CHECK: plan.all_gather "bucket0" forward f32 count 8 communicator 0(r %[[P]][0 : 32 + node * 32], w %[[P]][0 : 64 + local * 64]) stream 1 "bucket0"
    plan.all_gather "bucket0" forward f32 count 8 communicator 0 (r %p[0 : 32 + node * 32], w %p[0 : 64 + local * 64]) stream 1 "bucket0"
    // CHECK: plan.write_output gradient_norm(r %[[X]][0 : 8])
    plan.write_output gradient_norm (r %x[0 : 8]) stream 0 ""
    // CHECK: plan.call "zero" {}(w %[[X]][0 : 64]) stream 0 ""
    plan.call "zero" {} (w %x[0 : 64]) stream 0 ""
  }
  plan.epilogue {
  }
}
