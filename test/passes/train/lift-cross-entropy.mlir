// The negative log-likelihood of a log-softmax, however a row's label picks its column.
// RUN: sheaf-opt %s -split-input-file -train-lift-cross-entropy -canonicalize | FileCheck %s

// A one-hot select, negated and averaged. Labels outside the columns give 0, and so become those to ignore.
// CHECK: train.decisions = ["lifted 1 cross entropy"]
// CHECK-LABEL: func.func @one_hot
// CHECK-SAME: (%[[X:.*]]: tensor<2x4x8xf32>, %[[L:.*]]: tensor<2x4xi64>)
func.func @one_hot(%x: tensor<2x4x8xf32>, %labels: tensor<2x4xi64>) -> tensor<1x1xf32> {
  // CHECK-DAG: %[[IGNORED:.*]] = train.constant dense<-100> : tensor<2x4xi64>
  // CHECK-DAG: %[[FIRST:.*]] = train.compare ge %[[L]], %{{.*}} : tensor<2x4xi64>
  // CHECK-DAG: %[[LAST:.*]] = train.compare lt %[[L]], %{{.*}} : tensor<2x4xi64>
  // CHECK: %[[IS:.*]] = train.and %[[FIRST]], %[[LAST]]
  // CHECK: %[[SAFE:.*]] = train.select %[[IS]], %[[L]], %[[IGNORED]]
  // CHECK: %[[ROWS:.*]] = train.reshape %[[X]] : tensor<2x4x8xf32> -> tensor<8x8xf32>
  // CHECK: %[[COLUMN:.*]] = train.reshape %[[SAFE]] : tensor<2x4xi64> -> tensor<8x1xi64>
  // CHECK: %[[LOSS:.*]], %{{.*}} = train.cross_entropy %[[ROWS]], %[[COLUMN]] {ignore_index = -100 : i64}
  // CHECK-NEXT: %[[R:.*]] = train.reshape %[[LOSS]] : tensor<8x1xf32> -> tensor<2x4x1xf32>
  // CHECK-NEXT: train.reduce mean %[[R]]
  %p = train.log_softmax %x : tensor<2x4x8xf32>
  %columns = train.iota 2 : tensor<2x4x8xi64>
  %l3 = train.reshape %labels : tensor<2x4xi64> -> tensor<2x4x1xi64>
  %ls = train.broadcast %l3 : tensor<2x4x1xi64> -> tensor<2x4x8xi64>
  %hot = train.compare eq %columns, %ls : tensor<2x4x8xi64>
  %zero = train.constant dense<0.0> : tensor<2x4x8xf32>
  %masked = train.select %hot, %p, %zero : tensor<2x4x8xi1>, tensor<2x4x8xf32>
  %picked = train.reduce sum %masked [2] : tensor<2x4x8xf32> -> tensor<2x4x1xf32>
  %nll = train.neg %picked : tensor<2x4x1xf32>
  %mean = train.reduce mean %nll [0, 1] : tensor<2x4x1xf32> -> tensor<1x1x1xf32>
  %r = train.reshape %mean : tensor<1x1x1xf32> -> tensor<1x1xf32>
  return %r : tensor<1x1xf32>
}

// -----

