// RNN, GRU and LSTM, unrolled over the sequence. The products of all inputs with their weights, of all steps and both
// directions, are one product outside of the recurrence.
#include <cmath>

#include "frontend/onnx/importer/Importer.h"
#include "frontend/onnx/ops/Activations.h"
#include "frontend/onnx/ops/Limits.h"

using namespace mlir;

namespace sheaf::frontend {
namespace {

using Predicate = train::ComparePredicate;
enum class Cell { rnn, gru, lstm };

// An activation function and its parameters.
struct Activation {
  const ActivationKind* kind;
  double alpha, beta;

  explicit Activation(const ActivationKind* kind)
      : kind(kind), alpha(kind->alpha.value_or(0)), beta(kind->beta.value_or(0)) {}
  Tensor operator()(Emitter& e, const Tensor& x) const { return x ? kind->build(e, x, alpha, beta) : Tensor(); }
};

class Recurrence {
 public:
  Recurrence(Node& n, Cell cell) : n(n), e(n.emit), cell(cell) {}

  LogicalResult run() {
    if (failed(readAttributes()) || failed(readInputs())) return failure();
    if (failed(n.importer.countParts(steps * directions))) return failure();
    projected = project();
    if (!projected) return failure();
    std::vector<Tensor> sequences, hidden, cells;
    for (int64_t d = 0; d < directions; ++d) {
      bool reverse = directions == 2 ? d == 1 : n.string("direction", "forward") == "reverse";
      if (failed(runDirection(d, reverse, sequences, hidden, cells))) return failure();
    }
    // [steps, directions, batch, hidden], and final states [directions, batch, hidden]; with layout 1 the batch first.
    auto finish = [&](int64_t i, const std::vector<Tensor>& parts, int64_t axis, ArrayRef<int64_t> batchFirst) {
      if (!n.uses(i)) return success();
      Tensor whole = e.concat(parts, axis);
      return n.set(i, layout ? e.transpose(whole, batchFirst) : whole);
    };
    if (failed(finish(0, sequences, 1, {2, 0, 1, 3})) || failed(finish(1, hidden, 0, {1, 0, 2}))) return failure();
    return cell == Cell::lstm ? finish(2, cells, 0, {1, 0, 2}) : success();
  }

 private:
  int64_t gates() const { return cell == Cell::lstm ? 4 : cell == Cell::gru ? 3 : 1; }
  int64_t functionsPerDirection() const { return cell == Cell::lstm ? 3 : cell == Cell::gru ? 2 : 1; }

  LogicalResult readAttributes() {
    StringRef direction = n.string("direction", "forward");
    if (direction != "forward" && direction != "reverse" && direction != "bidirectional")
      return n.error() << "the attribute direction is '" << direction
                       << "'; it takes forward, reverse or bidirectional";
    directions = direction == "bidirectional" ? 2 : 1;
    layout = n.integer("layout", 0);
    clip = n.number("clip", 0);
    std::vector<std::string> names;
    if (const onnx::AttributeProto* a = n.attribute("activations"))
      for (const std::string& name : a->strings()) names.push_back(StringRef(name).lower());
    for (int64_t d = 0; names.empty() && d < directions; ++d) {
      activations.reserve(size_t(directions * functionsPerDirection()));
      if (cell != Cell::rnn) activations.emplace_back(findActivation("sigmoid"));
      for (int64_t k = cell == Cell::lstm ? 0 : 1; k < 2; ++k) activations.emplace_back(findActivation("tanh"));
    }
    if (!names.empty() && int64_t(names.size()) != directions * functionsPerDirection())
      return n.error() << "takes " << directions * functionsPerDirection() << " activations";
    auto values = [&](StringRef name) {
      const onnx::AttributeProto* a = n.attribute(name);
      return a ? std::vector<double>(a->floats().begin(), a->floats().end()) : std::vector<double>();
    };
    // Given parameters go to the functions that take one, in order.
    std::vector<double> alphas = values("activation_alpha"), betas = values("activation_beta");
    size_t nextAlpha = 0, nextBeta = 0;
    for (const std::string& name : names) {
      const ActivationKind* kind = findRecurrentActivation(name);
      if (!kind) return n.error() << "the activation '" << name << "' is not known";
      Activation f(kind);
      if (kind->alpha && nextAlpha < alphas.size()) f.alpha = alphas[nextAlpha++];
      if (kind->beta && nextBeta < betas.size()) f.beta = betas[nextBeta++];
      activations.push_back(f);
    }
    return success();
  }

