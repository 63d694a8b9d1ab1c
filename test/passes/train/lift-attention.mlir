// Softmax attention as exporters write it, with its scale, mask, heads and layouts, and near misses that must stay.
// RUN: sheaf-opt %s -split-input-file -train-lift-attention -canonicalize | FileCheck %s

// GPT-2, eager: packed queries, keys and values; scaled scores; a causal mask that is added. All transposes cancel.
// CHECK: train.decisions = ["lifted 1 causal attention"]
// CHECK-LABEL: func.func @gpt2
// CHECK-SAME: (%[[PACKED:.*]]: tensor<2x4x48xf32>)
func.func @gpt2(%packed: tensor<2x4x48xf32>) -> tensor<8x16xf32> {
  // CHECK-DAG: %[[Q:.*]] = train.slice %[[PACKED]] starts [0, 0, 0]
  // CHECK-DAG: %[[K:.*]] = train.slice %[[PACKED]] starts [0, 0, 16]
  // CHECK-DAG: %[[V:.*]] = train.slice %[[PACKED]] starts [0, 0, 32]
  // CHECK-DAG: %[[Q4:.*]] = train.reshape %[[Q]] : tensor<2x4x16xf32> -> tensor<2x4x2x8xf32>
  // CHECK-DAG: %[[K4:.*]] = train.reshape %[[K]] : tensor<2x4x16xf32> -> tensor<2x4x2x8xf32>
  // CHECK-DAG: %[[V4:.*]] = train.reshape %[[V]] : tensor<2x4x16xf32> -> tensor<2x4x2x8xf32>
  // CHECK: %[[A:.*]], %{{.*}} = train.attention %[[Q4]], %[[K4]], %[[V4]] scale 0.35355339059327373 {causal}
  // CHECK-NEXT: %[[R:.*]] = train.reshape %[[A]] : tensor<2x4x2x8xf32> -> tensor<8x16xf32>
  // CHECK-NEXT: return %[[R]]
  %q = train.slice %packed starts [0, 0, 0] sizes [2, 4, 16] steps [1, 1, 1] : tensor<2x4x48xf32> -> tensor<2x4x16xf32>
  %k = train.slice %packed starts [0, 0, 16] sizes [2, 4, 16] steps [1, 1, 1] : tensor<2x4x48xf32> -> tensor<2x4x16xf32>
  %v = train.slice %packed starts [0, 0, 32] sizes [2, 4, 16] steps [1, 1, 1] : tensor<2x4x48xf32> -> tensor<2x4x16xf32>
  %q4 = train.reshape %q : tensor<2x4x16xf32> -> tensor<2x4x2x8xf32>
  %k4 = train.reshape %k : tensor<2x4x16xf32> -> tensor<2x4x2x8xf32>
  %v4 = train.reshape %v : tensor<2x4x16xf32> -> tensor<2x4x2x8xf32>
  %qt = train.transpose %q4 [0, 2, 1, 3] : tensor<2x4x2x8xf32> -> tensor<2x2x4x8xf32>
  %kt = train.transpose %k4 [0, 2, 3, 1] : tensor<2x4x2x8xf32> -> tensor<2x2x8x4xf32>
  %vt = train.transpose %v4 [0, 2, 1, 3] : tensor<2x4x2x8xf32> -> tensor<2x2x4x8xf32>
  %q3 = train.reshape %qt : tensor<2x2x4x8xf32> -> tensor<4x4x8xf32>
  %k3 = train.reshape %kt : tensor<2x2x8x4xf32> -> tensor<4x8x4xf32>
  %v3 = train.reshape %vt : tensor<2x2x4x8xf32> -> tensor<4x4x8xf32>
  %s3 = train.matmul %q3, %k3 : tensor<4x4x8xf32>, tensor<4x8x4xf32> -> tensor<4x4x4xf32>
  %s = train.reshape %s3 : tensor<4x4x4xf32> -> tensor<2x2x4x4xf32>
  %c = train.constant dense<0.353553385> : tensor<2x2x4x4xf32>
  %scaled = train.mul %s, %c : tensor<2x2x4x4xf32>
  %m = train.constant dense<[[[[0.0, -3.4028235e+38, -3.4028235e+38, -3.4028235e+38],
                               [0.0, 0.0, -3.4028235e+38, -3.4028235e+38],
                               [0.0, 0.0, 0.0, -3.4028235e+38], [0.0, 0.0, 0.0, 0.0]]]]> : tensor<1x1x4x4xf32>
  %mask = train.broadcast %m : tensor<1x1x4x4xf32> -> tensor<2x2x4x4xf32>
  %masked = train.add %scaled, %mask : tensor<2x2x4x4xf32>
  %p = train.softmax %masked : tensor<2x2x4x4xf32>
  %p3 = train.reshape %p : tensor<2x2x4x4xf32> -> tensor<4x4x4xf32>
  %o3 = train.matmul %p3, %v3 : tensor<4x4x4xf32>, tensor<4x4x8xf32> -> tensor<4x4x8xf32>
  %o = train.reshape %o3 : tensor<4x4x8xf32> -> tensor<2x2x4x8xf32>
  %ot = train.transpose %o [0, 2, 1, 3] : tensor<2x2x4x8xf32> -> tensor<2x4x2x8xf32>
  %r = train.reshape %ot : tensor<2x4x2x8xf32> -> tensor<8x16xf32>
  return %r : tensor<8x16xf32>
}

// -----

