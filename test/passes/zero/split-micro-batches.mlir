// RUN: sheaf-opt %s -split-input-file -zero-split-micro-batches=reduce=each | FileCheck %s --check-prefixes CHECK,EACH
// RUN: sheaf-opt %s -split-input-file -zero-split-micro-batches=reduce=last | FileCheck %s --check-prefixes CHECK,LAST

// Four micro-batches on two ranks. The count of labels is taken from the inputs of all micro-batches first. After
// micro-batches 0 and 2 runs @accumulate0, after 1 @accumulate1, and @step is that of micro-batch 3, which adds both levels.

// EACH: zero.dealing = "by_micro_batch"
// LAST: zero.dealing = "by_rank"

// CHECK-LABEL: func.func @count0(%arg0: tensor<2x3xf32> {train.name = "mask"})
// CHECK: %[[COUNT:.*]] = train.reduce {{ *}}sum
// EACH: %[[ALL:.*]] = train.global_sum %[[COUNT]]
// EACH: zero.accumulate "terms of count 0" level 0 keep %[[ALL]]
// LAST-NOT: train.global_sum
// LAST: zero.accumulate "terms of count 0" level 0 keep %[[COUNT]]
// CHECK-LABEL: func.func @count1
// CHECK: zero.accumulate "terms of count 0" level 1 keep
// CHECK-LABEL: func.func @count2
// CHECK: %[[TERM:.*]] = zero.accumulate "terms of count 0" level 2 %
// LAST: %[[TOTAL:.*]] = train.global_sum %[[TERM]]
// LAST: zero.accumulate "count 0" level 0 keep %[[TOTAL]]
// EACH: zero.accumulate "count 0" level 0 keep %[[TERM]]

// CHECK-LABEL: func.func @accumulate0
// CHECK: zero.accumulated "count 0" : tensor<1x1xf32>
// EACH: %[[SHARD:.*]] = zero.reduce_scatter @bucket(%
// EACH: zero.accumulate "bucket" level 0 keep %[[SHARD]] : tensor<32xf32>
// LAST: %[[WHOLE:.*]] = zero.gradient @bucket(%
// LAST: zero.accumulate "bucket" level 0 keep %[[WHOLE]] : tensor<64xf32>
// LAST-NOT: zero.reduce_scatter
// EACH: train.global_sum
// CHECK: zero.accumulate "loss" level 0 keep
// CHECK-NOT: zero.update
// CHECK-LABEL: func.func @accumulate1
// CHECK: zero.accumulate "bucket" level 1 keep
// CHECK-LABEL: func.func @step
// EACH: %[[NEWEST:.*]] = zero.reduce_scatter @bucket(%
// EACH: %[[SUM:.*]] = zero.accumulate "bucket" level 2 %[[NEWEST]]
// LAST: %[[NEWEST:.*]] = zero.accumulate "bucket" level 2 %
// LAST: %[[SUM:.*]] = zero.reduce_scatter @bucket(%[[NEWEST]])
// CHECK: zero.update @bucket %[[SUM]]
// EACH: train.output "loss" "loss"
// LAST: %[[LOSS:.*]] = zero.accumulate "loss" level 2
// LAST: train.loss %[[LOSS]]
module attributes {train.ranks = 2 : i64, train.leaves = 4 : i64, train.micro_batches = 4 : i64, train.batch = 16 : i64, zero.stage = 3 : i64} {
  train.parameter @w : tensor<3x2xf32> {trainable = true}
  zero.bucket @bucket f32 elements 64 parameters [@w] offsets [0] {optimizer = @o}
  func.func @step(%x: tensor<2x3xf32> {train.name = "x"}, %mask: tensor<2x3xf32> {train.name = "mask"}, %g: tensor<2x2xf32> {train.name = "g"}) {
    %columns = train.reduce sum %mask [0, 1] : tensor<2x3xf32> -> tensor<1x1xf32>
    %count = train.global_sum %columns : tensor<1x1xf32>
    %wide = train.broadcast %count : tensor<1x1xf32> -> tensor<2x2xf32>
    %scaled = train.div %g, %wide : tensor<2x2xf32>
    %dw = train.matmul %x, %scaled {transpose_a} : tensor<2x3xf32>, tensor<2x2xf32> -> tensor<3x2xf32>
    %reduced = zero.reduce_scatter @bucket(%dw) : (tensor<3x2xf32>) -> tensor<32xf32>
    zero.update @bucket %reduced : tensor<32xf32>
    %sum = train.reduce sum %scaled [0, 1] : tensor<2x2xf32> -> tensor<1x1xf32>
    %loss = train.reshape %sum : tensor<1x1xf32> -> tensor<f32>
    train.loss %loss : tensor<f32>
    return
  }
}

