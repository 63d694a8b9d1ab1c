// What the backward pass reads of the forward pass is computed again before its first use: kernels only, or everything
// between the values that end a segment.
// RUN: sheaf-opt %s --train-recompute="what=kernels every=1" | FileCheck %s --check-prefix=KERNELS
// RUN: sheaf-opt %s --train-recompute="what=all every=1" | FileCheck %s --check-prefix=ALL
// RUN: sheaf-opt %s --train-recompute="what=all every=1 segments=0" | FileCheck %s --check-prefix=NONE
// RUN: not sheaf-opt %s --train-recompute="what=some" 2>&1 | FileCheck %s --check-prefix=BAD

// BAD: error: recompute: 'some' is not one of none, kernels, all

module {
  train.parameter @a : tensor<8x32xf32> {trainable = true}
  train.parameter @b : tensor<32x8xf32> {trainable = true}
  train.parameter @c : tensor<8x32xf32> {trainable = true}
  train.parameter @d : tensor<32x8xf32> {trainable = true}
  func.func @step(%x: tensor<8x8xf32> {train.name = "x"}) {
    %a = train.read @a : tensor<8x32xf32>
    %b = train.read @b : tensor<32x8xf32>
    %c = train.read @c : tensor<8x32xf32>
    %d = train.read @d : tensor<32x8xf32>
    %h = train.matmul %x, %a : tensor<8x8xf32>, tensor<8x32xf32> -> tensor<8x32xf32>
    %e = train.exp %h {train.group = 0 : i64} : tensor<8x32xf32>
    %y = train.matmul %e, %b : tensor<8x32xf32>, tensor<32x8xf32> -> tensor<8x8xf32>
    %i = train.matmul %y, %c : tensor<8x8xf32>, tensor<8x32xf32> -> tensor<8x32xf32>
    %f = train.exp %i {train.group = 1 : i64} : tensor<8x32xf32>
    %z = train.matmul %f, %d : tensor<8x32xf32>, tensor<32x8xf32> -> tensor<8x8xf32>
    %l = train.reduce sum %z [0, 1] : tensor<8x8xf32> -> tensor<1x1xf32>
    train.loss %l : tensor<1x1xf32>
    // Kernels: from the product that is kept.
    // KERNELS: %[[H:.*]] = train.matmul %arg0, %{{.*}} -> tensor<8x32xf32>
    // KERNELS: train.loss
    // KERNELS-NEXT: train.neg
    // KERNELS-NEXT: %[[E:.*]] = train.exp %[[H]] {train.group = [[G:[0-9]+]] : i64}
    // KERNELS-NEXT: train.matmul %{{.*}}, %[[E]]
    // KERNELS-NOT: train.exp

    // All: the product, too, from what the segment begins with.
    // ALL: train.loss
    // ALL-NEXT: train.neg
    // ALL-NEXT: %[[H:.*]] = train.matmul %arg0, %{{.*}} -> tensor<8x32xf32>
    // ALL-NEXT: %[[E:.*]] = train.exp %[[H]] {train.group = [[G:[0-9]+]] : i64}
    // ALL-NEXT: train.matmul %{{.*}}, %[[E]]
    // ALL: return

    // NONE: train.loss
    // NONE-NEXT: train.neg
    // NONE-NEXT: train.matmul
    // NONE-NEXT: train.matmul
    // NONE-NEXT: return
    %g = train.neg %z : tensor<8x8xf32>
    %first = train.matmul %g, %e : tensor<8x8xf32>, tensor<8x32xf32> -> tensor<8x32xf32>
    %second = train.matmul %y, %first : tensor<8x8xf32>, tensor<8x32xf32> -> tensor<8x32xf32>
    return
  }
}
