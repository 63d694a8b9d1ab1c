// RUN: sheaf-opt %s -split-input-file -train-widen-leaves | FileCheck %s

// The rows of a leaf become one row of the kernel, and a sum over them a row reduction with a sum for each leaf.

// CHECK-LABEL: func.func @in_a_row
// CHECK: %[[ROWS:.*]] = train.reshape %{{.*}} : tensor<6xf32> -> tensor<2x3xf32>
// CHECK: train.reduce sum %[[ROWS]] [1] {train.group = 0 : i64, train.leaf_rows = array<i64: 2, 0, 1, 0, 1>} : tensor<2x3xf32> -> tensor<2x1xf32>
// CHECK: %[[LOSS:.*]] = train.add {{.*}} : tensor<1x1xf32>
// CHECK: train.loss %[[LOSS]]
module attributes {train.ranks = 2 : i64, train.widen_to = 1 : i64, train.batch = 6 : i64} {
  func.func @in_a_row(%x: tensor<3xf32> {train.name = "x"}) {
    %row = train.reshape %x : tensor<3xf32> -> tensor<1x3xf32>
    %sum = train.reduce sum %row [1] {train.group = 0 : i64} : tensor<1x3xf32> -> tensor<1x1xf32>
    train.loss %sum : tensor<1x1xf32>
    return
  }
}

// -----

// Rows in the last dimension of several are summed leaf by leaf: each has a kernel of its own for that and for what follows,
// but for constants, which no kernel stores.

// CHECK-LABEL: func.func @in_columns
// CHECK: %[[WIDE:.*]] = train.mul {{.*}} {train.group = 0 : i64, train.leaf_rows = {{.*}}} : tensor<5x6xf32>
// CHECK: %[[A:.*]] = train.slice %[[WIDE]] starts [0, 0] sizes [5, 3]
// CHECK: %[[SUM_A:.*]] = train.reduce sum %[[A]] [1] {train.group = [[FIRST:[1-9]]] : i64} : tensor<5x3xf32> -> tensor<5x1xf32>
// CHECK: train.mul %[[SUM_A]], {{.*}} {train.group = [[FIRST]] : i64} : tensor<5x1xf32>
// CHECK: %[[B:.*]] = train.slice %[[WIDE]] starts [0, 3] sizes [5, 3]
// CHECK: %[[SUM_B:.*]] = train.reduce sum %[[B]] [1] {train.group = [[SECOND:[1-9]]] : i64}
// CHECK: train.mul %[[SUM_B]], {{.*}} {train.group = [[SECOND]] : i64} : tensor<5x1xf32>
// CHECK: %[[GRADIENT:.*]] = train.add {{.*}} {train.group = {{.*}}} : tensor<5x1xf32>
// CHECK: train.update @b by @o, %[[GRADIENT]]
module attributes {train.ranks = 2 : i64, train.widen_to = 1 : i64, train.batch = 6 : i64} {
  func.func @in_columns(%x: tensor<3x5xf32> {train.name = "x"}) {
    %columns = train.transpose %x [1, 0] : tensor<3x5xf32> -> tensor<5x3xf32>
    %square = train.mul %columns, %columns {train.group = 0 : i64} : tensor<5x3xf32>
    %sum = train.reduce sum %square [1] {train.group = 0 : i64} : tensor<5x3xf32> -> tensor<5x1xf32>
    %third = train.constant {train.group = 0 : i64} dense<0.333333> : tensor<5x1xf32>
    %mean = train.mul %sum, %third {train.group = 0 : i64} : tensor<5x1xf32>
    train.update @b by @o, %mean : tensor<5x1xf32>
    return
  }
}

// -----

// A leaf's rows follow a dimension of size 1, which is not summed with them: the sums of leaves stay apart all the same.