// Llama, SDPA: square roots of the scale on both sides, rotary embedding after the transposes, repeated key/value
// heads, a boolean causal mask, the guard against rows that see nothing. The rotary embedding moves into [B, S, H, D].
// CHECK: train.decisions = ["lifted 1 causal attention"]
// CHECK-LABEL: func.func @llama
// CHECK-SAME: (%[[Q:.*]]: tensor<2x4x16xf32>, %[[K:.*]]: tensor<2x4x8xf32>, %[[V:.*]]: tensor<2x4x8xf32>, %[[COS:.*]]: tensor<1x4x4xf32>, %{{.*}}: tensor<1x4x4xf32>)
func.func @llama(%q: tensor<2x4x16xf32>, %k: tensor<2x4x8xf32>, %v: tensor<2x4x8xf32>, %cos: tensor<1x4x4xf32>, %sin: tensor<1x4x4xf32>) -> tensor<2x4x16xf32> {
  // CHECK-NOT: train.transpose
  // CHECK-DAG: %[[COS4:.*]] = train.reshape %[[COS]] : tensor<1x4x4xf32> -> tensor<1x4x1x4xf32>
  // CHECK-DAG: %[[COSQ:.*]] = train.broadcast %[[COS4]] : tensor<1x4x1x4xf32> -> tensor<2x4x4x4xf32>
  // CHECK-DAG: %[[Q4:.*]] = train.reshape %[[Q]] : tensor<2x4x16xf32> -> tensor<2x4x4x4xf32>
  // CHECK-DAG: train.mul %[[Q4]], %[[COSQ]] : tensor<2x4x4x4xf32>
  // CHECK-DAG: train.slice %[[Q4]] starts [0, 0, 0, 2] sizes [2, 4, 4, 2]
  // CHECK-DAG: %[[RQ:.*]] = train.add {{.*}} : tensor<2x4x4x4xf32>
  // CHECK-DAG: %[[K4:.*]] = train.reshape %[[K]] : tensor<2x4x8xf32> -> tensor<2x4x2x4xf32>
  // CHECK-DAG: %[[V4:.*]] = train.reshape %[[V]] : tensor<2x4x8xf32> -> tensor<2x4x2x4xf32>
  // CHECK-NOT: train.transpose
  // CHECK: %[[A:.*]], %{{.*}} = train.attention %[[RQ]], %[[K4]], %[[V4]] scale 5.000000e-01 {causal} : (tensor<2x4x4x4xf32>, tensor<2x4x2x4xf32>, tensor<2x4x2x4xf32>)
  // CHECK-NEXT: train.reshape %[[A]] : tensor<2x4x4x4xf32> -> tensor<2x4x16xf32>
  %q4 = train.reshape %q : tensor<2x4x16xf32> -> tensor<2x4x4x4xf32>
  %qt = train.transpose %q4 [0, 2, 1, 3] : tensor<2x4x4x4xf32> -> tensor<2x4x4x4xf32>
  %cos4 = train.reshape %cos : tensor<1x4x4xf32> -> tensor<1x1x4x4xf32>
  %cosq = train.broadcast %cos4 : tensor<1x1x4x4xf32> -> tensor<2x4x4x4xf32>
  %sin4 = train.reshape %sin : tensor<1x4x4xf32> -> tensor<1x1x4x4xf32>
  %sinq = train.broadcast %sin4 : tensor<1x1x4x4xf32> -> tensor<2x4x4x4xf32>
  %direct = train.mul %qt, %cosq : tensor<2x4x4x4xf32>
  %low = train.slice %qt starts [0, 0, 0, 0] sizes [2, 4, 4, 2] steps [1, 1, 1, 1] : tensor<2x4x4x4xf32> -> tensor<2x4x4x2xf32>
  %high = train.slice %qt starts [0, 0, 0, 2] sizes [2, 4, 4, 2] steps [1, 1, 1, 1] : tensor<2x4x4x4xf32> -> tensor<2x4x4x2xf32>
  %minus = train.neg %high : tensor<2x4x4x2xf32>
  %turned = train.concat %minus, %low axis 3 : (tensor<2x4x4x2xf32>, tensor<2x4x4x2xf32>) -> tensor<2x4x4x4xf32>
  %turnedsin = train.mul %turned, %sinq : tensor<2x4x4x4xf32>
  %rq = train.add %direct, %turnedsin : tensor<2x4x4x4xf32>

  %k4 = train.reshape %k : tensor<2x4x8xf32> -> tensor<2x4x2x4xf32>
  %kt = train.transpose %k4 [0, 2, 1, 3] : tensor<2x4x2x4xf32> -> tensor<2x2x4x4xf32>
  %k5 = train.reshape %kt : tensor<2x2x4x4xf32> -> tensor<2x2x1x4x4xf32>
  %kr = train.broadcast %k5 : tensor<2x2x1x4x4xf32> -> tensor<2x2x2x4x4xf32>
  %v4 = train.reshape %v : tensor<2x4x8xf32> -> tensor<2x4x2x4xf32>
  %vt = train.transpose %v4 [0, 2, 1, 3] : tensor<2x4x2x4xf32> -> tensor<2x2x4x4xf32>
  %v5 = train.reshape %vt : tensor<2x2x4x4xf32> -> tensor<2x2x1x4x4xf32>
  %vr = train.broadcast %v5 : tensor<2x2x1x4x4xf32> -> tensor<2x2x2x4x4xf32>

  %root = train.constant dense<0.70710677> : tensor<2x4x4x4xf32>
  %qs = train.mul %rq, %root : tensor<2x4x4x4xf32>
  %k3 = train.reshape %kr : tensor<2x2x2x4x4xf32> -> tensor<8x4x4xf32>
  %k3t = train.transpose %k3 [0, 2, 1] : tensor<8x4x4xf32> -> tensor<8x4x4xf32>
  %k3r = train.reshape %k3t : tensor<8x4x4xf32> -> tensor<2x4x4x4xf32>
  %ks = train.mul %root, %k3r : tensor<2x4x4x4xf32>
  %qs3 = train.reshape %qs : tensor<2x4x4x4xf32> -> tensor<8x4x4xf32>
  %ks3 = train.reshape %ks : tensor<2x4x4x4xf32> -> tensor<8x4x4xf32>
  %s3 = train.matmul %qs3, %ks3 : tensor<8x4x4xf32>, tensor<8x4x4xf32> -> tensor<8x4x4xf32>
  %s = train.reshape %s3 : tensor<8x4x4xf32> -> tensor<2x4x4x4xf32>
  %visible = train.constant dense<[[[[true, false, false, false], [true, true, false, false],
                                     [true, true, true, false], [true, true, true, true]]]]> : tensor<1x1x4x4xi1>
  %zero = train.constant dense<0.0> : tensor<1x1x4x4xf32>
  %lowest = train.constant dense<-3.4028235e+38> : tensor<1x1x4x4xf32>
  %m = train.select %visible, %zero, %lowest : tensor<1x1x4x4xi1>, tensor<1x1x4x4xf32>
  %mask = train.broadcast %m : tensor<1x1x4x4xf32> -> tensor<2x4x4x4xf32>
  %masked = train.add %s, %mask : tensor<2x4x4x4xf32>
  %p = train.softmax %masked : tensor<2x4x4x4xf32>
  %nan = train.is_nan %p : tensor<2x4x4x4xf32>
  %zeros = train.constant dense<0.0> : tensor<2x4x4x4xf32>
  %guarded = train.select %nan, %zeros, %p : tensor<2x4x4x4xi1>, tensor<2x4x4x4xf32>
  %p3 = train.reshape %guarded : tensor<2x4x4x4xf32> -> tensor<8x4x4xf32>
  %v3 = train.reshape %vr : tensor<2x2x2x4x4xf32> -> tensor<8x4x4xf32>
  %o3 = train.matmul %p3, %v3 : tensor<8x4x4xf32>, tensor<8x4x4xf32> -> tensor<8x4x4xf32>
  %o = train.reshape %o3 : tensor<8x4x4xf32> -> tensor<2x4x4x4xf32>
  %ot = train.transpose %o [0, 2, 1, 3] : tensor<2x4x4x4xf32> -> tensor<2x4x4x4xf32>
  %r = train.reshape %ot : tensor<2x4x4x4xf32> -> tensor<2x4x16xf32>
  return %r : tensor<2x4x16xf32>
}

