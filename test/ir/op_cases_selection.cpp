// Cases of ops that choose elements: gather_elements, scatter, top_k.
#include <algorithm>
#include <cmath>

#include "test/ir/OpCase.h"

namespace sheaf::test {
namespace {

// What an index names in a dimension of three.
size_t rowOf(double index) {
  return size_t(index < 0 ? index + 3 : index);
}

// A scatter of [3, 2] into [3, 2] along the rows; the first column names a row twice, and so does the second one.
OpCase scatter(const std::string& kind, const std::string& variant, Input update, Input data,
               double (*combine)(double, double), std::vector<Values> gradients = {}) {
  const Values at{0, 2, 0, -1, 1, 0};
  return {"scatter",
          "by_" + kind + variant,
          {test::data("3x2", "i64", at), update, data},
          "%r = train.scatter " + kind +
              " %a1[%a0] into %a2 axis 0 : (tensor<3x2xi64>, tensor<3x2xf64>, "
              "tensor<3x2xf64>) -> tensor<3x2xf64>",
          "tensor<3x2xf64>",
          [=](const std::vector<Values>& in) {
            Values out = in[2];
            for (size_t i = 0; i < 6; ++i) {
              double& element = out[rowOf(at[i]) * 2 + i % 2];
              element = combine(element, in[1][i]);
            }
            return out;
          },
          gradients};
}

std::vector<OpCase> scatterCases() {
  auto replace = [](double, double y) { return y; };
  auto add = [](double x, double y) { return x + y; };
  auto mul = [](double x, double y) { return x * y; };
  auto least = [](double x, double y) { return std::min(x, y); };
  auto most = [](double x, double y) { return std::max(x, y); };
  const Input update = real("3x2", 301), data = real("3x2", 302);
  return {
      scatter("replace", "", update, data, replace),
      scatter("add", "", update, data, add),
      scatter("mul", "", update, data, mul),
      scatter("min", "", update, data, least),
      scatter("max", "", update, data, most),
      // Row 0 of the first column meets one zero, row 2 of the second one two; its row 0 starts as zero.
      scatter("mul", "_zeros", given("3x2", {0, 0, 3, 0, 5, 7}), given("3x2", {2, 0, 3, 4, 5, 6}), mul),
      // Of three equal ones each takes a third; of an update and data that are equal, a half.
      scatter("max", "_ties", given("3x2", {4, 1, 4, 0, 2, 3}), given("3x2", {4, 3, 1, 9, 8, 1}), most,
              {{1. / 3, 0.5, 1. / 3, 0, 1, 0.5}, {1. / 3, 0.5, 0, 1, 1, 0.5}}),
      {"scatter",
       "rows_into_zeros",
       {test::data("3x1", "i32", {2, -3, 2}), real("3x2", 303)},
       "%r = train.scatter replace %a1[%a0] axis 0 : (tensor<3x1xi32>, tensor<3x2xf64>) -> tensor<3x2xf64>",
       "tensor<3x2xf64>",
       [](const std::vector<Values>& in) { return Values{in[1][2], in[1][3], 0, 0, in[1][4], in[1][5]}; }},
      {"scatter",
       "add_of_each_entry",
       {test::data("2x2x1", "i64", {1, 1, 0, 2}), real("2x2x2", 304)},
       "%r = train.scatter add %a1[%a0] axis 1 : (tensor<2x2x1xi64>, tensor<2x2x2xf64>) -> tensor<2x3x2xf64>",
       "tensor<2x3x2xf64>",
       [](const std::vector<Values>& in) {
         const Values& u = in[1];
         return Values{0, 0, u[0] + u[2], u[1] + u[3], 0, 0, u[4], u[5], 0, 0, u[6], u[7]};
       }},
      {"scatter",
       "integers_wrap",
       {test::data("2", "i64", {0, 0}), test::data("2", "i32", {1 << 30, 1 << 30}), test::data("1", "i32", {1})},
       "%r = train.scatter add %a1[%a0] into %a2 axis 0 : (tensor<2xi64>, tensor<2xi32>, tensor<1xi32>) -> "
       "tensor<1xi32>",
       "tensor<1xi32>",
       [](const std::vector<Values>&) { return Values{-2147483647.0}; }},
  };
}

std::vector<OpCase> gatherCases() {
  return {
      {"gather_elements",
       "",
       {real("2x3", 305), data("2x2", "i64", {2, 0, -1, -1})},
       "%r = train.gather_elements %a0[%a1] axis 1 : tensor<2x3xf64>, tensor<2x2xi64> -> tensor<2x2xf64>",
       "tensor<2x2xf64>",
       [](const std::vector<Values>& in) {
         return Values{in[0][2], in[0][0], in[0][5], in[0][5]};
       }},
      {"gather_elements",
       "rows_of_each_entry",
       {real("2x2x2", 306), data("2x1x1", "i32", {1, 0})},
       "%r = train.gather_elements %a0[%a1] axis 1 : tensor<2x2x2xf64>, tensor<2x1x1xi32> -> tensor<2x1x2xf64>",
       "tensor<2x1x2xf64>",
       [](const std::vector<Values>& in) {
         return Values{in[0][2], in[0][3], in[0][4], in[0][5]};
       }},
      {"gather_elements",
       "elements_of_all_entries",
       {real("2x2x2", 307), data("1x1x2", "i64", {1, 0})},
       "%r = train.gather_elements %a0[%a1] axis 1 : tensor<2x2x2xf64>, tensor<1x1x2xi64> -> tensor<2x1x2xf64>",
       "tensor<2x1x2xf64>",
       [](const std::vector<Values>& in) {
         return Values{in[0][2], in[0][1], in[0][6], in[0][5]};
       }},
  };
}

OpCase topK(const std::string& variant, Input x, const std::string& text, Values expected) {
  const std::string result = "tensor<" + std::string(x.shape == "6" ? "4" : "2x2") + "xi64>";
  return {"top_k", variant,
          {x},     "%r = train.top_k %a0 " + text + " : " + x.type() + " -> " + result,
          result,  [expected](const std::vector<Values>&) { return expected; }};
}

}  // namespace

std::vector<OpCase> selectionCases() {
  std::vector<OpCase> all = scatterCases();
  for (OpCase& c : gatherCases()) all.push_back(std::move(c));
  const double nan = std::nan("");
  all.push_back(topK("largest", data("6", "f64", {1, 3, nan, -0.0, 3, 0}), "axis 0 k 4 {largest}", {2, 1, 4, 0}));
  all.push_back(topK("smallest", data("6", "f64", {1, 0, nan, -0.0, -2, 0}), "axis 0 k 4", {4, 1, 3, 5}));
  all.push_back(topK("rows", data("3x2", "i32", {5, -1, 5, 7, 9, 7}), "axis 0 k 2 {largest}", {2, 1, 0, 2}));
  all.push_back(topK("columns", data("2x3", "i64", {4, -9, 4, 0, 1, -1}), "axis 1 k 2", {1, 0, 2, 0}));
  return all;
}

}  // namespace sheaf::test