// CHECK-LABEL: func.func @after_one
// CHECK: train.reduce sum %{{.*}} [0, 1] {leaves = 2 : i64, train.group = 0 : i64, train.leaf_rows = array<i64: 2, 0, 1, -1, 0>} : tensor<2x4x3xf32> -> tensor<2x1x1x3xf32>
module attributes {train.ranks = 2 : i64, train.widen_to = 1 : i64, train.batch = 8 : i64} {
  func.func @after_one(%x: tensor<4x3xf32> {train.name = "x"}) {
    %rows = train.reshape %x : tensor<4x3xf32> -> tensor<1x4x3xf32>
    %sum = train.reduce sum %rows [1] {train.group = 0 : i64} : tensor<1x4x3xf32> -> tensor<1x1x3xf32>
    train.update @b by @o, %sum : tensor<1x1x3xf32>
    return
  }
}

// -----

// Rows that are combined with a sum over them: each leaf has its own moments, and all that follows is computed for each. A
// random draw goes by the place in the batch, so it takes the leaves together again.

// CHECK-LABEL: func.func @own_moments
// CHECK: %[[SUMS:.*]] = train.reduce sum {{.*}} [0] {leaves = 2 : i64, train.group = 0 : i64, {{.*}} -> tensor<2x1x3xf32>
// CHECK: train.sub {{.*}} {train.group = [[FIRST:[0-9]]] : i64} : tensor<2x3xf32>
// CHECK: train.sub {{.*}} {train.group = [[SECOND:[0-9]]] : i64} : tensor<2x3xf32>
// CHECK: %[[BOTH:.*]] = train.concat {{.*}} axis 0 : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<4x3xf32>
// CHECK: train.dropout %[[BOTH]] ratio {{.*}} : tensor<4x3xf32>
module attributes {train.ranks = 2 : i64, train.widen_to = 1 : i64, train.batch = 4 : i64} {
  func.func @own_moments(%x: tensor<2x3xf32> {train.name = "x"}) {
    %sum = train.reduce sum %x [0] {train.group = 0 : i64} : tensor<2x3xf32> -> tensor<1x3xf32>
    %wide = train.broadcast %sum {train.group = 1 : i64} : tensor<1x3xf32> -> tensor<2x3xf32>
    %apart = train.sub %x, %wide {train.group = 1 : i64} : tensor<2x3xf32>
    %dropped = train.dropout %apart ratio 5.000000e-01 node 1 : tensor<2x3xf32>
    %all = train.reduce sum %dropped [0] {train.group = 2 : i64} : tensor<2x3xf32> -> tensor<1x3xf32>
    %gradient = train.reshape %all : tensor<1x3xf32> -> tensor<3xf32>
    train.update @b by @o, %gradient : tensor<3xf32>
    return
  }
}

// -----

// Random numbers are drawn for the rows of all leaves, also where what they apply to is the same for every row.

// CHECK-LABEL: func.func @equal_rows
// CHECK: %[[BOTH:.*]] = train.concat {{.*}} axis 0 : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<4x3xf32>
// CHECK: train.dropout %[[BOTH]] ratio {{.*}} : tensor<4x3xf32>
module attributes {train.ranks = 2 : i64, train.widen_to = 1 : i64, train.batch = 4 : i64} {
  func.func @equal_rows(%x: tensor<2x3xf32> {train.name = "x"}) {
    %ones = train.constant dense<1.0> : tensor<2x3xf32>
    %kept = train.dropout %ones ratio 5.000000e-01 node 1 : tensor<2x3xf32>
    %product = train.mul %x, %kept {train.group = 0 : i64} : tensor<2x3xf32>
    %all = train.reduce sum %product [0] {train.group = 0 : i64} : tensor<2x3xf32> -> tensor<1x3xf32>
    %gradient = train.reshape %all : tensor<1x3xf32> -> tensor<3xf32>
    train.update @b by @o, %gradient : tensor<3xf32>
    return
  }
}

// -----

// A leaf of one row: what has one row for every leaf is repeated in the kernel, its gradient is a row of each leaf, and rows
// are in the same dimension after a reshape that could have put them into another of size 1.

