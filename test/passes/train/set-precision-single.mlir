// Values whose absolute precision matters stay f32 in memory; others are rounded.
// RUN: sheaf-opt %s -split-input-file --train-assign-fusions --train-set-precision=precision=bf16 | FileCheck %s
// RUN: sheaf-opt %s -split-input-file --train-assign-fusions --train-set-precision=precision=bf16 --train-fuse | FileCheck %s --check-prefix=FUSED
// RUN: sheaf-opt %s -split-input-file --train-assign-fusions --train-set-precision=precision=f16 | FileCheck %s --check-prefix=F16

// A value of data and constants alone stays f32 from kernel to kernel. A product reads a rounded copy, which the same
// kernel stores.

// CHECK-LABEL: func.func @step
// CHECK: %[[E:.+]] = train.mul {{.*}} : tensor<8x64xf32>
// CHECK: %[[HALF:.+]] = train.cast %[[E]] {train.group = [[GROUP:[0-9]+]] : i64} : tensor<8x64xf32> -> tensor<8x64xbf16>
// CHECK: %[[MOVED:.+]] = train.transpose %[[E]] [1, 0] : tensor<8x64xf32> -> tensor<64x8xf32>
// CHECK: train.matmul %[[HALF]], {{.*}} : tensor<8x64xbf16>
// FUSED-LABEL: func.func @step
// FUSED: train.fusion({{.*}} (tensor<8x64xf32>) -> (tensor<8x64xf32>, tensor<8x64xbf16>)
train.parameter @w : tensor<64x64xf32> {trainable = true}
train.parameter @v : tensor<64x8xf32> {trainable = true}
func.func @step(%x: tensor<8x64xf32>) {
  %w = train.read @w : tensor<64x64xf32>
  %v = train.read @v : tensor<64x8xf32>
  %e = train.mul %x, %x : tensor<8x64xf32>
  %t = train.transpose %e [1, 0] : tensor<8x64xf32> -> tensor<64x8xf32>
  %g = train.mul %t, %v : tensor<64x8xf32>
  train.update @v by @optimizer, %g : tensor<64x8xf32>
  %p = train.matmul %e, %w : tensor<8x64xf32>, tensor<64x64xf32> -> tensor<8x64xf32>
  %d = train.matmul %e, %p {transpose_a} : tensor<8x64xf32>, tensor<8x64xf32> -> tensor<64x64xf32>
  train.update @w by @optimizer, %d : tensor<64x64xf32>
  return
}

// -----

// Masks of zeros, ones and powers of two have the same values in bf16 and f16, through selects and arithmetic; ids do not.
// A count does not, either, whatever it adds up. Of -65536 only bf16 holds the value.

// CHECK-LABEL: func.func @step
// CHECK: train.transpose {{.*}} : tensor<8x64xbf16> -> tensor<64x8xbf16>
// CHECK: train.transpose {{.*}} : tensor<8x64xbf16> -> tensor<64x8xbf16>
// CHECK: train.transpose {{.*}} : tensor<8x64xf32> -> tensor<64x8xf32>
// CHECK: train.transpose {{.*}} : tensor<8x64xf32> -> tensor<64x8xf32>
// CHECK: train.transpose {{.*}} : tensor<8x64xf32> -> tensor<64x8xf32>
// F16-LABEL: func.func @step
// F16-LABEL: func.func @step
// F16: train.transpose {{.*}} : tensor<8x64xf16> -> tensor<64x8xf16>
// F16: train.transpose {{.*}} : tensor<8x64xf32> -> tensor<64x8xf32>
// F16: train.transpose {{.*}} : tensor<8x64xf32> -> tensor<64x8xf32>
// F16: train.transpose {{.*}} : tensor<8x64xf32> -> tensor<64x8xf32>
// F16: train.transpose {{.*}} : tensor<8x64xf32> -> tensor<64x8xf32>
train.parameter @v : tensor<64x8xf32> {trainable = true}
func.func @step(%keep: tensor<8x64xi1>, %ids: tensor<8x64xi64>) {
  %v = train.read @v : tensor<64x8xf32>
  %one = train.constant dense<1.0> : tensor<8x64xf32>
  %zero = train.constant dense<0.0> : tensor<8x64xf32>
  %low = train.constant dense<-65536.0> : tensor<8x64xf32>
  %tenth = train.constant dense<0.1> : tensor<8x64xf32>
  %m = train.cast %keep : tensor<8x64xi1> -> tensor<8x64xf32>
  %open = train.sub %one, %m : tensor<8x64xf32>
  %a = train.transpose %open [1, 0] : tensor<8x64xf32> -> tensor<64x8xf32>
  %hidden = train.select %keep, %zero, %low : tensor<8x64xi1>, tensor<8x64xf32>
  %b = train.transpose %hidden [1, 0] : tensor<8x64xf32> -> tensor<64x8xf32>
  %smooth = train.mul %m, %tenth : tensor<8x64xf32>
  %c = train.transpose %smooth [1, 0] : tensor<8x64xf32> -> tensor<64x8xf32>
  %places = train.cast %ids : tensor<8x64xi64> -> tensor<8x64xf32>
  %d = train.transpose %places [1, 0] : tensor<8x64xf32> -> tensor<64x8xf32>
  %count = train.cumsum %m axis 1 : tensor<8x64xf32>
  %less = train.sub %count, %m : tensor<8x64xf32>
  %e = train.transpose %less [1, 0] : tensor<8x64xf32> -> tensor<64x8xf32>
  %ab = train.add %a, %b : tensor<64x8xf32>
  %cd = train.add %c, %d : tensor<64x8xf32>
  %abcd = train.add %ab, %cd : tensor<64x8xf32>
  %all = train.add %abcd, %e : tensor<64x8xf32>
  %g = train.mul %all, %v : tensor<64x8xf32>
  train.update @v by @optimizer, %g : tensor<64x8xf32>
  return
}

