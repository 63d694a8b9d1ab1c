// Random steps for train-partition, as text.
#pragma once

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace sheaf::train {

constexpr int64_t kRows = 8, kColumns = 6;

// Writes random chains of ops, each on one of the values so far.
class RandomOps {
 public:
  explicit RandomOps(uint64_t seed) : random(seed) { values = {{"%h", {kRows, kColumns}}, {"%x", {kRows, kColumns}}}; }

  // The text of a step's ops, and the shape of its result %y.
  std::pair<std::string, std::string> write() {
    for (int64_t count = 2 + below(4); count > 0; --count) append();
    const Known last = values.back();
    line("%y", "train.tanh " + last.name + " : " + typeOf(last.shape));
    std::string shape;
    for (int64_t n : last.shape) shape += (shape.empty() ? "" : "x") + std::to_string(n);
    return {text, shape};
  }

 private:
  using Shape = std::vector<int64_t>;
  struct Known {
    std::string name;
    Shape shape;
  };
  std::mt19937_64 random;
  std::vector<Known> values;
  std::string text;
  int64_t names = 0;

  int64_t below(int64_t n) { return int64_t(random() % uint64_t(n)); }
  void line(const std::string& name, const std::string& op) { text += name + " = " + op + "\n    "; }
  static std::string listOf(const Shape& numbers) {
    std::string list;
    for (int64_t n : numbers) list += (list.empty() ? "" : ", ") + std::to_string(n);
    return "[" + list + "]";
  }
  static std::string typeOf(const Shape& shape, const char* element = "f64") {
    std::string type = "tensor<";
    for (int64_t n : shape) type += std::to_string(n) + "x";
    return type + element + ">";
  }
  std::string fresh() { return "%v" + std::to_string(names++); }
  void add(const std::string& op, Shape shape) {
    values.push_back({fresh(), std::move(shape)});
    line(values.back().name, op);
  }
  static int64_t product(const Shape& shape) {
    int64_t n = 1;
    for (int64_t s : shape) n *= s;
    return n;
  }

  void append() {
    // More often what the chain has made last.
    const Known of = values[size_t(below(3) ? int64_t(values.size()) - 1 : below(int64_t(values.size())))];
    const std::string &v = of.name, type = typeOf(of.shape);
    const int64_t rank = int64_t(of.shape.size()), d = below(rank), n = of.shape[size_t(d)];
    Shape shape = of.shape;
    switch (below(13)) {
      case 0:
        return add("train.tanh " + v + " : " + type, shape);
      case 1: {  // with another value of the same shape
        const Known& other = values[size_t(below(int64_t(values.size())))];
        return add("train.mul " + v + ", " + (other.shape == shape ? other.name : v) + " : " + type, shape);
      }
      case 2: {
        Shape permutation(static_cast<size_t>(rank));
        for (int64_t i = 0; i < rank; ++i) permutation[size_t(i)] = i;
        std::shuffle(permutation.begin(), permutation.end(), random);
        for (int64_t i = 0; i < rank; ++i) shape[size_t(i)] = of.shape[size_t(permutation[size_t(i)])];
        return add("train.transpose " + v + " " + listOf(permutation) + " : " + type + " -> " + typeOf(shape), shape);
      }
      case 3: {
        shape.clear();
        int64_t left = product(of.shape);
        for (; shape.size() < 2 && left > 1; left /= shape.back()) {
          shape.push_back(1 + below(left));
          while (left % shape.back()) --shape.back();
        }
        shape.push_back(left);
        return add("train.reshape " + v + " : " + type + " -> " + typeOf(shape), shape);
      }
      case 4: {
        const char* kinds[] = {"sum", "mean", "max", "min"};
        shape[size_t(d)] = 1;
        return add(std::string("train.reduce ") + kinds[below(4)] + " " + v + " " + listOf({d}) + " : " + type +
                       " -> " + typeOf(shape),
                   shape);
      }
      case 5:
        return add("train.softmax " + v + " : " + type, shape);
      case 6:
        return add("train.cumsum " + v + " axis " + std::to_string(d) + " : " + type, shape);
      case 7:
        return add("train.reverse " + v + " " + listOf({d}) + " : " + type, shape);
      case 8: {
        Shape starts(shape.size(), 0), steps(shape.size(), 1);
        shape[size_t(d)] = 1 + below(n);
        starts[size_t(d)] = below(n - shape[size_t(d)] + 1);
        return add("train.slice " + v + " starts " + listOf(starts) + " sizes " + listOf(shape) + " steps " +
                       listOf(steps) + " : " + type + " -> " + typeOf(shape),
                   shape);
      }
      case 9: {
        Shape low(shape.size(), 0), high(shape.size(), 0);
        low[size_t(d)] = below(3), high[size_t(d)] = below(3);
        shape[size_t(d)] += low[size_t(d)] + high[size_t(d)];
        return add("train.pad " + v + " low " + listOf(low) + " high " + listOf(high) + " interior " +
                       listOf(Shape(shape.size(), 0)) + " : " + type + " -> " + typeOf(shape),
                   shape);
      }
      case 10:
        shape[size_t(d)] *= 2;
        return add("train.concat " + v + ", " + v + " axis " + std::to_string(d) + " : (" + type + ", " + type +
                       ") -> " + typeOf(shape),
                   shape);
      case 11: {
        const std::string indices = fresh();
        Shape numbers(size_t(1 + below(4)));
        for (int64_t& i : numbers) i = below(2 * n) - n;
        const Shape count{int64_t(numbers.size())};
        line(indices, "train.constant dense<" + listOf(numbers) + "> : " + typeOf(count, "i64"));
        shape[size_t(d)] = count[0];
        return add("train.gather " + v + "[" + indices + "] axis " + std::to_string(d) + " : " + type + ", " +
                       typeOf(count, "i64") + " -> " + typeOf(shape),
                   shape);
      }
      default: {  // a repetition, or a product of rows with rows
        for (size_t i = 0; i < shape.size(); ++i)
          if (shape[i] == 1 && product(shape) <= 96) {
            shape[i] = below(2) ? kRows : 2;
            return add("train.broadcast " + v + " : " + type + " -> " + typeOf(shape), shape);
          }
        if (rank != 2) return add("train.cos " + v + " : " + type, shape);
        shape = {of.shape[0], of.shape[0]};
        return add("train.matmul " + v + ", " + v + " {transpose_b} : " + type + ", " + type + " -> " + typeOf(shape),
                   shape);
      }
    }
  }
};

}  // namespace sheaf::train