// CHECK-LABEL: func.func @one_row
// CHECK: %[[BIAS:.*]] = train.broadcast %{{.*}} {train.group = 0 : i64, train.leaf_rows = array<i64: 2, -1, 0, 0, 1>} : tensor<1x1x3xf32> -> tensor<2x1x3xf32>
// CHECK: %[[SUM:.*]] = train.add %{{.*}}, %[[BIAS]] {train.group = 0 : i64, train.leaf_rows = array<i64: 2, 0, 1, 0, 1, 0, 1>} : tensor<2x1x3xf32>
// CHECK: %[[A:.*]] = train.slice %{{.*}} starts [0, 0] sizes [1, 3] {{.*}} -> tensor<1x3xf32>
// CHECK: %[[B:.*]] = train.slice %{{.*}} starts [1, 0] sizes [1, 3] {{.*}} -> tensor<1x3xf32>
// CHECK: %[[GRADIENT:.*]] = train.add {{.*}} : tensor<1x3xf32>
// CHECK: train.update @b by @o, %[[GRADIENT]] : tensor<1x3xf32>
module attributes {train.ranks = 2 : i64, train.widen_to = 1 : i64, train.batch = 2 : i64} {
  func.func @one_row(%x: tensor<1x3xf32> {train.name = "x"}) {
    %b = train.read @b : tensor<1x3xf32>
    %row = train.reshape %b : tensor<1x3xf32> -> tensor<1x1x3xf32>
    %steps = train.reshape %x : tensor<1x3xf32> -> tensor<1x1x3xf32>
    %sum = train.add %steps, %row {train.group = 0 : i64} : tensor<1x1x3xf32>
    %gradient = train.reshape %sum : tensor<1x1x3xf32> -> tensor<1x3xf32>
    train.update @b by @o, %gradient : tensor<1x3xf32>
    return
  }
}

// -----

// A product with what is the same for every leaf in the place of rows: a term of each leaf.

// CHECK-LABEL: func.func @same_rows
// CHECK: %[[STATE:.*]] = train.constant dense<{{.*}}> : tensor<2x4xf32>
// CHECK: train.matmul %[[STATE]], {{.*}} {transpose_a} : tensor<2x4xf32>, tensor<2x3xf32> -> tensor<4x3xf32>
// CHECK: train.matmul %[[STATE]], {{.*}} {transpose_a} : tensor<2x4xf32>, tensor<2x3xf32> -> tensor<4x3xf32>
// CHECK: %[[SUM:.*]] = train.add {{.*}} : tensor<4x3xf32>
// CHECK: train.update @w by @o, %[[SUM]]
module attributes {train.ranks = 2 : i64, train.widen_to = 1 : i64, train.batch = 4 : i64} {
  func.func @same_rows(%x: tensor<2x3xf32> {train.name = "x"}) {
    %state = train.constant dense<1.000000e+00> : tensor<2x4xf32>
    %gradient = train.matmul %state, %x {transpose_a} : tensor<2x4xf32>, tensor<2x3xf32> -> tensor<4x3xf32>
    train.update @w by @o, %gradient : tensor<4x3xf32>
    return
  }
}

// -----

// A kernel that computes something for rows and something that is the same for every leaf becomes two; the second stands first.

// CHECK-LABEL: func.func @two_kinds
// CHECK: %[[EQUAL:.*]] = train.exp %{{.*}} {train.group = [[OWN:[1-9]]] : i64} : tensor<2x3xf32>
// CHECK: train.add %{{.*}}, %{{.*}} {train.group = 0 : i64, {{.*}}} : tensor<4x3xf32>
// CHECK: train.matmul %[[EQUAL]]
module attributes {train.ranks = 2 : i64, train.widen_to = 1 : i64, train.batch = 4 : i64} {
  func.func @two_kinds(%x: tensor<2x3xf32> {train.name = "x"}) {
    %w = train.read @w : tensor<2x3xf32>
    %u = train.read @u : tensor<4x3xf32>
    %e = train.exp %w {train.group = 0 : i64} : tensor<2x3xf32>
    %y = train.add %x, %e {train.group = 0 : i64} : tensor<2x3xf32>
    %product = train.matmul %e, %u {transpose_b} : tensor<2x3xf32>, tensor<4x3xf32> -> tensor<2x4xf32>
    %gradient = train.matmul %product, %y {transpose_a} : tensor<2x4xf32>, tensor<2x3xf32> -> tensor<4x3xf32>
    train.update @u by @o, %gradient : tensor<4x3xf32>
    return
  }
}