// -----

// Six micro-batches on two ranks: three groups of two. After micro-batches 0, 2 and 4 runs @accumulate0; after 1, the end of
// the first group, @accumulate1, which starts the chain; after 3 @accumulate2, which goes on with it; @step ends it.

// CHECK-LABEL: func.func @accumulate0
// EACH: zero.accumulate "six" level 0 keep %{{.*}} : tensor<32xf32>
// LAST: zero.accumulate "six" level 0 keep %{{.*}} : tensor<64xf32>
// LAST-NOT: zero.reduce_scatter
// CHECK-LABEL: func.func @accumulate1
// EACH: %[[FIRST:.*]] = zero.reduce_scatter @six
// EACH: zero.accumulate "six" level 1 keep %[[FIRST]] : tensor<32xf32>
// LAST: %[[GROUP:.*]] = zero.accumulate "six" level 1 %{{.*}} : tensor<64xf32>
// LAST: %[[FIRST:.*]] = zero.reduce_scatter @six(%[[GROUP]])
// LAST: zero.accumulate "six" level 1 start keep %[[FIRST]] : tensor<32xf32>
// LAST: %[[LOSS:.*]] = zero.accumulate "loss" level 1 %
// LAST: %[[SUM:.*]] = train.global_sum %[[LOSS]]
// LAST: zero.accumulate "loss" level 1 start keep %[[SUM]]
// CHECK-NOT: zero.update
// CHECK-LABEL: func.func @accumulate2
// CHECK: %[[GROUP:.*]] = zero.{{(accumulate "six" level 1 %.* : tensor<64xf32>|reduce_scatter @six)}}
// EACH: %[[SUM:.*]] = zero.accumulate "six" level 1 %[[GROUP]] : tensor<32xf32>
// LAST: %[[SUM:.*]] = zero.reduce_scatter @six(%[[GROUP]])
// CHECK: zero.accumulate "six" level 1 chain keep %[[SUM]] : tensor<32xf32>
// CHECK-NOT: zero.update
// CHECK-LABEL: func.func @step
// EACH: zero.accumulate "six" level 1 %{{.*}} : tensor<32xf32>
// CHECK: %[[TOTAL:.*]] = zero.accumulate "six" level 1 chain %{{.*}} : tensor<32xf32>
// CHECK: zero.update @six %[[TOTAL]]
// CHECK: train.output "loss" "loss"
module attributes {train.ranks = 2 : i64, train.leaves = 6 : i64, train.micro_batches = 6 : i64, train.batch = 24 : i64, zero.stage = 3 : i64} {
  train.parameter @w : tensor<3x2xf32> {trainable = true}
  zero.bucket @six f32 elements 64 parameters [@w] offsets [0] {optimizer = @o}
  func.func @step(%x: tensor<2x3xf32> {train.name = "x"}, %g: tensor<2x2xf32> {train.name = "g"}) {
    %dw = train.matmul %x, %g {transpose_a} : tensor<2x3xf32>, tensor<2x2xf32> -> tensor<3x2xf32>
    %reduced = zero.reduce_scatter @six(%dw) : (tensor<3x2xf32>) -> tensor<32xf32>
    zero.update @six %reduced : tensor<32xf32>
    %sum = train.reduce sum %g [0, 1] : tensor<2x2xf32> -> tensor<1x1xf32>
    %loss = train.reshape %sum : tensor<1x1xf32> -> tensor<f32>
    train.loss %loss : tensor<f32>
    return
  }
}

// -----

// Three micro-batches on three ranks: a group has one micro-batch, so that either way reduces after each.