// A one-hot product with the log-softmax written out; the sign after the mean. The runtime refuses labels of this input
// that are outside the columns.
// CHECK-LABEL: func.func @written_out
// CHECK-SAME: (%[[X:.*]]: tensor<4x3xf32>, %[[L:.*]]: tensor<4x1xi32> {train.classes = 3 : i64})
func.func @written_out(%x: tensor<4x3xf32>, %labels: tensor<4x1xi32> {train.classes = 3 : i64}) -> tensor<1x1xf32> {
  // CHECK: %[[LOSS:.*]], %{{.*}} = train.cross_entropy %[[X]], %[[L]]
  // CHECK-NEXT: %[[NEG:.*]] = train.neg %[[LOSS]]
  // CHECK-NEXT: %[[MEAN:.*]] = train.reduce mean %[[NEG]]
  // CHECK-NEXT: train.neg %[[MEAN]]
  %max = train.reduce max %x [1] : tensor<4x3xf32> -> tensor<4x1xf32>
  %maxs = train.broadcast %max : tensor<4x1xf32> -> tensor<4x3xf32>
  %shifted = train.sub %x, %maxs : tensor<4x3xf32>
  %exp = train.exp %shifted : tensor<4x3xf32>
  %sum = train.reduce sum %exp [1] : tensor<4x3xf32> -> tensor<4x1xf32>
  %log = train.log %sum : tensor<4x1xf32>
  %logs = train.broadcast %log : tensor<4x1xf32> -> tensor<4x3xf32>
  %p = train.sub %shifted, %logs : tensor<4x3xf32>
  %c = train.constant dense<[[0, 1, 2]]> : tensor<1x3xi32>
  %columns = train.broadcast %c : tensor<1x3xi32> -> tensor<4x3xi32>
  %ls = train.broadcast %labels : tensor<4x1xi32> -> tensor<4x3xi32>
  %hot = train.compare eq %ls, %columns : tensor<4x3xi32>
  %one_hot = train.cast %hot : tensor<4x3xi1> -> tensor<4x3xf32>
  %masked = train.mul %p, %one_hot : tensor<4x3xf32>
  %picked = train.reduce sum %masked [1] : tensor<4x3xf32> -> tensor<4x1xf32>
  %mean = train.reduce mean %picked [0] : tensor<4x1xf32> -> tensor<1x1xf32>
  %nll = train.neg %mean : tensor<1x1xf32>
  return %nll : tensor<1x1xf32>
}

// -----

// PyTorch's decomposition: a gather at safe labels, then 0 where the label is the one to ignore.
// CHECK-LABEL: func.func @gathered
// CHECK-SAME: (%[[X:.*]]: tensor<4x3xf32>, %[[L:.*]]: tensor<4xi64>)
func.func @gathered(%x: tensor<4x3xf32>, %labels: tensor<4xi64>) -> tensor<4xf32> {
  // CHECK: %[[COLUMN:.*]] = train.reshape %[[L]] : tensor<4xi64> -> tensor<4x1xi64>
  // CHECK: train.cross_entropy %[[X]], %[[COLUMN]] {ignore_index = -1 : i64}
  %p = train.log_softmax %x : tensor<4x3xf32>
  %flat = train.reshape %p : tensor<4x3xf32> -> tensor<12xf32>
  %ignored = train.constant dense<-1> : tensor<4xi64>
  %keep = train.compare ne %labels, %ignored : tensor<4xi64>
  %zero = train.constant dense<0> : tensor<4xi64>
  %safe = train.select %keep, %labels, %zero : tensor<4xi1>, tensor<4xi64>
  %offsets = train.constant dense<[0, 3, 6, 9]> : tensor<4xi64>
  %index = train.add %safe, %offsets : tensor<4xi64>
  %picked = train.gather %flat[%index] axis 0 : tensor<12xf32>, tensor<4xi64> -> tensor<4xf32>
  %nll = train.neg %picked : tensor<4xf32>
  %none = train.constant dense<0.0> : tensor<4xf32>
  %kept = train.select %keep, %nll, %none : tensor<4xi1>, tensor<4xf32>
  return %kept : tensor<4xf32>
}

// -----

// As an import of GatherElements [2, 2, 1] writes it: positions by iotas, negative indices counted from the end.
// CHECK-LABEL: func.func @gather_elements
// CHECK-SAME: (%[[X:.*]]: tensor<2x2x3xf32>, %[[L:.*]]: tensor<2x2x1xi64>)
func.func @gather_elements(%x: tensor<2x2x3xf32>, %labels: tensor<2x2x1xi64>) -> tensor<2x2x1xf32> {
  // CHECK: %[[COLUMN:.*]] = train.reshape %[[L]] : tensor<2x2x1xi64> -> tensor<4x1xi64>
  // CHECK: train.cross_entropy %{{.*}}, %[[COLUMN]] :
  %p = train.log_softmax %x : tensor<2x2x3xf32>
  %flat = train.reshape %p : tensor<2x2x3xf32> -> tensor<12xf32>
  %zero = train.constant dense<0> : tensor<2x2x1xi64>
  %one = train.constant dense<1> : tensor<2x2x1xi64>
  %three = train.constant dense<3> : tensor<2x2x1xi64>
  %negative = train.compare lt %labels, %zero : tensor<2x2x1xi64>
  %shifted = train.add %labels, %three : tensor<2x2x1xi64>
  %positive = train.select %negative, %shifted, %labels : tensor<2x2x1xi1>, tensor<2x2x1xi64>
  %label = train.mul %positive, %one : tensor<2x2x1xi64>
  %second = train.iota 1 : tensor<2x2x1xi64>
  %offset1 = train.mul %second, %three : tensor<2x2x1xi64>
  %position1 = train.add %label, %offset1 : tensor<2x2x1xi64>
  %offset0 = train.constant dense<[[[0]], [[6]]]> : tensor<2x1x1xi64>
  %offset = train.broadcast %offset0 : tensor<2x1x1xi64> -> tensor<2x2x1xi64>
  %position = train.add %position1, %offset : tensor<2x2x1xi64>
  %picked = train.gather %flat[%position] axis 0 : tensor<12xf32>, tensor<2x2x1xi64> -> tensor<2x2x1xf32>
  %nll = train.neg %picked : tensor<2x2x1xf32>
  return %nll : tensor<2x2x1xf32>
}

