// The row programs that training steps are made of, as functions in the `train` dialect before decomposition. @R and
// @C stand for rows and columns; `withShape` fills them in.
#pragma once

#include <cstdint>
#include <string>

namespace sheaf::test {

inline constexpr const char* kPipeline = "train-decompose,train-assign-fusions,train-fuse";

// Rows of a length that is not a multiple of a vector's may then be padded.
inline const std::string kPitchPipeline = std::string(kPipeline) + ",train-pitch-rows";

inline std::string withShape(std::string text, int64_t rows, int64_t columns) {
  for (auto [mark, value] : {std::pair<const char*, int64_t>{"@R", rows}, {"@C", columns}})
    for (size_t at; (at = text.find(mark)) != std::string::npos;) text.replace(at, 2, std::to_string(value));
  return text;
}

// The sum of a residual and a branch, and its layer norm.
inline constexpr const char* kLayerNormForward = R"(
func.func @f(%x: tensor<@Rx@Cxf32>, %a: tensor<@Rx@Cxf32>, %g: tensor<@Cxf32>, %b: tensor<@Cxf32>)
    -> (tensor<@Rx@Cxf32>, tensor<@Rx@Cxf32>) {
  %s = train.add %x, %a : tensor<@Rx@Cxf32>
  %y = train.layer_norm %s, %g, %b epsilon 1.0e-5
      : (tensor<@Rx@Cxf32>, tensor<@Cxf32>, tensor<@Cxf32>) -> tensor<@Rx@Cxf32>
  return %s, %y : tensor<@Rx@Cxf32>, tensor<@Rx@Cxf32>
})";

// The gradient of a layer norm added to the residual's, and the gradients of scale and bias.
inline constexpr const char* kLayerNormBackward = R"(
func.func @f(%x: tensor<@Rx@Cxf32>, %dy: tensor<@Rx@Cxf32>, %residual: tensor<@Rx@Cxf32>, %g: tensor<@Cxf32>)
    -> (tensor<@Rx@Cxf32>, tensor<@Cxf32>, tensor<@Cxf32>) {
  %mean = train.reduce mean %x [1] : tensor<@Rx@Cxf32> -> tensor<@Rx1xf32>
  %means = train.broadcast %mean : tensor<@Rx1xf32> -> tensor<@Rx@Cxf32>
  %d = train.sub %x, %means : tensor<@Rx@Cxf32>
  %dd = train.mul %d, %d : tensor<@Rx@Cxf32>
  %variance = train.reduce mean %dd [1] : tensor<@Rx@Cxf32> -> tensor<@Rx1xf32>
  %epsilon = train.constant dense<1.0e-5> : tensor<@Rx1xf32>
  %shifted = train.add %variance, %epsilon : tensor<@Rx1xf32>
  %r = train.rsqrt %shifted : tensor<@Rx1xf32>
  %rs = train.broadcast %r : tensor<@Rx1xf32> -> tensor<@Rx@Cxf32>
  %hat = train.mul %d, %rs : tensor<@Rx@Cxf32>
  %g1 = train.reshape %g : tensor<@Cxf32> -> tensor<1x@Cxf32>
  %gs = train.broadcast %g1 : tensor<1x@Cxf32> -> tensor<@Rx@Cxf32>
  %dh = train.mul %dy, %gs : tensor<@Rx@Cxf32>
  %m1 = train.reduce mean %dh [1] : tensor<@Rx@Cxf32> -> tensor<@Rx1xf32>
  %dhh = train.mul %dh, %hat : tensor<@Rx@Cxf32>
  %m2 = train.reduce mean %dhh [1] : tensor<@Rx@Cxf32> -> tensor<@Rx1xf32>
  %m1s = train.broadcast %m1 : tensor<@Rx1xf32> -> tensor<@Rx@Cxf32>
  %m2s = train.broadcast %m2 : tensor<@Rx1xf32> -> tensor<@Rx@Cxf32>
  %t = train.mul %hat, %m2s : tensor<@Rx@Cxf32>
  %u = train.sub %dh, %m1s : tensor<@Rx@Cxf32>
  %v = train.sub %u, %t : tensor<@Rx@Cxf32>
  %w = train.mul %v, %rs : tensor<@Rx@Cxf32>
  %dx = train.add %w, %residual : tensor<@Rx@Cxf32>
  %p = train.mul %dy, %hat : tensor<@Rx@Cxf32>
  %dg = train.reduce sum %p [0] : tensor<@Rx@Cxf32> -> tensor<1x@Cxf32>
  %db = train.reduce sum %dy [0] : tensor<@Rx@Cxf32> -> tensor<1x@Cxf32>
  %dg1 = train.reshape %dg : tensor<1x@Cxf32> -> tensor<@Cxf32>
  %db1 = train.reshape %db : tensor<1x@Cxf32> -> tensor<@Cxf32>
  return %dx, %dg1, %db1 : tensor<@Rx@Cxf32>, tensor<@Cxf32>, tensor<@Cxf32>
})";