// -----

// Leading dimensions of matrices are the batch, of one head. A mask that hides nothing is dropped, scores divided.
// CHECK: train.decisions = ["lifted 1 attention without a mask"]
// CHECK-LABEL: func.func @rank3
// CHECK-SAME: (%[[Q:.*]]: tensor<6x4x8xf32>, %[[K:.*]]: tensor<6x5x8xf32>, %[[V:.*]]: tensor<6x5x3xf32>)
func.func @rank3(%q: tensor<6x4x8xf32>, %k: tensor<6x5x8xf32>, %v: tensor<6x5x3xf32>) -> tensor<6x4x3xf32> {
  // CHECK-DAG: %[[Q4:.*]] = train.reshape %[[Q]] : tensor<6x4x8xf32> -> tensor<6x4x1x8xf32>
  // CHECK-DAG: %[[K4:.*]] = train.reshape %[[K]] : tensor<6x5x8xf32> -> tensor<6x5x1x8xf32>
  // CHECK-DAG: %[[V4:.*]] = train.reshape %[[V]] : tensor<6x5x3xf32> -> tensor<6x5x1x3xf32>
  // CHECK: %[[A:.*]], %{{.*}} = train.attention %[[Q4]], %[[K4]], %[[V4]] scale 2.500000e-01 :
  // CHECK: train.reshape %[[A]] : tensor<6x4x1x3xf32> -> tensor<6x4x3xf32>
  %s = train.matmul %q, %k {transpose_b} : tensor<6x4x8xf32>, tensor<6x5x8xf32> -> tensor<6x4x5xf32>
  %four = train.constant dense<4.0> : tensor<6x4x5xf32>
  %scaled = train.div %s, %four : tensor<6x4x5xf32>
  %m = train.constant dense<0.0> : tensor<1x1x5xf32>
  %mask = train.broadcast %m : tensor<1x1x5xf32> -> tensor<6x4x5xf32>
  %masked = train.add %mask, %scaled : tensor<6x4x5xf32>
  %p = train.softmax %masked : tensor<6x4x5xf32>
  %o = train.matmul %p, %v : tensor<6x4x5xf32>, tensor<6x5x3xf32> -> tensor<6x4x3xf32>
  return %o : tensor<6x4x3xf32>
}

// -----

