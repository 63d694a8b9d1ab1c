// Cases of shape ops, products and indexing.
#include <cmath>

#include "test/ir/OpCase.h"

namespace sheaf::test {
namespace {

// Most move elements: the oracle says which operand element each result element is (-1: zero).
OpCase moves(const std::string& op, const std::string& variant, Input x, const std::string& text,
             const std::string& result, std::vector<int> from) {
  return {op,
          variant,
          {x},
          "%r = train." + op + " %a0 " + text + " : " + x.type() + " -> " + result,
          result,
          [from](const std::vector<Values>& in) {
            Values out;
            for (int k : from) out.push_back(k < 0 ? 0 : in[0][size_t(k)]);
            return out;
          }};
}

OpCase matmul(const std::string& variant, bool batched, bool transposeA, bool transposeB) {
  const size_t batch = batched ? 2 : 1, m = 3, k = 4, n = 5;
  std::string b = batched ? "2x" : "";
  Input lhs = real(b + (transposeA ? "4x3" : "3x4"), 61), rhs = real(b + (transposeB ? "5x4" : "4x5"), 62);
  std::string flags = transposeA && transposeB ? " {transpose_a, transpose_b}"
                      : transposeA             ? " {transpose_a}"
                      : transposeB             ? " {transpose_b}"
                                               : "";
  std::string result = "tensor<" + b + "3x5xf64>";
  return {"matmul",
          variant,
          {lhs, rhs},
          "%r = train.matmul %a0, %a1" + flags + " : " + lhs.type() + ", " + rhs.type() + " -> " + result,
          result,
          [=](const std::vector<Values>& in) {
            Values out;
            for (size_t g = 0; g < batch; ++g)
              for (size_t i = 0; i < m; ++i)
                for (size_t j = 0; j < n; ++j) {
                  double sum = 0;
                  for (size_t l = 0; l < k; ++l)
                    sum += in[0][g * m * k + (transposeA ? l * m + i : i * k + l)] *
                           in[1][g * k * n + (transposeB ? j * k + l : l * n + j)];
                  out.push_back(sum);
                }
            return out;
          }};
}

// %r is the result, followed by the elements of the second result if there is one.
OpCase matmulEpilogue(const std::string& epilogue) {
  const size_t m = 2, n = 3, k = 4;
  const bool biased = epilogue.find("bias") == 0, gated = epilogue == "gelu" || epilogue == "bias_gelu",
             sloped = epilogue == "gelu_grad", summed = epilogue.find("sum") == 0, first = epilogue == "sum_lhs";
  std::vector<Input> inputs = {data(first ? "4x2" : "2x4", "f64", numbers(8, 71)), data("4x3", "f64", numbers(12, 72))};
  if (biased) inputs.push_back(data("3", "f64", numbers(3, 73)));
  if (sloped) inputs.push_back(data("2x3", "f64", numbers(6, 74, -3, 3)));
  std::string types, also = gated ? "tensor<2x3xf64>" : first ? "tensor<2xf64>" : "tensor<3xf64>";
  for (const Input& input : inputs) types += (types.empty() ? "" : ", ") + input.type();
  const bool two = gated || summed;
  std::string body = std::string(two ? "%c, %also" : "%r") + " = train.matmul_epilogue " + epilogue + " %a0, %a1" +
                     (biased || sloped ? " side %a2" : "") + (first ? " {transpose_a}" : "") + " : (" + types +
                     ") -> " + (two ? "(tensor<2x3xf64>, " + also + ")" : "tensor<2x3xf64>") + "\n";
  const size_t extra = gated ? 6 : first ? 2 : summed ? 3 : 0;
  const std::string flat = "tensor<" + std::to_string(extra) + "xf64>",
                    all = "tensor<" + std::to_string(6 + extra) + "xf64>";
  if (two)
    body += "%x = train.reshape %c : tensor<2x3xf64> -> tensor<6xf64>\n%y = train.reshape %also : " + also + " -> " +
            flat + "\n%r = train.concat %x, %y axis 0 : (tensor<6xf64>, " + flat + ") -> " + all;
  return {"matmul_epilogue", epilogue, inputs, body, two ? all : "tensor<2x3xf64>", [=](const std::vector<Values>& in) {
            auto lhs = [&](size_t i, size_t l) { return in[0][first ? l * m + i : i * k + l]; };
            Values out, second;
            for (size_t i = 0; i < m; ++i)
              for (size_t j = 0; j < n; ++j) {
                double sum = biased ? in[2][j] : 0;
                for (size_t l = 0; l < k; ++l) sum += lhs(i, l) * in[1][l * n + j];
                if (gated) second.push_back(sum);
                const double x = sloped ? in[2][i * n + j] : sum, u = 0.7978845608028654 * (x + 0.044715 * x * x * x),
                             s = 1 / (1 + std::exp(-2 * u));
                if (gated) sum = x * s;
                if (sloped) sum *= s + 2 * x * s * (1 - s) * 0.7978845608028654 * (1 + 0.134145 * x * x);
                out.push_back(sum);
              }
            for (size_t c = 0; summed && c < extra; ++c) {
              double sum = 0;
              for (size_t l = 0; l < k; ++l) sum += first ? lhs(c, l) : in[1][l * n + c];
              second.push_back(sum);
            }
            out.insert(out.end(), second.begin(), second.end());
            return out;
          }};
}

std::vector<OpCase> movingCases() {
  return {
      moves("reshape", "", real("2x3", 63), "", "tensor<3x1x2xf64>", {0, 1, 2, 3, 4, 5}),
      moves("broadcast", "rows", real("1x3", 64), "", "tensor<2x3xf64>", {0, 1, 2, 0, 1, 2}),
      moves("broadcast", "columns", real("2x1", 65), "", "tensor<2x3xf64>", {0, 0, 0, 1, 1, 1}),
      moves("broadcast", "all", real("1x1", 66), "", "tensor<2x3xf64>", {0, 0, 0, 0, 0, 0}),
      moves("broadcast", "leading_two", real("1x1x2", 67), "", "tensor<2x3x2xf64>",
            {0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1}),
      moves("broadcast", "trailing_two", real("2x1x1", 67), "", "tensor<2x2x2xf64>", {0, 0, 0, 0, 1, 1, 1, 1}),
      moves("broadcast", "around", real("1x2x1", 68), "", "tensor<2x2x3xf64>", {0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1}),
      moves("broadcast", "between", real("2x1x2", 69), "", "tensor<2x2x2xf64>", {0, 1, 0, 1, 2, 3, 2, 3}),
      moves("broadcast", "alternating", real("1x2x1x2", 69), "", "tensor<2x2x2x2xf64>",
            {0, 1, 0, 1, 2, 3, 2, 3, 0, 1, 0, 1, 2, 3, 2, 3}),
      moves("transpose", "", real("2x3", 70), "[1, 0]", "tensor<3x2xf64>", {0, 3, 1, 4, 2, 5}),
      moves("transpose", "cycle", real("2x1x3", 71), "[2, 0, 1]", "tensor<3x2x1xf64>", {0, 3, 1, 4, 2, 5}),
      moves("slice", "", real("3x4", 72), "starts [1, 0] sizes [2, 2] steps [1, 2]", "tensor<2x2xf64>", {4, 6, 8, 10}),
      moves("slice", "backwards", real("5", 73), "starts [4] sizes [3] steps [-2]", "tensor<3xf64>", {4, 2, 0}),
      moves("slice", "one_element", real("5", 74), "starts [3] sizes [1] steps [-7]", "tensor<1xf64>", {3}),
      moves("pad", "", real("2x2", 75), "low [0, 1] high [1, 0] interior [0, 1]", "tensor<3x4xf64>",
            {-1, 0, -1, 1, -1, 2, -1, 3, -1, -1, -1, -1}),
  };
}

std::vector<OpCase> indexingCases() {
  return {
      {"reverse",
       "",
       {real("2x3", 76)},
       "%r = train.reverse %a0 [1] : tensor<2x3xf64>",
       "tensor<2x3xf64>",
       [](const std::vector<Values>& in) {
         return Values{in[0][2], in[0][1], in[0][0], in[0][5], in[0][4], in[0][3]};
       }},
      {"reverse",
       "both",
       {real("2x2", 77)},
       "%r = train.reverse %a0 [0, 1] : tensor<2x2xf64>",
       "tensor<2x2xf64>",
       [](const std::vector<Values>& in) {
         return Values{in[0][3], in[0][2], in[0][1], in[0][0]};
       }},
      {"concat",
       "",
       {real("2x1", 78), real("2x2", 79)},
       "%r = train.concat %a0, %a1 axis 1 : (tensor<2x1xf64>, tensor<2x2xf64>) -> tensor<2x3xf64>",
       "tensor<2x3xf64>",
       [](const std::vector<Values>& in) {
         return Values{in[0][0], in[1][0], in[1][1], in[0][1], in[1][2], in[1][3]};
       }},
      {"iota",
       "",
       {data("1", "f64", {0})},
       "%r = train.iota 1 : tensor<2x3xi64>",
       "tensor<2x3xi64>",
       [](const std::vector<Values>&) { return Values{0, 1, 2, 0, 1, 2}; }},
      {"constant",
       "",
       {data("1", "f64", {0})},
       "%r = train.constant dense<[[1.5], [-2.0]]> : tensor<2x1xf64>",
       "tensor<2x1xf64>",
       [](const std::vector<Values>&) {
         return Values{1.5, -2};
       }},
      {"gather",
       "embedding",
       {real("4x2", 80), data("3", "i64", {3, 0, 3})},
       "%r = train.gather %a0[%a1] axis 0 : tensor<4x2xf64>, tensor<3xi64> -> tensor<3x2xf64>",
       "tensor<3x2xf64>",
       [](const std::vector<Values>& in) {
         return Values{in[0][6], in[0][7], in[0][0], in[0][1], in[0][6], in[0][7]};
       }},
      {"gather",
       "inner_axis",
       {real("2x3x2", 81), data("2x1", "i32", {-1, 1})},
       "%r = train.gather %a0[%a1] axis 1 : tensor<2x3x2xf64>, tensor<2x1xi32> -> tensor<2x2x1x2xf64>",
       "tensor<2x2x1x2xf64>",
       [](const std::vector<Values>& in) {
         return Values{in[0][4], in[0][5], in[0][2], in[0][3], in[0][10], in[0][11], in[0][8], in[0][9]};
       }},
      {"scatter_add",
       "",
       {real("3x2", 82), data("3", "i64", {1, -1, 1})},
       "%r = train.scatter_add %a0[%a1] axis 0 : tensor<3x2xf64>, tensor<3xi64> -> tensor<3x2xf64>",
       "tensor<3x2xf64>",
       [](const std::vector<Values>& in) {
         return Values{0, 0, in[0][0] + in[0][4], in[0][1] + in[0][5], in[0][2], in[0][3]};
       }},
      {"scatter_add",
       "inner_axis",
       {real("2x2", 83), data("2", "i64", {2, 2})},
       "%r = train.scatter_add %a0[%a1] axis 1 : tensor<2x2xf64>, tensor<2xi64> -> tensor<2x3xf64>",
       "tensor<2x3xf64>",
       [](const std::vector<Values>& in) { return Values{0, 0, in[0][0] + in[0][1], 0, 0, in[0][2] + in[0][3]}; }},
      {"global_sum",
       "one_rank",
       {real("2", 84)},
       "%r = train.global_sum %a0 : tensor<2xf64>",
       "tensor<2xf64>",
       [](const std::vector<Values>& in) { return in[0]; }},
      {"gather_rows",
       "one_leaf",
       {real("2x2", 86), data("1", "i64", {0})},
       "%r = train.gather_rows %a0 leaf %a1 : (tensor<2x2xf64>, tensor<1xi64>) -> tensor<2x2xf64>",
       "tensor<2x2xf64>",
       [](const std::vector<Values>& in) { return in[0]; }},
      // A value used twice: its gradients add up.
      {"slice",
       "twice",
       {real("2x4", 85)},
       "%s = train.slice %a0 starts [0, 0] sizes [2, 1] steps [1, 1] : tensor<2x4xf64> -> tensor<2x1xf64>\n"
       "%t = train.slice %a0 starts [0, 3] sizes [2, 1] steps [1, 1] : tensor<2x4xf64> -> tensor<2x1xf64>\n"
       "%r = train.mul %s, %t : tensor<2x1xf64>",
       "tensor<2x1xf64>",
       [](const std::vector<Values>& in) {
         return Values{in[0][0] * in[0][3], in[0][4] * in[0][7]};
       }},
  };
}

}  // namespace

std::vector<OpCase> shapeCases() {
  std::vector<OpCase> all = movingCases();
  for (auto part : {indexingCases()}) all.insert(all.end(), part.begin(), part.end());
  for (bool batched : {false, true})
    for (bool a : {false, true})
      for (bool b : {false, true})
        all.push_back(
            matmul(std::string(batched ? "batched" : "plain") + (a ? "_ta" : "") + (b ? "_tb" : ""), batched, a, b));
  for (const char* epilogue : {"bias", "gelu", "bias_gelu", "gelu_grad", "sum_lhs", "sum_rhs"})
    all.push_back(matmulEpilogue(epilogue));
  return all;
}

}  // namespace sheaf::test
