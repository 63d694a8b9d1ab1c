// The gradient of a split is a concatenation; pieces that leave a hole stay a sum.
// RUN: sheaf-opt %s -train-merge-pads | FileCheck %s

// CHECK-LABEL: @split
// CHECK: %[[C:.*]] = train.concat %arg1, %arg0 axis 1
// CHECK-NOT: train.pad
// CHECK: return %[[C]]
func.func @split(%a: tensor<2x3xf32>, %b: tensor<2x2xf32>) -> tensor<2x5xf32> {
  %0 = train.pad %a low [0, 2] high [0, 0] interior [0, 0] : tensor<2x3xf32> -> tensor<2x5xf32>
  %1 = train.pad %b low [0, 0] high [0, 3] interior [0, 0] : tensor<2x2xf32> -> tensor<2x5xf32>
  %2 = train.add %0, %1 : tensor<2x5xf32>
  return %2 : tensor<2x5xf32>
}

// CHECK-LABEL: @hole
// CHECK: train.add
func.func @hole(%a: tensor<2x3xf32>, %b: tensor<2x1xf32>) -> tensor<2x5xf32> {
  %0 = train.pad %a low [0, 2] high [0, 0] interior [0, 0] : tensor<2x3xf32> -> tensor<2x5xf32>
  %1 = train.pad %b low [0, 0] high [0, 4] interior [0, 0] : tensor<2x1xf32> -> tensor<2x5xf32>
  %2 = train.add %0, %1 : tensor<2x5xf32>
  return %2 : tensor<2x5xf32>
}