// -----

// A value that reaches a sine through elementwise ops and moves stays f32, also where it depends on parameters: a frequency
// with its gradient, and pieces that are concatenated. The product's own result has 16 bits, and so have values
// that have its error, a bias that is added to it included, and operands of other functions.

// CHECK: train.parameter @f : tensor<8x64xf32> {trainable = true}
// CHECK: train.parameter @w : tensor<64x64xbf16>
// CHECK: train.parameter @b : tensor<8x64xbf16>
// CHECK-LABEL: func.func @step
// CHECK: train.read @f : tensor<8x64xf32>
// CHECK: %[[P:.+]] = train.matmul {{.*}} -> tensor<8x64xbf16>
// CHECK-DAG: %[[PHASE:.+]] = train.add {{.*}} : tensor<8x64xf32>
// CHECK-DAG: train.tanh {{.*}} : tensor<8x64xf32>
// CHECK-DAG: train.transpose %{{.+}} [1, 0] : tensor<8x64xbf16> -> tensor<64x8xbf16>
// CHECK-DAG: train.transpose %{{.+}} [1, 0] : tensor<8x64xbf16> -> tensor<64x8xbf16>
// CHECK-DAG: %[[C:.+]] = train.concat %[[PHASE]], %{{.+}} axis 0 : (tensor<8x64xf32>, tensor<8x64xf32>) -> tensor<16x64xf32>
// CHECK: train.sin {{.*}} : tensor<16x64xf32>
// CHECK: train.update @f by @optimizer, %{{.+}} : tensor<8x64xf32>
train.parameter @f : tensor<8x64xf32> {trainable = true}
train.parameter @w : tensor<64x64xf32> {trainable = true}
train.parameter @b : tensor<8x64xf32> {trainable = true}
func.func @step(%x: tensor<8x64xf32>) {
  %b = train.read @b : tensor<8x64xf32>
  %f = train.read @f : tensor<8x64xf32>
  %w = train.read @w : tensor<64x64xf32>
  %p = train.matmul %x, %w : tensor<8x64xf32>, tensor<64x64xf32> -> tensor<8x64xf32>
  %fx = train.mul %f, %x : tensor<8x64xf32>
  %angle = train.add %fx, %p : tensor<8x64xf32>
  %other = train.tanh %p : tensor<8x64xf32>
  %c = train.concat %angle, %p axis 0 : (tensor<8x64xf32>, tensor<8x64xf32>) -> tensor<16x64xf32>
  %t = train.transpose %other [1, 0] : tensor<8x64xf32> -> tensor<64x8xf32>
  %z = train.add %p, %b : tensor<8x64xf32>
  %zt = train.transpose %z [1, 0] : tensor<8x64xf32> -> tensor<64x8xf32>
  %siren = train.sin %zt : tensor<64x8xf32>
  %t2 = train.add %t, %siren : tensor<64x8xf32>
  %s = train.sin %c : tensor<16x64xf32>
  %q = train.slice %s starts [0, 0] sizes [8, 64] steps [1, 1] : tensor<16x64xf32> -> tensor<8x64xf32>
  %d = train.matmul %t2, %q : tensor<64x8xf32>, tensor<8x64xf32> -> tensor<64x64xf32>
  train.update @b by @optimizer, %q : tensor<8x64xf32>
  train.update @f by @optimizer, %q : tensor<8x64xf32>
  train.update @w by @optimizer, %d : tensor<64x64xf32>
  return
}

