// Padded rows: their bytes count in buffers, operands and kernels, products step over them, and a result takes over the
// memory of an operand of its pitch. The floor becomes the program's.
// RUN: sheaf-opt %s -plan-lower | FileCheck %s

// CHECK: plan.program attributes {{{.*}}floor = {gathered_bytes = 0 : i64, products = {f32 = 7 : i64}, reduced_bytes = 0 : i64, state_bytes = 5 : i64}
// CHECK-DAG: %[[LOGITS:.*]] = plan.buffer "{{.*}}" activations offset 0 bytes 80896
// CHECK-NOT: bytes 80896
// CHECK-DAG: plan.kernel "kernel0" rows 8 block 1 bytes [80896, 80896] attributes {operations = {{[0-9]+}} : i64, ops = ["operand bf16 8x5001 pitch 5056", "map neg bf16 8x5001 of 0", "result bf16 8x5001 pitch 5056 of 1"], padding = 1760 : i64, program = "{{[0-9a-f]+}}"}
// CHECK: plan.body
// CHECK: plan.call "gemm" {{.*}}lda = 64 : i64, ldb = 64 : i64, ldc = 5056 : i64{{.*}}stride_c = 40448 : i64{{.*}} w %[[LOGITS]][0 : 80896]
// CHECK: plan.launch kernel 0 rows 8 block 1(r %[[LOGITS]][0 : 80896], w %[[LOGITS]][0 : 80896])
// CHECK: plan.call "gemm" {{.*}}lda = 5056 : i64, ldb = 64 : i64, ldc = 64 : i64{{.*}}stride_a = 40448 : i64{{.*}}(r %[[LOGITS]][0 : 80896]
module attributes {train.ranks = 1 : i64, train.batch = 8 : i64, zero.stage = 0 : i64,
                   train.floor = {products = {f32 = 7 : i64}, state_bytes = 5 : i64}} {
  func.func @step(%x: tensor<8x64xbf16> {train.name = "x"}, %w: tensor<5001x64xbf16> {train.name = "w"}) {
    %y = train.matmul %x, %w {train.pitch = 5056 : i64, transpose_b} : tensor<8x64xbf16>, tensor<5001x64xbf16> -> tensor<8x5001xbf16>
    %z = train.fusion(%y) rows 8 columns 5001 block 1 {elementwise = array<i64: 0>, pitches = array<i64: 5056, 5056>} : (tensor<8x5001xbf16>) -> tensor<8x5001xbf16> {
    ^bb0(%a: tensor<8x5001xbf16>):
      %n = train.neg %a : tensor<8x5001xbf16>
      train.yield %n : tensor<8x5001xbf16>
    }
    %g = train.matmul %z, %w : tensor<8x5001xbf16>, tensor<5001x64xbf16> -> tensor<8x64xbf16>
    return
  }
}
