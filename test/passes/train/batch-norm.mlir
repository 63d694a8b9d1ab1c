// Batch norm and running statistics on their way through the train phase.
// RUN: sheaf-opt %s -train-partition -split-input-file | FileCheck %s --check-prefix=GLOBAL
// RUN: sheaf-opt %s -train-partition -train-differentiate -train-decompose -split-input-file | FileCheck %s --check-prefix=STEP
// RUN: sheaf-opt %s -train-partition -train-differentiate -train-add-optimizer="optimizer=sgd clip=true skip=true" -split-input-file | FileCheck %s --check-prefix=RULES

// RUN: sheaf-opt %s -train-partition -train-differentiate -train-decompose -train-assign-fusions -train-set-precision=precision=bf16 -split-input-file | FileCheck %s --check-prefix=BF16

// Under bf16 statistics and moments stay f32.
// BF16: train.parameter @scale : tensor<3xbf16>
// BF16: train.parameter @mean : tensor<3xf32> {train.statistics, trainable = false}
// BF16: train.global_sum %{{.*}} : tensor<3x1xf32>
// BF16: train.update @mean by @running_statistics, %{{.*}} {train.statistics} : tensor<3xf32>
// BF16: train.update @scale by @optimizer, %{{.*}} : tensor<3xbf16>

// The moments are those of all ranks: equal everywhere, so each rank gives its share of them.
// GLOBAL-LABEL: module attributes {{{.*}}train.ranks = 4
// GLOBAL: %{{[^ ]*}}, %[[MEAN:[^ ]*]], %{{[^ ]*}} = train.batch_norm {{.*}} {ranks = 4 : i64}
// GLOBAL: %[[Q:.*]] = train.constant dense<2.500000e-01>
// GLOBAL: %[[SHARE:.*]] = train.mul %[[MEAN]], %[[Q]]
// GLOBAL: train.update @mean by @running_statistics, %[[SHARE]] {train.statistics}

// Forward: two exchanges, of the sums for the mean and for the variance; backward: one, of both sums.
// STEP-LABEL: module attributes {{{.*}}train.ranks = 4
// STEP: %[[SUM:.*]] = train.global_sum %{{.*}} : tensor<3x1xf32>
// STEP: %[[N:.*]] = train.constant dense<8.000000e+00> : tensor<3x1xf32>
// STEP: train.div %[[SUM]], %[[N]]
// STEP: train.global_sum %{{.*}} : tensor<3x1xf32>
// STEP: train.rsqrt
// STEP: train.loss
// STEP: %[[BOTH:.*]] = train.concat {{.*}} axis 0 {{.*}} -> tensor<6x1xf32>
// STEP: train.global_sum %[[BOTH]] : tensor<6x1xf32>
// STEP-NOT: train.global_sum
// STEP: train.update @scale by @optimizer
// STEP-NOT: train.batch_norm

