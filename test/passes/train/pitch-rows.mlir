// Matrices that only products and kernels touch get a pitch where their rows would start anywhere.
// RUN: sheaf-opt %s --train-pitch-rows --split-input-file | FileCheck %s

// From product to product, through reshapes that keep rows.
// CHECK-LABEL: @logits
func.func @logits(%x: tensor<8x64xbf16>, %w: tensor<5001x64xbf16>) -> (tensor<8x64xbf16>, tensor<5001x64xbf16>) {
  // CHECK: train.matmul {{.*}} {train.pitch = 5056 : i64, transpose_b}
  // CHECK: train.fusion({{.*}}) rows 8 columns 5001 block 1
  // CHECK-SAME: pitches = array<i64: 5056, 5056>
  // CHECK: train.matmul {{.*}} : tensor<8x5001xbf16>
  // CHECK-NOT: train.pitch
  // CHECK: return
  %y = train.matmul %x, %w {transpose_b} : tensor<8x64xbf16>, tensor<5001x64xbf16> -> tensor<8x5001xbf16>
  %r = train.reshape %y : tensor<8x5001xbf16> -> tensor<2x4x5001xbf16>
  %z = train.fusion(%r) rows 8 columns 5001 block 1 {elementwise = array<i64: 0>} : (tensor<2x4x5001xbf16>) -> tensor<2x4x5001xbf16> {
  ^bb0(%a: tensor<2x4x5001xbf16>):
    %m = train.reduce max %a [2] : tensor<2x4x5001xbf16> -> tensor<2x4x1xbf16>
    %b = train.broadcast %m : tensor<2x4x1xbf16> -> tensor<2x4x5001xbf16>
    %s = train.sub %a, %b : tensor<2x4x5001xbf16>
    train.yield %s : tensor<2x4x5001xbf16>
  }
  %g = train.reshape %z : tensor<2x4x5001xbf16> -> tensor<8x5001xbf16>
  %dx = train.matmul %g, %w : tensor<8x5001xbf16>, tensor<5001x64xbf16> -> tensor<8x64xbf16>
  %dw = train.matmul %g, %x {transpose_a} : tensor<8x5001xbf16>, tensor<8x64xbf16> -> tensor<5001x64xbf16>
  return %dx, %dw : tensor<8x64xbf16>, tensor<5001x64xbf16>
}

// -----

// A flat kernel goes by rows then; the operand of one element has none.
// CHECK-LABEL: @flat
func.func @flat(%x: tensor<256x64xf32>, %w: tensor<64x5001xf32>, %c: tensor<1x1xf32>) -> tensor<256x64xf32> {
  // CHECK: train.fusion({{.*}}) rows 256 columns 5001 block 4
  // CHECK-SAME: pitches = array<i64: 5024, 0, 5024>
  %y = train.matmul %x, %w : tensor<256x64xf32>, tensor<64x5001xf32> -> tensor<256x5001xf32>
  %z = train.fusion(%y, %c) rows 313 columns 4096 block 4 {elementwise = array<i64: 0>} : (tensor<256x5001xf32>, tensor<1x1xf32>) -> tensor<256x5001xf32> {
  ^bb0(%a: tensor<256x5001xf32>, %s: tensor<1x1xf32>):
    %b = train.broadcast %s : tensor<1x1xf32> -> tensor<256x5001xf32>
    %t = train.mul %a, %b : tensor<256x5001xf32>
    train.yield %t : tensor<256x5001xf32>
  }
  %r = train.matmul %z, %w {transpose_b} : tensor<256x5001xf32>, tensor<64x5001xf32> -> tensor<256x64xf32>
  return %r : tensor<256x64xf32>
}

// -----