// -----

// An embedding of each row's own table: rows are before the axis, whose entries are selected by indices that all share. Entries
// along the rows themselves are those of a leaf.

// CHECK-LABEL: func.func @gathers
// CHECK: train.gather %arg0[{{.*}}] axis 1 : tensor<4x3xf32>, tensor<2xi64> -> tensor<4x2xf32>
// CHECK: train.gather %{{.*}}[{{.*}}] axis 0 : tensor<2x3xf32>, tensor<2xi64> -> tensor<2x3xf32>
// CHECK: train.gather %{{.*}}[{{.*}}] axis 0 : tensor<2x3xf32>, tensor<2xi64> -> tensor<2x3xf32>
module attributes {train.ranks = 2 : i64, train.widen_to = 1 : i64, train.batch = 4 : i64} {
  func.func @gathers(%x: tensor<2x3xf32> {train.name = "x"}) {
    %which = train.constant dense<[1, 0]> : tensor<2xi64>
    %columns = train.gather %x[%which] axis 1 : tensor<2x3xf32>, tensor<2xi64> -> tensor<2x2xf32>
    %rows = train.gather %x[%which] axis 0 : tensor<2x3xf32>, tensor<2xi64> -> tensor<2x3xf32>
    %gradient = train.matmul %columns, %rows {transpose_a} : tensor<2x2xf32>, tensor<2x3xf32> -> tensor<2x3xf32>
    train.update @w by @o, %gradient : tensor<2x3xf32>
    return
  }
}

// -----

// What a kernel computes of a parameter before it broadcasts it stays inside.

// CHECK-LABEL: func.func @narrow_bias
// CHECK: %[[SMALL:.*]] = train.cast %{{.*}} {train.group = 0 : i64} : tensor<1x3xbf16> -> tensor<1x3xf32>
// CHECK: %[[WIDE:.*]] = train.broadcast %[[SMALL]] {train.group = 0 : i64, {{.*}}} : tensor<1x3xf32> -> tensor<4x3xf32>
// CHECK: train.add %arg0, %[[WIDE]] {train.group = 0 : i64, {{.*}}} : tensor<4x3xf32>
module attributes {train.ranks = 2 : i64, train.widen_to = 1 : i64, train.batch = 4 : i64} {
  func.func @narrow_bias(%x: tensor<2x3xf32> {train.name = "x"}) {
    %b = train.read @b : tensor<1x3xbf16>
    %w = train.read @w : tensor<4x3xf32>
    %single = train.cast %b {train.group = 0 : i64} : tensor<1x3xbf16> -> tensor<1x3xf32>
    %row = train.broadcast %single {train.group = 0 : i64} : tensor<1x3xf32> -> tensor<2x3xf32>
    %y = train.add %x, %row {train.group = 0 : i64} : tensor<2x3xf32>
    %product = train.matmul %y, %w {transpose_b} : tensor<2x3xf32>, tensor<4x3xf32> -> tensor<2x4xf32>
    %gradient = train.matmul %product, %y {transpose_a} : tensor<2x4xf32>, tensor<2x3xf32> -> tensor<4x3xf32>
    train.update @w by @o, %gradient : tensor<4x3xf32>
    return
  }
}

// -----

// The same where there is one row: no kernel sums the pieces of a row.

// CHECK-LABEL: func.func @in_one_row
// CHECK: train.reduce sum %{{.*}} [1] {train.group = {{[0-9]+}} : i64} : tensor<1x3xf32> -> tensor<1x1xf32>
// CHECK: train.reduce sum %{{.*}} [1] {train.group = {{[0-9]+}} : i64} : tensor<1x3xf32> -> tensor<1x1xf32>
// CHECK: train.loss
module attributes {train.ranks = 2 : i64, train.widen_to = 1 : i64, train.batch = 6 : i64} {
  func.func @in_one_row(%x: tensor<3x1xf32> {train.name = "x"}) {
    %row = train.transpose %x [1, 0] : tensor<3x1xf32> -> tensor<1x3xf32>
    %sum = train.reduce sum %row [1] {train.group = 0 : i64} : tensor<1x3xf32> -> tensor<1x1xf32>
    train.loss %sum : tensor<1x1xf32>
    return
  }
}

