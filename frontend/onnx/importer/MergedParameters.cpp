// Tells apart tensors of equal value that exporters made one, and names parameters that their optimizer removed.
#include <cstring>
#include <map>
#include <tuple>

#include "frontend/onnx/importer/OperandRoles.h"
#include "frontend/onnx/importer/Parameters.h"
#include "frontend/onnx/importer/TorchExport.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/SetVector.h"

using namespace mlir;

namespace sheaf::frontend {
namespace {

bool isBatchNorm(const onnx::NodeProto* node) {
  return node->op_type() == "BatchNormalization";
}

// True if an expression has this number among its arguments.
bool takesNumber(StringRef expression, float number) {
  SmallVector<StringRef> words;
  expression.split("](args = ").second.split(words, ' ');
  return llvm::any_of(words, [&](StringRef word) {
    double value;
    return !word.trim("(),[]").getAsDouble(value) && float(value) == number;
  });
}

// The one number in a tensor; nothing if it is of another type than f32 or cannot be read.
std::optional<float> numberIn(const Model& model, const onnx::TensorProto& tensor) {
  if (tensor.data_type() != onnx::TensorProto::FLOAT) return std::nullopt;
  if (tensor.float_data_size() == 1) return tensor.float_data(0);
  const Expected<StringRef> bytes = model.bytes(tensor);
  float value;
  if (!bytes.ok() || bytes->size() != sizeof(value)) return std::nullopt;
  std::memcpy(&value, bytes->data(), sizeof(value));
  return value;
}

// Elements of transposed tables that are compared with others' in a model, and as how many a pair counts.
constexpr int64_t kMostCompared = int64_t(1) << 33, kComparedPerPair = 1 << 8;

// True if a matrix of the transposed shape is another one's transposed. Takes the elements that are compared from
// `left`; false where none are left.
bool isTransposed(const Model& model, const onnx::TensorProto& a, const onnx::TensorProto& b, int64_t& left) {
  constexpr int64_t kTile = 64;  // whose rows and columns both fit into the cache
  if ((left -= kComparedPerPair) < 0) return false;
  const Expected<StringRef> one = model.bytes(a), two = model.bytes(b);
  const int64_t rows = a.dims(0), columns = a.dims(1);
  if (!one.ok() || !two.ok() || one->empty() || one->size() != two->size() || rows * columns == 0) return false;
  const size_t size = one->size() / size_t(rows * columns);
  for (int64_t top = 0; top < rows; top += kTile)
    for (int64_t start = 0; start < columns; start += kTile) {
      const int64_t bottom = std::min(rows, top + kTile), end = std::min(columns, start + kTile);
      if ((left -= (bottom - top) * (end - start)) < 0) return false;
      for (int64_t r = top; r < bottom; ++r)
        for (int64_t c = start; c < end; ++c)
          if (std::memcmp(one->data() + (r * columns + c) * size, two->data() + (c * rows + r) * size, size) != 0)
            return false;
    }
  return true;
}

// An operand of a node.
using Slot = std::pair<const onnx::NodeProto*, int>;

using Tensor = const GraphSignature::Tensor*;

// Tensors of the module that initializers hold.
struct HeldTensors {
  llvm::StringMap<Tensor> byInitializer;
  llvm::StringSet<> present;  // placeholders of tensors that some initializer holds or was computed from

  Tensor operator[](const Slot& slot) const { return byInitializer.lookup(slot.first->input(slot.second)); }
  bool isMissing(Tensor tensor) const { return !present.contains(tensor->placeholder); }
};

// The nodes that the exporter made of one expression, and their operands from outside.
struct Group {
  SmallVector<const onnx::NodeProto*> nodes;
  SmallVector<Slot> tensors;                  // that are tensors of the module
  llvm::SmallSetVector<StringRef, 4> values;  // that are neither these nor constants

