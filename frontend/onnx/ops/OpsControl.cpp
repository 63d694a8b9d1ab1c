// Control flow that is known when the graph is compiled: a branch is taken, a loop is unrolled.
#include "frontend/onnx/importer/Importer.h"

using namespace mlir;

namespace sheaf::frontend {
namespace {

using Values = std::vector<GraphValue>;

// Tensors of a sequence whose copying takes as long as importing a node.
constexpr size_t kCopiedPerNode = 16;

// The outputs of a subgraph of the node for these inputs.
FailureOr<Values> importSubgraph(Node& n, const onnx::GraphProto& graph, const Values& inputs) {
  if (int64_t(inputs.size()) != graph.input_size())
    return n.error() << "the subgraph takes " << graph.input_size() << " inputs, not " << inputs.size(), failure();
  Scope body;
  body.parent = &n.scope;
  body.function = n.scope.function;
  for (auto& entry : n.scope.attributes) body.attributes[entry.first()] = entry.second;
  for (const onnx::TensorProto& tensor : graph.initializer()) {
    Tensor value = constantTensor(n.emit, n.importer.model, tensor);
    if (!value) return failure();
    body.values[tensor.name()] = GraphValue{value, std::nullopt};
  }
  for (int i = 0; i < graph.input_size(); ++i) body.values[graph.input(i).name()] = inputs[i];
  auto place = n.emit.place();
  if (failed(n.importer.importNodes(graph.node(), body))) return failure();
  n.emit.enter(std::move(place));
  Values outputs;
  for (const onnx::ValueInfoProto& output : graph.output()) {
    GraphValue* value = n.importer.lookup(output.name(), body, &n.proto);
    if (!value) return failure();
    outputs.push_back(*value);
  }
  return outputs;
}

const onnx::GraphProto* subgraph(Node& n, StringRef name) {
  const onnx::AttributeProto* a = n.attribute(name);
  if (a && a->has_g()) return &a->g();
  n.error() << "the attribute " << name << " is missing";
  return nullptr;
}

LogicalResult branch(Node& n) {
  const Constant* condition = n.input(0).constant();
  if (!condition || n.input(0).count() != 1)
    return n.error() << "the condition depends on data; only branches known when the graph is compiled are supported";
  const onnx::GraphProto* graph = subgraph(n, condition->splatValue() ? "then_branch" : "else_branch");
  if (!graph) return failure();
  FailureOr<Values> outputs = importSubgraph(n, *graph, {});
  if (failed(outputs)) return failure();
  if (n.outputs() > int64_t(outputs->size())) return n.error() << "the branch has too few outputs";
  for (int64_t i = 0; i < n.outputs(); ++i) n.setValue(i, (*outputs)[i]);
  return success();
}

// Counts an iteration, in which sequences are copied, so that long loops over long sequences end.
LogicalResult countIteration(Node& n, const Values& values) {
  size_t copied = 0;
  for (const GraphValue& value : values) copied += value.sequence ? value.sequence->size() : 0;
  return n.importer.unroll(1 + int64_t(copied / kCopiedPerNode));
}

// What an iteration yields for each scan output, first to last.
class Scanned {
 public:
  explicit Scanned(const onnx::ValueInfoProto& output) : output(output) {}
  LogicalResult add(Node& n, const GraphValue& value) {
    if (value.unknown) return failure();  // a survey has said why
    if (!value.tensor) return n.error() << "the scan output '" << output.name() << "' is not a tensor";
    if (!pieces.empty() && pieces[0].type() != value.tensor.type())
      return n.error() << "the scan output '" << output.name() << "' changes its shape or type between iterations";
    pieces.push_back(value.tensor);
    return success();
  }
  // The pieces as one tensor with a new dimension `axis`; absent after an error.
  Tensor stacked(Node& n, int64_t axis, bool reverse) {
    if (pieces.empty()) return none(n);
    if (!n.emit.checkAxis(axis, pieces[0].rank() + 1)) return {};
    if (reverse) std::reverse(pieces.begin(), pieces.end());
    Shape shape(pieces[0].shape());
    shape.insert(shape.begin() + axis, 1);
    for (Tensor& piece : pieces)
      if (!(piece = n.emit.reshape(piece, shape))) return {};
    return n.emit.concat(pieces, axis);
  }