// -----

// A kernel that reduces what is the same for every leaf does so with the rows of all leaves, where its other reductions have them.

// CHECK-LABEL: func.func @reduced_parameter
// CHECK: %[[WIDE:.*]] = train.broadcast %{{.*}} {train.group = 0 : i64, {{.*}}} : tensor<1x2x4xf32> -> tensor<2x2x4xf32>
// CHECK: %[[MAX:.*]] = train.reduce max %[[WIDE]] [2] {train.group = 0 : i64, {{.*}}} : tensor<2x2x4xf32> -> tensor<2x2x1xf32>
// CHECK: train.broadcast %[[MAX]] {train.group = 0 : i64, {{.*}}} : tensor<2x2x1xf32> -> tensor<2x2x4xf32>
// CHECK-NOT: train.reduce max {{.*}} train.group = 0
module attributes {train.ranks = 2 : i64, train.widen_to = 1 : i64, train.batch = 2 : i64} {
  train.parameter @p : tensor<1x2x4xf32> {trainable = true}
  func.func @reduced_parameter(%x: tensor<1x2x4xf32> {train.name = "x"}) {
    %p = train.read @p : tensor<1x2x4xf32>
    %max = train.reduce max %p [2] {train.group = 0 : i64} : tensor<1x2x4xf32> -> tensor<1x2x1xf32>
    %all = train.broadcast %max {train.group = 0 : i64} : tensor<1x2x1xf32> -> tensor<1x2x4xf32>
    %y = train.mul %x, %all {train.group = 0 : i64} : tensor<1x2x4xf32>
    %row = train.reshape %y : tensor<1x2x4xf32> -> tensor<1x8xf32>
    %sum = train.reduce sum %row [1] {train.group = 1 : i64} : tensor<1x8xf32> -> tensor<1x1xf32>
    train.loss %sum : tensor<1x1xf32>
    return
  }
}

// -----

// The values of a kernel have equally many columns. An op with more, because its rows are in the last dimension, goes into a
// kernel of each leaf.

// CHECK-LABEL: func.func @other_columns
// CHECK: train.mul {{.*}} {train.group = 0 : i64, train.leaf_rows = {{.*}}} : tensor<5x6xf32>
// CHECK: train.mul {{.*}} {train.group = [[FIRST:[1-9]]] : i64} : tensor<5x6xf32>
// CHECK-NOT: train.group = [[FIRST]]
// CHECK: train.mul {{.*}} {train.group = {{[1-9]}} : i64} : tensor<5x6xf32>
// CHECK-NOT: tensor<5x12xf32>
module attributes {train.ranks = 2 : i64, train.widen_to = 1 : i64, train.batch = 6 : i64} {
  func.func @other_columns(%x: tensor<3x5xf32> {train.name = "x"}, %y: tensor<6x5xf32> {train.name = "y"}) {
    %three = train.transpose %x [1, 0] : tensor<3x5xf32> -> tensor<5x3xf32>
    %six = train.transpose %y [1, 0] : tensor<6x5xf32> -> tensor<5x6xf32>
    %a = train.mul %three, %three {train.group = 0 : i64} : tensor<5x3xf32>
    %b = train.mul %six, %six {train.group = 0 : i64} : tensor<5x6xf32>
    %sa = train.reduce sum %a [1] {train.group = 1 : i64} : tensor<5x3xf32> -> tensor<5x1xf32>
    %sb = train.reduce sum %b [1] {train.group = 2 : i64} : tensor<5x6xf32> -> tensor<5x1xf32>
    train.update @b by @o, %sa : tensor<5x1xf32>
    train.update @c by @o, %sb : tensor<5x1xf32>
    return
  }
}
