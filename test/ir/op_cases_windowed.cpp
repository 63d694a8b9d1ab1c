// Cases of convolution and pooling. The oracles pad the input first, and then know no borders.
#include <cmath>
#include <limits>

#include "test/ir/OpCase.h"

namespace sheaf::test {
namespace {

// One convolution: sizes, and the text of its attributes.
struct Geometry {
  size_t n, c, h, w, o, kh, kw, groups;
  size_t strideH, strideW, top, left, bottom, right, dilationH, dilationW;

  size_t outH() const { return (h + top + bottom - dilationH * (kh - 1) - 1) / strideH + 1; }
  size_t outW() const { return (w + left + right - dilationW * (kw - 1) - 1) / strideW + 1; }
  std::string input() const { return join({n, c, h, w}, "x"); }
  std::string inputLast() const { return join({n, h, w, c}, "x"); }
  std::string filter() const { return join({o, c / groups, kh, kw}, "x"); }
  std::string output() const { return join({n, o, outH(), outW()}, "x"); }
  std::string outputLast() const { return join({n, outH(), outW(), o}, "x"); }
  std::string attributes() const {
    return "strides = array<i64: " + join({strideH, strideW}, ", ") +
           ">, pads = array<i64: " + join({top, left, bottom, right}, ", ") +
           ">, dilations = array<i64: " + join({dilationH, dilationW}, ", ") + ">";
  }

  static std::string join(const std::vector<size_t>& sizes, const std::string& separator) {
    std::string text;
    for (size_t s : sizes) text += (text.empty() ? "" : separator) + std::to_string(s);
    return text;
  }

