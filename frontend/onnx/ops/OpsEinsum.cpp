// Einsum as transpositions, reshapes, sums and matrix products.
#include "frontend/onnx/importer/Importer.h"
#include "llvm/ADT/StringExtras.h"

using namespace mlir;

namespace sheaf::frontend {
namespace {

// A label of the equation: a letter, or a dimension of the ellipsis, counted from the right (-1 is the last).
using Labels = SmallVector<int64_t>;

struct Term {
  Tensor tensor;
  Labels labels;  // one a dimension
};

class Einsum {
 public:
  explicit Einsum(Node& n) : n(n), e(n.emit) {}

  LogicalResult run() {
    if (failed(parse())) return failure();
    for (Term& term : terms)
      if (failed(diagonals(term)) || failed(recordSizes(term))) return failure();
    for (Term& term : terms)
      if (failed(dropOnes(term))) return failure();
    // From left to right: one contraction after the other.
    Term result = terms[0];
    for (size_t i = 1; i <= terms.size(); ++i) {
      Labels later = output;
      for (size_t k = i; k < terms.size(); ++k) llvm::append_range(later, terms[k].labels);
      if (failed(sumOut(result, later))) return failure();
      if (i == terms.size()) break;
      Labels others = result.labels;
      llvm::append_range(others, output);
      for (size_t k = i + 1; k < terms.size(); ++k) llvm::append_range(others, terms[k].labels);
      Labels needed = output;
      for (size_t k = i + 1; k < terms.size(); ++k) llvm::append_range(needed, terms[k].labels);
      if (failed(sumOut(terms[i], others)) || failed(contract(result, terms[i], needed))) return failure();
    }
    return n.set(0, arranged(result));
  }

 private:
  LogicalResult invalid(StringRef why) {
    return n.error() << "the equation '" << n.string("equation", "") << "' " << why;
  }

  // Labels of one term of the equation; an ellipsis has as many as the rank leaves (`rank` < 0: of the output).
  LogicalResult labelsOf(StringRef text, int64_t rank, Labels& labels) {
    int64_t letters = llvm::count_if(text, [](char c) { return llvm::isAlpha(c); });
    bool seen = false;
    for (size_t i = 0; i < text.size(); ++i) {
      if (llvm::isAlpha(text[i])) {
        labels.push_back(text[i]);
      } else if (text.substr(i, 3) == "..." && !seen) {
        int64_t dimensions = rank < 0 ? ellipsis : rank - letters;
        if (dimensions < 0) return invalid("names more dimensions than an operand has");
        if (rank >= 0) ellipsis = std::max(ellipsis, dimensions);
        for (int64_t d = dimensions; d > 0; --d) labels.push_back(-d);
        seen = true;
        i += 2;
      } else {
        return invalid("is not of letters, commas, '...' and '->'");
      }
    }
    if (rank >= 0 && int64_t(labels.size()) != rank) return invalid("does not fit the ranks of the operands");
    return success();
  }

  LogicalResult parse() {
    std::string equation;
    for (char c : n.string("equation", ""))
      if (c != ' ') equation += c;
    auto [left, right] = StringRef(equation).split("->");
    bool isExplicit = StringRef(equation).contains("->");
    SmallVector<StringRef> inputs;
    left.split(inputs, ',');
    if (int64_t(inputs.size()) != n.inputs()) return invalid("does not have one term for each operand");
    for (auto [i, text] : llvm::enumerate(inputs)) {
      Tensor x = n.input(i);
      if (!x || x.isBool()) return n.error() << "takes tensors of numbers";
      if (x.elementType() != n.input(0).elementType()) return n.error() << "the operands differ in element type";
      terms.push_back({x, {}});
      if (failed(labelsOf(text, x.rank(), terms.back().labels))) return failure();
    }
    if (isExplicit) {
      if (failed(labelsOf(right, -1, output))) return failure();
    } else {
      // The ellipsis, then what occurs once, in the order of the alphabet.
      for (int64_t d = ellipsis; d > 0; --d) output.push_back(-d);
      std::map<int64_t, int> times;
      for (const Term& term : terms)
        for (int64_t label : term.labels) times[label] += label > 0;
      for (auto [label, count] : times)
        if (count == 1) output.push_back(label);
    }
    for (auto [i, label] : llvm::enumerate(output)) {
      if (llvm::is_contained(ArrayRef<int64_t>(output).take_front(i), label)) return invalid("repeats an output label");
      if (label > 0 && llvm::none_of(terms, [&](const Term& t) { return llvm::is_contained(t.labels, label); }))
        return invalid("has an output label that no operand has");
    }
    return success();
  }

  // A label twice in one term takes the diagonal: every (n + 1)-th element of the two dimensions as one.
  LogicalResult diagonals(Term& term) {
    for (size_t a = 0; a < term.labels.size(); ++a)
      for (size_t b = term.labels.size() - 1; b > a; --b) {
        if (term.labels[a] != term.labels[b]) continue;
        int64_t size = term.tensor.dim(a);
        if (term.tensor.dim(b) != size) return invalid("takes the diagonal of dimensions of different sizes");
        Shape permutation, shape;
        Labels labels;
        for (size_t d = 0; d < term.labels.size(); ++d) {
          if (d == a || d == b) continue;
          permutation.push_back(d);
          shape.push_back(term.tensor.dim(d));
          labels.push_back(term.labels[d]);
        }
        permutation.append({int64_t(a), int64_t(b)});
        shape.push_back(size * size);
        labels.push_back(term.labels[a]);
        Tensor square = e.reshape(e.transpose(term.tensor, permutation), shape);
        term = {e.sliceAlong(square, shape.size() - 1, 0, size, size + 1), labels};
        if (!term.tensor) return failure();
        return diagonals(term);
      }
    return success();
  }

