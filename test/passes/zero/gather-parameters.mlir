// At stage 3 a bucket is gathered again where too many others are used in between, and never inside a fusion.
// RUN: sheaf-opt %s -zero-form-buckets="stage=3 bucket-bytes=1" -zero-gather-parameters | FileCheck %s

module attributes {train.ranks = 2 : i64} {
  train.parameter @a : tensor<64xf32> {trainable = false}
  train.parameter @b : tensor<64xf32> {trainable = false}
  train.parameter @c : tensor<64xf32> {trainable = false}
  train.parameter @d : tensor<64xf32> {trainable = false}
  func.func @step(%x: tensor<64xf32> {train.name = "x"}) {
    // CHECK: %[[A:.*]] = zero.all_gather @bucket0 forward
    // CHECK: %[[VA:.*]] = zero.view %[[A]] at 0
    // CHECK: %[[Y0:.*]] = train.mul %[[VA]]
    // CHECK: zero.release %[[A]]
    %a = train.read @a : tensor<64xf32>
    %b = train.read @b : tensor<64xf32>
    %c = train.read @c : tensor<64xf32>
    %d = train.read @d : tensor<64xf32>
    %y0 = train.mul %a, %x : tensor<64xf32>
    // CHECK: %[[B:.*]] = zero.all_gather @bucket1 forward
    // CHECK: %[[VB:.*]] = zero.view %[[B]] at 0
    // CHECK-NEXT: train.neg {{.*}} {train.group = 7 : i64}
    // CHECK-NEXT: train.mul %[[VB]]
    %n = train.neg %y0 {train.group = 7 : i64} : tensor<64xf32>
    %y1 = train.mul %b, %n {train.group = 7 : i64} : tensor<64xf32>
    %yc = train.mul %c, %y1 : tensor<64xf32>
    %y2 = train.mul %d, %yc : tensor<64xf32>
    %z = train.reduce sum %y2 [0] : tensor<64xf32> -> tensor<1xf32>
    train.loss %z : tensor<1xf32>
    // Three others were used between: a second visit of @a. @b stays, only @c and @d are between its uses.
    // CHECK: train.loss
    // CHECK: train.mul %[[VB]]
    // CHECK-NEXT: zero.release %[[B]]
    // CHECK: %[[A2:.*]] = zero.all_gather @bucket0 backward
    // CHECK: train.mul %{{.*}}, %{{.*}}
    // CHECK-NEXT: zero.release %[[A2]]
    %y3 = train.mul %b, %y2 : tensor<64xf32>
    %y4 = train.mul %a, %y3 : tensor<64xf32>
    return
  }
}