  Values padded(const Values& x, double fill) const {
    size_t ph = h + top + bottom, pw = w + left + right;
    Values out(n * c * ph * pw, fill);
    for (size_t p = 0; p < n * c; ++p)
      for (size_t i = 0; i < h; ++i)
        for (size_t j = 0; j < w; ++j) out[(p * ph + i + top) * pw + j + left] = x[(p * h + i) * w + j];
    return out;
  }
};

Values convolve(const Geometry& g, const Values& x, const Values& f) {
  Values in = g.padded(x, 0), out;
  size_t ph = g.h + g.top + g.bottom, pw = g.w + g.left + g.right, depth = g.c / g.groups;
  for (size_t n = 0; n < g.n; ++n)
    for (size_t o = 0; o < g.o; ++o)
      for (size_t y = 0; y < g.outH(); ++y)
        for (size_t z = 0; z < g.outW(); ++z) {
          double sum = 0;
          for (size_t c = 0; c < depth; ++c)
            for (size_t i = 0; i < g.kh; ++i)
              for (size_t j = 0; j < g.kw; ++j)
                sum += in[((n * g.c + o * g.groups / g.o * depth + c) * ph + y * g.strideH + i * g.dilationH) * pw +
                          z * g.strideW + j * g.dilationW] *
                       f[((o * depth + c) * g.kh + i) * g.kw + j];
          out.push_back(sum);
        }
  return out;
}

// A tensor of f64 turned from one layout of images to the other.
std::string turned(const std::string& result, const std::string& operand, const std::string& from,
                   const std::string& to, bool toLast) {
  return "%" + result + " = train.transpose %" + operand + (toLast ? " [0, 2, 3, 1]" : " [0, 3, 1, 2]") + " : tensor<" +
         from + "xf64> -> tensor<" + to + "xf64>\n";
}

OpCase conv(const std::string& variant, Geometry g) {
  Input x = real(g.input(), 121), f = real(g.filter(), 122);
  std::string result = "tensor<" + g.output() + "xf64>";
  return {"conv",
          variant,
          {x, f},
          "%r = train.conv %a0, %a1 {" + g.attributes() + ", groups = " + std::to_string(g.groups) + " : i64} : (" +
              x.type() + ", " + f.type() + ") -> " + result,
          result,
          [g](const std::vector<Values>& in) { return convolve(g, in[0], in[1]); }};
}

// The same by an op whose images have their channels last.
OpCase convLast(Geometry g) {
  OpCase same = conv("channels_last", g);
  same.body = turned("x", "a0", g.input(), g.inputLast(), true) + "%y = train.conv %x, %a1 {channels_last, " +
              g.attributes() + ", groups = " + std::to_string(g.groups) + " : i64} : (tensor<" + g.inputLast() +
              "xf64>, tensor<" + g.filter() + "xf64>) -> tensor<" + g.outputLast() + "xf64>\n" +
              turned("r", "y", g.outputLast(), g.output(), false);
  return same;
}

// The gradients of a convolution are linear in the output's gradient and adjoint to it: <conv(x, f), d> = <x, dx>, and
// the same for the filter. So dx at k is <conv(unit vector k, f), d>.
OpCase convGrad(bool ofInput, const std::string& variant, Geometry g) {
  std::string op = ofInput ? "conv_grad_input" : "conv_grad_filter";
  Input d = ofInput ? real(g.output(), 123) : data(g.output(), "f64", numbers(countOf(g.output()), 123));
  Input other = ofInput ? real(g.filter(), 124) : data(g.input(), "f64", numbers(countOf(g.input()), 125));
  std::string shape = ofInput ? g.input() : g.filter(), result = "tensor<" + shape + "xf64>";
  Input first = ofInput ? d : other, second = ofInput ? other : d;
  return {op,
          variant,
          {first, second},
          "%r = train." + op + " %a0, %a1 {" + g.attributes() + ", groups = " + std::to_string(g.groups) +
              " : i64} : (" + first.type() + ", " + second.type() + ") -> " + result,
          result,
          [=](const std::vector<Values>& in) {
            Values out;
            for (size_t k = 0; k < countOf(shape); ++k) {
              Values unit(countOf(shape), 0);
              unit[k] = 1;
              Values y = ofInput ? convolve(g, unit, in[1]) : convolve(g, in[0], unit);
              const Values& gradient = ofInput ? in[0] : in[1];
              double sum = 0;
              for (size_t e = 0; e < y.size(); ++e) sum += y[e] * gradient[e];
              out.push_back(sum);
            }
            return out;
          }};
}

OpCase convGradInputLast(Geometry g) {
  OpCase same = convGrad(true, "channels_last", g);
  same.body = turned("x", "a0", g.output(), g.outputLast(), true) +
              "%y = train.conv_grad_input %x, %a1 {channels_last, " + g.attributes() +
              ", groups = " + std::to_string(g.groups) + " : i64} : (tensor<" + g.outputLast() + "xf64>, tensor<" +
              g.filter() + "xf64>) -> tensor<" + g.inputLast() + "xf64>\n" +
              turned("r", "y", g.inputLast(), g.input(), false);
  return same;
}

std::string poolAttributes(const Geometry& g, bool ceil) {
  return "{kernel = array<i64: " + std::to_string(g.kh) + ", " + std::to_string(g.kw) + ">, " + g.attributes() +
         (ceil ? ", ceil_mode}" : "}");
}

// Pooling as floor mode on an input padded so far that the windows of `ceil` fit.
OpCase maxPool(const std::string& variant, Geometry g, size_t outH, size_t outW, bool ceil) {
  Input x = real(g.input(), 126);
  std::string result = "tensor<" + Geometry::join({g.n, g.c, outH, outW}, "x") + "xf64>";
  return {"max_pool",
          variant,
          {x},
          "%r = train.max_pool %a0 " + poolAttributes(g, ceil) + " : (" + x.type() + ") -> " + result,
          result,
          [=](const std::vector<Values>& in) {
            Geometry wide = g;
            wide.bottom += 8;
            wide.right += 8;
            Values padded = wide.padded(in[0], -std::numeric_limits<double>::infinity()), out;
            size_t ph = wide.h + wide.top + wide.bottom, pw = wide.w + wide.left + wide.right;
            for (size_t p = 0; p < g.n * g.c; ++p)
              for (size_t y = 0; y < outH; ++y)
                for (size_t z = 0; z < outW; ++z) {
                  double best = -std::numeric_limits<double>::infinity();
                  for (size_t i = 0; i < g.kh; ++i)
                    for (size_t j = 0; j < g.kw; ++j)
                      best = std::max(
                          best,
                          padded[(p * ph + y * g.strideH + i * g.dilationH) * pw + z * g.strideW + j * g.dilationW]);
                  out.push_back(best);
                }
            return out;
          }};
}

OpCase maxPoolLast(Geometry g) {
  OpCase same = maxPool("channels_last", g, g.outH(), g.outW(), false);
  const std::string attributes = poolAttributes(g, false);
  same.body = turned("x", "a0", g.input(), g.inputLast(), true) + "%y = train.max_pool %x {channels_last, " +
              attributes.substr(1) + " : (tensor<" + g.inputLast() + "xf64>) -> tensor<" + g.outputLast() + "xf64>\n" +
              turned("r", "y", g.outputLast(), g.output(), false);
  return same;
}

}  // namespace

std::vector<OpCase> windowedCases() {
  std::vector<OpCase> all{
      conv("", {2, 2, 4, 5, 3, 3, 2, 1, 1, 1, 0, 0, 0, 0, 1, 1}),
      conv("strided_padded_dilated", {1, 2, 5, 6, 2, 2, 3, 1, 2, 1, 1, 2, 0, 1, 2, 1}),
      conv("grouped", {2, 4, 3, 3, 6, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1}),
      convGrad(true, "", {1, 2, 4, 3, 2, 2, 2, 1, 2, 1, 1, 0, 0, 1, 1, 1}),
      convGrad(true, "grouped_dilated", {2, 4, 5, 4, 2, 2, 3, 2, 1, 2, 0, 2, 1, 1, 2, 1}),
      convGrad(false, "", {1, 2, 4, 3, 2, 2, 2, 1, 2, 1, 1, 0, 0, 1, 1, 1}),
      convLast({2, 4, 4, 3, 6, 3, 2, 2, 2, 1, 1, 0, 1, 1, 1, 2}),
      convGradInputLast({2, 4, 5, 4, 2, 2, 3, 2, 1, 2, 0, 2, 1, 1, 2, 1}),
      maxPoolLast({2, 2, 5, 4, 2, 3, 3, 1, 2, 1, 1, 1, 1, 1, 1, 1}),
      maxPool("", {2, 2, 4, 4, 2, 2, 2, 1, 2, 2, 0, 0, 0, 0, 1, 1}, 2, 2, false),
      maxPool("overlapping_padded", {1, 2, 5, 4, 2, 3, 3, 1, 2, 1, 1, 1, 1, 1, 1, 1}, 3, 4, false),
      maxPool("ceil_dilated", {1, 1, 6, 6, 1, 2, 2, 1, 2, 3, 0, 0, 0, 0, 2, 1}, 3, 2, true),
  };
  // The first of equal maxima gets the gradient.
  all.push_back(
      {"max_pool",
       "ties",
       {given("1x1x2x2", {2, 1, 2, 2})},
       "%r = train.max_pool %a0 {kernel = array<i64: 2, 2>, strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, "
       "dilations = array<i64: 1, 1>} : (tensor<1x1x2x2xf64>) -> tensor<1x1x1x1xf64>",
       "tensor<1x1x1x1xf64>",
       [](const std::vector<Values>&) { return Values{2}; },
       {{1, 0, 0, 0}}});
  all.push_back({"max_pool_indices",
                 "",
                 {data("1x2x2x3", "f64", {1, 3, 3, 2, 0, 5, 4, 4, 1, 4, 9, 2})},
                 "%r = train.max_pool_indices %a0 {kernel = array<i64: 2, 2>, strides = array<i64: 1, 1>, pads = "
                 "array<i64: 0, 0, 0, 0>, "
                 "dilations = array<i64: 1, 1>} : (tensor<1x2x2x3xf64>) -> tensor<1x2x1x2xi64>",
                 "tensor<1x2x1x2xi64>",
                 [](const std::vector<Values>&) {
                   return Values{1, 5, 4, 4};
                 }});
  all.push_back(
      {"max_pool_indices",
       "channels_last",
       {data("1x2x2x2", "f64", {1, 3, 2, 5, 7, 1, 2, 9})},
       "%r = train.max_pool_indices %a0 {channels_last, kernel = array<i64: 2, 2>, strides = array<i64: 1, 1>, "
       "pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>} : (tensor<1x2x2x2xf64>) -> "
       "tensor<1x1x1x2xi64>",
       "tensor<1x1x1x2xi64>",
       [](const std::vector<Values>&) {
         return Values{2, 3};
       }});
  all.push_back({"max_pool_grad",
                 "",
                 {data("1x1x1x3", "f64", {1, 3, 2}), data("1x1x1x2", "f64", {10, 20})},
                 "%r = train.max_pool_grad %a0, %a1 {kernel = array<i64: 1, 2>, strides = array<i64: 1, 1>, pads = "
                 "array<i64: 0, 0, 0, 0>, "
                 "dilations = array<i64: 1, 1>} : (tensor<1x1x1x3xf64>, tensor<1x1x1x2xf64>) -> tensor<1x1x1x3xf64>",
                 "tensor<1x1x1x3xf64>",
                 [](const std::vector<Values>&) {
                   return Values{0, 30, 0};
                 }});
  return all;
}

}  // namespace sheaf::test