// -----

// A running sum keeps its terms in f32; its other readers get them so, too. A phase that is a running sum is an angle,
// although its terms are results of a product.

// CHECK-LABEL: func.func @step
// CHECK: %[[T:.+]] = train.add {{.*}} : tensor<8x64xf32>
// CHECK-NOT: train.cast %[[T]]
// CHECK: train.cumsum %[[T]] axis 1 : tensor<8x64xf32>
// CHECK-DAG: train.transpose %[[T]] [1, 0] : tensor<8x64xf32>
// CHECK-DAG: %[[P:.+]] = train.cumsum %{{.+}} axis 0 : tensor<8x64xf32>
// CHECK-DAG: %[[TWICE:.+]] = train.add %[[P]], %[[P]] {{.*}} : tensor<8x64xf32>
// CHECK-DAG: train.transpose %[[TWICE]] [1, 0] : tensor<8x64xf32>
train.parameter @w : tensor<64x64xf32> {trainable = true}
train.parameter @v : tensor<64x8xf32> {trainable = true}
func.func @step(%x: tensor<8x64xf32>) {
  %w = train.read @w : tensor<64x64xf32>
  %v = train.read @v : tensor<64x8xf32>
  %p = train.matmul %x, %w : tensor<8x64xf32>, tensor<64x64xf32> -> tensor<8x64xf32>
  %r = train.exp %p : tensor<8x64xf32>
  %e = train.add %r, %x : tensor<8x64xf32>
  %c = train.cumsum %e axis 1 : tensor<8x64xf32>
  %phase = train.cumsum %p axis 0 : tensor<8x64xf32>
  %twice = train.add %phase, %phase : tensor<8x64xf32>
  %turned = train.transpose %twice [1, 0] : tensor<8x64xf32> -> tensor<64x8xf32>
  %s = train.sin %turned : tensor<64x8xf32>
  %t = train.transpose %e [1, 0] : tensor<8x64xf32> -> tensor<64x8xf32>
  %ts = train.add %t, %s : tensor<64x8xf32>
  %g = train.mul %ts, %v : tensor<64x8xf32>
  %d = train.matmul %v, %c : tensor<64x8xf32>, tensor<8x64xf32> -> tensor<64x64xf32>
  train.update @v by @optimizer, %g : tensor<64x8xf32>
  train.update @w by @optimizer, %d : tensor<64x64xf32>
  return
}

// -----

// A mask is added up by segment: its ones have 16 bits, the counts do not.

// CHECK-LABEL: func.func @step
// CHECK: train.transpose {{.*}} : tensor<64x8xbf16> -> tensor<8x64xbf16>
// CHECK: train.scatter_add {{.*}} : tensor<8x64xf32>, tensor<8xi64> -> tensor<4x64xf32>
train.parameter @v : tensor<4x64xf32> {trainable = true}
train.parameter @w : tensor<8x64xf32> {trainable = true}
func.func @step(%keep: tensor<64x8xi1>, %segments: tensor<8xi64>) {
  %v = train.read @v : tensor<4x64xf32>
  %w = train.read @w : tensor<8x64xf32>
  %m = train.cast %keep : tensor<64x8xi1> -> tensor<64x8xf32>
  %t = train.transpose %m [1, 0] : tensor<64x8xf32> -> tensor<8x64xf32>
  %count = train.scatter_add %t[%segments] axis 0 : tensor<8x64xf32>, tensor<8xi64> -> tensor<4x64xf32>
  %g = train.mul %count, %v : tensor<4x64xf32>
  train.update @v by @optimizer, %g : tensor<4x64xf32>
  %h = train.mul %t, %w : tensor<8x64xf32>
  train.update @w by @optimizer, %h : tensor<8x64xf32>
  return
}

// -----

// Operands of norms, exponentials and other functions have 16 bits, as ever.