// BERT: the scores are hidden where a data input says padding; both layers share the operand.
// CHECK: train.decisions = ["lifted 2 attentions with masks"]
// CHECK-LABEL: func.func @padding
// CHECK-SAME: (%{{.*}}: tensor<2x3x4x8xf32>, %[[KEEP:.*]]: tensor<2x4xi1>)
func.func @padding(%x: tensor<2x3x4x8xf32>, %keep: tensor<2x4xi1>) -> tensor<2x3x4x8xf32> {
  // CHECK: %[[COND:.*]] = train.reshape %[[KEEP]] : tensor<2x4xi1> -> tensor<2x1x1x4xi1>
  // CHECK: %[[ADD:.*]] = train.select %[[COND]]
  // CHECK: %[[MASK:.*]] = train.broadcast %[[ADD]] : tensor<2x1x1x4xf32> -> tensor<2x1x4x4xf32>
  // CHECK: train.attention {{.*}} mask %[[MASK]] scale 1.000000e+00
  // CHECK: train.attention {{.*}} mask %[[MASK]] scale 1.000000e+00
  %keep4 = train.reshape %keep : tensor<2x4xi1> -> tensor<2x1x1x4xi1>
  %visible = train.broadcast %keep4 : tensor<2x1x1x4xi1> -> tensor<2x3x4x4xi1>
  %lowest = train.constant dense<0xFF800000> : tensor<2x3x4x4xf32>
  %x3 = train.reshape %x : tensor<2x3x4x8xf32> -> tensor<6x4x8xf32>
  %s = train.matmul %x3, %x3 {transpose_b} : tensor<6x4x8xf32>, tensor<6x4x8xf32> -> tensor<6x4x4xf32>
  %s4 = train.reshape %s : tensor<6x4x4xf32> -> tensor<2x3x4x4xf32>
  %masked = train.select %visible, %s4, %lowest : tensor<2x3x4x4xi1>, tensor<2x3x4x4xf32>
  %p = train.softmax %masked : tensor<2x3x4x4xf32>
  %p3 = train.reshape %p : tensor<2x3x4x4xf32> -> tensor<6x4x4xf32>
  %o = train.matmul %p3, %x3 : tensor<6x4x4xf32>, tensor<6x4x8xf32> -> tensor<6x4x8xf32>
  %s_ = train.matmul %o, %x3 {transpose_b} : tensor<6x4x8xf32>, tensor<6x4x8xf32> -> tensor<6x4x4xf32>
  %s4_ = train.reshape %s_ : tensor<6x4x4xf32> -> tensor<2x3x4x4xf32>
  %masked_ = train.select %visible, %s4_, %lowest : tensor<2x3x4x4xi1>, tensor<2x3x4x4xf32>
  %p_ = train.softmax %masked_ : tensor<2x3x4x4xf32>
  %p3_ = train.reshape %p_ : tensor<2x3x4x4xf32> -> tensor<6x4x4xf32>
  %o_ = train.matmul %p3_, %x3 : tensor<6x4x4xf32>, tensor<6x4x8xf32> -> tensor<6x4x8xf32>
  %r = train.reshape %o_ : tensor<6x4x8xf32> -> tensor<2x3x4x8xf32>
  return %r : tensor<2x3x4x8xf32>
}

// -----

// A causal mask left as comparisons of positions, hiding by a condition that is negated; more keys than queries.
// CHECK: train.decisions = ["lifted 1 causal attention"]
// CHECK-LABEL: func.func @compared
func.func @compared(%q: tensor<2x3x8xf32>, %k: tensor<2x5x8xf32>) -> tensor<2x3x8xf32> {
  // CHECK: train.attention {{.*}} scale 1.000000e+00 {causal}
  %rows = train.constant dense<[[[2], [3], [4]]]> : tensor<1x3x1xi64>
  %columns = train.constant dense<[[[0, 1, 2, 3, 4]]]> : tensor<1x1x5xi64>
  %i = train.broadcast %rows : tensor<1x3x1xi64> -> tensor<2x3x5xi64>
  %j = train.broadcast %columns : tensor<1x1x5xi64> -> tensor<2x3x5xi64>
  %le = train.compare le %j, %i : tensor<2x3x5xi64>
  %hidden = train.not %le : tensor<2x3x5xi1>
  %low = train.constant dense<-1.0e+09> : tensor<2x3x5xf32>
  %s = train.matmul %q, %k {transpose_b} : tensor<2x3x8xf32>, tensor<2x5x8xf32> -> tensor<2x3x5xf32>
  %masked = train.select %hidden, %low, %s : tensor<2x3x5xi1>, tensor<2x3x5xf32>
  %p = train.softmax %masked : tensor<2x3x5xf32>
  %o = train.matmul %p, %k : tensor<2x3x5xf32>, tensor<2x5x8xf32> -> tensor<2x3x8xf32>
  return %o : tensor<2x3x8xf32>
}

// -----

// A window of two keys.
// CHECK: train.decisions = ["lifted 1 causal attention over a window"]
// CHECK-LABEL: func.func @window
func.func @window(%x: tensor<1x3x2x8xf16>) -> tensor<1x3x16xf16> {
  // CHECK-NOT: mask
  // CHECK: train.attention {{.*}} scale 1.000000e+00 {causal, window = 2 : i64}
  %m = train.constant dense<[[[[0.0, 0xFC00, 0xFC00], [0.0, 0.0, 0xFC00], [0xFC00, 0.0, 0.0]]]]> : tensor<1x1x3x3xf16>
  %mask = train.broadcast %m : tensor<1x1x3x3xf16> -> tensor<1x2x3x3xf16>
  %xt = train.transpose %x [0, 2, 1, 3] : tensor<1x3x2x8xf16> -> tensor<1x2x3x8xf16>
  %x3 = train.reshape %xt : tensor<1x2x3x8xf16> -> tensor<2x3x8xf16>
  %s = train.matmul %x3, %x3 {transpose_b} : tensor<2x3x8xf16>, tensor<2x3x8xf16> -> tensor<2x3x3xf16>
  %s4 = train.reshape %s : tensor<2x3x3xf16> -> tensor<1x2x3x3xf16>
  %masked = train.add %s4, %mask : tensor<1x2x3x3xf16>
  %p = train.softmax %masked : tensor<1x2x3x3xf16>
  %p3 = train.reshape %p : tensor<1x2x3x3xf16> -> tensor<2x3x3xf16>
  %o3 = train.matmul %p3, %x3 : tensor<2x3x3xf16>, tensor<2x3x8xf16> -> tensor<2x3x8xf16>
  %o = train.reshape %o3 : tensor<2x3x8xf16> -> tensor<1x2x3x8xf16>
  %ot = train.transpose %o [0, 2, 1, 3] : tensor<1x2x3x8xf16> -> tensor<1x3x2x8xf16>
  %r = train.reshape %ot : tensor<1x3x2x8xf16> -> tensor<1x3x16xf16>
  return %r : tensor<1x3x16xf16>
}