  LogicalResult readInputs() {
    x = n.input(0);
    Tensor weights = n.input(1);
    recurrent = n.input(2);
    if (!x.isFloat() || x.rank() != 3 || weights.rank() != 3 || recurrent.rank() != 3)
      return n.error() << "takes floating-point input, weights and recurrent weights of three dimensions";
    if (layout) x = e.transpose(x, {1, 0, 2});
    steps = x.dim(0), batch = x.dim(1), hiddenSize = recurrent.dim(2);
    const int64_t rows = gates() * hiddenSize;
    auto is = [&](const Tensor& t, ArrayRef<int64_t> shape) {
      return !t || (t.shape() == shape && t.elementType() == x.elementType());
    };
    if (int64_t given = n.integer("hidden_size", hiddenSize); given != hiddenSize)
      return n.error() << "hidden_size is " << given << ", but the recurrent weights are for " << hiddenSize;
    Shape state{directions, batch, hiddenSize};
    if (layout) state = {batch, directions, hiddenSize};
    if (!is(weights, {directions, rows, x.dim(2)}) || !is(recurrent, {directions, rows, hiddenSize}) ||
        !is(n.input(3), {directions, 2 * rows}) || !is(n.input(5), state) ||
        (cell == Cell::lstm && (!is(n.input(6), state) || !is(n.input(7), {directions, 3 * hiddenSize}))))
      return n.error() << "the shapes or types of input, weights, biases and states do not fit each other";
    if (steps == 0 || batch == 0 || hiddenSize == 0) return n.error() << "takes at least one step, row and hidden unit";
    if (Tensor given = n.input(4)) {
      if (given.shape() != ArrayRef<int64_t>{batch} || given.isFloat() || given.isBool())
        return n.error() << "sequence_lens must be one integer a row";
      // Where every sequence has all steps, nothing is masked.
      bool whole = given.constant() &&
                   llvm::all_of(given.constant()->storedElements().i, [&](int64_t length) { return length >= steps; });
      if (!whole) lengths = e.reshape(given, {batch, 1});
    }
    linearBeforeReset = cell == Cell::gru && n.integer("linear_before_reset", 0);
    return success();
  }

  // [steps, batch, directions * gates * hidden]: inputs times weights, with the biases that can be added here.
  Tensor project() {
    const int64_t rows = gates() * hiddenSize, all = directions * rows;
    Tensor product = e.matmul(x, e.reshape(n.input(1), {all, x.dim(2)}), false, true);
    if (!n.input(3)) return product;
    Tensor own = e.sliceAlong(n.input(3), 1, 0, rows), other = e.sliceAlong(n.input(3), 1, rows, rows);
    if (linearBeforeReset) {
      // The recurrent bias of the hidden gate is multiplied by the reset gate: it is added in the step.
      hiddenBias = e.sliceAlong(other, 1, 2 * hiddenSize, hiddenSize);
      other = e.pad(e.sliceAlong(other, 1, 0, 2 * hiddenSize), {0, 0}, {0, hiddenSize});
    }
    return e.binary<train::AddOp>(product, e.reshape(e.binary<train::AddOp>(own, other), {all}));
  }

  // Row d of [directions, ...], without that dimension.
  Tensor ofDirection(const Tensor& t, int64_t d) {
    return t ? e.reshape(e.sliceAlong(t, 0, d, 1), t.shape().drop_front()) : Tensor();
  }
  Tensor initial(int64_t i, int64_t d) {
    Tensor t = n.input(i);
    return ofDirection(t && layout ? e.transpose(t, {1, 0, 2}) : t, d);
  }
  Tensor gate(const Tensor& t, int64_t k, int64_t count = 1) {
    return e.sliceAlong(t, t ? t.rank() - 1 : 0, k * hiddenSize, count * hiddenSize);
  }
  Tensor activate(int64_t d, int64_t k, Tensor t) {
    if (clip > 0) t = e.scalar<train::MinOp>(e.scalar<train::MaxOp>(t, -clip), clip);
    return activations[d * functionsPerDirection() + k](e, t);
  }
  // An absent state is zero.
  Tensor plus(const Tensor& a, const Tensor& b) { return b ? e.binary<train::AddOp>(a, b) : a; }
  Tensor times(const Tensor& a, const Tensor& b) { return b ? e.binary<train::MulOp>(a, b) : Tensor(); }
  Tensor product(const Tensor& h, const Tensor& weights) { return h ? e.matmul(h, weights, false, true) : Tensor(); }
  // 1 - a
  Tensor complement(const Tensor& a) { return e.binary<train::SubOp>(e.splatLike(a, 1), a); }

