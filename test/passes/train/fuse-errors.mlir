// RUN: sheaf-opt %s --train-fuse --verify-diagnostics

func.func @torn(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %a = train.neg %x {train.group = 0 : i64} : tensor<8x8xf32>
  // expected-error @+1 {{stands within a group of ops that are to become one kernel}}
  %t = train.transpose %a [1, 0] : tensor<8x8xf32> -> tensor<8x8xf32>
  %b = train.abs %a {train.group = 0 : i64} : tensor<8x8xf32>
  %c = train.matmul %b, %t : tensor<8x8xf32>, tensor<8x8xf32> -> tensor<8x8xf32>
  return %c : tensor<8x8xf32>
}