inline constexpr const char* kBiasGelu = R"(
func.func @f(%x: tensor<@Rx@Cxf32>, %b: tensor<@Cxf32>) -> tensor<@Rx@Cxf32> {
  %b1 = train.reshape %b : tensor<@Cxf32> -> tensor<1x@Cxf32>
  %bs = train.broadcast %b1 : tensor<1x@Cxf32> -> tensor<@Rx@Cxf32>
  %u = train.add %x, %bs : tensor<@Rx@Cxf32>
  %y = train.gelu %u {approximate} : tensor<@Rx@Cxf32>
  return %y : tensor<@Rx@Cxf32>
})";

inline constexpr const char* kBiasGeluErf = R"(
func.func @f(%x: tensor<@Rx@Cxf32>, %b: tensor<@Cxf32>) -> tensor<@Rx@Cxf32> {
  %b1 = train.reshape %b : tensor<@Cxf32> -> tensor<1x@Cxf32>
  %bs = train.broadcast %b1 : tensor<1x@Cxf32> -> tensor<@Rx@Cxf32>
  %u = train.add %x, %bs : tensor<@Rx@Cxf32>
  %y = train.gelu %u : tensor<@Rx@Cxf32>
  return %y : tensor<@Rx@Cxf32>
})";

// The gradient through x sigmoid(2u(x)), and that of the bias before it.
inline constexpr const char* kGeluBackward = R"(
func.func @f(%x: tensor<@Rx@Cxf32>, %dy: tensor<@Rx@Cxf32>) -> (tensor<@Rx@Cxf32>, tensor<@Cxf32>) {
  %k = train.constant dense<0.044715> : tensor<@Rx@Cxf32>
  %k3 = train.constant dense<0.134145> : tensor<@Rx@Cxf32>
  %one = train.constant dense<1.0> : tensor<@Rx@Cxf32>
  %two = train.constant dense<1.5957691> : tensor<@Rx@Cxf32>
  %xx = train.mul %x, %x : tensor<@Rx@Cxf32>
  %kxx = train.mul %xx, %k : tensor<@Rx@Cxf32>
  %h = train.add %kxx, %one : tensor<@Rx@Cxf32>
  %hx = train.mul %h, %x : tensor<@Rx@Cxf32>
  %u = train.mul %hx, %two : tensor<@Rx@Cxf32>
  %s = train.sigmoid %u : tensor<@Rx@Cxf32>
  %k3xx = train.mul %xx, %k3 : tensor<@Rx@Cxf32>
  %h3 = train.add %k3xx, %one : tensor<@Rx@Cxf32>
  %du = train.mul %h3, %two : tensor<@Rx@Cxf32>
  %n = train.sub %one, %s : tensor<@Rx@Cxf32>
  %ns = train.mul %n, %s : tensor<@Rx@Cxf32>
  %nsx = train.mul %ns, %x : tensor<@Rx@Cxf32>
  %e = train.mul %nsx, %du : tensor<@Rx@Cxf32>
  %f = train.add %s, %e : tensor<@Rx@Cxf32>
  %dx = train.mul %f, %dy : tensor<@Rx@Cxf32>
  %db = train.reduce sum %dx [0] : tensor<@Rx@Cxf32> -> tensor<1x@Cxf32>
  %db1 = train.reshape %db : tensor<1x@Cxf32> -> tensor<@Cxf32>
  return %dx, %db1 : tensor<@Rx@Cxf32>, tensor<@Cxf32>
})";

inline constexpr const char* kCrossEntropyForward = R"(
func.func @f(%x: tensor<@Rx@Cxf32>, %l: tensor<@Rx1xi64>) -> (tensor<1x1xf32>, tensor<@Rx1xf32>) {
  %loss, %lse = train.cross_entropy %x, %l {ignore_index = 0 : i64}
      : (tensor<@Rx@Cxf32>, tensor<@Rx1xi64>) -> (tensor<@Rx1xf32>, tensor<@Rx1xf32>)
  %sum = train.reduce sum %loss [0, 1] : tensor<@Rx1xf32> -> tensor<1x1xf32>
  return %sum, %lse : tensor<1x1xf32>, tensor<@Rx1xf32>
})";

