// The inputs of the step: the batch, the dimensions that are bound, and the inputs that are constants.
#include "frontend/onnx/Importer.h"
#include "frontend/onnx/Surveyor.h"

using namespace mlir;

namespace sheaf::frontend {

LogicalResult Importer::splitBatch() {
  if (batch % options.shares()) {
    emitError(model.location()) << "--batch " << batch << " does not divide into " << options.shares()
                                << (options.leaves             ? " leaves"
                                    : options.microBatches > 1 ? " pieces: --ranks times --micro-batches"
                                                               : " ranks");
    if (!surveyor) return failure();
  }
  rows = options.rows ? options.rows : leafRows();
  return success();
}

LogicalResult Importer::bindConstant(const onnx::ValueInfoProto& input, const KnownInput& known) {
  auto error = [&] { return emitError(model.location()) << "--const " << known.name << ": "; };
  const auto& tensor = input.type().tensor_type();
  Type element = input.type().has_tensor_type() ? elementType(builder.getContext(), tensor.elem_type()) : Type();
  if (!isa_and_nonnull<IntegerType>(element))
    return error() << "the input " << describe(input) << " is not of integers";
  if (tensor.has_shape() && size_t(tensor.shape().dim_size()) != known.shape.size())
    return error() << "the input " << describe(input) << " has another rank than the file";
  for (auto [d, dim] : llvm::enumerate(tensor.shape().dim()))
    if (dim.has_dim_value() && dim.dim_value() != known.shape[d])
      return error() << "the input " << describe(input) << " has another shape than the file";
  auto type = RankedTensorType::get(known.shape, element);
  root.values[known.name] = GraphValue{Constant::integers(type, known.values), std::nullopt};
  decide("input " + known.name + ": constant, given by --const");
  return success();
}

bool Importer::isWhole(const onnx::ValueInfoProto& input) const {
  if (!evaluates()) return false;
  auto first = [](const onnx::ValueInfoProto& value) -> const onnx::TensorShapeProto::Dimension* {
    const auto& shape = value.type().tensor_type().shape();
    return shape.dim_size() ? &shape.dim(0) : nullptr;
  };
  const auto* dim = first(input);
  if (!dim) return true;
  if (!dim->has_dim_value()) return false;
  // The batch is what is symbolic; where nothing is, it is the first input's.
  for (const onnx::ValueInfoProto* other : dataInputs)
    if (const auto* batch = first(*other); batch && !batch->has_dim_value())
      return rows == 0 || dim->dim_value() != leafRows();
  for (const onnx::ValueInfoProto* other : dataInputs)
    if (const auto* batch = first(*other)) return batch->dim_value() != dim->dim_value();
  return true;
}

namespace {

// Calls visit(name, what it is) for the tensors of floats with dimensions that a node holds, and that look like
// weights but are not parameters.
void forEachUntrained(const onnx::NodeProto& node,
                      llvm::function_ref<void(const std::string& name, StringRef what)> visit) {
  auto weight = [](const onnx::TensorProto& tensor) { return isFloatType(tensor.data_type()) && tensor.dims_size(); };
  for (const onnx::AttributeProto& attribute : node.attribute()) {
    if (node.op_type() == "Constant" && node.output_size() && attribute.has_t() && weight(attribute.t()))
      visit(node.output(0), "value of a Constant node");
    for (const onnx::TensorProto& tensor : attribute.g().initializer())
      if (weight(tensor)) visit(tensor.name(), "initializer of a subgraph");
    for (const onnx::NodeProto& inner : attribute.g().node()) forEachUntrained(inner, visit);
  }
}

}  // namespace

LogicalResult Importer::bindDimensions() {
  auto error = [&] { return emitError(model.location()); };
  for (const KnownInput& known : options.constants) {
    auto input = llvm::find_if(dataInputs, [&](const auto* info) { return info->name() == known.name; });
    const bool found = input != dataInputs.end();
    if (!found) error() << "--const " << known.name << ": the model has no such input, or it is named twice";
    if ((!found || failed(bindConstant(**input, known))) && !surveyor) return failure();
    if (found) dataInputs.erase(input);
  }
  if (!evaluates())
    for (auto [i, node] : llvm::enumerate(nodes))
      if (needed[i])
        forEachUntrained(*node, [&](const std::string& name, StringRef what) {
          decide(name + ": constant, the " + what + ", which is not trained; make it an initializer of the graph");
        });
  // Only what the loss needs is an input of the step.
  llvm::StringSet<> read, known;
  for (auto [i, node] : llvm::enumerate(nodes))
    if (needed[i]) forEachInput(*node, [&](StringRef name) { read.insert(name); });
  for (const auto& [name, size] : options.bind) {
    bool positive = size >= 1;
    if (!positive) error() << "--bind " << name << "=" << size << ": a dimension must be positive";
    if (positive && sizes.try_emplace(name, size).second) continue;
    if (positive) error() << "--bind names the dimension '" << name << "' twice";
    if (!surveyor) return failure();
  }
  batch = options.batch;
  if (batch && failed(splitBatch())) return failure();

  const auto count = llvm::count_if(dataInputs, [&](const auto* input) { return read.contains(input->name()); });
  if (count > kMaxOperands)
    return error() << "the model has " << count << " inputs, and at most " << kMaxOperands
                   << " are supported; combine them, or make some initializers";
  for (const onnx::ValueInfoProto* input : dataInputs) {
    if (!read.contains(input->name())) {
      decide("input " + input->name() + ": not needed" + (evaluates() ? "" : " by the loss"));
      continue;
    }
    for (const auto& dim : input->type().tensor_type().shape().dim()) known.insert(dim.dim_param());
    if (succeeded(bindInput(*input))) continue;
    if (!surveyor) return failure();
    root.values[input->name()] = GraphValue{{}, std::nullopt, true};
  }
  if (evaluates() && !batch) {
    batch = options.shares();
    if (failed(splitBatch())) return failure();
  }
  if (rows == 2 && leafRows() == 1) (*module)->setAttr(train::kTwoRowsAttr, builder.getUnitAttr());
  if (rows == 1 && (options.shares() > 1 || evaluates())) {
    if (options.shares() > 1) emit.splitIntoRows();
    (*module)->setAttr(train::kOneRowAttr, builder.getUnitAttr());
  }
  for (const auto& [name, size] : options.bind)
    if (!known.contains(name)) {
      error() << "--bind " << name << ": no input has a dimension of that name";
      if (!surveyor) return failure();
    }
  return success();
}

LogicalResult Importer::bindInput(const onnx::ValueInfoProto& input) {
  auto error = [&] { return emitError(model.location()); };
  const auto& tensor = input.type().tensor_type();
  Type element = input.type().has_tensor_type() ? elementType(builder.getContext(), tensor.elem_type()) : Type();
  const std::string orConstant =
      isa_and_nonnull<IntegerType>(element) ? "; or give --const " + input.name() + "=FILE if it decides shapes" : "";
  if (!element || !tensor.has_shape())
    return error() << "input " << describe(input) << " has no shape or a type that is not supported";
  const bool isWhole = this->isWhole(input);
  if (tensor.shape().dim_size() == 0 && !isWhole)
    return error() << "input '" << input.name() << "' is a scalar; data inputs have the batch as their first dimension"
                   << orConstant;
  Shape shape;
  for (auto [i, dim] : llvm::enumerate(tensor.shape().dim())) {
    if (dim.has_dim_value() && dim.dim_value() < 1)
      return error() << "input " << describe(input) << " has a dimension of " << dim.dim_value();
    if (i == 0 && !isWhole) {
      bool symbolic = !dim.has_dim_value();
      auto bound = symbolic && !dim.dim_param().empty() ? sizes.find(dim.dim_param()) : sizes.end();
      if (!batch && bound != sizes.end())
        batch = bound->second;
      else if (!batch && symbolic && surveyor)
        batch = surveyor->assumeBatch(options.shares());
      else if (!batch && symbolic)
        return error() << "input " << describe(input) << ": the batch size is not bound; give --batch B";
      else if (!batch)
        batch = dim.dim_value() * options.shares();
      if (failed(splitBatch())) return failure();
      // A graph that is fixed to one row is not known to take another number of them.
      const bool another = options.rows && leafRows() > 1;
      if (!symbolic && (another ? leafRows() : rows) != dim.dim_value()) {
        error() << "input " << describe(input) << " was exported for " << dim.dim_value()
                << " rows a rank; give --batch " << dim.dim_value() * options.shares()
                << ", or export it with a dynamic batch" << orConstant;
        if (!surveyor) return failure();
        shape.push_back(rows = dim.dim_value());
        continue;
      }
      if (!symbolic) step->setAttr(train::kFixedRowsAttr, builder.getUnitAttr());
      if (symbolic && !dim.dim_param().empty()) sizes[dim.dim_param()] = rows;
      shape.push_back(rows);
      continue;
    }
    auto bound = dim.dim_param().empty() ? sizes.end() : sizes.find(dim.dim_param());
    if (dim.has_dim_value())
      shape.push_back(dim.dim_value());
    else if (bound != sizes.end())
      shape.push_back(bound->second);
    else if (dim.dim_param().empty())
      return error() << "input '" << input.name() << "': dimension " << i
                     << " has neither a size nor a name; export it with a fixed size";
    else if (surveyor)
      shape.push_back(sizes[dim.dim_param()] = surveyor->assume(dim.dim_param(), input.name()));
    else
      return error() << "input " << describe(input) << ": dimension '" << dim.dim_param()
                     << "' is not bound; give --bind '" << dim.dim_param() << "=SIZE'";
  }
  if (!elementCount(shape)) return error() << "input '" << input.name() << "' has too many elements";
  Value argument = addArgument(input.name(), RankedTensorType::get(shape, element));
  if (!isWhole) return success();
  whole.insert(argument);
  step.setArgAttr(step.getNumArguments() - 1, "train.whole", builder.getUnitAttr());
  decide("input " + input.name() + ": the same for all rows");
  return success();
}

Value Importer::addArgument(StringRef name, RankedTensorType type) {
  unsigned index = step.getNumArguments();
  auto attributes = builder.getDictionaryAttr(builder.getNamedAttr("train.name", builder.getStringAttr(name)));
  (void)step.insertArgument(index, type, attributes, model.location());
  Value value = step.getArgument(index);
  root.values[name] = GraphValue{Tensor(value), std::nullopt};
  return value;
}

}  // namespace sheaf::frontend
