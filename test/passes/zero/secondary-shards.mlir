// The result of a gather's first hop is kept for the bucket's next gather.
// RUN: sheaf-opt %s -zero-form-buckets="stage=3 ranks-per-node=2 bucket-bytes=1" -zero-gather-parameters="secondary-part=1" | FileCheck %s
// RUN: sheaf-opt %s -zero-form-buckets="stage=3 ranks-per-node=4 bucket-bytes=1" -zero-gather-parameters="secondary-part=1" | FileCheck %s --check-prefix=NONE
// RUN: sheaf-opt %s -zero-form-buckets="stage=3 ranks-per-node=2 network-stage=0 bucket-bytes=1" -zero-gather-parameters="secondary-part=1" | FileCheck %s --check-prefix=NONE

module attributes {train.ranks = 4 : i64} {
  train.parameter @a : tensor<128xf32> {trainable = false}
  train.parameter @b : tensor<128xf32> {trainable = false}
  train.parameter @c : tensor<128xf32> {trainable = false}
  train.parameter @d : tensor<128xf32> {trainable = false}
  // CHECK: zero.all_gather @bucket0 forward keep
  // CHECK: zero.all_gather @bucket1 forward :
  // CHECK: zero.all_gather @bucket0 backward kept
  // NONE-NOT: keep
  // NONE-NOT: kept
  func.func @step(%x: tensor<128xf32> {train.name = "x"}) {
    %a = train.read @a : tensor<128xf32>
    %b = train.read @b : tensor<128xf32>
    %c = train.read @c : tensor<128xf32>
    %d = train.read @d : tensor<128xf32>
    %y0 = train.mul %a, %x : tensor<128xf32>
    %y1 = train.mul %b, %y0 : tensor<128xf32>
    %y2 = train.mul %c, %y1 : tensor<128xf32>
    %y3 = train.mul %d, %y2 : tensor<128xf32>
    %z = train.reduce sum %y3 [0] : tensor<128xf32> -> tensor<1xf32>
    train.loss %z : tensor<1xf32>
    %y4 = train.mul %a, %y3 : tensor<128xf32>
    return
  }
}