// -----

// Neither causal nor a window, since the last row has a hole: an operand. In f16, and used before its transpose too.
// CHECK: train.decisions = ["lifted 1 attention with a mask"]
// CHECK-LABEL: func.func @hole
func.func @hole(%x: tensor<1x3x2x8xf16>) -> (tensor<1x3x16xf16>, tensor<1x2x3x8xf16>) {
  // CHECK: %[[M:.*]] = train.constant dense<{{.*}}> : tensor<1x1x3x3xf16>
  // CHECK: %[[A:.*]], %{{.*}} = train.attention {{.*}} mask %[[M]] scale
  // CHECK-DAG: %[[R:.*]] = train.reshape %[[A]] : tensor<1x3x2x8xf16> -> tensor<1x3x16xf16>
  // CHECK-DAG: %[[T:.*]] = train.transpose %[[A]] [0, 2, 1, 3]
  // CHECK-DAG: %[[E:.*]] = train.exp
  // CHECK: return %[[R]], %[[E]]
  %m = train.constant dense<[[[[0.0, 0xFC00, 0xFC00], [0.0, 0.0, 0xFC00], [0.0, 0xFC00, 0.0]]]]> : tensor<1x1x3x3xf16>
  %mask = train.broadcast %m : tensor<1x1x3x3xf16> -> tensor<1x2x3x3xf16>
  %xt = train.transpose %x [0, 2, 1, 3] : tensor<1x3x2x8xf16> -> tensor<1x2x3x8xf16>
  %x3 = train.reshape %xt : tensor<1x2x3x8xf16> -> tensor<2x3x8xf16>
  %s = train.matmul %x3, %x3 {transpose_b} : tensor<2x3x8xf16>, tensor<2x3x8xf16> -> tensor<2x3x3xf16>
  %s4 = train.reshape %s : tensor<2x3x3xf16> -> tensor<1x2x3x3xf16>
  %masked = train.add %s4, %mask : tensor<1x2x3x3xf16>
  %p = train.softmax %masked : tensor<1x2x3x3xf16>
  %p3 = train.reshape %p : tensor<1x2x3x3xf16> -> tensor<2x3x3xf16>
  %o3 = train.matmul %p3, %x3 : tensor<2x3x3xf16>, tensor<2x3x8xf16> -> tensor<2x3x8xf16>
  %o = train.reshape %o3 : tensor<2x3x8xf16> -> tensor<1x2x3x8xf16>
  %ot = train.transpose %o [0, 2, 1, 3] : tensor<1x2x3x8xf16> -> tensor<1x3x2x8xf16>
  %r = train.reshape %ot : tensor<1x3x2x8xf16> -> tensor<1x3x16xf16>
  %e = train.exp %o : tensor<1x2x3x8xf16>
  return %r, %e : tensor<1x3x16xf16>, tensor<1x2x3x8xf16>
}

// -----

// A trained bias on the scores needs its gradient; dropped-out weights need their mask: both stay.
// CHECK: train.decisions = ["left 1 attention(s) as written: their weights are dropped out",
// CHECK-SAME: "left 1 attention(s) as written: what is added to their scores is trained"]
// CHECK-NOT: train.attention
train.parameter @bias : tensor<4x4xf32> {trainable = true}
func.func @stays(%x: tensor<2x4x8xf32>) -> (tensor<2x4x8xf32>, tensor<2x4x8xf32>) {
  %s = train.matmul %x, %x {transpose_b} : tensor<2x4x8xf32>, tensor<2x4x8xf32> -> tensor<2x4x4xf32>
  %b = train.read @bias : tensor<4x4xf32>
  %b3 = train.reshape %b : tensor<4x4xf32> -> tensor<1x4x4xf32>
  %b4 = train.broadcast %b3 : tensor<1x4x4xf32> -> tensor<2x4x4xf32>
  %biased = train.add %s, %b4 : tensor<2x4x4xf32>
  %p = train.softmax %biased : tensor<2x4x4xf32>
  %o = train.matmul %p, %x : tensor<2x4x4xf32>, tensor<2x4x8xf32> -> tensor<2x4x8xf32>
  %p2 = train.softmax %s : tensor<2x4x4xf32>
  %d = train.dropout %p2 ratio 0.1 node 0 : tensor<2x4x4xf32>
  %o2 = train.matmul %d, %x : tensor<2x4x4xf32>, tensor<2x4x8xf32> -> tensor<2x4x8xf32>
  return %o, %o2 : tensor<2x4x8xf32>, tensor<2x4x8xf32>
}

// -----

// A frozen bias has no gradient to lose. With fewer keys than queries the first rows see nothing: the mask is kept.
// CHECK: train.decisions = ["lifted 2 attentions with masks"]
// CHECK-LABEL: func.func @masks
train.parameter @bias : tensor<3x2xf32> {trainable = false}
func.func @masks(%q: tensor<2x3x8xf32>, %k: tensor<2x2x8xf32>) -> (tensor<2x3x8xf32>, tensor<2x3x8xf32>) {
  // CHECK: train.attention {{.*}} mask
  // CHECK: train.attention {{.*}} mask
  %s = train.matmul %q, %k {transpose_b} : tensor<2x3x8xf32>, tensor<2x2x8xf32> -> tensor<2x3x2xf32>
  %b = train.read @bias : tensor<3x2xf32>
  %b3 = train.reshape %b : tensor<3x2xf32> -> tensor<1x3x2xf32>
  %b4 = train.broadcast %b3 : tensor<1x3x2xf32> -> tensor<2x3x2xf32>
  %biased = train.add %s, %b4 : tensor<2x3x2xf32>
  %p = train.softmax %biased : tensor<2x3x2xf32>
  %o = train.matmul %p, %k : tensor<2x3x2xf32>, tensor<2x2x8xf32> -> tensor<2x3x8xf32>
  %m = train.constant dense<[[[-1.0e+05, -1.0e+05], [0.0, -1.0e+05], [0.0, 0.0]]]> : tensor<1x3x2xf32>
  %m4 = train.broadcast %m : tensor<1x3x2xf32> -> tensor<2x3x2xf32>
  %masked = train.add %s, %m4 : tensor<2x3x2xf32>
  %p2 = train.softmax %masked : tensor<2x3x2xf32>
  %o2 = train.matmul %p2, %k : tensor<2x3x2xf32>, tensor<2x2x8xf32> -> tensor<2x3x8xf32>
  return %o, %o2 : tensor<2x3x8xf32>, tensor<2x3x8xf32>
}