inline constexpr const char* kCrossEntropyBackward = R"(
func.func @f(%x: tensor<@Rx@Cxf32>, %l: tensor<@Rx1xi64>, %lse: tensor<@Rx1xf32>, %g: tensor<@Rx1xf32>)
    -> tensor<@Rx@Cxf32> {
  %b = train.broadcast %lse : tensor<@Rx1xf32> -> tensor<@Rx@Cxf32>
  %d = train.sub %x, %b : tensor<@Rx@Cxf32>
  %p = train.exp %d : tensor<@Rx@Cxf32>
  %i = train.iota 1 : tensor<@Rx@Cxi64>
  %ls = train.broadcast %l : tensor<@Rx1xi64> -> tensor<@Rx@Cxi64>
  %hit = train.compare eq %i, %ls : tensor<@Rx@Cxi64>
  %h = train.cast %hit : tensor<@Rx@Cxi1> -> tensor<@Rx@Cxf32>
  %r = train.sub %p, %h : tensor<@Rx@Cxf32>
  %gs = train.broadcast %g : tensor<@Rx1xf32> -> tensor<@Rx@Cxf32>
  %dx = train.mul %r, %gs : tensor<@Rx@Cxf32>
  return %dx : tensor<@Rx@Cxf32>
})";

// Decoupled weight decay on a flat shard of @R x @C elements, with scalars that change from step to step.
inline constexpr const char* kAdamW = R"(
func.func @f(%p: tensor<@Rx@Cxf32>, %g: tensor<@Rx@Cxf32>, %m: tensor<@Rx@Cxf32>, %v: tensor<@Rx@Cxf32>,
             %decay: tensor<1x1xf32>, %lr: tensor<1x1xf32>, %root: tensor<1x1xf32>)
    -> (tensor<@Rx@Cxf32>, tensor<@Rx@Cxf32>, tensor<@Rx@Cxf32>) {
  %b1 = train.constant dense<0.9> : tensor<@Rx@Cxf32>
  %c1 = train.constant dense<0.1> : tensor<@Rx@Cxf32>
  %b2 = train.constant dense<0.999> : tensor<@Rx@Cxf32>
  %c2 = train.constant dense<0.001> : tensor<@Rx@Cxf32>
  %epsilon = train.constant dense<1.0e-8> : tensor<@Rx@Cxf32>
  %decays = train.broadcast %decay : tensor<1x1xf32> -> tensor<@Rx@Cxf32>
  %lrs = train.broadcast %lr : tensor<1x1xf32> -> tensor<@Rx@Cxf32>
  %roots = train.broadcast %root : tensor<1x1xf32> -> tensor<@Rx@Cxf32>
  %p0 = train.mul %p, %decays : tensor<@Rx@Cxf32>
  %cg = train.mul %g, %c1 : tensor<@Rx@Cxf32>
  %m1 = train.fma %m, %b1, %cg : tensor<@Rx@Cxf32>
  %gg = train.mul %g, %g : tensor<@Rx@Cxf32>
  %cgg = train.mul %gg, %c2 : tensor<@Rx@Cxf32>
  %v1 = train.fma %v, %b2, %cgg : tensor<@Rx@Cxf32>
  %s = train.sqrt %v1 : tensor<@Rx@Cxf32>
  %sr = train.div %s, %roots : tensor<@Rx@Cxf32>
  %q = train.add %sr, %epsilon : tensor<@Rx@Cxf32>
  %ml = train.mul %m1, %lrs : tensor<@Rx@Cxf32>
  %step = train.div %ml, %q : tensor<@Rx@Cxf32>
  %p1 = train.sub %p0, %step : tensor<@Rx@Cxf32>
  return %p1, %m1, %v1 : tensor<@Rx@Cxf32>, tensor<@Rx@Cxf32>, tensor<@Rx@Cxf32>
})";

