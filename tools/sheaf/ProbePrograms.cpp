#include "tools/sheaf/ProbePrograms.h"

#include <cstdint>
#include <utility>

namespace sheaf::tool {
namespace {

// $S stands for the shape, $R and $C for its rows and columns, $T for the type in which values are stored; all is
// computed in f32.

// A residual and the layer norm of the sum.
const char* const kNorm =
    R"(func.func @f(%x: tensor<$Sx$T>, %a: tensor<$Sx$T>, %g: tensor<$Cx$T>, %b: tensor<$Cx$T>) -> (tensor<$Sx$T>, tensor<$Sx$T>) {
  %xf = train.cast %x : tensor<$Sx$T> -> tensor<$Sxf32>
  %af = train.cast %a : tensor<$Sx$T> -> tensor<$Sxf32>
  %gf = train.cast %g : tensor<$Cx$T> -> tensor<$Cxf32>
  %bf = train.cast %b : tensor<$Cx$T> -> tensor<$Cxf32>
  %s = train.add %xf, %af : tensor<$Sxf32>
  %y = train.layer_norm %s, %gf, %bf epsilon 1.0e-5 : (tensor<$Sxf32>, tensor<$Cxf32>, tensor<$Cxf32>) -> tensor<$Sxf32>
  %st = train.cast %s : tensor<$Sxf32> -> tensor<$Sx$T>
  %yt = train.cast %y : tensor<$Sxf32> -> tensor<$Sx$T>
  return %st, %yt : tensor<$Sx$T>, tensor<$Sx$T>
})";

const char* const kSum = R"(func.func @f(%x: tensor<$Sx$T>, %y: tensor<$Sx$T>) -> tensor<$Sx$T> {
  %s = train.add %x, %y : tensor<$Sx$T>
  return %s : tensor<$Sx$T>
})";

const char* const kGelu = R"(func.func @f(%x: tensor<$Sx$T>) -> tensor<$Sx$T> {
  %xf = train.cast %x : tensor<$Sx$T> -> tensor<$Sxf32>
  %y = train.gelu %xf {approximate} : tensor<$Sxf32>
  %yt = train.cast %y : tensor<$Sxf32> -> tensor<$Sx$T>
  return %yt : tensor<$Sx$T>
})";

const char* const kGatedUnit = R"(func.func @f(%gate: tensor<$Sx$T>, %up: tensor<$Sx$T>) -> tensor<$Sx$T> {
  %gf = train.cast %gate : tensor<$Sx$T> -> tensor<$Sxf32>
  %uf = train.cast %up : tensor<$Sx$T> -> tensor<$Sxf32>
  %s = train.sigmoid %gf : tensor<$Sxf32>
  %silu = train.mul %gf, %s : tensor<$Sxf32>
  %y = train.mul %silu, %uf : tensor<$Sxf32>
  %yt = train.cast %y : tensor<$Sxf32> -> tensor<$Sx$T>
  return %yt : tensor<$Sx$T>
})";

// An optimizer's update, in place; its gradient is of the type.
const char* const kUpdate =
    R"(func.func @f(%p: tensor<$Sxf32>, %m: tensor<$Sxf32>, %v: tensor<$Sxf32>, %gt: tensor<$Sx$T>) -> (tensor<$Sxf32>, tensor<$Sxf32>, tensor<$Sxf32>) {
  %g = train.cast %gt : tensor<$Sx$T> -> tensor<$Sxf32>
  %b1 = train.constant dense<0.9> : tensor<$Sxf32>
  %c1 = train.constant dense<0.1> : tensor<$Sxf32>
  %epsilon = train.constant dense<1.0e-8> : tensor<$Sxf32>
  %cg = train.mul %g, %c1 : tensor<$Sxf32>
  %m1 = train.fma %m, %b1, %cg : tensor<$Sxf32>
  %gg = train.mul %g, %cg : tensor<$Sxf32>
  %v1 = train.fma %v, %b1, %gg : tensor<$Sxf32>
  %s = train.sqrt %v1 : tensor<$Sxf32>
  %q = train.add %s, %epsilon : tensor<$Sxf32>
  %step = train.div %m1, %q : tensor<$Sxf32>
  %p1 = train.sub %p, %step : tensor<$Sxf32>
  return %p1, %m1, %v1 : tensor<$Sxf32>, tensor<$Sxf32>, tensor<$Sxf32>
})";

