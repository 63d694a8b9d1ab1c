// RUN: sheaf-opt %s -split-input-file -verify-diagnostics -zero-split-micro-batches=reduce=each

// A sum over the global batch of what depends on parameters is not known before the last micro-batch.
module attributes {train.ranks = 2 : i64, train.micro_batches = 2 : i64} {
  func.func @step(%x: tensor<2x3xf32> {train.name = "x"}) {
    %w = zero.parameters @bucket : tensor<2x3xf32>
    %y = train.mul %x, %w : tensor<2x3xf32>
    %columns = train.reduce sum %y [0, 1] : tensor<2x3xf32> -> tensor<1x1xf32>
    // expected-error @+1 {{needs a sum over the global batch of what the model computes, which a micro-batch cannot know: leave out --micro-batches}}
    %sum = train.global_sum %columns : tensor<1x1xf32>
    %loss = train.reshape %sum : tensor<1x1xf32> -> tensor<f32>
    train.loss %loss : tensor<f32>
    return
  }
}

// -----

// expected-error @+1 {{--reduce each needs a power of two of ranks, not 3}}
module attributes {train.ranks = 3 : i64, train.micro_batches = 2 : i64} {
  func.func @step() {
    return
  }
}