// -----

// As an import of NegativeLogLikelihoodLoss writes it on the logarithm of a softmax.
// CHECK-LABEL: func.func @one_hot_but_ignored
func.func @one_hot_but_ignored(%x: tensor<4x3xf32>, %labels: tensor<4x1xi64>) -> tensor<4x1xf32> {
  // CHECK: train.cross_entropy %{{.*}}, %{{.*}} {ignore_index = 2 : i64}
  %q = train.softmax %x : tensor<4x3xf32>
  %p = train.log %q : tensor<4x3xf32>
  %columns = train.iota 1 : tensor<4x3xi64>
  %ls = train.broadcast %labels : tensor<4x1xi64> -> tensor<4x3xi64>
  %hot = train.compare eq %columns, %ls : tensor<4x3xi64>
  %two = train.constant dense<2> : tensor<4x1xi64>
  %keep = train.compare ne %labels, %two : tensor<4x1xi64>
  %keeps = train.broadcast %keep : tensor<4x1xi1> -> tensor<4x3xi1>
  %counted = train.and %hot, %keeps : tensor<4x3xi1>
  %zero = train.constant dense<0.0> : tensor<4x3xf32>
  %masked = train.select %counted, %p, %zero : tensor<4x3xi1>, tensor<4x3xf32>
  %picked = train.reduce sum %masked [1] : tensor<4x3xf32> -> tensor<4x1xf32>
  %nll = train.neg %picked : tensor<4x1xf32>
  return %nll : tensor<4x1xf32>
}

// -----

// Columns counted from 1, and a softmax over the other dimension: no cross entropy.
// CHECK-NOT: train.decisions
// CHECK-LABEL: func.func @stays
// CHECK-NOT: train.cross_entropy
func.func @stays(%x: tensor<3x3xf32>, %labels: tensor<3x1xi64>) -> (tensor<3x1xf32>, tensor<3x1xf32>) {
  %zero = train.constant dense<0.0> : tensor<3x3xf32>
  %ls = train.broadcast %labels : tensor<3x1xi64> -> tensor<3x3xi64>
  %one = train.constant dense<[[1, 2, 3]]> : tensor<1x3xi64>
  %ones = train.broadcast %one : tensor<1x3xi64> -> tensor<3x3xi64>
  %hot = train.compare eq %ls, %ones : tensor<3x3xi64>
  %p = train.log_softmax %x : tensor<3x3xf32>
  %masked = train.select %hot, %p, %zero : tensor<3x3xi1>, tensor<3x3xf32>
  %picked = train.reduce sum %masked [1] : tensor<3x3xf32> -> tensor<3x1xf32>
  %columns = train.iota 1 : tensor<3x3xi64>
  %hot2 = train.compare eq %ls, %columns : tensor<3x3xi64>
  %turned = train.transpose %p [1, 0] : tensor<3x3xf32> -> tensor<3x3xf32>
  %masked2 = train.select %hot2, %turned, %zero : tensor<3x3xi1>, tensor<3x3xf32>
  %picked2 = train.reduce sum %masked2 [1] : tensor<3x3xf32> -> tensor<3x1xf32>
  return %picked, %picked2 : tensor<3x1xf32>, tensor<3x1xf32>
}
