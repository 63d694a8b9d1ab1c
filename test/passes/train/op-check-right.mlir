// Right divisions that a check could take for wrong: shares that are rounded (a third), no elements, integers that wrap around.
// RUN: sheaf-opt %s --split-input-file --pass-pipeline="builtin.module(train-partition)" | FileCheck %s

// CHECK: partition: 9 of 9 ops were tried on 3 leaves
module attributes {train.ranks = 3 : i64} {
  train.parameter @w : tensor<6x6xf32> {trainable = true}
  func.func @step(%x: tensor<6x6xf32> {train.name = "x"}) {
    %w = train.read @w : tensor<6x6xf32>
    %h = train.matmul %x, %w : tensor<6x6xf32>, tensor<6x6xf32> -> tensor<6x6xf32>
    %m = train.reduce mean %h [0, 1] : tensor<6x6xf32> -> tensor<1x1xf32>
    %l = train.reshape %m : tensor<1x1xf32> -> tensor<f32>
    %ww = train.mul %w, %w : tensor<6x6xf32>
    %d = train.reduce sum %ww [0, 1] : tensor<6x6xf32> -> tensor<1x1xf32>
    %p = train.reshape %d : tensor<1x1xf32> -> tensor<f32>
    %loss = train.add %l, %p : tensor<f32>
    train.loss %loss : tensor<f32>
    return
  }
}

// -----

// CHECK: partition: 9 of 9 ops were tried on 3 leaves
module attributes {train.ranks = 3 : i64} {
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
  func.func @step(%x: tensor<12x3xf32>) {
    %scale = train.read @scale : tensor<3xf32>
    %bias = train.read @bias : tensor<3xf32>
    %p = train.read @w : tensor<1x3xf32>
    %w = train.broadcast %p : tensor<1x3xf32> -> tensor<12x3xf32>
    %h = train.mul %x, %w : tensor<12x3xf32>
    %y, %mean, %variance = train.batch_norm %h, %scale, %bias epsilon 1.0e-5 : (tensor<12x3xf32>, tensor<3xf32>, tensor<3xf32>) -> (tensor<12x3xf32>, tensor<3xf32>, tensor<3xf32>)
    train.update @mean by @running_statistics, %mean {train.statistics} : tensor<3xf32>
    %z = train.mul %y, %y : tensor<12x3xf32>
    %l = train.reduce mean %z [0, 1] : tensor<12x3xf32> -> tensor<1x1xf32>
    train.loss %l : tensor<1x1xf32>
    return
  }
}

// -----

// CHECK: partition: 5 of 5 ops were tried on 2 leaves
module attributes {train.ranks = 2 : i64} {
  train.parameter @w : tensor<6x6xf64> {trainable = true}
  func.func @step(%x: tensor<8x0x6xf64> {train.name="x"}) {
  %w = train.read @w : tensor<6x6xf64>
%t = train.transpose %x [1,0,2] : tensor<8x0x6xf64> -> tensor<0x8x6xf64>
%y = train.dropout %t ratio 0.5 node 3 : tensor<0x8x6xf64>
  %LS = train.reduce sum %y [0, 1, 2] : tensor<0x8x6xf64> -> tensor<1x1x1xf64>
  %LL = train.reshape %LS : tensor<1x1x1xf64> -> tensor<f64>
  train.loss %LL : tensor<f64>
  return
 }
}

// -----

// CHECK: partition: 4 of 5 ops were tried on 2 leaves
module attributes {train.ranks = 2 : i64} {
  train.parameter @w : tensor<6x6xf64> {trainable = true}
  func.func @step(%x: tensor<8x6xf64> {train.name="x"}, %n: tensor<8x3xi64> {train.name="n"}) {
  %w = train.read @w : tensor<6x6xf64>
%a = train.slice %x starts [0,0] sizes [8,0] steps [1,1] : tensor<8x6xf64> -> tensor<8x0xf64>
%y = train.gather_elements %a[%n] axis 1 : tensor<8x0xf64>, tensor<8x3xi64> -> tensor<8x3xf64>
  %LS = train.reduce sum %y [0, 1] : tensor<8x3xf64> -> tensor<1x1xf64>
  %LL = train.reshape %LS : tensor<1x1xf64> -> tensor<f64>
  train.loss %LL : tensor<f64>
  return
 }
}

