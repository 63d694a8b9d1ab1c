// Control flow that is known when the graph is compiled: a branch is taken, a loop is unrolled.
#include "frontend/onnx/importer/Importer.h"

using namespace mlir;

namespace sheaf::frontend {
namespace {

using Values = std::vector<GraphValue>;

// A subgraph of a node, whose initializers are read once.
struct Subgraph {
  const onnx::GraphProto& graph;
  std::vector<Tensor> initializers;
};

// The outputs of a subgraph of the node for these inputs.
FailureOr<Values> importSubgraph(Node& n, const Subgraph& subgraph, const Values& inputs) {
  const onnx::GraphProto& graph = subgraph.graph;
  if (int64_t(inputs.size()) != graph.input_size())
    return n.error() << "the subgraph takes " << graph.input_size() << " inputs, not " << inputs.size(), failure();
  Scope body;
  body.parent = &n.scope;
  body.function = n.scope.function;
  for (auto& entry : n.scope.attributes) body.attributes[entry.first()] = entry.second;
  for (auto [tensor, value] : llvm::zip(graph.initializer(), subgraph.initializers))
    body.values[tensor.name()] = GraphValue{value, std::nullopt};
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

FailureOr<Subgraph> subgraph(Node& n, StringRef name) {
  const onnx::AttributeProto* a = n.attribute(name);
  if (!a || !a->has_g()) return n.error() << "the attribute " << name << " is missing", failure();
  Subgraph subgraph{a->g(), {}};
  for (const onnx::TensorProto& tensor : a->g().initializer()) {
    Tensor value = constantTensor(n.emit, n.importer.model, tensor);
    if (!value || failed(n.importer.countElements(value.count()))) return failure();
    subgraph.initializers.push_back(value);
  }
  return subgraph;
}

LogicalResult branch(Node& n) {
  const Constant* condition = n.input(0).constant();
  if (!condition || n.input(0).count() != 1)
    return n.error() << "the condition depends on data; only branches known when the graph is compiled are supported";
  FailureOr<Subgraph> graph = subgraph(n, condition->splatValue() ? "then_branch" : "else_branch");
  if (failed(graph)) return failure();
  FailureOr<Values> outputs = importSubgraph(n, *graph, {});
  if (failed(outputs)) return failure();
  if (n.outputs() > int64_t(outputs->size())) return n.error() << "the branch has too few outputs";
  for (int64_t i = 0; i < n.outputs(); ++i) n.setValue(i, (*outputs)[i]);
  return success();
}

// Counts an iteration, the sequences that it copies and the known elements that it reads, so that long loops over large
// values are refused.
LogicalResult countIteration(Node& n, const Values& values, int64_t read = 0) {
  int64_t copied = 0;
  for (const GraphValue& value : values) copied += value.sequence ? int64_t(value.sequence->size()) : 0;
  if (failed(n.importer.countNodes(1)) || failed(n.importer.countCopies(copied))) return failure();
  return n.importer.countElements(read);
}

// Fails if a value that a subgraph yields is not a tensor; without an error if it is unknown, since the survey has
// reported why.
LogicalResult checkTensor(Node& n, const GraphValue& value, const Twine& what, const onnx::ValueInfoProto& output) {
  if (value.tensor) return success();
  if (value.unknown) return failure();
  return n.error() << what << " '" << output.name() << "' is not a tensor";
}

// What an iteration yields for each scan output, first to last.
class Scanned {
 public:
  explicit Scanned(const onnx::ValueInfoProto& output) : output(output) {}
  LogicalResult add(Node& n, const GraphValue& value) {
    if (failed(checkTensor(n, value, "the scan output", output))) return failure();
    if (!pieces.empty() && pieces[0].type() != value.tensor.type())
      return n.error() << "the scan output '" << output.name() << "' changes its shape or type between iterations";
    pieces.push_back(value.tensor);
    return success();
  }
  // The pieces as one tensor with a new dimension `axis`; absent after an error.
  Tensor stacked(Node& n, int64_t axis, bool reverse) {
    if (pieces.empty()) return none(n, axis);
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
  Tensor none(Node& n, int64_t axis) {
    const auto& tensor = output.type().tensor_type();
    Type element = elementType(n.emit.context(), tensor.elem_type());
    Shape shape;
    bool known = element && tensor.has_shape();
    for (const auto& dim : tensor.shape().dim()) {
      known = known && dim.has_dim_value();
      shape.push_back(dim.dim_value());
    }
    if (!known)
      return n.error() << "the loop never runs, and the shape of its scan output '" << output.name()
                       << "' is not declared",
             Tensor();
    if (!n.emit.checkAxis(axis, int64_t(shape.size()) + 1)) return {};
    shape.insert(shape.begin() + axis, 0);
    if (!n.emit.checkShape(shape)) return {};
    return n.emit.splat(element, shape, 0);
  }
  const onnx::ValueInfoProto& output;
  std::vector<Tensor> pieces;
};

LogicalResult loop(Node& n) {
  Emitter& e = n.emit;
  FailureOr<Subgraph> body = subgraph(n, "body");
  if (failed(body)) return failure();
  const onnx::GraphProto& graph = body->graph;
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
  if (graph.output_size() < int(1 + count)) return n.error() << "the body has too few outputs";
  std::vector<Scanned> scanned;
  for (int i = int(1 + count); i < graph.output_size(); ++i) scanned.emplace_back(graph.output(i));
  for (int64_t i = 0; running && (!trips || i < *trips); ++i) {
    if (failed(countIteration(n, carried))) return failure();
    Values inputs{{e.reshape(e.integers({i}), {}), std::nullopt}, {e.splat(e.ops().getI1Type(), {}, 1), std::nullopt}};
    inputs.insert(inputs.end(), carried.begin(), carried.end());
    FailureOr<Values> outputs = importSubgraph(n, *body, inputs);
    if (failed(outputs)) return failure();
    if ((*outputs)[0].unknown) return failure();  // a survey has said why
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
  Subgraph body;
  size_t states, inputs, outputs;
  Shape axes, directions, outputAxes, outputDirections;
};

// One Scan over its inputs [states..., inputs...]; final states and stacked outputs.
FailureOr<Values> scanOnce(Node& n, ScanForm form, Values values) {
  Emitter& e = n.emit;
  std::optional<int64_t> length;
  int64_t read = 0;  // in an iteration
  for (size_t i = 0; i < form.states; ++i)
    if (!values[i].tensor) return n.error() << "takes tensors as states", failure();
  for (size_t i = 0; i < form.inputs; ++i) {
    Tensor x = values[form.states + i].tensor;
    if (!x) return n.error() << "takes tensors to scan", failure();
    if (!e.checkAxis(form.axes[i], x.rank())) return failure();
    if (length && *length != x.dim(form.axes[i])) return n.error() << "the scanned inputs differ in length", failure();
    length = x.dim(form.axes[i]);
    read += x.storedCount();
  }
  Values states(values.begin(), values.begin() + form.states);
  std::vector<Scanned> scanned;
  for (size_t k = 0; k < form.outputs; ++k) scanned.emplace_back(form.body.graph.output(int(form.states + k)));
  for (int64_t t = 0; t < *length; ++t) {
    if (failed(countIteration(n, states, read))) return failure();
    Values inputs = states;
    for (size_t i = 0; i < form.inputs; ++i) {
      const Tensor& x = values[form.states + i].tensor;
      Tensor piece = e.sliceAlong(x, form.axes[i], form.directions[i] ? *length - 1 - t : t, 1);
      Shape shape(x.shape());
      shape.erase(shape.begin() + form.axes[i]);
      if (!(piece = e.reshape(piece, shape))) return failure();
      inputs.push_back({piece, std::nullopt});
    }
    FailureOr<Values> outputs = importSubgraph(n, form.body, inputs);
    if (failed(outputs)) return failure();
    for (size_t i = 0; i < form.states; ++i)
      if (failed(checkTensor(n, (*outputs)[i], "the state", form.body.graph.output(int(i))))) return failure();
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
  FailureOr<Subgraph> body = subgraph(n, "body");
  if (failed(body)) return failure();
  ScanForm form{*body, 0, size_t(n.integer("num_scan_inputs", 0)), 0, {}, {}, {}, {}};
  // Opset 8 has lengths of sequences first, and a batch in front of everything.
  const bool batched = n.opset < 9;
  if (n.operands.empty()) return n.error() << "takes inputs to scan";
  Values values(n.operands.begin() + (batched ? 1 : 0), n.operands.end());
  if (form.inputs < 1 || form.inputs > values.size()) return n.error() << "num_scan_inputs is out of range";
  form.states = values.size() - form.inputs;
  if (form.body.graph.output_size() < int(form.states)) return n.error() << "the body has too few outputs";
  form.outputs = form.body.graph.output_size() - form.states;
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
    int64_t batch = -1, read = 0;  // in a row
    for (const GraphValue& value : values) {
      if (value.tensor.rank() < 1 || (batch >= 0 && value.tensor.dim(0) != batch))
        return n.error() << "takes tensors with one batch in front";
      batch = value.tensor.dim(0);
      read += value.tensor.storedCount();
    }
    if (batch < 1) return n.error() << "takes at least one row";
    for (int64_t b = 0; b < batch; ++b) {
      if (failed(countIteration(n, {}, read))) return failure();
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
    for (const auto& parts : rows) {
      results.push_back({e.concat(parts, 0), std::nullopt});
      if (!results.back().tensor) return failure();
    }
  }
  if (n.outputs() > int64_t(results.size())) return n.error() << "the body has too few outputs";
  for (int64_t i = 0; i < n.outputs(); ++i) n.setValue(i, results[i]);
  return success();
}

// The body for each element of the first sequence; other sequences go along, tensors are the same for all.
LogicalResult sequenceMap(Node& n) {
  FailureOr<Subgraph> body = subgraph(n, "body");
  if (failed(body)) return failure();
  if (!n.sequence(0)) return n.error() << "takes a sequence";
  const size_t length = n.sequence(0)->size();
  std::vector<std::vector<Tensor>> results(body->graph.output_size());
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
      if (failed(checkTensor(n, value, "the output", body->graph.output(int(k))))) return failure();
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
