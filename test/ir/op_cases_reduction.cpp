// Cases of reductions, running sums and fusions.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "test/ir/OpCase.h"

namespace sheaf::test {
namespace {

// A reduction of the 2x3 matrix along its columns ([1] -> 2x1), its rows ([0] -> 1x3), or all.
OpCase reduction(const std::string& kind, const std::string& axes, Input x, double (*fold)(const Values&)) {
  std::string result = axes == "1" ? "tensor<2x1xf64>" : axes == "0" ? "tensor<1x3xf64>" : "tensor<1x1xf64>";
  std::string variant = kind + (axes == "1" ? "_rows" : axes == "0" ? "_columns" : "_all");
  return {"reduce",
          variant,
          {x},
          "%r = train.reduce " + kind + " %a0 [" + axes + "] : tensor<2x3xf64> -> " + result,
          result,
          [axes, fold](const std::vector<Values>& in) {
            const Values& v = in[0];
            if (axes == "1") return Values{fold({v[0], v[1], v[2]}), fold({v[3], v[4], v[5]})};
            if (axes == "0") return Values{fold({v[0], v[3]}), fold({v[1], v[4]}), fold({v[2], v[5]})};
            return Values{fold(v)};
          }};
}

double sum(const Values& v) {
  return std::accumulate(v.begin(), v.end(), 0.0);
}
double mean(const Values& v) {
  return sum(v) / double(v.size());
}
double largest(const Values& v) {
  return *std::max_element(v.begin(), v.end());
}
double smallest(const Values& v) {
  return *std::min_element(v.begin(), v.end());
}
double product(const Values& v) {
  return std::accumulate(v.begin(), v.end(), 1.0, std::multiplies<>());
}

OpCase exactly(OpCase c, const std::string& variant, std::vector<Values> gradients) {
  c.variant = variant;
  c.gradients = std::move(gradients);
  return c;
}

OpCase cumsum(const std::string& variant, const std::string& attributes, std::vector<std::vector<int>> terms) {
  return {"cumsum",
          variant,
          {real("3x2", 91)},
          "%r = train.cumsum %a0 axis 0" + attributes + " : tensor<3x2xf64>",
          "tensor<3x2xf64>",
          [terms](const std::vector<Values>& in) {
            Values out;
            for (const auto& indices : terms) {
              double total = 0;
              for (int k : indices) total += in[0][size_t(k)];
              out.push_back(total);
            }
            return out;
          }};
}

}  // namespace

std::vector<OpCase> reductionCases() {
  std::vector<OpCase> all;
  for (std::string axes : {"1", "0", "0, 1"}) {
    all.push_back(reduction("sum", axes, real("2x3", 86), sum));
    all.push_back(reduction("mean", axes, real("2x3", 87), mean));
    all.push_back(reduction("max", axes, real("2x3", 88), largest));
    all.push_back(reduction("min", axes, real("2x3", 89), smallest));
    all.push_back(reduction("prod", axes, real("2x3", 90), product));
  }
  all.push_back(exactly(reduction("max", "1", given("2x3", {1, 5, 5, 2, 2, 2}), largest), "max_ties",
                        {{0, 0.5, 0.5, 1.0 / 3, 1.0 / 3, 1.0 / 3}}));
  all.push_back(
      exactly(reduction("min", "1", given("2x3", {1, 1, 5, 3, 2, 4}), smallest), "min_ties", {{0.5, 0.5, 0, 0, 1, 0}}));
  for (const bool isMax : {true, false}) {
    const std::string kind = isMax ? "max" : "min";
    auto first = [&](const std::string& axes, Values at, const std::string& variant, Values gradient) {
      OpCase c = reduction(kind, axes, given("2x3", std::move(at)), isMax ? largest : smallest);
      c.body.insert(c.body.find("] :") + 1, " {first}");
      all.push_back(exactly(c, kind + variant, {std::move(gradient)}));
    };
    first("1", {1, 5, 5, 2, 2, 2}, "_first", isMax ? Values{0, 1, 0, 1, 0, 0} : Values{1, 0, 0, 1, 0, 0});
    first("0", {1, 5, 4, 1, 5, 4}, "_first_of_column", {1, 1, 1, 0, 0, 0});
  }
  // With one zero only the zero has a gradient; with two none has.
  all.push_back(
      exactly(reduction("prod", "1", given("2x3", {2, 0, 3, 0, 0, 4}), product), "prod_zeros", {{0, 6, 0, 0, 0, 0}}));
  all.push_back({"reduce",
                 "integers",
                 {data("2x2", "i32", {1, 2, 3, -4})},
                 "%r = train.reduce min %a0 [0] : tensor<2x2xi32> -> tensor<1x2xi32>",
                 "tensor<1x2xi32>",
                 [](const std::vector<Values>&) {
                   return Values{1, -4};
                 }});
  all.push_back(cumsum("", "", {{0}, {1}, {0, 2}, {1, 3}, {0, 2, 4}, {1, 3, 5}}));
  all.push_back(cumsum("exclusive", " {exclusive}", {{}, {}, {0}, {1}, {0, 2}, {1, 3}}));
  all.push_back(cumsum("reverse", " {reverse}", {{0, 2, 4}, {1, 3, 5}, {2, 4}, {3, 5}, {4}, {5}}));
  all.push_back(cumsum("exclusive_reverse", " {exclusive, reverse}", {{2, 4}, {3, 5}, {4}, {5}, {}, {}}));

  all.push_back({"sum_partials",
                 "",
                 {data("2x3", "f64", {1, 2, 3, 10, 20, 30})},
                 "%r = train.sum_partials %a0 : tensor<2x3xf64> -> tensor<3xf64>",
                 "tensor<3xf64>",
                 [](const std::vector<Values>&) {
                   return Values{11, 22, 33};
                 }});
  // Three rows in blocks of two: the column sums come as two partial ones.
  all.push_back({"fusion",
                 "partial_sums",
                 {data("3x2", "f64", {1, 2, 3, 4, 5, 6})},
                 R"(%y, %p = train.fusion (%a0) rows 3 columns 2 block 2 {elementwise = array<i64: 0>}
                      : (tensor<3x2xf64>) -> (tensor<3x2xf64>, tensor<2x2xf64>) {
                    ^bb0(%x: tensor<3x2xf64>):
                      %n = train.neg %x : tensor<3x2xf64>
                      %s = train.reduce sum %n [0] : tensor<3x2xf64> -> tensor<1x2xf64>
                      train.yield %n, %s : tensor<3x2xf64>, tensor<1x2xf64>
                    }
                    %r = train.concat %y, %p axis 0 : (tensor<3x2xf64>, tensor<2x2xf64>) -> tensor<5x2xf64>)",
                 "tensor<5x2xf64>",
                 [](const std::vector<Values>&) { return Values{-1, -2, -3, -4, -5, -6, -4, -6, -5, -6}; }});
  return all;
}

}  // namespace sheaf::test
