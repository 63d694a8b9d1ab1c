// Images are turned once before the first convolution, and stay so through what lies between.
// RUN: sheaf-opt %s -train-channels-last -canonicalize -cse | FileCheck %s

// CHECK-LABEL: @block
// CHECK: %[[X:.*]] = train.transpose %arg0 [0, 2, 3, 1]
// CHECK: %[[C:.*]] = train.conv %[[X]], %arg1 {channels_last,
// CHECK-SAME: -> tensor<2x8x8x4xf32>
// CHECK: %[[N:.*]], %{{.*}}, %{{.*}} = train.batch_norm %[[C]], %arg2, %arg2 epsilon 1.000000e-05 {channels_last
// CHECK: %[[B:.*]] = train.reshape %arg2 : tensor<4xf32> -> tensor<1x1x1x4xf32>
// CHECK: %[[S:.*]] = train.broadcast %[[B]]
// CHECK: %[[A:.*]] = train.add %[[N]], %[[S]]
// CHECK: %[[R:.*]] = train.relu %[[A]]
// CHECK: %[[P:.*]] = train.max_pool %[[R]] {channels_last,
// CHECK: %[[M:.*]] = train.reduce mean %[[P]] [1, 2]
// CHECK-NOT: train.transpose
// CHECK: %[[V:.*]] = train.reshape %[[M]] : tensor<2x1x1x4xf32> -> tensor<2x4xf32>
// CHECK: return %[[V]]
func.func @block(%x: tensor<2x3x8x8xf32>, %w: tensor<4x3x3x3xf32>, %s: tensor<4xf32>) -> tensor<2x4xf32> {
  %0 = train.conv %x, %w {strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, groups = 1 : i64} : (tensor<2x3x8x8xf32>, tensor<4x3x3x3xf32>) -> tensor<2x4x8x8xf32>
  %1, %m, %v = train.batch_norm %0, %s, %s epsilon 1.0e-5 : (tensor<2x4x8x8xf32>, tensor<4xf32>, tensor<4xf32>) -> (tensor<2x4x8x8xf32>, tensor<4xf32>, tensor<4xf32>)
  %2 = train.reshape %s : tensor<4xf32> -> tensor<1x4x1x1xf32>
  %3 = train.broadcast %2 : tensor<1x4x1x1xf32> -> tensor<2x4x8x8xf32>
  %4 = train.add %1, %3 : tensor<2x4x8x8xf32>
  %5 = train.relu %4 : tensor<2x4x8x8xf32>
  %6 = train.max_pool %5 {kernel = array<i64: 2, 2>, strides = array<i64: 2, 2>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>} : (tensor<2x4x8x8xf32>) -> tensor<2x4x4x4xf32>
  %7 = train.reduce mean %6 [2, 3] : tensor<2x4x4x4xf32> -> tensor<2x4x1x1xf32>
  %8 = train.reshape %7 : tensor<2x4x1x1xf32> -> tensor<2x4xf32>
  return %8 : tensor<2x4xf32>
}

// Two branches are joined along the channels, which come last; what leaves is turned back.
// CHECK-LABEL: @join
// CHECK: train.concat %{{.*}}, %{{.*}} axis 3
// CHECK: train.slice %{{.*}} starts [0, 1, 0, 2] sizes [1, 3, 4, 3] steps [1, 1, 1, 1]
// CHECK: %[[T:.*]] = train.transpose %{{.*}} [0, 3, 1, 2]
// CHECK: return %[[T]]
func.func @join(%x: tensor<1x2x4x4xf32>, %w: tensor<3x2x1x1xf32>) -> tensor<1x3x3x4xf32> {
  %0 = train.conv %x, %w {strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, groups = 1 : i64} : (tensor<1x2x4x4xf32>, tensor<3x2x1x1xf32>) -> tensor<1x3x4x4xf32>
  %1 = train.concat %0, %x axis 1 : (tensor<1x3x4x4xf32>, tensor<1x2x4x4xf32>) -> tensor<1x5x4x4xf32>
  %2 = train.slice %1 starts [0, 2, 1, 0] sizes [1, 3, 3, 4] steps [1, 1, 1, 1] : tensor<1x5x4x4xf32> -> tensor<1x3x3x4xf32>
  return %2 : tensor<1x3x3x4xf32>
}

// Nothing is turned for an elementwise op alone, and dropout keeps the order of its random numbers.
// CHECK-LABEL: @alone
// CHECK-NOT: train.transpose
// CHECK: train.relu
func.func @alone(%x: tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xf32> {
  %0 = train.relu %x : tensor<1x2x4x4xf32>
  return %0 : tensor<1x2x4x4xf32>
}
// CHECK-LABEL: @dropout
// CHECK: train.conv
// CHECK: train.transpose
// CHECK: train.dropout %{{.*}} : tensor<1x2x4x5xf32>
func.func @dropout(%x: tensor<1x2x4x5xf32>, %w: tensor<2x2x1x1xf32>) -> tensor<1x2x4x5xf32> {
  %0 = train.conv %x, %w {strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, groups = 1 : i64} : (tensor<1x2x4x5xf32>, tensor<2x2x1x1xf32>) -> tensor<1x2x4x5xf32>
  %1 = train.dropout %0 ratio 5.0e-1 node 3 : tensor<1x2x4x5xf32>
  return %1 : tensor<1x2x4x5xf32>
}