inline constexpr const char* kSwiglu = R"(
func.func @f(%gate: tensor<@Rx@Cxf32>, %up: tensor<@Rx@Cxf32>) -> tensor<@Rx@Cxf32> {
  %s = train.sigmoid %gate : tensor<@Rx@Cxf32>
  %silu = train.mul %gate, %s : tensor<@Rx@Cxf32>
  %y = train.mul %silu, %up : tensor<@Rx@Cxf32>
  return %y : tensor<@Rx@Cxf32>
})";

inline constexpr const char* kSoftmax = R"(
func.func @f(%x: tensor<@Rx@Cxf32>) -> tensor<@Rx@Cxf32> {
  %y = train.softmax %x : tensor<@Rx@Cxf32>
  return %y : tensor<@Rx@Cxf32>
})";

// Kernels between matrix products, so that their rows may be padded: of the gradient of a softmax's cross entropy, of
// an activation without row reductions, and of a layer norm, whose scale and bias are dense, with its column sums.
inline constexpr const char* kLossBetweenProducts = R"(
func.func @f(%a: tensor<@Rx3xf32>, %b: tensor<3x@Cxf32>, %l: tensor<@Rx1xi64>) -> (tensor<@Rx3xf32>, tensor<3x@Cxf32>) {
  %x = train.matmul %a, %b : tensor<@Rx3xf32>, tensor<3x@Cxf32> -> tensor<@Rx@Cxf32>
  %p = train.softmax %x : tensor<@Rx@Cxf32>
  %i = train.iota 1 : tensor<@Rx@Cxi64>
  %ls = train.broadcast %l : tensor<@Rx1xi64> -> tensor<@Rx@Cxi64>
  %hit = train.compare eq %i, %ls : tensor<@Rx@Cxi64>
  %h = train.cast %hit : tensor<@Rx@Cxi1> -> tensor<@Rx@Cxf32>
  %g = train.sub %p, %h : tensor<@Rx@Cxf32>
  %da = train.matmul %g, %b {transpose_b} : tensor<@Rx@Cxf32>, tensor<3x@Cxf32> -> tensor<@Rx3xf32>
  %db = train.matmul %a, %g {transpose_a} : tensor<@Rx3xf32>, tensor<@Rx@Cxf32> -> tensor<3x@Cxf32>
  return %da, %db : tensor<@Rx3xf32>, tensor<3x@Cxf32>
})";

inline constexpr const char* kActivationBetweenProducts = R"(
func.func @f(%a: tensor<@Rx3xf32>, %b: tensor<3x@Cxf32>, %c: tensor<3x@Cxf32>) -> tensor<@Rx3xf32> {
  %gate = train.matmul %a, %b : tensor<@Rx3xf32>, tensor<3x@Cxf32> -> tensor<@Rx@Cxf32>
  %up = train.matmul %a, %c : tensor<@Rx3xf32>, tensor<3x@Cxf32> -> tensor<@Rx@Cxf32>
  %s = train.sigmoid %gate : tensor<@Rx@Cxf32>
  %silu = train.mul %gate, %s : tensor<@Rx@Cxf32>
  %y = train.mul %silu, %up : tensor<@Rx@Cxf32>
  %r = train.matmul %y, %b {transpose_b} : tensor<@Rx@Cxf32>, tensor<3x@Cxf32> -> tensor<@Rx3xf32>
  return %r : tensor<@Rx3xf32>
})";

inline constexpr const char* kNormBetweenProducts = R"(
func.func @f(%a: tensor<@Rx3xf32>, %b: tensor<3x@Cxf32>, %g: tensor<@Cxf32>, %bias: tensor<@Cxf32>)
    -> (tensor<@Rx3xf32>, tensor<@Cxf32>) {
  %x = train.matmul %a, %b : tensor<@Rx3xf32>, tensor<3x@Cxf32> -> tensor<@Rx@Cxf32>
  %y = train.layer_norm %x, %g, %bias epsilon 1.0e-5
      : (tensor<@Rx@Cxf32>, tensor<@Cxf32>, tensor<@Cxf32>) -> tensor<@Rx@Cxf32>
  %s = train.reduce sum %y [0] : tensor<@Rx@Cxf32> -> tensor<1x@Cxf32>
  %s1 = train.reshape %s : tensor<1x@Cxf32> -> tensor<@Cxf32>
  %r = train.matmul %y, %b {transpose_b} : tensor<@Rx@Cxf32>, tensor<3x@Cxf32> -> tensor<@Rx3xf32>
  return %r, %s1 : tensor<@Rx3xf32>, tensor<@Cxf32>
})";

}  // namespace sheaf::test