// -----

// A softmax between two linear layers is not attention.
// CHECK-NOT: train.decisions
// CHECK-LABEL: func.func @linear_layers
// CHECK-NOT: train.attention
func.func @linear_layers(%x: tensor<4x8xf32>, %w: tensor<8x3xf32>, %v: tensor<3x8xf32>) -> tensor<4x8xf32> {
  %s = train.matmul %x, %w : tensor<4x8xf32>, tensor<8x3xf32> -> tensor<4x3xf32>
  %p = train.softmax %s : tensor<4x3xf32>
  %o = train.matmul %p, %v : tensor<4x3xf32>, tensor<3x8xf32> -> tensor<4x8xf32>
  return %o : tensor<4x8xf32>
}

// -----

// The result goes on as [S, B, H*D], as torch.nn.MultiheadAttention has it: another order than the attention's.
// CHECK-LABEL: @sequence_first
// CHECK: %[[A:.*]], %{{.*}} = train.attention
// CHECK: train.transpose %[[A]] [1, 0, 2, 3] : tensor<2x3x4x8xf32> -> tensor<3x2x4x8xf32>
func.func @sequence_first(%q: tensor<2x4x3x8xf32>, %k: tensor<2x4x3x8xf32>, %v: tensor<2x4x3x8xf32>) -> tensor<6x32xf32> {
  %q3 = train.reshape %q : tensor<2x4x3x8xf32> -> tensor<8x3x8xf32>
  %k3 = train.reshape %k : tensor<2x4x3x8xf32> -> tensor<8x3x8xf32>
  %v3 = train.reshape %v : tensor<2x4x3x8xf32> -> tensor<8x3x8xf32>
  %s = train.matmul %q3, %k3 {transpose_b} : tensor<8x3x8xf32>, tensor<8x3x8xf32> -> tensor<8x3x3xf32>
  %s4 = train.reshape %s : tensor<8x3x3xf32> -> tensor<2x4x3x3xf32>
  %p4 = train.softmax %s4 : tensor<2x4x3x3xf32>
  %p = train.reshape %p4 : tensor<2x4x3x3xf32> -> tensor<8x3x3xf32>
  %o = train.matmul %p, %v3 : tensor<8x3x3xf32>, tensor<8x3x8xf32> -> tensor<8x3x8xf32>
  %o4 = train.reshape %o : tensor<8x3x8xf32> -> tensor<2x4x3x8xf32>
  %t = train.transpose %o4 [2, 0, 1, 3] : tensor<2x4x3x8xf32> -> tensor<3x2x4x8xf32>
  %r = train.reshape %t : tensor<3x2x4x8xf32> -> tensor<6x32xf32>
  return %r : tensor<6x32xf32>
}

// -----

// Scores are replaced by a finite number where a data input says padding. If that hides all keys of a query, its weights
// are uniform and it gives no gradient to query and key: its query becomes 0.
// CHECK: train.decisions = ["lifted 1 attention with a mask"]
// CHECK-LABEL: func.func @filled
func.func @filled(%x: tensor<2x3x4x8xf32>, %keep: tensor<2x4xi1>) -> tensor<2x3x4x8xf32> {
  // CHECK: train.reduce max %{{.*}} [3] : tensor<2x1x1x4xf32> -> tensor<2x1x1x1xf32>
  // CHECK: %[[Q:.*]] = train.select {{.*}} : tensor<2x4x3x8xi1>, tensor<2x4x3x8xf32>
  // CHECK: %[[M:.*]] = train.select {{.*}} : tensor<2x1x4x4xi1>, tensor<2x1x4x4xf32>
  // CHECK: train.attention %[[Q]], {{.*}} mask %[[M]] scale 1.000000e+00
  %keep4 = train.reshape %keep : tensor<2x4xi1> -> tensor<2x1x1x4xi1>
  %visible = train.broadcast %keep4 : tensor<2x1x1x4xi1> -> tensor<2x3x4x4xi1>
  %low = train.constant dense<-1.0e+04> : tensor<2x3x4x4xf32>
  %x3 = train.reshape %x : tensor<2x3x4x8xf32> -> tensor<6x4x8xf32>
  %s = train.matmul %x3, %x3 {transpose_b} : tensor<6x4x8xf32>, tensor<6x4x8xf32> -> tensor<6x4x4xf32>
  %s4 = train.reshape %s : tensor<6x4x4xf32> -> tensor<2x3x4x4xf32>
  %masked = train.select %visible, %s4, %low : tensor<2x3x4x4xi1>, tensor<2x3x4x4xf32>
  %p = train.softmax %masked : tensor<2x3x4x4xf32>
  %p3 = train.reshape %p : tensor<2x3x4x4xf32> -> tensor<6x4x4xf32>
  %o = train.matmul %p3, %x3 : tensor<6x4x4xf32>, tensor<6x4x8xf32> -> tensor<6x4x8xf32>
  %r = train.reshape %o : tensor<6x4x8xf32> -> tensor<2x3x4x8xf32>
  return %r : tensor<2x3x4x8xf32>
}