// What others read, what others write and what may share memory with it, rows of whole vectors, and rows that padding
// would make much longer, stay dense.
// CHECK-LABEL: @dense
// CHECK-NOT: pitch
func.func @dense(%x: tensor<8x64xf32>, %w: tensor<64x5001xf32>, %v: tensor<64x5000xf32>, %u: tensor<64x10xf32>, %in: tensor<8x5001xf32>)
    -> (tensor<5001x8xf32>, tensor<8x64xf32>, tensor<8x64xf32>, tensor<8x64xf32>, tensor<8x64xf32>) {
  %0 = train.matmul %x, %w : tensor<8x64xf32>, tensor<64x5001xf32> -> tensor<8x5001xf32>
  %t = train.transpose %0 [1, 0] : tensor<8x5001xf32> -> tensor<5001x8xf32>
  %1 = train.matmul %x, %v : tensor<8x64xf32>, tensor<64x5000xf32> -> tensor<8x5000xf32>
  %r1 = train.matmul %1, %v {transpose_b} : tensor<8x5000xf32>, tensor<64x5000xf32> -> tensor<8x64xf32>
  %2 = train.matmul %x, %u : tensor<8x64xf32>, tensor<64x10xf32> -> tensor<8x10xf32>
  %r2 = train.matmul %2, %u {transpose_b} : tensor<8x10xf32>, tensor<64x10xf32> -> tensor<8x64xf32>
  %3 = train.fusion(%in) rows 10 columns 4096 block 1 {elementwise = array<i64: 0>} : (tensor<8x5001xf32>) -> tensor<8x5001xf32> {
  ^bb0(%a: tensor<8x5001xf32>):
    %n = train.neg %a : tensor<8x5001xf32>
    train.yield %n : tensor<8x5001xf32>
  }
  %r3 = train.matmul %3, %w {transpose_b} : tensor<8x5001xf32>, tensor<64x5001xf32> -> tensor<8x64xf32>
  return %t, %r1, %r2, %r3, %r3 : tensor<5001x8xf32>, tensor<8x64xf32>, tensor<8x64xf32>, tensor<8x64xf32>, tensor<8x64xf32>
}

// -----

// A kernel that moves the end of rows reads dense ones.
// CHECK-LABEL: @moved
// CHECK-NOT: pitch
func.func @moved(%x: tensor<8x64xf32>, %w: tensor<64x5001xf32>) -> tensor<40008x1xf32> {
  %y = train.matmul %x, %w : tensor<8x64xf32>, tensor<64x5001xf32> -> tensor<8x5001xf32>
  %z = train.fusion(%y) rows 10 columns 4096 block 1 {elementwise = array<i64: 0>} : (tensor<8x5001xf32>) -> tensor<40008x1xf32> {
  ^bb0(%a: tensor<8x5001xf32>):
    %n = train.neg %a : tensor<8x5001xf32>
    %r = train.reshape %n : tensor<8x5001xf32> -> tensor<40008x1xf32>
    train.yield %r : tensor<40008x1xf32>
  }
  return %z : tensor<40008x1xf32>
}

// -----

// A product with an epilogue pads its result and reads padded operands; what GELU is applied to stays dense.
// CHECK-LABEL: @epilogues
// CHECK: train.matmul_epilogue bias {{.*}} {train.pitch = [[PITCH:[0-9]+]] : i64} : {{.*}} -> tensor<8x5001xf32>
// CHECK: train.matmul_epilogue bias_gelu {{.*}} {train.pitch = [[PITCH]] : i64} : {{.*}} -> (tensor<8x5001xf32>, tensor<8x5001xf32>)
// CHECK: train.matmul_epilogue gelu_grad
// CHECK-NOT: pitch
func.func @epilogues(%x: tensor<8x64xf32>, %w: tensor<64x5001xf32>, %v: tensor<5001x64xf32>, %b: tensor<5001xf32>) -> (tensor<8x64xf32>, tensor<8x64xf32>, tensor<8x5001xf32>) {
  %0 = train.matmul_epilogue bias %x, %w side %b : (tensor<8x64xf32>, tensor<64x5001xf32>, tensor<5001xf32>) -> tensor<8x5001xf32>
  %1 = train.matmul %0, %v : tensor<8x5001xf32>, tensor<5001x64xf32> -> tensor<8x64xf32>
  %g, %u = train.matmul_epilogue bias_gelu %x, %w side %b : (tensor<8x64xf32>, tensor<64x5001xf32>, tensor<5001xf32>) -> (tensor<8x5001xf32>, tensor<8x5001xf32>)
  %2 = train.matmul %g, %v : tensor<8x5001xf32>, tensor<5001x64xf32> -> tensor<8x64xf32>
  %3 = train.matmul_epilogue gelu_grad %2, %v side %u {transpose_b} : (tensor<8x64xf32>, tensor<5001x64xf32>, tensor<8x5001xf32>) -> tensor<8x5001xf32>
  return %1, %2, %3 : tensor<8x64xf32>, tensor<8x64xf32>, tensor<8x5001xf32>
}