// The gradient of a sigmoid unit's input, and of the bias before it: sums of columns.
const char* const kUnitGradient =
    R"(func.func @f(%x: tensor<$Sx$T>, %y: tensor<$Sx$T>) -> (tensor<$Sx$T>, tensor<1x$Cxf32>) {
  %xf = train.cast %x : tensor<$Sx$T> -> tensor<$Sxf32>
  %yf = train.cast %y : tensor<$Sx$T> -> tensor<$Sxf32>
  %one = train.constant dense<1.0> : tensor<$Sxf32>
  %s = train.sigmoid %xf : tensor<$Sxf32>
  %r = train.sub %one, %s : tensor<$Sxf32>
  %xr = train.mul %xf, %r : tensor<$Sxf32>
  %d = train.add %one, %xr : tensor<$Sxf32>
  %sd = train.mul %s, %d : tensor<$Sxf32>
  %g = train.mul %yf, %sd : tensor<$Sxf32>
  %b = train.reduce sum %g [0] : tensor<$Sxf32> -> tensor<1x$Cxf32>
  %gt = train.cast %g : tensor<$Sxf32> -> tensor<$Sx$T>
  return %gt, %b : tensor<$Sx$T>, tensor<1x$Cxf32>
})";

// The gradients of a layer norm: of its input, with the residual's, and of its scale and bias.
const char* const kNormGradient =
    R"(func.func @f(%g: tensor<1x$Cx$T>, %y: tensor<$Sx$T>, %n: tensor<$Sx$T>, %a: tensor<$Sx$T>, %r: tensor<$Rx1xf32>) -> (tensor<$Sx$T>, tensor<1x$Cxf32>, tensor<1x$Cxf32>) {
  %gf = train.cast %g : tensor<1x$Cx$T> -> tensor<1x$Cxf32>
  %yf = train.cast %y : tensor<$Sx$T> -> tensor<$Sxf32>
  %nf = train.cast %n : tensor<$Sx$T> -> tensor<$Sxf32>
  %af = train.cast %a : tensor<$Sx$T> -> tensor<$Sxf32>
  %count = train.constant dense<$C.0> : tensor<$Rx1xf32>
  %gb = train.broadcast %gf : tensor<1x$Cxf32> -> tensor<$Sxf32>
  %d = train.mul %yf, %gb : tensor<$Sxf32>
  %s1 = train.reduce sum %d [1] : tensor<$Sxf32> -> tensor<$Rx1xf32>
  %m1 = train.div %s1, %count : tensor<$Rx1xf32>
  %dn = train.mul %d, %nf : tensor<$Sxf32>
  %s2 = train.reduce sum %dn [1] : tensor<$Sxf32> -> tensor<$Rx1xf32>
  %m2 = train.div %s2, %count : tensor<$Rx1xf32>
  %m1b = train.broadcast %m1 : tensor<$Rx1xf32> -> tensor<$Sxf32>
  %m2b = train.broadcast %m2 : tensor<$Rx1xf32> -> tensor<$Sxf32>
  %nm = train.mul %nf, %m2b : tensor<$Sxf32>
  %c = train.sub %d, %m1b : tensor<$Sxf32>
  %e = train.sub %c, %nm : tensor<$Sxf32>
  %rb = train.broadcast %r : tensor<$Rx1xf32> -> tensor<$Sxf32>
  %i = train.mul %e, %rb : tensor<$Sxf32>
  %o = train.add %i, %af : tensor<$Sxf32>
  %yn = train.mul %yf, %nf : tensor<$Sxf32>
  %gs = train.reduce sum %yn [0] : tensor<$Sxf32> -> tensor<1x$Cxf32>
  %gbias = train.reduce sum %yf [0] : tensor<$Sxf32> -> tensor<1x$Cxf32>
  %ot = train.cast %o : tensor<$Sxf32> -> tensor<$Sx$T>
  return %ot, %gs, %gbias : tensor<$Sx$T>, tensor<1x$Cxf32>, tensor<1x$Cxf32>
})";