  LogicalResult recordSizes(const Term& term) {
    for (auto [d, label] : llvm::enumerate(term.labels)) {
      int64_t size = term.tensor.dim(d);
      auto [it, fresh] = sizes.try_emplace(label, size);
      if (!fresh && it->second == 1) it->second = size;
      if (it->second != size && size != 1) return invalid("gives one label to dimensions of different sizes");
    }
    return success();
  }

  // A dimension of size 1 that others have in another size broadcasts: without it, the product does.
  LogicalResult dropOnes(Term& term) {
    Shape shape;
    Labels labels;
    for (auto [d, label] : llvm::enumerate(term.labels)) {
      if (term.tensor.dim(d) != sizes[label]) continue;
      shape.push_back(term.tensor.dim(d));
      labels.push_back(label);
    }
    term = {e.reshape(term.tensor, shape), labels};
    return success(bool(term.tensor));
  }

  // Sums over labels that are not in `kept`.
  LogicalResult sumOut(Term& term, const Labels& kept) {
    Shape axes, shape;
    Labels labels;
    for (auto [d, label] : llvm::enumerate(term.labels)) {
      if (llvm::is_contained(kept, label)) {
        shape.push_back(term.tensor.dim(d));
        labels.push_back(label);
      } else {
        axes.push_back(d);
      }
    }
    if (axes.empty()) return success();
    Tensor sum = term.tensor.count() == 0 ? e.splat(term.tensor.elementType(), shape, 0)
                                          : e.reshape(e.reduce(train::ReduceKind::sum, term.tensor, axes), shape);
    term = {sum, labels};
    return success(bool(sum));
  }

  // The dimensions of a term in groups of labels, each group as one dimension.
  Tensor grouped(const Term& term, ArrayRef<Labels> groups) {
    Shape permutation, shape;
    for (const Labels& group : groups) {
      int64_t size = 1;
      for (int64_t label : group) {
        permutation.push_back(llvm::find(term.labels, label) - term.labels.begin());
        size *= sizes[label];
      }
      shape.push_back(size);
    }
    return e.reshape(e.transpose(term.tensor, permutation), shape);
  }

  // Whether the groups are the term's dimensions as they lie.
  static bool liesAs(const Term& term, ArrayRef<Labels> groups) {
    Labels all;
    for (const Labels& group : groups) llvm::append_range(all, group);
    return all == term.labels;
  }

  // x becomes x times y, summed over the labels that are not needed.
  LogicalResult contract(Term& x, const Term& y, const Labels& needed) {
    Labels batch, summed, left, right;
    for (int64_t label : x.labels) {
      bool shared = llvm::is_contained(y.labels, label);
      (!shared ? left : llvm::is_contained(needed, label) ? batch : summed).push_back(label);
    }
    for (int64_t label : y.labels)
      if (!llvm::is_contained(x.labels, label)) right.push_back(label);
    Labels labels = batch;
    llvm::append_range(labels, left);
    llvm::append_range(labels, right);
    Shape shape;
    for (int64_t label : labels) shape.push_back(sizes[label]);
    if (!e.checkShape(shape)) return failure();
    Tensor product;
    if (summed.empty() || !x.tensor.isFloat()) {
      Tensor a = grouped(x, {batch, left, {}, summed}), b = grouped(y, {batch, {}, right, summed});
      product = e.binary<train::MulOp>(a, b);
      if (!product) return failure();
      if (!summed.empty())
        product = product.count() ? e.reduce(train::ReduceKind::sum, product, {3})
                                  : e.splat(x.tensor.elementType(), shape, 0);
    } else {
      // As the operands lie, if they can be read so.
      bool flipX = !liesAs(x, {batch, left, summed}) && liesAs(x, {batch, summed, left});
      bool flipY = !liesAs(y, {batch, summed, right}) && liesAs(y, {batch, right, summed});
      Tensor a = flipX ? grouped(x, {batch, summed, left}) : grouped(x, {batch, left, summed});
      Tensor b = flipY ? grouped(y, {batch, right, summed}) : grouped(y, {batch, summed, right});
      if (!a || !b) return failure();
      if (batch.empty()) a = e.reshape(a, a.shape().drop_front()), b = e.reshape(b, b.shape().drop_front());
      product = e.matmul(a, b, flipX, flipY);
    }
    x = {e.reshape(product, shape), labels};
    return success(bool(x.tensor));
  }

  // The result's dimensions in the output's order.
  Tensor arranged(const Term& term) {
    Shape permutation, shape, full;
    for (int64_t label : output) {
      auto it = llvm::find(term.labels, label);
      bool has = it != term.labels.end();
      if (has) permutation.push_back(it - term.labels.begin());
      full.push_back(sizes.count(label) ? sizes[label] : 1);
      shape.push_back(has ? full.back() : 1);
    }
    return e.expand(e.reshape(e.transpose(term.tensor, permutation), shape), full);
  }

  Node& n;
  Emitter& e;
  std::vector<Term> terms;
  Labels output;
  std::map<int64_t, int64_t> sizes;
  int64_t ellipsis = 0;  // dimensions of the longest
};

LogicalResult einsum(Node& n) {
  return Einsum(n).run();
}

constexpr Operator kOperators[] = {{"Einsum",
                                    12,
                                    0,
                                    1,
                                    einsum,
                                    {.sample = "f[2,3], f[3,4]; equation=ij,jk->ik",
                                     .leftOutOfPlans = {"test_einsum_(batch_matmul|inner_prod)", "products of f64"}}}};

}  // namespace

ArrayRef<Operator> einsumOperators() {
  return kOperators;
}

}  // namespace sheaf::frontend