// -----

// A causal mask and padding, both replacing, and below a bound: together they may hide all keys. The flag would leave
// out later keys, of which such a query has the mean, too.
// CHECK: train.decisions = ["lifted 1 attention with a mask"]
// CHECK-LABEL: func.func @causal_and_filled
func.func @causal_and_filled(%x: tensor<2x3x4x8xf32>, %keep: tensor<2x4xi1>) -> tensor<2x3x4x8xf32> {
  // CHECK: train.reduce max %{{.*}} [3] : tensor<2x1x4x4xf32> -> tensor<2x1x4x1xf32>
  // CHECK: train.attention {{.*}} mask %{{[^ ]+}} scale 1.000000e+00 :
  %c = train.constant dense<[[[[true, false, false, false], [true, true, false, false],
                               [true, true, true, false], [true, true, true, true]]]]> : tensor<1x1x4x4xi1>
  %causal = train.broadcast %c : tensor<1x1x4x4xi1> -> tensor<2x3x4x4xi1>
  %keep4 = train.reshape %keep : tensor<2x4xi1> -> tensor<2x1x1x4xi1>
  %visible = train.broadcast %keep4 : tensor<2x1x1x4xi1> -> tensor<2x3x4x4xi1>
  %low = train.constant dense<-1.0e+04> : tensor<2x3x4x4xf32>
  %bound = train.constant dense<-1.0e+09> : tensor<2x3x4x4xf32>
  %x3 = train.reshape %x : tensor<2x3x4x8xf32> -> tensor<6x4x8xf32>
  %s = train.matmul %x3, %x3 {transpose_b} : tensor<6x4x8xf32>, tensor<6x4x8xf32> -> tensor<6x4x4xf32>
  %s4 = train.reshape %s : tensor<6x4x4xf32> -> tensor<2x3x4x4xf32>
  %bounded = train.max %s4, %bound : tensor<2x3x4x4xf32>
  %first = train.select %causal, %bounded, %low : tensor<2x3x4x4xi1>, tensor<2x3x4x4xf32>
  %masked = train.select %visible, %first, %low : tensor<2x3x4x4xi1>, tensor<2x3x4x4xf32>
  %p = train.softmax %masked : tensor<2x3x4x4xf32>
  %p3 = train.reshape %p : tensor<2x3x4x4xf32> -> tensor<6x4x4xf32>
  %o = train.matmul %p3, %x3 : tensor<6x4x4xf32>, tensor<6x4x8xf32> -> tensor<6x4x8xf32>
  %r = train.reshape %o : tensor<6x4x8xf32> -> tensor<2x3x4x8xf32>
  return %r : tensor<2x3x4x8xf32>
}

// -----

// A mask for each query: every second one sees no key. A constant with a hole hides no whole row and needs no zeros.
// CHECK: train.decisions = ["lifted 2 attentions with masks"]
// CHECK-LABEL: func.func @filled_rows
func.func @filled_rows(%x: tensor<2x4x8xf32>, %keep: tensor<2x4x4xi1>) -> (tensor<2x4x8xf32>, tensor<2x4x8xf32>) {
  // CHECK: train.reduce max
  // CHECK-NOT: train.reduce
  // CHECK: return
  %hidden = train.not %keep : tensor<2x4x4xi1>
  %low = train.constant dense<-1.0e+04> : tensor<2x4x4xf32>
  %s = train.matmul %x, %x {transpose_b} : tensor<2x4x8xf32>, tensor<2x4x8xf32> -> tensor<2x4x4xf32>
  %masked = train.select %hidden, %low, %s : tensor<2x4x4xi1>, tensor<2x4x4xf32>
  %p = train.softmax %masked : tensor<2x4x4xf32>
  %o = train.matmul %p, %x : tensor<2x4x4xf32>, tensor<2x4x8xf32> -> tensor<2x4x8xf32>
  %h = train.constant dense<[[[true, false, false, false], [true, true, false, true],
                              [true, true, true, false], [true, false, true, true]]]> : tensor<1x4x4xi1>
  %hole = train.broadcast %h : tensor<1x4x4xi1> -> tensor<2x4x4xi1>
  %masked2 = train.select %hole, %s, %low : tensor<2x4x4xi1>, tensor<2x4x4xf32>
  %p2 = train.softmax %masked2 : tensor<2x4x4xf32>
  %o2 = train.matmul %p2, %x : tensor<2x4x4xf32>, tensor<2x4x8xf32> -> tensor<2x4x8xf32>
  return %o, %o2 : tensor<2x4x8xf32>, tensor<2x4x8xf32>
}

// -----