// The rule of running statistics is neither replaced nor clipped, but a step that is left out leaves them.
// RULES-LABEL: module attributes {{{.*}}train.lr = {{.*}}, train.ranks = 4
// RULES: train.optimizer @running_statistics states [] scalars [#train.scalar<constant, 1.000000e-01 : f64>, #train.scalar<finite, 0.000000e+00 : f64>] attributes {train.statistics}
// RULES-NEXT: ^bb0(%[[OLD:.*]]: tensor<f32>, %[[MOMENT:.*]]: tensor<f32>, %[[RATE:.*]]: tensor<f32>, %[[FINITE:.*]]: tensor<f32>):
// RULES-NEXT: %[[WAY:.*]] = train.sub %[[MOMENT]], %[[OLD]]
// RULES-NEXT: %[[NEW:.*]] = train.fma %[[RATE]], %[[WAY]], %[[OLD]]
// RULES: train.select %{{.*}}, %[[NEW]], %[[OLD]]
// RULES: train.optimizer @optimizer states [] scalars [{{.*}}#train.scalar<clip_scale, {{.*}}#train.scalar<finite,
// RULES: train.update @mean by @running_statistics
// RULES: train.update @scale by @optimizer
module attributes {train.ranks = 4 : i64} {
  train.parameter @w : tensor<1x3xf32> {trainable = true}
  train.parameter @scale : tensor<3xf32> {trainable = true}
  train.parameter @bias : tensor<3xf32> {trainable = true}
  train.parameter @mean : tensor<3xf32> {trainable = false, train.statistics}
  train.optimizer @running_statistics states [] scalars [#train.scalar<constant, 0.1 : f64>] attributes {train.statistics} {
  ^bb0(%old: tensor<f32>, %moment: tensor<f32>, %rate: tensor<f32>):
    %way = train.sub %moment, %old : tensor<f32>
    %new = train.fma %rate, %way, %old : tensor<f32>
    train.yield %new : tensor<f32>
  }
  func.func @step(%x: tensor<8x3xf32>) {
    %scale = train.read @scale : tensor<3xf32>
    %bias = train.read @bias : tensor<3xf32>
    %p = train.read @w : tensor<1x3xf32>
    %w = train.broadcast %p : tensor<1x3xf32> -> tensor<8x3xf32>
    %h = train.mul %x, %w : tensor<8x3xf32>
    %y, %mean, %variance = train.batch_norm %h, %scale, %bias epsilon 1.0e-5 : (tensor<8x3xf32>, tensor<3xf32>, tensor<3xf32>) -> (tensor<8x3xf32>, tensor<3xf32>, tensor<3xf32>)
    train.update @mean by @running_statistics, %mean {train.statistics} : tensor<3xf32>
    %z = train.mul %y, %y : tensor<8x3xf32>
    %l = train.reduce mean %z [0, 1] : tensor<8x3xf32> -> tensor<1x1xf32>
    train.loss %l : tensor<1x1xf32>
    return
  }
}

// -----

// Local moments: nothing is exchanged, and the statistic follows their mean over the ranks.
// GLOBAL-LABEL: module attributes {{{.*}}train.ranks = 2
// GLOBAL: %{{[^ ]*}}, %[[MEAN:[^ ]*]], %{{[^ ]*}} = train.batch_norm {{.*}} {local}
// GLOBAL: %[[HALF:.*]] = train.constant dense<5.000000e-01>
// GLOBAL: %[[TERM:.*]] = train.mul %[[MEAN]], %[[HALF]]
// GLOBAL-NOT: train.global_sum
// GLOBAL: train.update @mean by @running_statistics, %[[TERM]] {train.statistics}

// STEP-LABEL: module attributes {{{.*}}train.ranks = 2
// STEP-NOT: train.global_sum
// STEP: train.constant dense<4.000000e+00> : tensor<3x1xf32>
// STEP-NOT: train.global_sum
// STEP: return
module attributes {train.ranks = 2 : i64} {
  train.parameter @w : tensor<1x3xf32> {trainable = true}
  train.parameter @scale : tensor<3xf32> {trainable = true}
  train.parameter @bias : tensor<3xf32> {trainable = true}
  train.parameter @mean : tensor<3xf32> {trainable = false, train.statistics}
  train.optimizer @running_statistics states [] scalars [] attributes {train.statistics} {
  ^bb0(%old: tensor<f32>, %moment: tensor<f32>):
    train.yield %moment : tensor<f32>
  }
  func.func @step(%x: tensor<8x3xf32>) {
    %scale = train.read @scale : tensor<3xf32>
    %bias = train.read @bias : tensor<3xf32>
    %p = train.read @w : tensor<1x3xf32>
    %w = train.broadcast %p : tensor<1x3xf32> -> tensor<8x3xf32>
    %h = train.mul %x, %w : tensor<8x3xf32>
    %y, %mean, %variance = train.batch_norm %h, %scale, %bias epsilon 1.0e-5 {local} : (tensor<8x3xf32>, tensor<3xf32>, tensor<3xf32>) -> (tensor<8x3xf32>, tensor<3xf32>, tensor<3xf32>)
    train.update @mean by @running_statistics, %mean {train.statistics} : tensor<3xf32>
    %z = train.mul %y, %y : tensor<8x3xf32>
    %l = train.reduce mean %z [0, 1] : tensor<8x3xf32> -> tensor<1x1xf32>
    train.loss %l : tensor<1x1xf32>
    return
  }
}

// -----