  bool hasOneReader() const {
    return !tensors.empty() && llvm::all_of(tensors, [&](const Slot& slot) { return slot.first == tensors[0].first; });
  }
};

// The arguments of an expression.
struct Arguments {
  SmallVector<Tensor> tensors;
  llvm::SmallSetVector<Tensor, 4> missing;    // tensors that the graph lacks
  llvm::SmallSetVector<StringRef, 4> others;  // without a matching operand
};

struct Expressions {
  llvm::StringSet<> produced, read;  // values that nodes produce, and that expressions read
  llvm::MapVector<StringRef, Group> groups;
};

Expressions expressionsOf(const Model& model, ArrayRef<const onnx::NodeProto*> nodes) {
  Expressions all;
  for (const onnx::ValueInfoProto& input : model.graph().input()) all.produced.insert(input.name());
  for (const onnx::NodeProto* node : nodes) {
    for (const std::string& output : node->output()) all.produced.insert(output);
    const StringRef expression = expressionOf(*node);
    for (StringRef name : argumentsOf(expression)) all.read.insert(name);
    if (!expression.empty()) all.groups[expression].nodes.push_back(node);
  }
  return all;
}

void findOperands(Group& group, const HeldTensors& held, const llvm::StringSet<>& produced) {
  llvm::StringSet<> own;
  for (const onnx::NodeProto* node : group.nodes)
    for (const std::string& output : node->output()) own.insert(output);
  for (const onnx::NodeProto* node : group.nodes)
    for (auto [i, input] : llvm::enumerate(node->input())) {
      if (held.byInitializer.contains(input)) group.tensors.push_back({node, int(i)});
      if (produced.contains(input) && !own.contains(input)) group.values.insert(input);
    }
}

// Removes the values that are arguments from the group's values.
Arguments findArguments(StringRef expression, Group& group, const HeldTensors& held, const GraphSignature& signature) {
  Arguments arguments;
  for (StringRef name : argumentsOf(expression))
    if (Tensor tensor = signature.byPlaceholder(name)) {
      arguments.tensors.push_back(tensor);
      if (held.isMissing(tensor)) arguments.missing.insert(tensor);
    } else if (!group.values.remove(name)) {
      arguments.others.insert(name);
    }
  return arguments;
}

// True if the operands are the arguments in their order.
bool matchesByPosition(StringRef expression, const Group& group, const Arguments& arguments, const HeldTensors& held) {
  if (!group.hasOneReader() || arguments.tensors.size() != group.tensors.size() ||
      !hasOperandsInOrder(targetOf(expression)))
    return false;
  return llvm::all_of(llvm::zip(group.tensors, arguments.tensors), [&](auto pair) {
    auto [slot, tensor] = pair;
    return held[slot] == tensor || held.isMissing(tensor);
  });
}

// Returns the missing argument that one of the operands `odd`, which the expression does not name, stands for, or null.
Tensor matchByElimination(const Slot& slot, ArrayRef<Slot> odd, const Arguments& arguments, const HeldTensors& held) {
  const auto alike = [&](const Slot& other) { return held[other] == held[slot]; };
  if (arguments.missing.size() == 1) return llvm::all_of(odd, alike) ? arguments.missing.front() : nullptr;
  const StringRef member = memberName(held[slot]->name);
  Tensor found = nullptr;
  for (Tensor tensor : arguments.missing) {
    if (memberName(tensor->name) != member) continue;
    if (found) return nullptr;
    found = tensor;
  }
  return llvm::count_if(odd, alike) == 1 ? found : nullptr;
}

// True if an operand that is held by `tensor` may be a number of the expression, or a tensor that forward creates.
bool mayBeConstant(StringRef expression, const Group& group, const Arguments& arguments, const Model& model,
                   const onnx::TensorProto& tensor) {
  const llvm::SmallSetVector<StringRef, 4>& others = arguments.others;
  const std::optional<float> number = numberIn(model, tensor);
  const bool isNumber =
      tensor.dims_size() == 0 && arguments.missing.empty() &&
      (others.empty() || (others.size() <= group.values.size() && number && takesNumber(expression, *number)));
  return isNumber || llvm::any_of(others, isFactoryResult);
}

}  // namespace

void markRunningStatistics(ParameterRole& role) {
  role.parameter = true;
  role.trainable = false;
  role.reason = kStatistics;
}

// TorchScript's exporter makes one initializer of tensors of equal value, with an Identity for each other one. They are
// initializers of their own again: tensors that a model ties come without an Identity.
void Model::separateMerged() {
  onnx::GraphProto& graph = *model.mutable_graph();
  if (model.producer_name() != "pytorch" || trainingArtifacts || model.training_info_size()) return;
  llvm::StringMap<const onnx::TensorProto*> initializers;
  for (const onnx::TensorProto& tensor : graph.initializer()) initializers[tensor.name()] = &tensor;
  llvm::StringSet<> outputs;
  for (const onnx::ValueInfoProto& output : graph.output()) outputs.insert(output.name());
  google::protobuf::RepeatedPtrField<onnx::NodeProto> kept;
  for (onnx::NodeProto& node : *graph.mutable_node()) {
    const bool names = node.op_type() == "Identity" && node.input_size() == 1 && node.output_size() == 1 &&
                       expressionOf(node).empty() && namesMember(node.output(0), /*byPyTorch=*/true) &&
                       !outputs.contains(node.output(0));
    const onnx::TensorProto* merged = names ? initializers.lookup(node.input(0)) : nullptr;
    if (!merged) {
      *kept.Add() = std::move(node);
      continue;
    }
    onnx::TensorProto& tensor = *graph.add_initializer();
    tensor = *merged;
    tensor.set_name(node.output(0));
    initializers[tensor.name()] = &tensor;
    if (const auto span = spanOf.find(merged); span != spanOf.end()) {
      const unsigned place = span->second;
      spanOf[&tensor] = place;
    }
  }
  graph.mutable_node()->Swap(&kept);
}

// TorchScript's exporter transposes the table of a tied output layer into an initializer of its own.
void Parameters::restoreTies(const Model& model, ArrayRef<const onnx::NodeProto*> nodes) {
  const bool named = llvm::all_of(nodes, [](const onnx::NodeProto* node) { return expressionOf(*node).empty(); });
  if (!named) return;
  std::map<std::tuple<int64_t, int64_t, int32_t>, std::vector<const onnx::TensorProto*>> tables;
  for (const onnx::TensorProto& table : model.graph().initializer())
    if (table.dims_size() == 2 && namesMember(table.name(), /*byPyTorch=*/true) && isUsed(table))
      tables[{table.dims(0), table.dims(1), table.data_type()}].push_back(&table);
  int64_t left = kMostCompared;
  for (const onnx::TensorProto& tensor : model.graph().initializer()) {
    if (!StringRef(tensor.name()).starts_with("onnx::MatMul_") || tensor.dims_size() != 2 || !isUsed(tensor)) continue;
    const auto alike = tables.find({tensor.dims(1), tensor.dims(0), tensor.data_type()});
    if (alike == tables.end()) continue;
    for (const onnx::TensorProto* table : alike->second)
      if (isTransposed(model, *table, tensor, left)) {
        ParameterRole& role = roles[tensor.name()];
        const ParameterRole& original = roles[table->name()];
        owner.erase(role.name);
        role.name = original.name;
        role.shape = original.shape;
        role.viewTransposed = true;
        role.holder = table;
        role.mayBeBuffer = false;
        role.reason = "tied again: transposed into '" + tensor.name() + "'";
        break;
      }
    if (left >= 0) continue;
    emitWarning(model.location()) << "holds so many tables that resemble transposed ones that '" << tensor.name()
                                  << "' and later ones are not tied to their tables again; export the model with "
                                     "dynamo=True, optimize=False";
    return;
  }
}

// Without a signature: norm scales of one and biases of zero were merged into one initializer, whose users then belong
// to different modules, or are different operands of a batch norm. Matrices are left alone: random ones are equal only
// where the model ties them.
void Parameters::unmergeByModules(const onnx::TensorProto& tensor) {
  const ParameterRole& role = roles[tensor.name()];
  ArrayRef<Use> users = uses[tensor.name()];
  if (!role.parameter || role.shape.size() != 1 || users.size() < 2) return;
  auto [own, leaf] = StringRef(role.name).rsplit('.');
  for (const Use& use : users) {
    const bool norm = isBatchNorm(use.node) && use.operand > 0;
    constexpr StringRef kLeaves[] = {"", "weight", "bias", "running_mean", "running_var"};
    StringRef module = moduleOf(*use.node), part = norm ? kLeaves[std::min(use.operand, 4)] : leaf;
    if (module.empty() || leaf.empty() || (module == own && part == leaf)) continue;
    separate(use, (module + "." + part).str(), !norm ? role.trainable : use.operand < 3, role.parameter);
  }
}

// Gives a use of a merged initializer a role of its own.
void Parameters::separate(const Use& use, const std::string& name, bool trainable, bool parameter) {
  const std::string& merged = use.node->input(use.operand);
  ParameterRole own = roles[merged];
  own.name = name;
  own.aliases.clear();
  own.parameter = parameter;
  own.trainable = trainable;
  own.reason = parameter ? "un-merged from '" + merged + "'" : "merged with '" + merged + "' by the exporter";
  if (isBatchNorm(use.node) && use.operand >= 3) markRunningStatistics(own);
  if (own.parameter && owner.try_emplace(name, merged).second) unmergedNames.push_back(name);
  unmerged[{use.node, use.operand}] = own;
  mergedTensors.insert(merged);
}

// The expression of a node names the tensors that it reads, also those that are no longer in the graph.
void Parameters::unmergeByExpressions(const Model& model, ArrayRef<const onnx::NodeProto*> nodes,
                                      const GraphSignature& signature) {
  HeldTensors held;
  for (const onnx::TensorProto& tensor : model.graph().initializer()) {
    const ParameterRole& role = roles[tensor.name()];
    if (Tensor own = signature.byName(role.name)) {
      const bool view = role.holder || role.rows || role.viewTransposed;
      const bool norm = llvm::is_contained(norms, tensor.name());  // may stand for several tensors
      if (!view && !norm && isFloatType(tensor.data_type())) held.byInitializer[tensor.name()] = own;
      held.present.insert(own->placeholder);
    }
    for (StringRef source : pythonList(model.valueMetadata(tensor.name(), kFoldedFrom)))
      if (Tensor folded = signature.byName(source)) held.present.insert(folded->placeholder);
  }
  Expressions expressions = expressionsOf(model, nodes);
  llvm::StringSet<> recovered;
  auto assign = [&](const Slot& slot, Tensor tensor) {
    separate({slot.first, slot.second}, tensor->name, tensor->parameter, tensor->parameter);
    recovered.insert(tensor->placeholder);
  };
  llvm::MapVector<Tensor, std::string> missingAt;  // the node whose expression names a missing tensor
  for (auto& [expression, group] : expressions.groups) {
    findOperands(group, held, expressions.produced);
    const Arguments arguments = findArguments(expression, group, held, signature);
    if (matchesByPosition(expression, group, arguments, held)) {
      for (auto [slot, tensor] : llvm::zip(group.tensors, arguments.tensors))
        if (held[slot] != tensor) assign(slot, tensor);
      continue;
    }
    // By elimination: operands that the expression does not name, and tensors that it names and the graph lacks.
    SmallVector<Slot> odd;
    llvm::copy_if(group.tensors, std::back_inserter(odd),
                  [&](const Slot& slot) { return !llvm::is_contained(arguments.tensors, held[slot]); });
    Tensor unmatched = nullptr;
    for (const Slot& slot : odd) {
      if (Tensor tensor = matchByElimination(slot, odd, arguments, held)) {
        assign(slot, tensor);
        continue;
      }
      unmatched = held[slot];
      // A parameter that no expression names has been moved to another.
      const onnx::TensorProto& tensor = *tensors.lookup(slot.first->input(slot.second));
      if (expressions.read.contains(unmatched->placeholder) &&
          mayBeConstant(expression, group, arguments, model, tensor))
        separate({slot.first, slot.second}, tensor.name() + "_constant", false, false);
    }
    for (Tensor tensor : arguments.missing)
      if ((tensor->parameter || unmatched) && !expression.contains("batch_norm"))
        missingAt[tensor] =
            unmatched ? "' merged with '" + unmatched->name : "' at node '" + group.nodes.back()->output(0);
  }

  for (const auto& [tensor, where] : missingAt)
    if (!recovered.contains(tensor->placeholder)) removedInNodes.push_back(tensor->name + where);
  if (removedFxValues(model, nodes).empty()) return;
  llvm::StringSet<> aliases;
  for (const auto& entry : roles)
    for (const std::string& alias : entry.second.aliases) aliases.insert(alias);
  for (const GraphSignature::Tensor& tensor : signature.all())
    if (tensor.parameter && held.isMissing(&tensor) && !expressions.read.contains(tensor.placeholder) &&
        !aliases.contains(tensor.name))
      unreferenced.push_back(tensor.name);
}

}  // namespace sheaf::frontend
