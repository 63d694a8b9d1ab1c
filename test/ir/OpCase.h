// A numeric case of one op: its text, its inputs, and what it should give by an oracle that shares no code with the
// evaluator. The same case checks the op's gradient.
#pragma once

#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

namespace sheaf::test {

using Values = std::vector<double>;

// An operand %a<k> of type tensor<`shape`x`element`>. Only f64 operands can be differentiated with respect to.
struct Input {
  std::string shape;  // "2x3"; empty for a scalar
  std::string element;
  Values values;
  bool trainable;

  std::string type() const { return "tensor<" + (shape.empty() ? "" : shape + "x") + element + ">"; }
};

struct OpCase {
  std::string op;       // mnemonic, without "train."
  std::string variant;  // what is special about it
  std::vector<Input> inputs;
  std::string body;                                          // ops on %a0, %a1, ... that define %r
  std::string result;                                        // type of %r
  std::function<Values(const std::vector<Values>&)> oracle;  // from the inputs
  // Gradients of the sum of all elements of %r with respect to the trainable inputs, where they are known exactly
  // (ties, kinks). Else they are compared with central differences.
  std::vector<Values> gradients = {};
};

inline void PrintTo(const OpCase& c, std::ostream* stream) {
  *stream << c.op << " " << c.variant << ": " << c.body;
}

std::vector<OpCase> elementwiseCases();
std::vector<OpCase> shapeCases();
std::vector<OpCase> reductionCases();
std::vector<OpCase> selectionCases();
std::vector<OpCase> compositeCases();
std::vector<OpCase> windowedCases();

// Numbers in [low, high) that depend on `seed` alone, at least `margin` away from every multiple of 1/2 (the kinks of
// abs, relu, floor, round, ... lie there).
Values numbers(size_t count, unsigned seed, double low = -2, double high = 2, double margin = 0);

// The number of elements of "2x3".
size_t countOf(const std::string& shape);

// A trainable f64 operand of such numbers.
Input real(const std::string& shape, unsigned seed, double low = -2, double high = 2, double margin = 0);
Input given(const std::string& shape, Values values);
// An operand that has no gradient.
Input data(const std::string& shape, const std::string& element, Values values);

}  // namespace sheaf::test