// CHECK: zero.dealing = "by_micro_batch"
// CHECK-LABEL: func.func @accumulate0
// CHECK: %[[FIRST:.*]] = zero.reduce_scatter @three
// CHECK: zero.accumulate "three" level 0 keep %[[FIRST]]
// CHECK-LABEL: func.func @accumulate1
// CHECK: %[[NEXT:.*]] = zero.reduce_scatter @three
// CHECK: zero.accumulate "three" level 0 chain keep %[[NEXT]]
// CHECK-LABEL: func.func @step
// CHECK: %[[LAST:.*]] = zero.reduce_scatter @three
// CHECK: %[[TOTAL:.*]] = zero.accumulate "three" level 0 chain %[[LAST]]
// CHECK: zero.update @three %[[TOTAL]]
module attributes {train.ranks = 3 : i64, train.leaves = 3 : i64, train.micro_batches = 3 : i64, train.batch = 18 : i64, zero.stage = 3 : i64} {
  train.parameter @w : tensor<3x2xf32> {trainable = true}
  zero.bucket @three f32 elements 96 parameters [@w] offsets [0] {optimizer = @o}
  func.func @step(%x: tensor<2x3xf32> {train.name = "x"}, %g: tensor<2x2xf32> {train.name = "g"}) {
    %dw = train.matmul %x, %g {transpose_a} : tensor<2x3xf32>, tensor<2x2xf32> -> tensor<3x2xf32>
    %reduced = zero.reduce_scatter @three(%dw) : (tensor<3x2xf32>) -> tensor<32xf32>
    zero.update @three %reduced : tensor<32xf32>
    return
  }
}

// -----

// The sum of squared distances from the batch's mean needs the sum of all rows first: a pass of its own over the
// micro-batches, before the second one.

// CHECK-LABEL: func.func @count0(%arg0: tensor<2x3xf32> {train.name = "x"})
// CHECK-NOT: zero.accumulated
// CHECK: zero.accumulate "terms of count 0" level 0 keep
// CHECK-LABEL: func.func @count1
// CHECK: zero.accumulate "terms of count 0" level 1
// CHECK: zero.accumulate "count 0" level 0 keep
// CHECK-LABEL: func.func @count2(%arg0: tensor<2x3xf32> {train.name = "x"})
// CHECK: %[[MEAN:.*]] = zero.accumulated "count 0" : tensor<1x1xf32>
// CHECK: train.broadcast %[[MEAN]]
// CHECK-NOT: "count 0"
// CHECK: zero.accumulate "terms of count 1" level 0 keep
// CHECK-LABEL: func.func @count3
// CHECK: zero.accumulated "count 0"
// CHECK: zero.accumulate "terms of count 1" level 1
// CHECK: zero.accumulate "count 1" level 0 keep
// CHECK-NOT: func.func @count4
// CHECK-LABEL: func.func @accumulate0
// CHECK-DAG: zero.accumulated "count 0"
// CHECK-DAG: zero.accumulated "count 1"
module attributes {train.ranks = 2 : i64, train.leaves = 4 : i64, train.micro_batches = 2 : i64, train.batch = 8 : i64, zero.stage = 3 : i64} {
  train.parameter @w : tensor<3x2xf32> {trainable = true}
  zero.bucket @nested f32 elements 64 parameters [@w] offsets [0] {optimizer = @o}
  func.func @step(%x: tensor<2x3xf32> {train.name = "x"}, %g: tensor<2x2xf32> {train.name = "g"}) {
    %column = train.reduce sum %x [0, 1] : tensor<2x3xf32> -> tensor<1x1xf32>
    %total = train.global_sum %column : tensor<1x1xf32>
    %wide = train.broadcast %total : tensor<1x1xf32> -> tensor<2x3xf32>
    %centred = train.sub %x, %wide : tensor<2x3xf32>
    %squares = train.mul %centred, %centred : tensor<2x3xf32>
    %spread = train.reduce sum %squares [0, 1] : tensor<2x3xf32> -> tensor<1x1xf32>
    %variance = train.global_sum %spread : tensor<1x1xf32>
    %divisor = train.broadcast %variance : tensor<1x1xf32> -> tensor<2x3xf32>
    %scaled = train.div %centred, %divisor : tensor<2x3xf32>
    %dw = train.matmul %scaled, %g {transpose_a} : tensor<2x3xf32>, tensor<2x2xf32> -> tensor<3x2xf32>
    %reduced = zero.reduce_scatter @nested(%dw) : (tensor<3x2xf32>) -> tensor<32xf32>
    zero.update @nested %reduced : tensor<32xf32>
    return
  }
}