  LogicalResult runDirection(int64_t d, bool reverse, std::vector<Tensor>& sequences, std::vector<Tensor>& hidden,
                             std::vector<Tensor>& cells) {
    const int64_t rows = gates() * hiddenSize;
    Tensor weights = ofDirection(recurrent, d), bias = hiddenBias ? ofDirection(hiddenBias, d) : Tensor();
    Tensor peepholes = cell == Cell::lstm && n.input(7) ? ofDirection(n.input(7), d) : Tensor();
    if (cell == Cell::gru && !linearBeforeReset) {
      gateWeights = e.sliceAlong(weights, 0, 0, 2 * hiddenSize);
      candidateWeights = e.sliceAlong(weights, 0, 2 * hiddenSize, hiddenSize);
    }
    Tensor h = initial(5, d), c = cell == Cell::lstm ? initial(6, d) : Tensor();
    Tensor mine = directions == 2 ? e.sliceAlong(projected, 2, d * rows, rows) : projected;
    std::vector<Tensor> outputs(steps);
    for (int64_t k = 0; k < steps; ++k) {
      const int64_t t = reverse ? steps - 1 - k : k;
      // The ops of a step depend on its activations: it stops where the graph has too many.
      if (failed(n.importer.countNodes(0))) return failure();
      Tensor input = e.reshape(e.sliceAlong(mine, 0, t, 1), {batch, rows}), nextH, nextC;
      if (cell == Cell::rnn) nextH = activate(d, 0, plus(input, product(h, weights)));
      if (cell == Cell::gru) nextH = gruStep(d, input, h, weights, bias);
      if (cell == Cell::lstm) nextH = lstmStep(d, input, h, c, weights, peepholes, nextC);
      if (!nextH) return failure();
      Tensor output = nextH;
      if (lengths) {
        // Past its end, a sequence keeps its state and yields zeros.
        Tensor runs = e.compare(Predicate::gt, lengths, e.splatLike(lengths, double(t)));
        Tensor zero = e.splatLike(nextH, 0);
        output = e.select(runs, nextH, zero);
        nextH = h ? e.select(runs, nextH, h) : output;
        if (nextC) nextC = e.select(runs, nextC, c ? c : zero);
      }
      h = nextH, c = nextC;
      if (n.uses(0)) outputs[t] = e.reshape(output, {1, 1, batch, hiddenSize});
    }
    if (n.uses(0)) sequences.push_back(e.concat(outputs, 0));
    hidden.push_back(e.reshape(h, {1, batch, hiddenSize}));
    if (c) cells.push_back(e.reshape(c, {1, batch, hiddenSize}));
    return success();
  }

  // Gates: update z, reset r, hidden.
  Tensor gruStep(int64_t d, const Tensor& input, const Tensor& h, const Tensor& weights, const Tensor& bias) {
    Tensor zr = gate(input, 0, 2), candidate = gate(input, 2);
    Tensor all = linearBeforeReset ? product(h, weights) : Tensor();
    zr = plus(zr, all ? gate(all, 0, 2) : product(h, gateWeights));
    zr = activate(d, 0, zr);
    Tensor z = gate(zr, 0), r = gate(zr, 1);
    if (linearBeforeReset) {
      Tensor linear = all ? plus(gate(all, 2), bias) : bias ? e.expand(bias, {batch, hiddenSize}) : Tensor();
      candidate = plus(candidate, times(r, linear));
    } else {
      candidate = plus(candidate, product(times(r, h), candidateWeights));
    }
    candidate = activate(d, 1, candidate);
    return plus(e.binary<train::MulOp>(complement(z), candidate), times(z, h));
  }

  // Gates: input, output, forget, cell; peepholes: input, output, forget.
  Tensor lstmStep(int64_t d, const Tensor& input, const Tensor& h, const Tensor& c, const Tensor& weights,
                  const Tensor& peepholes, Tensor& nextC) {
    Tensor all = plus(input, product(h, weights));
    auto peep = [&](int64_t k, const Tensor& state) {
      return peepholes && state ? plus(gate(all, k), times(gate(peepholes, k), state)) : gate(all, k);
    };
    Tensor i = activate(d, 0, peep(0, c));
    Tensor f = n.integer("input_forget", 0) ? complement(i) : activate(d, 0, peep(2, c));
    nextC = plus(e.binary<train::MulOp>(i, activate(d, 1, gate(all, 3))), times(f, c));
    Tensor o = activate(d, 0, peep(1, nextC));
    return e.binary<train::MulOp>(o, activations[d * 3 + 2](e, nextC));
  }

  Node& n;
  Emitter& e;
  const Cell cell;
  int64_t directions = 1, layout = 0, steps = 0, batch = 0, hiddenSize = 0;
  double clip = 0;
  bool linearBeforeReset = false;
  std::vector<Activation> activations;  // of each direction in turn
  Tensor x, recurrent, lengths, projected, hiddenBias;
  Tensor gateWeights, candidateWeights;  // of the direction's recurrence, where a GRU needs them apart
};

template <Cell cell>
LogicalResult recurrence(Node& n) {
  return Recurrence(n, cell).run();
}

constexpr Operator kOperators[] = {
    {"RNN", 7, 0, 3, recurrence<Cell::rnn>, {.sample = "f[3,2,4], f[1,5,4], f[1,5,5]; hidden_size=5 outputs=2"}},
    {"GRU", 7, 0, 3, recurrence<Cell::gru>, {.sample = "f[3,2,4], f[1,15,4], f[1,15,5]; hidden_size=5 outputs=2"}},
    {"LSTM", 7, 0, 3, recurrence<Cell::lstm>, {.sample = "f[3,2,4], f[1,20,4], f[1,20,5]; hidden_size=5 outputs=3"}},
};

}  // namespace

ArrayRef<Operator> recurrentOperators() {
  return kOperators;
}

}  // namespace sheaf::frontend