// CHECK-LABEL: func.func @step
// CHECK: train.matmul {{.*}} -> tensor<8x64xbf16>
// CHECK: train.transpose {{.*}} : tensor<8x64xbf16> -> tensor<64x8xbf16>
// CHECK: train.exp {{.*}} : tensor<64x8xf32>
train.parameter @w : tensor<64x64xf32> {trainable = true}
func.func @step(%x: tensor<8x64xf32>) {
  %w = train.read @w : tensor<64x64xf32>
  %p = train.matmul %x, %w : tensor<8x64xf32>, tensor<64x64xf32> -> tensor<8x64xf32>
  %h = train.add %p, %x : tensor<8x64xf32>
  %t = train.transpose %h [1, 0] : tensor<8x64xf32> -> tensor<64x8xf32>
  %e = train.exp %t : tensor<64x8xf32>
  %m = train.reduce sum %e [1] : tensor<64x8xf32> -> tensor<64x1xf32>
  %n = train.broadcast %m : tensor<64x1xf32> -> tensor<64x8xf32>
  %y = train.div %e, %n : tensor<64x8xf32>
  %d = train.matmul %y, %x : tensor<64x8xf32>, tensor<8x64xf32> -> tensor<64x64xf32>
  train.update @w by @optimizer, %d : tensor<64x64xf32>
  return
}

// -----

// A product of data and constants alone is computed in f32 if its result is an angle; otherwise in 16 bits.

// CHECK-LABEL: func.func @step
// CHECK-DAG: %[[A:.+]] = train.matmul %arg0, %{{.+}} : tensor<8x2xf32>, tensor<2x64xf32> -> tensor<8x64xf32>
// CHECK-DAG: train.sin %[[A]] {{.*}} : tensor<8x64xf32>
// CHECK-DAG: train.matmul {{.*}} : tensor<8x2xbf16>, tensor<2x64xbf16> -> tensor<8x64xbf16>
train.parameter @v : tensor<8x64xf32> {trainable = true}
func.func @step(%x: tensor<8x2xf32>) {
  %v = train.read @v : tensor<8x64xf32>
  %b = train.constant dense<0.3> : tensor<2x64xf32>
  %a = train.matmul %x, %b : tensor<8x2xf32>, tensor<2x64xf32> -> tensor<8x64xf32>
  %s = train.sin %a : tensor<8x64xf32>
  %c = train.constant dense<0.6> : tensor<2x64xf32>
  %o = train.matmul %x, %c : tensor<8x2xf32>, tensor<2x64xf32> -> tensor<8x64xf32>
  %so = train.mul %s, %o : tensor<8x64xf32>
  %g = train.mul %so, %v : tensor<8x64xf32>
  train.update @v by @optimizer, %g : tensor<8x64xf32>
  return
}

// -----

// A large constant of the model is a constant: it stays f32 unless products alone read it. A frozen weight has 16 bits.

// CHECK: train.parameter @table : tensor<64x8xf32> {{.*}}train.large_constant
// CHECK: train.parameter @basis : tensor<8x64xbf16> {{.*}}train.large_constant
// CHECK: train.parameter @frozen : tensor<64x8xbf16>
// An evaluation takes the types that the training step has decided.
// CHECK: train.parameter @held : tensor<64x8xf32> {trainable = true}
// CHECK: train.parameter @narrow : tensor<64x8xbf16> {train.source_type = f32, trainable = true}
// CHECK-LABEL: func.func @step
train.parameter @table : tensor<64x8xf32> {trainable = false, train.large_constant}
train.parameter @basis : tensor<8x64xf32> {trainable = false, train.large_constant}
train.parameter @frozen : tensor<64x8xf32> {trainable = false}
train.parameter @held : tensor<64x8xf32> {trainable = true, train.held_type = f32}
train.parameter @narrow : tensor<64x8xf32> {trainable = true, train.held_type = bf16}
func.func @step(%x: tensor<64x8xf32>) {
  %table = train.read @table : tensor<64x8xf32>
  %basis = train.read @basis : tensor<8x64xf32>
  %frozen = train.read @frozen : tensor<64x8xf32>
  %held = train.read @held : tensor<64x8xf32>
  %narrow = train.read @narrow : tensor<64x8xf32>
  %p = train.matmul %x, %basis : tensor<64x8xf32>, tensor<8x64xf32> -> tensor<64x64xf32>
  %a = train.add %table, %frozen : tensor<64x8xf32>
  %angle = train.mul %narrow, %x : tensor<64x8xf32>
  %s = train.sin %angle : tensor<64x8xf32>
  %b = train.mul %a, %s : tensor<64x8xf32>
  %c = train.mul %b, %held : tensor<64x8xf32>
  %q = train.matmul %p, %c : tensor<64x64xf32>, tensor<64x8xf32> -> tensor<64x8xf32>
  %r = train.reduce sum %q [0, 1] : tensor<64x8xf32> -> tensor<1x1xf32>
  %l = train.reshape %r : tensor<1x1xf32> -> tensor<f32>
  train.loss %l : tensor<f32>
  return
}