// -----

// CHECK: partition: 10 of 10 ops were tried on 2 leaves
module attributes {train.ranks = 2 : i64} {
  train.parameter @w : tensor<6x6xf64> {trainable = true}
  func.func @step(%x: tensor<4x6xf64> {train.name="x"}) {
  %w = train.read @w : tensor<6x6xf64>
%z = train.constant dense<0.0> : tensor<4x6xf64>
%c = train.compare gt %x, %z : tensor<4x6xf64>
%i = train.cast %c : tensor<4x6xi1> -> tensor<4x6xui8>
%s = train.reduce sum %i [0] : tensor<4x6xui8> -> tensor<1x6xui8>
%s2 = train.reduce sum %s [1] : tensor<1x6xui8> -> tensor<1x1xui8>
%f = train.cast %s2 : tensor<1x1xui8> -> tensor<1x1xf64>
%m = train.reduce sum %x [0,1] : tensor<4x6xf64> -> tensor<1x1xf64>
%y = train.mul %f, %m : tensor<1x1xf64>
  %LS = train.reduce sum %y [0, 1] : tensor<1x1xf64> -> tensor<1x1xf64>
  %LL = train.reshape %LS : tensor<1x1xf64> -> tensor<f64>
  train.loss %LL : tensor<f64>
  return
 }
}

// -----

// CHECK: partition: 9 of 9 ops were tried on 128 leaves
module attributes {train.ranks = 128 : i64} {
  train.parameter @w : tensor<6x6xf64> {trainable = true}
  func.func @step(%x: tensor<256x6xf64> {train.name="x"}, %n: tensor<256x6xi8> {train.name="n"}) {
  %w = train.read @w : tensor<6x6xf64>
%s = train.reduce sum %n [0] : tensor<256x6xi8> -> tensor<1x6xi8>
%a = train.add %s, %s : tensor<1x6xi8>
%b = train.reduce sum %a [1] : tensor<1x6xi8> -> tensor<1x1xi8>
%f = train.cast %b : tensor<1x1xi8> -> tensor<1x1xf64>
%m = train.reduce mean %x [0,1] : tensor<256x6xf64> -> tensor<1x1xf64>
%y = train.mul %f, %m : tensor<1x1xf64>
  %LS = train.reduce sum %y [0, 1] : tensor<1x1xf64> -> tensor<1x1xf64>
  %LL = train.reshape %LS : tensor<1x1xf64> -> tensor<f64>
  train.loss %LL : tensor<f64>
  return
 }
}

// -----

// CHECK: partition: 8 of 8 ops were tried on 4 leaves
module attributes {train.ranks = 4 : i64} {
  train.parameter @w : tensor<6x6xf64> {trainable = true}
  func.func @step(%x: tensor<8x6xf64> {train.name="x"}, %n: tensor<8x6xi32> {train.name="n"}) {
  %w = train.read @w : tensor<6x6xf64>
%s = train.reduce sum %n [0,1] : tensor<8x6xi32> -> tensor<1x1xi32>
%c = train.constant dense<1000000007> : tensor<1x1xi32>
%a = train.mul %s, %c : tensor<1x1xi32>
%f = train.cast %a : tensor<1x1xi32> -> tensor<1x1xf64>
%m = train.reduce mean %x [0,1] : tensor<8x6xf64> -> tensor<1x1xf64>
%y = train.mul %f, %m : tensor<1x1xf64>
  %LS = train.reduce sum %y [0, 1] : tensor<1x1xf64> -> tensor<1x1xf64>
  %LL = train.reshape %LS : tensor<1x1xf64> -> tensor<f64>
  train.loss %LL : tensor<f64>
  return
 }
}
