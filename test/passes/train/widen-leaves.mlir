// RUN: sheaf-opt %s -train-widen-leaves | FileCheck %s

// Two leaves of two rows on one rank. A kernel has the rows of both, a product is computed for each, the sums of both are
// added.
// CHECK-LABEL: func.func @step
// CHECK-SAME: %[[X:[a-z0-9]+]]: tensor<4x3xf32>