// A mask that replaces and one that is added may hide all keys of a query in two ways: no operand tells them apart.
// Neither does one tell two numbers apart.
// CHECK: train.decisions = ["left 2 attention(s) as written: its masks may hide all keys of a query in a way that one mask operand cannot express"]
// CHECK-LABEL: func.func @mixed
// CHECK-NOT: train.attention
func.func @mixed(%x: tensor<2x4x8xf32>, %padding: tensor<2x1x4xf32>, %keep: tensor<2x4x4xi1>) -> (tensor<2x4x8xf32>, tensor<2x4x8xf32>) {
  %c = train.constant dense<[[[true, false, false, false], [true, true, false, false],
                              [true, true, true, false], [true, true, true, true]]]> : tensor<1x4x4xi1>
  %causal = train.broadcast %c : tensor<1x4x4xi1> -> tensor<2x4x4xi1>
  %low = train.constant dense<-1.0e+04> : tensor<2x4x4xf32>
  %lower = train.constant dense<-1.0e+09> : tensor<2x4x4xf32>
  %s = train.matmul %x, %x {transpose_b} : tensor<2x4x8xf32>, tensor<2x4x8xf32> -> tensor<2x4x4xf32>
  %replaced = train.select %causal, %s, %low : tensor<2x4x4xi1>, tensor<2x4x4xf32>
  %added = train.broadcast %padding : tensor<2x1x4xf32> -> tensor<2x4x4xf32>
  %masked = train.add %replaced, %added : tensor<2x4x4xf32>
  %p = train.softmax %masked : tensor<2x4x4xf32>
  %o = train.matmul %p, %x : tensor<2x4x4xf32>, tensor<2x4x8xf32> -> tensor<2x4x8xf32>
  %masked2 = train.select %keep, %replaced, %lower : tensor<2x4x4xi1>, tensor<2x4x4xf32>
  %p2 = train.softmax %masked2 : tensor<2x4x4xf32>
  %o2 = train.matmul %p2, %x : tensor<2x4x4xf32>, tensor<2x4x8xf32> -> tensor<2x4x8xf32>
  return %o, %o2 : tensor<2x4x8xf32>, tensor<2x4x8xf32>
}

// -----

// A finite causal mask and one of data, both added: later keys count in queries that see no other, so no flag. An
// infinite condition stays a flag.
// CHECK: train.decisions = ["lifted 1 causal attention", "lifted 2 attentions with masks"]
// CHECK-LABEL: func.func @added
func.func @added(%x: tensor<2x4x8xf32>, %padding: tensor<2x1x4xf32>) -> (tensor<2x4x8xf32>, tensor<2x4x8xf32>, tensor<2x4x8xf32>) {
  // CHECK: train.attention {{.*}} mask %{{[^ ]+}} scale 1.000000e+00 :
  // CHECK: train.attention {{.*}} mask %{{[^ ]+}} scale 1.000000e+00 {causal} :
  // CHECK: train.attention {{.*}} scale 1.000000e+00 {causal} :
  %c = train.constant dense<[[[true, false, false, false], [true, true, false, false],
                              [true, true, true, false], [true, true, true, true]]]> : tensor<1x4x4xi1>
  %causal = train.broadcast %c : tensor<1x4x4xi1> -> tensor<2x4x4xi1>
  %zero = train.constant dense<0.0> : tensor<2x4x4xf32>
  %low = train.constant dense<-1.0e+09> : tensor<2x4x4xf32>
  %infinite = train.constant dense<0xFF800000> : tensor<2x4x4xf32>
  %s = train.matmul %x, %x {transpose_b} : tensor<2x4x8xf32>, tensor<2x4x8xf32> -> tensor<2x4x4xf32>
  %causals = train.select %causal, %zero, %low : tensor<2x4x4xi1>, tensor<2x4x4xf32>
  %once = train.add %s, %causals : tensor<2x4x4xf32>
  %added = train.broadcast %padding : tensor<2x1x4xf32> -> tensor<2x4x4xf32>
  %masked = train.add %once, %added : tensor<2x4x4xf32>
  %p = train.softmax %masked : tensor<2x4x4xf32>
  %o = train.matmul %p, %x : tensor<2x4x4xf32>, tensor<2x4x8xf32> -> tensor<2x4x8xf32>
  %replaced = train.select %causal, %s, %infinite : tensor<2x4x4xi1>, tensor<2x4x4xf32>
  %masked2 = train.add %replaced, %added : tensor<2x4x4xf32>
  %p2 = train.softmax %masked2 : tensor<2x4x4xf32>
  %o2 = train.matmul %p2, %x : tensor<2x4x4xf32>, tensor<2x4x8xf32> -> tensor<2x4x8xf32>
  %filled = train.select %causal, %s, %low : tensor<2x4x4xi1>, tensor<2x4x4xf32>
  %p3 = train.softmax %filled : tensor<2x4x4xf32>
  %o3 = train.matmul %p3, %x : tensor<2x4x4xf32>, tensor<2x4x8xf32> -> tensor<2x4x8xf32>
  return %o, %o2, %o3 : tensor<2x4x8xf32>, tensor<2x4x8xf32>, tensor<2x4x8xf32>
}

// -----

// A bias that is not negative, within a causal mask that replaces: every query sees its own key.
// CHECK: train.decisions = ["lifted 1 attention with a mask"]
// CHECK-LABEL: func.func @biased
func.func @biased(%x: tensor<2x4x8xf32>, %bias: tensor<2x4x4xf32>) -> tensor<2x4x8xf32> {
  // CHECK: train.attention {{.*}} mask %{{[^ ]+}} scale 1.000000e+00 {causal} :
  %c = train.constant dense<[[[true, false, false, false], [true, true, false, false],
                              [true, true, true, false], [true, true, true, true]]]> : tensor<1x4x4xi1>
  %causal = train.broadcast %c : tensor<1x4x4xi1> -> tensor<2x4x4xi1>
  %low = train.constant dense<-1.0e+09> : tensor<2x4x4xf32>
  %s = train.matmul %x, %x {transpose_b} : tensor<2x4x8xf32>, tensor<2x4x8xf32> -> tensor<2x4x4xf32>
  %positive = train.exp %bias : tensor<2x4x4xf32>
  %biased = train.add %s, %positive : tensor<2x4x4xf32>
  %masked = train.select %causal, %biased, %low : tensor<2x4x4xi1>, tensor<2x4x4xf32>
  %p = train.softmax %masked : tensor<2x4x4xf32>
  %o = train.matmul %p, %x : tensor<2x4x4xf32>, tensor<2x4x8xf32> -> tensor<2x4x8xf32>
  return %o : tensor<2x4x8xf32>
}
