// The least that a plan of a model at a stage does, from the model's ops alone. (The plan gets it from plan-lower.)
// RUN: sheaf-opt %s -plan-state-floor="stage=0" | FileCheck %s -DGATHERED=768 -DREDUCED=768 -DSTATE=3968
// RUN: sheaf-opt %s -plan-state-floor="stage=1" | FileCheck %s -DGATHERED=640 -DREDUCED=768 -DSTATE=992
// RUN: sheaf-opt %s -plan-state-floor="stage=2" | FileCheck %s -DGATHERED=640 -DREDUCED=768 -DSTATE=992
// RUN: sheaf-opt %s -plan-state-floor="stage=3" | FileCheck %s -DGATHERED=672 -DREDUCED=768 -DSTATE=992
// RUN: sheaf-opt %s -plan-state-floor="stage=3 ranks-per-node=2 network-stage=0" | FileCheck %s -DGATHERED=704 -DREDUCED=768 -DSTATE=1984
// RUN: sheaf-opt %s -plan-state-floor="stage=3 ranks-per-node=2 network-stage=1" | FileCheck %s -DGATHERED=661 -DREDUCED=768 -DSTATE=992
// RUN: sed 's/train.ranks = 4/train.ranks = 1/' %s | sheaf-opt -plan-state-floor="stage=3" | FileCheck %s -DGATHERED=0 -DREDUCED=0 -DSTATE=3968

// Products: forward 2 * 4 * 8 * 16 in f32, and of the weight's gradient as many; one of [4, 16] x [16, 8] in TF32.
// bf16: the batched product 2 * 2 * 4 * 4 * 8 = 512; attention of 2 x 3 heads over 5 queries and keys, of which a causal
// mask leaves 15 scores: 2 * 2 * 3 * 15 * (8 + 8) = 2880, twice that backward; with a window of 2 keys over 3 queries and
// 5 keys, 6 scores of 6 heads: 2 * 6 * 6 * 16 = 1152. A product without a use is not needed.
// Convolutions: 2 * (2 images of 4 x 6 x 6) * (3 x 3 of 2 channels, 2 groups) = 10368 each, f32.
// CHECK: train.floor = {gathered_bytes = [[GATHERED]] : i64, products = {bf16 = 10304 : i64, f32 = 33152 : i64, tf32 = 1024 : i64}, reduced_bytes = [[REDUCED]] : i64, state_bytes = [[STATE]] : i64}

// @w, 128 elements of f32 with one state: its gradient is read, itself and the state are read and written: 20 bytes an
// element. @h, 64 of bf16 with f32 gradients: 4 + 2 * 8 of master weights and state + 2 written. 3968 bytes; a fourth of
// them on each of 4 ranks that share state. 768 bytes of gradients, 640 of trained parameters, 672 with @frozen.
module attributes {train.ranks = 4 : i64} {
  train.parameter @w : tensor<16x8xf32> {trainable = true}
  train.parameter @h : tensor<64xbf16> {trainable = true}
  train.parameter @frozen : tensor<8xf32> {trainable = false}
  train.optimizer @momentum states ["m"] scalars [] {
  ^bb0(%p: tensor<f32>, %g: tensor<f32>, %m: tensor<f32>):
    train.yield %p, %m : tensor<f32>, tensor<f32>
  }
  func.func @step(%x: tensor<4x16xf32> {train.name = "x"}, %b: tensor<2x4x8xbf16> {train.name = "b"},
                  %q: tensor<2x5x3x8xbf16> {train.name = "q"}, %s: tensor<2x3x3x8xbf16> {train.name = "s"},
                  %image: tensor<2x4x6x6xf32> {train.name = "image"}, %filter: tensor<4x2x3x3xf32> {train.name = "filter"}) {
    %w = train.read @w : tensor<16x8xf32>
    %again = train.read @w : tensor<16x8xf32>
    %h = train.read @h : tensor<64xbf16>
    %f = train.read @frozen : tensor<8xf32>
    %y = train.matmul %x, %w : tensor<4x16xf32>, tensor<16x8xf32> -> tensor<4x8xf32>
    %fast = train.matmul %x, %again {train.tf32} : tensor<4x16xf32>, tensor<16x8xf32> -> tensor<4x8xf32>
    %dead = train.matmul %x, %w : tensor<4x16xf32>, tensor<16x8xf32> -> tensor<4x8xf32>
    %bb = train.matmul %b, %b {transpose_b} : tensor<2x4x8xbf16>, tensor<2x4x8xbf16> -> tensor<2x4x4xbf16>
    %bn = train.neg %bb : tensor<2x4x4xbf16>
    %a, %l = train.attention %q, %q, %q scale 0.5 {causal} : (tensor<2x5x3x8xbf16>, tensor<2x5x3x8xbf16>, tensor<2x5x3x8xbf16>) -> (tensor<2x5x3x8xbf16>, tensor<2x3x5xf32>)
    %dq, %dk, %dv = train.attention_grad %q, %q, %q, %a, %l, %a scale 0.5 {causal} : (tensor<2x5x3x8xbf16>, tensor<2x5x3x8xbf16>, tensor<2x5x3x8xbf16>, tensor<2x5x3x8xbf16>, tensor<2x3x5xf32>, tensor<2x5x3x8xbf16>) -> (tensor<2x5x3x8xbf16>, tensor<2x5x3x8xbf16>, tensor<2x5x3x8xbf16>)
    %an = train.neg %dq : tensor<2x5x3x8xbf16>
    %wa, %wl = train.attention %s, %q, %q scale 0.5 {causal, window = 2 : i64} : (tensor<2x3x3x8xbf16>, tensor<2x5x3x8xbf16>, tensor<2x5x3x8xbf16>) -> (tensor<2x3x3x8xbf16>, tensor<2x3x3xf32>)
    %wn = train.neg %wa : tensor<2x3x3x8xbf16>
    %c = train.conv %image, %filter {strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, groups = 2 : i64} : (tensor<2x4x6x6xf32>, tensor<4x2x3x3xf32>) -> tensor<2x4x6x6xf32>
    %ci = train.conv_grad_input %c, %filter {strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, groups = 2 : i64} : (tensor<2x4x6x6xf32>, tensor<4x2x3x3xf32>) -> tensor<2x4x6x6xf32>
    %cf = train.conv_grad_filter %ci, %c {strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, groups = 2 : i64} : (tensor<2x4x6x6xf32>, tensor<2x4x6x6xf32>) -> tensor<4x2x3x3xf32>
    %cn = train.neg %cf : tensor<4x2x3x3xf32>
    %z = train.add %y, %fast : tensor<4x8xf32>
    %g = train.matmul %x, %z {transpose_a} : tensor<4x16xf32>, tensor<4x8xf32> -> tensor<16x8xf32>
    train.update @w by @momentum, %g : tensor<16x8xf32>
    %hg = train.cast %h : tensor<64xbf16> -> tensor<64xf32>
    train.update @h by @momentum, %hg : tensor<64xf32>
    return
  }
}
