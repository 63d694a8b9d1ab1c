#include "frontend/onnx/importer/OperandRoles.h"

using namespace mlir;

namespace sheaf::frontend {
namespace {

// Functions that call functions are followed so deep.
constexpr int kMaxDepth = 16;

constexpr uint32_t bits(std::initializer_list<int> operands) {
  uint32_t result = 0;
  for (int operand : operands) result |= uint32_t(1) << operand;
  return result;
}
constexpr uint32_t kAll = ~uint32_t(0);

// Operands by position; those that a row does not name are values.
struct Row {
  StringRef op;
  uint32_t weights = 0, settings = 0, bounds = 0, states = 0, moved = 0;
};

constexpr Row kRows[] = {
    // Products, convolutions and recurrences.
    {"MatMul", bits({0, 1})},
    {"FusedMatMul", bits({0, 1})},
    {"Gemm", bits({0, 1, 2})},
    {"Einsum", kAll},
    {"Conv", bits({1, 2})},
    {"ConvTranspose", bits({1, 2})},
    {"DeformConv", bits({1, 3})},
    {"CausalConvWithState", bits({1, 2})},
    {"Attention", bits({0, 1, 2})},
    {"RNN", bits({1, 2, 3})},
    {"GRU", bits({1, 2, 3})},
    {"LSTM", bits({1, 2, 3, 7})},
    {"BiasGelu", bits({1})},
    {"PRelu", bits({1})},
    // Look-ups: see `roleOf` for tables of one dimension.
    {"Gather", bits({0})},
    {"GatherND", bits({0})},
    // Normalizations.
    {"BatchNormalization", bits({1, 2}), 0, 0, bits({3, 4})},
    {"LayerNormalization", bits({1, 2})},
    {"RMSNormalization", bits({1})},
    {"InstanceNormalization", bits({1, 2})},
    {"GroupNormalization", bits({1, 2})},
    // Settings.
    {"SoftmaxCrossEntropyLoss", 0, bits({2})},
    {"NegativeLogLikelihoodLoss", 0, bits({2})},
    {"SoftmaxCrossEntropyLossInternal", 0, bits({2, 3})},
    {"SoftmaxCrossEntropyLossGrad", 0, bits({3})},
    {"SoftmaxCrossEntropyLossInternalGrad", 0, bits({3, 4})},
    {"Resize", 0, bits({1, 2, 3})},
    {"Upsample", 0, bits({1})},
    {"Pad", 0, bits({1, 2, 3}), 0, 0, bits({0})},
    {"Dropout", 0, bits({1, 2}), 0, 0, bits({0})},
    {"DropoutGrad", 0, bits({1, 2, 3})},
    {"QuantizeLinear", 0, bits({1, 2})},
    {"DequantizeLinear", 0, bits({1, 2})},
    {"DynamicQuantizeLinear", 0, kAll},
    {"Range", 0, kAll},
    {"MelWeightMatrix", 0, kAll},
    {"NonMaxSuppression", 0, bits({2, 3, 4})},
    {"Scale", 0, bits({1})},
    {"Clip", 0, 0, bits({1, 2})},
    // Moves.
    {"Identity", 0, 0, 0, 0, bits({0})},
    {"Cast", 0, 0, 0, 0, bits({0})},
    {"CastLike", 0, bits({1}), 0, 0, bits({0})},
    {"Reshape", 0, 0, 0, 0, bits({0})},
    {"Flatten", 0, 0, 0, 0, bits({0})},
    {"Squeeze", 0, 0, 0, 0, bits({0})},
    {"Unsqueeze", 0, 0, 0, 0, bits({0})},
    {"Transpose", 0, 0, 0, 0, bits({0})},
    {"Slice", 0, 0, 0, 0, bits({0})},
    {"Split", 0, 0, 0, 0, bits({0})},
    {"Expand", 0, 0, 0, 0, bits({0})},
    {"Tile", 0, 0, 0, 0, bits({0})},
    {"Concat", 0, 0, 0, 0, kAll},
    {"DepthToSpace", 0, 0, 0, 0, bits({0})},
    {"SpaceToDepth", 0, 0, 0, 0, bits({0})},
};

bool isInTable(StringRef domain) {
  return domain.empty() || domain == "ai.onnx" || domain == "com.microsoft";
}

std::string functionKey(StringRef domain, StringRef name) {
  return ((domain == "ai.onnx" ? StringRef() : domain) + ":" + name).str();
}

}  // namespace

OperandRole operandRole(const onnx::NodeProto& node, int operand) {
  static const auto rows = [] {
    llvm::StringMap<const Row*> map;
    for (const Row& row : kRows) map[row.op] = &row;
    return map;
  }();
  const Row* row = rows.lookup(node.op_type());
  if (!row || !isInTable(node.domain())) return OperandRole::value;
  const uint32_t bit = uint32_t(1) << std::min(operand, 31);
  if (row->weights & bit) return OperandRole::weight;
  if (row->settings & bit) return OperandRole::setting;
  if (row->bounds & bit) return OperandRole::bound;
  if (row->states & bit) return OperandRole::state;
  return row->moved & bit ? OperandRole::moved : OperandRole::value;
}

StringRef memberName(StringRef name) {
  return name.substr(name.find_last_of("./") + 1);
}

ValueUses::ValueUses(const Model& model, ArrayRef<const onnx::NodeProto*> nodes) {
  addsBiases = model.proto().producer_name() != "pytorch";
  for (const onnx::TensorProto& tensor : model.graph().initializer()) initializers.insert(tensor.name());
  for (const onnx::TensorProto& tensor : model.graph().initializer())
    if (!isFloatType(tensor.data_type())) integers.insert(tensor.name());
  for (const onnx::ValueInfoProto& input : model.graph().input())
    if (!isFloatType(input.type().tensor_type().elem_type())) integers.insert(input.name());
  for (const onnx::NodeProto* node : nodes) add(*node, uses);
  for (const onnx::FunctionProto& function : model.proto().functions()) {
    Body& body = functions[functionKey(function.domain(), function.name())];
    body.proto = &function;
    for (const onnx::NodeProto& node : function.node()) add(node, body.uses);
  }
  findLabels();
}

void ValueUses::add(const onnx::NodeProto& node, Index& index) {
  for (auto [i, name] : llvm::enumerate(node.input()))
    if (!name.empty()) index[name].push_back({&node, int(i)});
  for (const std::string& name : node.output()) producers.try_emplace(name, &node);
  for (const onnx::AttributeProto& attribute : node.attribute())
    for (const onnx::NodeProto& inner : attribute.g().node()) add(inner, index);
}

// Follows `next` to the end of a chain. Caches the result for every value passed, so that long chains stay linear. In a
// graph with a cycle, which is refused later, a chain ends where it began.
StringRef ValueUses::followChain(StringRef value, ChainCache& ends,
                                 llvm::function_ref<std::optional<StringRef>(StringRef)> next) {
  SmallVector<StringRef> passed;
  for (;;) {
    const auto [known, fresh] = ends.try_emplace(value);
    if (!fresh) {
      value = known->second;
      break;
    }
    value = known->second = known->first();
    passed.push_back(value);
    const std::optional<StringRef> before = next(value);
    if (!before) break;
    value = *before;
  }
  for (StringRef one : passed) ends[one] = value;
  return value;
}

// Returns whether a value is an initializer or a constant, perhaps moved.
bool ValueUses::isKnown(StringRef value) const {
  auto isConstant = [&](StringRef one) {
    const onnx::NodeProto* node = producer(one);
    return initializers.contains(one) || (node && node->op_type() == "Constant");
  };
  return isConstant(followChain(value, viewRoots, [&](StringRef one) -> std::optional<StringRef> {
    const onnx::NodeProto* node = producer(one);
    if (!node || isConstant(one) || node->input().empty() || operandRole(*node, 0) != OperandRole::moved)
      return std::nullopt;
    return node->input(0);
  }));
}

// The value that moves, conversions and a choice of another label made this one of.
StringRef ValueUses::rootOf(StringRef value) const {
  return followChain(value, roots, [&](StringRef one) -> std::optional<StringRef> {
    const onnx::NodeProto* node = producer(one);
    if (!node) return std::nullopt;
    const StringRef op = node->op_type();
    const int from = op == "Where" && node->input_size() == 3 ? (isKnown(node->input(1)) ? 2 : 1) : 0;
    if (node->input_size() <= from) return std::nullopt;
    if (from == 0 && op != "Clip" && operandRole(*node, 0) != OperandRole::moved) return std::nullopt;
    return node->input(from);
  });
}

// True if a value is made of integers by moves and conversions: positions.
bool ValueUses::comesFromIntegers(StringRef value) const {
  const StringRef root = rootOf(value);
  if (integers.contains(root)) return true;
  const onnx::NodeProto* node = producer(root);
  if (!node) return false;
  if (node->op_type() == "Range") return true;
  if (node->op_type() != "Constant") return false;
  return llvm::any_of(node->attribute(), [](const onnx::AttributeProto& attribute) {
    return attribute.has_t() && !isFloatType(attribute.t().data_type());
  });
}

void ValueUses::findLabels() {
  for (const auto& entry : uses)
    for (const Use& use : entry.second) {
      if (use.operand != 1) continue;
      const StringRef op = use.node->op_type();
      const bool loss = op.starts_with("SoftmaxCrossEntropyLoss") || op == "NegativeLogLikelihoodLoss";
      const onnx::NodeProto* scores = producer(rootOf(use.node->input(0)));
      const bool byIndex =
          op == "GatherElements" && scores && (scores->op_type() == "LogSoftmax" || scores->op_type() == "Log");
      if (loss || byIndex) labels.insert(rootOf(entry.first()));
    }
}

// A table of one dimension is not an embedding: class weights if labels choose, a part of the tensor if constants do.
OperandRole ValueUses::roleOf(const Use& use, int64_t dimensions) const {
  const OperandRole role = operandRole(*use.node, use.operand);
  if (addsBiases && use.node->op_type() == "Add" && use.node->input_size() == 2) {
    const onnx::NodeProto* other = producer(rootOf(use.node->input(1 - use.operand)));
    if (other && llvm::is_contained({"MatMul", "Gemm", "Conv", "ConvTranspose"}, other->op_type()))
      return OperandRole::weight;
  }
  // A product with positions makes the angles of a rotary embedding.
  if (role == OperandRole::weight && use.node->op_type() == "MatMul" && use.node->input_size() == 2 &&
      comesFromIntegers(use.node->input(1 - use.operand)))
    return OperandRole::value;
  const bool lookUp = StringRef(use.node->op_type()).starts_with("Gather") && use.node->input_size() > 1;
  if (role != OperandRole::weight || !lookUp || dimensions > 1) return role;
  const std::string& indices = use.node->input(1);
  if (isKnown(indices)) return OperandRole::moved;
  return labels.contains(rootOf(indices)) ? OperandRole::setting : OperandRole::value;
}

ValueUses::Summary ValueUses::summary(StringRef value, int64_t dimensions) const {
  Summary summary;
  struct Pending {
    std::string value;
    const Body* body;  // null: the graph
    int depth;
  };
  std::vector<Pending> pending{{value.str(), nullptr, 0}};
  llvm::StringSet<> seen;
  while (!pending.empty()) {
    const Pending now = std::move(pending.back());
    pending.pop_back();
    // The results of functions are not followed.
    summary.value |= now.body && llvm::is_contained(now.body->proto->output(), now.value);
    const Index& index = now.body ? now.body->uses : uses;
    auto found = index.find(now.value);
    const std::string where = now.body ? functionKey(now.body->proto->domain(), now.body->proto->name()) : "";
    if (found == index.end() || !seen.insert(where + " " + now.value).second) continue;
    for (const Use& use : found->second) {
      auto called = functions.find(functionKey(use.node->domain(), use.node->op_type()));
      if (called != functions.end()) {
        const onnx::FunctionProto& function = *called->second.proto;
        if (now.depth < kMaxDepth && use.operand < function.input_size())
          pending.push_back({function.input(use.operand), &called->second, now.depth + 1});
        continue;
      }
      const OperandRole role = roleOf(use, dimensions);
      summary.weight |= role == OperandRole::weight;
      summary.value |= role == OperandRole::value;
      if (role == OperandRole::setting) summary.setting = use.node;
      if (role == OperandRole::bound) summary.bound = use.node;
      if (role != OperandRole::moved) continue;
      for (const std::string& output : use.node->output())
        if (!output.empty()) pending.push_back({output, now.body, now.depth});
    }
  }
  return summary;
}

}  // namespace sheaf::frontend