// Cross entropy and its gradient, in place: rows longer than any processor's registers.
const char* const kLoss =
    R"(func.func @f(%x: tensor<$Sx$T>, %l: tensor<$Rx1xi64>) -> (tensor<$Sx$T>, tensor<1x1xf32>) {
  %xf = train.cast %x : tensor<$Sx$T> -> tensor<$Sxf32>
  %m = train.reduce max %xf [1] : tensor<$Sxf32> -> tensor<$Rx1xf32>
  %mb = train.broadcast %m : tensor<$Rx1xf32> -> tensor<$Sxf32>
  %c = train.sub %xf, %mb : tensor<$Sxf32>
  %e = train.exp %c : tensor<$Sxf32>
  %s = train.reduce sum %e [1] : tensor<$Sxf32> -> tensor<$Rx1xf32>
  %log = train.log %s : tensor<$Rx1xf32>
  %lse = train.add %m, %log : tensor<$Rx1xf32>
  %i = train.iota 1 : tensor<$Sxi64>
  %lb = train.broadcast %l : tensor<$Rx1xi64> -> tensor<$Sxi64>
  %hit = train.compare eq %i, %lb : tensor<$Sxi64>
  %zero = train.constant dense<0.0> : tensor<$Sxf32>
  %at = train.select %hit, %xf, %zero : tensor<$Sxi1>, tensor<$Sxf32>
  %own = train.reduce sum %at [1] : tensor<$Sxf32> -> tensor<$Rx1xf32>
  %row = train.sub %lse, %own : tensor<$Rx1xf32>
  %loss = train.reduce sum %row [0] : tensor<$Rx1xf32> -> tensor<1x1xf32>
  %lseb = train.broadcast %lse : tensor<$Rx1xf32> -> tensor<$Sxf32>
  %d = train.sub %xf, %lseb : tensor<$Sxf32>
  %p = train.exp %d : tensor<$Sxf32>
  %hitf = train.cast %hit : tensor<$Sxi1> -> tensor<$Sxf32>
  %g = train.sub %p, %hitf : tensor<$Sxf32>
  %gt = train.cast %g : tensor<$Sxf32> -> tensor<$Sx$T>
  return %gt, %loss : tensor<$Sx$T>, tensor<1x1xf32>
})";

std::string instantiate(std::string text, int64_t rows, int64_t columns, const std::string& type) {
  const std::string r = std::to_string(rows), c = std::to_string(columns);
  for (const auto& [mark, value] :
       {std::pair<const char*, std::string>{"$S", r + "x" + c}, {"$R", r}, {"$C", c}, {"$T", type}})
    for (size_t at = 0; (at = text.find(mark, at)) != std::string::npos; at += value.size()) text.replace(at, 2, value);
  return text;
}

struct Shape {
  int64_t rows, columns;
};

}  // namespace

std::vector<ProbeProgram> cpuProbePrograms() {
  constexpr Shape kShapes[] = {{16, 128}, {64, 384}, {512, 384}, {1024, 1536}, {4096, 1536}};
  std::vector<ProbeProgram> programs;
  for (const char* text : {kNorm, kSum, kGelu, kGatedUnit, kUpdate})
    for (const Shape& shape : kShapes)
      programs.push_back({instantiate(text, shape.rows, shape.columns, "f32"), text == kUpdate});
  return programs;
}

std::vector<ProbeProgram> gpuProbePrograms() {
  constexpr Shape kShapes[] = {{256, 768}, {2048, 768}, {16384, 768}, {16384, 3072}, {16384, 8192}};
  constexpr Shape kLogits[] = {{64, 50257}, {2048, 50257}, {8192, 50257}, {8192, 32000}};
  std::vector<ProbeProgram> programs;
  for (const char* type : {"f32", "bf16"}) {
    for (const char* text : {kNorm, kSum, kGelu, kGatedUnit, kUpdate, kUnitGradient, kNormGradient})
      for (const Shape& shape : kShapes)
        programs.push_back({instantiate(text, shape.rows, shape.columns, type), text == kUpdate});
    for (const Shape& shape : kLogits) programs.push_back({instantiate(kLoss, shape.rows, shape.columns, type), true});
  }
  return programs;
}

}  // namespace sheaf::tool
