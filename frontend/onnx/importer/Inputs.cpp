// The inputs of the step: the batch, the dimensions that are bound, and the inputs that are constants.
#include <algorithm>

#include "frontend/onnx/importer/Importer.h"
#include "frontend/onnx/ops/RowsFirst.h"
#include "frontend/onnx/survey/Surveyor.h"

using namespace mlir;

namespace sheaf::frontend {

// "--ranks 1 or 3": the numbers of ranks nearest to --ranks that so many rows divide into.
std::string Importer::divisorsOf(int64_t rows) const {
  if (options.leaves || options.microBatches > 1) return "--ranks, --micro-batches and --leaves that divide it";
  int64_t below = options.ranks, above = options.ranks;
  while (rows % below) --below;
  while (above < rows && rows % above) ++above;
  return "--ranks " + std::to_string(below) + (above <= rows && above > below ? " or " + std::to_string(above) : "");
}

// The options that take a batch of so many rows.
std::string Importer::batchOf(int64_t rows) const {
  return "--batch " + std::to_string(rows) + (rows % leaves() ? " and " + divisorsOf(rows) : "");
}

LogicalResult Importer::splitBatch() {
  rows = oneRow ? 1 : batch;
  const int64_t pieces = options.pieces();
  const StringRef shares = options.leaves             ? " leaves"
                           : options.microBatches > 1 ? " pieces: --ranks times --micro-batches"
                                                      : " ranks";
  if (oneRow &&
      (batch % pieces || !llvm::isPowerOf2_64(uint64_t(batch / pieces)) || (options.leaves && options.leaves != batch)))
    emitError(model.location()) << "the graph is fixed to one row, so each row of the batch is a leaf, and --batch "
                                << batch << " is not "
                                << (options.leaves ? "--leaves " + Twine(options.leaves)
                                                   : Twine(pieces) + " times a power of two")
                                << ": give --batch " << (options.leaves ? options.leaves : pieces)
                                << ", or export the model with a dynamic batch";
  else if (batch % leaves() && exportedRows > 0 && batch == exportedRows)
    emitError(model.location()) << "the batch of " << batch << " rows that the model was exported for does not divide "
                                << "into " << options.shares() << shares << ": give " << divisorsOf(batch)
                                << ", or export it with a dynamic batch";
  else if (batch % leaves() && exportedRows > 0)
    emitError(model.location()) << "--batch " << batch << " does not divide into " << options.shares() << shares
                                << ", and the model was exported for a batch of " << exportedRows << " rows: give "
                                << batchOf(exportedRows) << ", or export it with a dynamic batch";
  else if (batch % leaves())
    emitError(model.location()) << "--batch " << batch << " does not divide into " << options.shares() << shares
                                << ": give --batch "
                                << (batch > leaves() ? std::to_string(batch / leaves() * leaves()) + " or " : "")
                                << (batch / leaves() + 1) * leaves();
  else
    return success();
  return success(surveyor);
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

int64_t Importer::rowDimension(const onnx::ValueInfoProto& input) const {
  auto found = rowDimensions.find(input.name());
  return found == rowDimensions.end() ? 0 : found->second;
}

// Finds inputs whose rows are not in their first dimension: those that --rows names, or, without it, all if they share
// one symbol, and not as their first dimension. A symbol is not that of the rows if
//  - --bind gives it a size, next to --batch;
//  - it comes first in no input while other symbols do: [s72, sequence], [s97, sequence];
//  - it comes first in no input, and all of their first dimensions are fixed, to the batch or to one example:
//    [8, sequence], [1, sequence] with --batch 8.
LogicalResult Importer::findRows(const llvm::StringSet<>& read) {
  llvm::StringSet<> named;
  for (const auto& [name, dimension] : options.rows) {
    auto input = llvm::find_if(dataInputs, [&](const auto* info) { return info->name() == name; });
    const bool found = input != dataInputs.end();
    const int64_t rank = found ? (*input)->type().tensor_type().shape().dim_size() : 0;
    const bool twice = !named.insert(name).second;
    if (found && dimension < rank && !twice) {
      rowDimensions[name] = dimension;
      continue;
    }
    auto error = emitError(model.location()) << "--rows " << name << "=" << dimension << ": ";
    twice   ? error << "--rows names the input '" << name << "' twice"
    : found ? error << "the input has " << rank << " dimensions, counted from 0"
            : error << "the model has no such input";
    if (!surveyor) return failure();
  }
  if (!options.rows.empty()) return success();
  auto isSized = [&](const auto& dim) {
    return dim.has_dim_value() || (options.batch && sizes.contains(dim.dim_param()));
  };
  std::optional<std::vector<std::string>> shared;
  for (const onnx::ValueInfoProto* input : dataInputs) {
    if (!read.contains(input->name())) continue;
    std::vector<std::string> symbols;
    for (const auto& dim : input->type().tensor_type().shape().dim()) {
      const std::string& symbol = dim.dim_param();
      if (!symbol.empty() && !isSized(dim) && !llvm::is_contained(symbols, symbol)) symbols.push_back(symbol);
    }
    if (shared)
      llvm::erase_if(*shared, [&](const std::string& symbol) { return !llvm::is_contained(symbols, symbol); });
    else
      shared = symbols;
  }
  if (!shared || shared->size() != 1) return success();
  bool comesFirst = false, othersComeFirst = false, firstIsOtherSize = false;
  for (const onnx::ValueInfoProto* input : dataInputs) {
    if (!read.contains(input->name())) continue;
    const auto& first = input->type().tensor_type().shape().dim(0);
    comesFirst |= first.dim_param() == shared->front();
    othersComeFirst |= !isSized(first) && first.dim_param() != shared->front();
    firstIsOtherSize |= first.dim_value() != 1 && (!first.has_dim_value() || first.dim_value() != options.batch);
  }
  if (!comesFirst && (othersComeFirst || !firstIsOtherSize)) return success();
  for (const onnx::ValueInfoProto* input : dataInputs) {
    const auto& dims = input->type().tensor_type().shape().dim();
    auto found = llvm::find_if(dims, [&](const auto& dim) { return dim.dim_param() == shared->front(); });
    if (read.contains(input->name()) && found != dims.begin()) rowDimensions[input->name()] = found - dims.begin();
  }
  return success();
}

bool Importer::isWhole(const onnx::ValueInfoProto& input) const {
  if (!evaluates() || rowDimensions.contains(input.name())) return false;
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
      return rows == 0 || dim->dim_value() != rows;
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
  if (failed(findRows(read))) return failure();
  // The graph is fixed to one row where all of its inputs are.
  oneRow = true;
  for (const onnx::ValueInfoProto* input : dataInputs) {
    const auto& shape = input->type().tensor_type().shape();
    if (read.contains(input->name()) && !isWhole(*input))
      oneRow &= shape.dim_size() && shape.dim(int(rowDimension(*input))).dim_value() == 1;
  }
  for (const onnx::ValueInfoProto* input : dataInputs)
    if (read.contains(input->name()) && !isWhole(*input) && exportedRows < 2) exportedRows = fixedRows(*input);
  batch = options.batch ? options.batch : oneRow ? options.shares() : 0;
  oneRow &= batch > 1;
  if (exportedRows < 2 || evaluates()) exportedRows = 0;
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
  if (oneRow) {
    (*module)->setAttr(train::kOneRowAttr, builder.getUnitAttr());
    decide(
        "the graph is fixed to one row: each row of the batch is a leaf, and the loss is the mean of the rows' "
        "losses, also where it counts labels");
  }
  known.erase("");
  std::vector<std::string> names;
  for (StringRef name : known.keys()) names.push_back(name.str());
  std::sort(names.begin(), names.end());
  for (const auto& [name, size] : options.bind)
    if (!known.contains(name)) {
      error() << "--bind " << name << ": no input has a dimension of that name; "
              << (names.empty() ? std::string("no dimension of an input has a name")
                                : "there are " + listNames(names) + didYouMean(names, name));
      if (!surveyor) return failure();
    }
  return success();
}

bool Importer::isRead(StringRef name) const {
  bool read = false;
  for (auto [i, node] : llvm::enumerate(nodes))
    if (needed[i]) forEachInput(*node, [&](StringRef input) { read |= input == name; });
  return read;
}

// An input that was exported for another batch; null if there is none.
const onnx::ValueInfoProto* Importer::otherBatch(const onnx::ValueInfoProto& input) const {
  for (const onnx::ValueInfoProto* other : dataInputs)
    if (const int64_t rows = fixedRows(*other);
        rows > 0 && rows != fixedRows(input) && !isWhole(*other) && isRead(other->name()))
      return other;
  return nullptr;
}

// The batch that an input was exported for; 0 if that is dynamic.
int64_t Importer::fixedRows(const onnx::ValueInfoProto& input) const {
  const auto& shape = input.type().tensor_type().shape();
  const int64_t dimension = rowDimension(input);
  return dimension < shape.dim_size() ? shape.dim(int(dimension)).dim_value() : 0;
}

// Binds the dimension of an input that holds the batch. `orConstant` ends an error.
LogicalResult Importer::bindRows(const onnx::ValueInfoProto& input, StringRef orConstant) {
  const auto& dim = input.type().tensor_type().shape().dim(int(rowDimension(input)));
  auto error = [&] { return emitError(model.location()) << "input " << describe(input); };
  const bool symbolic = !dim.has_dim_value();
  if (!batch) {
    auto bound = symbolic && !dim.dim_param().empty() ? sizes.find(dim.dim_param()) : sizes.end();
    if (bound != sizes.end())
      batch = bound->second;
    else if (!symbolic)
      batch = dim.dim_value();
    else if (surveyor)
      batch = surveyor->assumeBatch(options.shares());
    else
      return error() << ": the batch size is not bound; give --batch B";
    if (failed(splitBatch())) return failure();
  }
  // An evaluation is imported with the rows of a micro-batch, which --bind need not match.
  auto bound = llvm::find_if(options.bind, [&](const auto& bind) { return symbolic && bind.first == dim.dim_param(); });
  if (bound != options.bind.end() && bound->second != batch && options.form != Form::kEvaluation) {
    error() << ": dimension " << rowDimension(input) << " holds the rows of the batch, and --bind " << bound->first
            << "=" << bound->second << " is not the batch of " << batch << ": leave out --bind " << bound->first
            << ", or give --rows " << input.name() << "=D if dimension D holds the rows" << orConstant;
    return success(surveyor);
  }
  if (symbolic && !dim.dim_param().empty()) sizes[dim.dim_param()] = rows;
  if (symbolic || dim.dim_value() == rows) return success();
  if (options.form == Form::kEvaluation)
    error() << " was exported for a batch of " << dim.dim_value() << " rows, and an evaluation takes the " << rows
            << " of a micro-batch: leave out --micro-batches, or export it with a dynamic batch" << orConstant;
  else if (const onnx::ValueInfoProto* other = otherBatch(input))
    error() << " was exported for a batch of " << dim.dim_value() << " rows, and input " << describe(*other) << " for "
            << fixedRows(*other) << ": export the model with one batch for both, or give --rows INPUT=D if dimension D "
            << "holds the rows" << orConstant;
  else
    error() << " was exported for a batch of " << dim.dim_value() << " rows; give " << batchOf(dim.dim_value())
            << ", or export it with a dynamic batch" << orConstant;
  if (!surveyor) return failure();
  rows = dim.dim_value();
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
    if (int64_t(i) == rowDimension(input) && !isWhole) {
      if (failed(bindRows(input, orConstant))) return failure();
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
                     << "' is not bound; give --bind '" << dim.dim_param() << "=SIZE'"
                     << (options.rows.empty() && tensor.shape().dim(0).has_dim_value()
                             ? ", or --rows '" + input.name() + "=" + std::to_string(i) + "' if it holds the rows"
                             : "");
  }
  if (!elementCount(shape)) return error() << "input '" << input.name() << "' has too many elements";
  const int64_t dimension = rowDimension(input);
  const RowsFirst data(shape, dimension);
  Value argument = addArgument(input.name(), RankedTensorType::get(data.shape, element));
  if (dimension) {
    emit.enter(model.location(), "input '" + input.name() + "'");
    root.values[input.name()].tensor = emit.transpose(argument, data.permutation);
    decide("input " + input.name() + ": rows in dimension " + Twine(dimension) + "; its data have them first");
  }
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