 private:
  // Of a loop that never runs: what the subgraph declares.
  Tensor none(Node& n) {
    const auto& tensor = output.type().tensor_type();
    Type element = elementType(n.emit.context(), tensor.elem_type());
    Shape shape{0};
    bool known = element && tensor.has_shape();
    for (const auto& dim : tensor.shape().dim()) {
      known = known && dim.has_dim_value();
      shape.push_back(dim.dim_value());
    }
    if (!known || !n.emit.checkShape(shape))
      return n.error() << "the loop never runs, and the shape of its scan output '" << output.name()
                       << "' is not declared",
             Tensor();
    return n.emit.splat(element, shape, 0);
  }
  const onnx::ValueInfoProto& output;
  std::vector<Tensor> pieces;
};

LogicalResult loop(Node& n) {
  Emitter& e = n.emit;
  const onnx::GraphProto* body = subgraph(n, "body");
  if (!body) return failure();
  auto known = [&](const Tensor& x) { return x.constant() && x.count() == 1; };
  constexpr const char* kUnrolled =
      "depends on data; loops are unrolled when the graph is compiled, so trip count and "
      "condition must be known then";
  std::optional<int64_t> trips;
  if (Tensor count = n.input(0)) {
    if (!known(count) || count.isFloat()) return n.error() << "the trip count " << kUnrolled;
    trips = count.constant()->splatInteger();
  }
  bool running = true;
  if (Tensor condition = n.input(1)) {
    if (!known(condition)) return n.error() << "the condition " << kUnrolled;
    running = condition.constant()->splatValue() != 0;
  }
  Values carried(n.operands.begin() + std::min<size_t>(2, n.operands.size()), n.operands.end());
  const size_t count = carried.size();
  if (body->output_size() < int(1 + count)) return n.error() << "the body has too few outputs";
  std::vector<Scanned> scanned;
  for (int i = int(1 + count); i < body->output_size(); ++i) scanned.emplace_back(body->output(i));
  for (int64_t i = 0; running && (!trips || i < *trips); ++i) {
    if (failed(countIteration(n, carried))) return failure();
    Values inputs{{e.reshape(e.integers({i}), {}), std::nullopt}, {e.splat(e.ops().getI1Type(), {}, 1), std::nullopt}};
    inputs.insert(inputs.end(), carried.begin(), carried.end());
    FailureOr<Values> outputs = importSubgraph(n, *body, inputs);
    if (failed(outputs)) return failure();
    if (!known((*outputs)[0].tensor)) return n.error() << "the condition " << kUnrolled;
    running = (*outputs)[0].tensor.constant()->splatValue() != 0;
    std::copy(outputs->begin() + 1, outputs->begin() + 1 + count, carried.begin());
    for (auto [k, scan] : llvm::enumerate(scanned))
      if (failed(scan.add(n, (*outputs)[1 + count + k]))) return failure();
  }
  for (size_t i = 0; i < count; ++i) n.setValue(i, carried[i]);
  for (auto [k, scan] : llvm::enumerate(scanned))
    if (n.uses(count + k) && failed(n.set(count + k, scan.stacked(n, 0, false)))) return failure();
  return success();
}

// The attributes of a Scan; lists are empty where they are absent.
struct ScanForm {
  const onnx::GraphProto* body;
  size_t states, inputs, outputs;
  Shape axes, directions, outputAxes, outputDirections;
};

// One Scan over its inputs [states..., inputs...]; final states and stacked outputs.
FailureOr<Values> scanOnce(Node& n, ScanForm form, Values values) {
  Emitter& e = n.emit;
  std::optional<int64_t> length;
  for (size_t i = 0; i < form.inputs; ++i) {
    Tensor x = values[form.states + i].tensor;
    if (!x) return n.error() << "takes tensors to scan", failure();
    if (!e.checkAxis(form.axes[i], x.rank())) return failure();
    if (length && *length != x.dim(form.axes[i])) return n.error() << "the scanned inputs differ in length", failure();
    length = x.dim(form.axes[i]);
  }
  Values states(values.begin(), values.begin() + form.states);
  std::vector<Scanned> scanned;
  for (size_t k = 0; k < form.outputs; ++k) scanned.emplace_back(form.body->output(int(form.states + k)));
  for (int64_t t = 0; t < *length; ++t) {
    if (failed(countIteration(n, states))) return failure();
    Values inputs = states;
    for (size_t i = 0; i < form.inputs; ++i) {
      const Tensor& x = values[form.states + i].tensor;
      Tensor piece = e.sliceAlong(x, form.axes[i], form.directions[i] ? *length - 1 - t : t, 1);
      Shape shape(x.shape());
      shape.erase(shape.begin() + form.axes[i]);
      if (!(piece = e.reshape(piece, shape))) return failure();
      inputs.push_back({piece, std::nullopt});
    }
    FailureOr<Values> outputs = importSubgraph(n, *form.body, inputs);
    if (failed(outputs)) return failure();
    std::copy(outputs->begin(), outputs->begin() + form.states, states.begin());
    for (auto [k, scan] : llvm::enumerate(scanned))
      if (failed(scan.add(n, (*outputs)[form.states + k]))) return failure();
  }
  for (auto [k, scan] : llvm::enumerate(scanned)) {
    Tensor stacked = scan.stacked(n, form.outputAxes[k], form.outputDirections[k]);
    if (!stacked) return failure();
    states.push_back({stacked, std::nullopt});
  }
  return states;
}

LogicalResult scan(Node& n) {
  Emitter& e = n.emit;
  ScanForm form{subgraph(n, "body"), 0, size_t(n.integer("num_scan_inputs", 0)), 0, {}, {}, {}, {}};
  if (!form.body) return failure();
  // Opset 8 has lengths of sequences first, and a batch in front of everything.
  const bool batched = n.opset < 9;
  if (n.operands.empty()) return n.error() << "takes inputs to scan";
  Values values(n.operands.begin() + (batched ? 1 : 0), n.operands.end());
  if (form.inputs < 1 || form.inputs > values.size()) return n.error() << "num_scan_inputs is out of range";
  form.states = values.size() - form.inputs;
  if (form.body->output_size() < int(form.states)) return n.error() << "the body has too few outputs";
  form.outputs = form.body->output_size() - form.states;
  auto list = [&](StringRef name, size_t size) {
    Shape values = n.integers(name).value_or(Shape());
    values.resize(size, 0);
    return values;
  };
  form.axes = list("scan_input_axes", form.inputs);
  form.directions = list(batched ? "directions" : "scan_input_directions", form.inputs);
  form.outputAxes = list("scan_output_axes", form.outputs);
  form.outputDirections = list("scan_output_directions", form.outputs);
  Values results;
  if (!batched) {
    FailureOr<Values> once = scanOnce(n, form, values);
    if (failed(once)) return failure();
    results = *once;
  } else {
    if (n.input(0)) return n.error() << "sequence_lens is not supported; it was removed at opset 9";
    std::vector<std::vector<Tensor>> rows(form.states + form.outputs);
    int64_t batch = -1;
    for (const GraphValue& value : values) {
      if (value.tensor.rank() < 1 || (batch >= 0 && value.tensor.dim(0) != batch))
        return n.error() << "takes tensors with one batch in front";
      batch = value.tensor.dim(0);
    }
    if (batch < 1) return n.error() << "takes at least one row";
    for (int64_t b = 0; b < batch; ++b) {
      Values row;
      for (const GraphValue& value : values)
        row.push_back(
            {e.reshape(e.sliceAlong(value.tensor, 0, b, 1), value.tensor.shape().drop_front()), std::nullopt});
      FailureOr<Values> once = scanOnce(n, form, row);
      if (failed(once)) return failure();
      for (auto [k, value] : llvm::enumerate(*once)) {
        Shape shape{1};
        llvm::append_range(shape, value.tensor.shape());
        rows[k].push_back(e.reshape(value.tensor, shape));
      }
    }
    for (const auto& parts : rows) results.push_back({e.concat(parts, 0), std::nullopt});
  }
  if (n.outputs() > int64_t(results.size())) return n.error() << "the body has too few outputs";
  for (int64_t i = 0; i < n.outputs(); ++i) {
    if (!results[i].tensor && !results[i].sequence) return failure();
    n.setValue(i, results[i]);
  }
  return success();
}

// The body for each element of the first sequence; other sequences go along, tensors are the same for all.
LogicalResult sequenceMap(Node& n) {
  const onnx::GraphProto* body = subgraph(n, "body");
  if (!body) return failure();
  if (!n.sequence(0)) return n.error() << "takes a sequence";
  const size_t length = n.sequence(0)->size();
  std::vector<std::vector<Tensor>> results(body->output_size());
  for (size_t i = 0; i < length; ++i) {
    if (failed(countIteration(n, n.operands))) return failure();
    Values inputs;
    for (const GraphValue& operand : n.operands) {
      if (operand.sequence && operand.sequence->size() != length) return n.error() << "the sequences differ in length";
      inputs.push_back(operand.sequence ? GraphValue{(*operand.sequence)[i], std::nullopt} : operand);
    }
    FailureOr<Values> outputs = importSubgraph(n, *body, inputs);
    if (failed(outputs)) return failure();
    for (auto [k, value] : llvm::enumerate(*outputs)) {
      if (!value.tensor) return n.error() << "the body must yield tensors";
      results[k].push_back(value.tensor);
    }
  }
  if (n.outputs() > int64_t(results.size())) return n.error() << "the body has too few outputs";
  for (int64_t k = 0; k < n.outputs(); ++k)
    if (failed(n.setSequence(k, results[k]))) return failure();
  return success();
}

constexpr Operator kOperators[] = {
    {"If",
     1,
     0,
     1,
     branch,
     {.lowering = "its branch",
      .limits = "conditions and trip counts known when the graph is compiled",
      .leftOut = {"test_if_opt", "optional values"}}},
    {"Loop",
     1,
     0,
     0,
     loop,
     {.sequences = true,
      .lowering = "its body, unrolled",
      .limits = "conditions and trip counts known when the graph is compiled"}},
    {"Scan",
     8,
     0,
     0,
     scan,
     {.lowering = "its body, unrolled", .limits = "conditions and trip counts known when the graph is compiled"}},
    {"SequenceMap",
     17,
     0,
     1,
     sequenceMap,
     {.sequences = true,
      .lowering = "its body, unrolled",
      .limits = "conditions and trip counts known when the graph is compiled"}},
};

}  // namespace

ArrayRef<Operator> controlOperators() {
  return kOperators;
}

}  // namespace sheaf::frontend