// The unbiased estimate of a local variance was made for the 8 rows of the batch. A leaf has 4, and its term is
// (4/3) / (8/7) / 2. Another use of the variance gets the plain term.
// GLOBAL-LABEL: func.func @step(%{{[^ ]*}}: tensor<4x3xf32>{{.*}}) attributes {estimate}
// GLOBAL: %{{[^ ]*}}, %{{[^ ]*}}, %[[VARIANCE:[^ ]*]] = train.batch_norm {{.*}} {local}
// GLOBAL-DAG: %[[HALF:[^ ]*]] = train.constant dense<5.000000e-01>
// GLOBAL-DAG: %[[FACTOR:[^ ]*]] = train.constant dense<0.58333
// GLOBAL-DAG: %[[PLAIN:[^ ]*]] = train.mul %[[VARIANCE]], %[[HALF]]
// GLOBAL-DAG: %[[ESTIMATE:[^ ]*]] = train.mul %[[VARIANCE]], %[[FACTOR]]
// GLOBAL: train.mul %[[ESTIMATE]], %{{[^ ]*}} {train.unbiased}
// GLOBAL: train.update @other by @running_statistics, %[[PLAIN]]

// A batch norm that every leaf computes for the same rows has the batch's n.
// GLOBAL: %{{[^ ]*}}, %{{[^ ]*}}, %[[WHOLE:[^ ]*]] = train.batch_norm {{.*}} {local}
// GLOBAL-NEXT: train.mul %[[WHOLE]], %{{[^ ]*}} {train.unbiased}
module attributes {train.ranks = 2 : i64} {
  train.parameter @w : tensor<1x3xf32> {trainable = true}
  train.parameter @table : tensor<8x3xf32> {trainable = true}
  train.parameter @scale : tensor<3xf32> {trainable = true}
  train.parameter @bias : tensor<3xf32> {trainable = true}
  train.parameter @variance : tensor<3xf32> {trainable = false, train.statistics}
  train.parameter @other : tensor<3xf32> {trainable = false, train.statistics}
  train.parameter @table_variance : tensor<3xf32> {trainable = false, train.statistics}
  train.optimizer @running_statistics states [] scalars [] attributes {train.statistics} {
  ^bb0(%old: tensor<f32>, %moment: tensor<f32>):
    train.yield %moment : tensor<f32>
  }
  func.func @step(%x: tensor<8x3xf32>) attributes {estimate} {
    %scale = train.read @scale : tensor<3xf32>
    %bias = train.read @bias : tensor<3xf32>
    %table = train.read @table : tensor<8x3xf32>
    %n = train.constant dense<1.14285719> : tensor<3xf32>
    %y, %m, %v = train.batch_norm %x, %scale, %bias epsilon 1.0e-5 {local} : (tensor<8x3xf32>, tensor<3xf32>, tensor<3xf32>) -> (tensor<8x3xf32>, tensor<3xf32>, tensor<3xf32>)
    %estimate = train.mul %v, %n {train.unbiased} : tensor<3xf32>
    train.update @variance by @running_statistics, %estimate {train.statistics} : tensor<3xf32>
    train.update @other by @running_statistics, %v {train.statistics} : tensor<3xf32>
    %z, %tm, %tv = train.batch_norm %table, %scale, %bias epsilon 1.0e-5 {local} : (tensor<8x3xf32>, tensor<3xf32>, tensor<3xf32>) -> (tensor<8x3xf32>, tensor<3xf32>, tensor<3xf32>)
    %table_estimate = train.mul %tv, %n {train.unbiased} : tensor<3xf32>
    train.update @table_variance by @running_statistics, %table_estimate {train.statistics} : tensor<3xf32>
    %q = train.mul %y, %y : tensor<8x3xf32>
    %r = train.mul %z, %z : tensor<8x3xf32>
    %l = train.reduce mean %q [0, 1] : tensor<8x3xf32> -> tensor<1x1xf32>
    %k = train.reduce mean %r [0, 1] : tensor<8x3xf32> -> tensor<1x1xf32>
    %loss = train.add %l, %k : tensor<1x1xf32>
    train.loss %loss : tensor<1x1xf32>
    return
  }
}
