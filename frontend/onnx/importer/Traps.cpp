// What exporters lose or change without a word, named with what avoids it: position tables and masks that would be
// trained, label smoothing and dropout that are gone, buffers that change. (Parameters.cpp names folded and merged
// parameters, OpsTraining.cpp dropout and batch norm.)
#include <cmath>
#include <cstring>

#include "frontend/onnx/importer/Parameters.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/Regex.h"

using namespace mlir;

namespace sheaf::frontend {
namespace {

// The first bytes of a tensor, which may lie in another file; none if they cannot be read.
StringRef firstBytes(const Model& model, const onnx::TensorProto& tensor, int64_t length) {
  const Expected<StringRef> bytes = model.bytes(tensor);
  return bytes.ok() ? bytes->take_front(length) : StringRef();
}

// Whether the table [positions, D], with dimensions of 1 anywhere, has sines and cosines of multiples of the position
// in its columns. The first positions decide: learned numbers do not follow a sine to three digits.
bool isSinusoidal(const Model& model, const onnx::TensorProto& tensor) {
  constexpr int64_t kLeast = 4, kMost = 16, kWidest = 1 << 16;
  SmallVector<int64_t> shape;
  for (int64_t d : tensor.dims())
    if (d != 1) shape.push_back(d);
  if (shape.size() != 2 || shape[0] < kLeast || shape[1] < 2 || shape[1] > kWidest ||
      tensor.data_type() != onnx::TensorProto::FLOAT)
    return false;
  const int64_t rows = std::min(shape[0], kMost), columns = shape[1];
  const StringRef bytes = firstBytes(model, tensor, rows * columns * int64_t(sizeof(float)));
  if (int64_t(bytes.size()) != rows * columns * int64_t(sizeof(float))) return false;
  auto at = [&](int64_t p, int64_t j) {
    float value;
    std::memcpy(&value, bytes.data() + (p * columns + j) * sizeof(float), sizeof(value));
    return double(value);
  };
  bool moves = false;
  for (int64_t j = 0; j < columns; ++j) {
    const double first = at(0, j), second = at(1, j);
    const bool sine = std::abs(first) < 1e-6;
    if ((!sine && std::abs(first - 1) > 1e-6) || std::abs(second) > 1) return false;
    const double rate = sine ? std::asin(second) : std::acos(second);
    for (int64_t p = 2; p < rows; ++p)
      if (!(std::abs(at(p, j) - (sine ? std::sin(double(p) * rate) : std::cos(double(p) * rate))) < 1e-3)) return false;
    moves |= std::abs(rate) > 0.3;
  }
  return moves;
}

// Whether a tensor holds zeros and ones alone, and both: a mask. The first elements decide.
bool isMask(const Model& model, const onnx::TensorProto& tensor) {
  constexpr int64_t kLeast = 8, kMost = 1 << 12;
  if (tensor.data_type() != onnx::TensorProto::FLOAT) return false;
  const int64_t elements = *elementCount(ArrayRef<int64_t>(tensor.dims().data(), size_t(tensor.dims_size())));
  const int64_t looked = std::min(elements, kMost);
  const StringRef bytes = firstBytes(model, tensor, looked * int64_t(sizeof(float)));
  if (looked < kLeast || int64_t(bytes.size()) != looked * int64_t(sizeof(float))) return false;
  int64_t ones = 0;
  for (int64_t i = 0; i < looked; ++i) {
    float value;
    std::memcpy(&value, bytes.data() + i * int64_t(sizeof(float)), sizeof(value));
    if (value != 0 && value != 1) return false;
    ones += value == 1;
  }
  return ones > 0 && ones < looked;
}

// The label smoothing of the loss that PyTorch exported as this node: aten.cross_entropy_loss(scores, labels, weight,
// reduction, ignore_index, label_smoothing). ONNX has none, so the exporter drops it.
double droppedSmoothing(const onnx::NodeProto& node) {
  StringRef call = expressionOf(node);
  size_t begin = call.find("cross_entropy_loss.default](args = (");
  if (begin == StringRef::npos || node.op_type() != "SoftmaxCrossEntropyLoss") return 0;
  call = call.drop_front(begin).split("args = (").second;
  SmallVector<StringRef> arguments;
  call.take_front(call.find(')')).split(arguments, ", ");
  double smoothing = 0;
  return arguments.size() == 6 && !arguments[5].getAsDouble(smoothing) ? smoothing : 0;
}

// The probability that PyTorch's attention drops with: scaled_dot_product_attention(query, key, value, mask,
// dropout_p).
double attentionDropout(StringRef expression) {
  const StringRef call = expression.split("scaled_dot_product_attention.default](args = (").second;
  SmallVector<StringRef> arguments;
  call.take_front(call.find(')')).split(arguments, ", ");
  double probability = 0;
  return arguments.size() >= 5 && !arguments[4].getAsDouble(probability) ? probability : 0;
}

// The exporter's optimizer takes the Dropout of an attention, which has no training_mode, for one of inference.
void warnOfLostDropout(const Model& model, ArrayRef<const onnx::NodeProto*> nodes) {
  llvm::MapVector<StringRef, bool> drops;  // by expression: whether one of its nodes does
  for (const onnx::NodeProto* node : nodes) {
    const StringRef expression = expressionOf(*node);
    if (attentionDropout(expression) > 0) drops[expression] |= node->op_type() == "Dropout";
  }
  std::vector<std::string> lost;
  for (const auto& [expression, drop] : drops)
    if (!drop) lost.push_back(expression.split(' ').first.drop_front().str());
  if (lost.empty()) return;
  emitWarning(model.location()) << "the exporter's optimizer removed the dropout of " << lost.size()
                                << (lost.size() == 1 ? " attention (" : " attentions (") << listNames(lost)
                                << "): nothing is dropped there. Export with optimize=False";
}

// Values that the module assigns to buffers, by the metadata of torch.export.
void warnOfMutations(const Model& model, ArrayRef<const onnx::NodeProto*> nodes) {
  std::vector<std::string> changed;
  for (const onnx::NodeProto* node : nodes) {
    if (node->op_type() == "BatchNormalization") continue;  // its statistics follow
    for (const std::string& output : node->output()) {
      const onnx::ValueInfoProto* type = model.valueType(output);
      if (model.valueMetadata(output, "pkg.torch.export.graph_signature.OutputSpec.kind") == "BUFFER_MUTATION" &&
          type && isFloatType(type->type().tensor_type().elem_type()))
        changed.push_back(output);
    }
  }
  if (changed.empty()) return;
  emitWarning(model.location()) << "the model changes " << changed.size()
                                << (changed.size() == 1 ? " buffer" : " buffers") << " in its forward pass (values "
                                << listNames(changed) << "), as a spectral norm or a moving average does. Here buffers "
                                << "stay as they are, and gradients pass through what would be assigned to them";
}

// Numbers that TorchScript's exporter names after their reader: it has computed them, perhaps from parameters.
void warnOfFoldedNumbers(const Model& model, ArrayRef<const onnx::NodeProto*> nodes, const Parameters& parameters) {
  if (model.proto().producer_name() != "pytorch" || model.artifacts()) return;
  std::vector<std::string> numbers;
  for (const onnx::TensorProto& tensor : model.graph().initializer())
    if (tensor.dims_size() == 0 && isFloatType(tensor.data_type()) && StringRef(tensor.name()).starts_with("onnx::") &&
        parameters.isUsed(tensor) && !parameters.role(tensor, nullptr, -1).trainable)
      numbers.push_back(tensor.name());
  if (numbers.empty()) return;
  const bool one = numbers.size() == 1;
  emitWarning(model.location()) << listNames(numbers) << (one ? " is a number" : " are numbers")
                                << " that TorchScript's exporter has computed, perhaps from parameters (a learned "
                                << "limit of clamp), and " << (one ? "is" : "are") << " not trained. Export with "
                                << "do_constant_folding=False, or with dynamo=True, optimize=False";
}

// Look-ups of one table at the same indices, of which the exporter's optimizer has made one: each may have had a
// padding_idx of its own.
void warnOfMergedLookups(const Model& model, ArrayRef<const onnx::NodeProto*> nodes) {
  llvm::StringMap<const onnx::NodeProto*> lookups;  // by result
  for (const onnx::NodeProto* node : nodes)
    if (node->op_type() == "Gather" && expressionOf(*node).contains("aten.embedding.default]"))
      lookups[node->output(0)] = node;
  if (lookups.empty()) return;
  llvm::StringSet<> missing;
  for (const std::string& name : removedFxValues(model, nodes))
    if (functionOf(name) == "embedding") missing.insert(name);
  std::vector<std::string> merged;
  for (const onnx::NodeProto* node : nodes) {
    const SmallVector<StringRef> arguments = argumentsOf(expressionOf(*node));
    for (const std::string& input : node->input())
      if (lookups.contains(input) && !llvm::is_contained(arguments, input))
        for (StringRef name : arguments)
          if (missing.erase(name)) merged.push_back(name.str() + "' with '" + input);
  }
  if (!merged.empty())
    emitWarning(model.location()) << "the exporter's optimizer merged look-ups of a table (" << listNames(merged)
                                  << "): if their padding_idx differ, the gradient of one row is wrong. Export with "
                                  << "optimize=False";
}

// Names weights in Constant nodes, which are trained.
void warnOfConstants(const Model& model, const Parameters& parameters) {
  std::vector<std::string> names, others;
  int64_t elements = 0;
  for (const std::string& name : model.constantWeights())
    for (const onnx::TensorProto& tensor : model.graph().initializer())
      if (tensor.name() == name && parameters.isUsed(tensor) && parameters.role(tensor, nullptr, -1).trainable) {
        names.push_back(name);
        elements += *elementCount(ArrayRef<int64_t>(tensor.dims().data(), size_t(tensor.dims_size())));
      }
  if (names.empty()) return;
  for (const onnx::TensorProto& tensor : model.graph().initializer())
    if (parameters.role(tensor, nullptr, -1).trainable && !llvm::is_contained(names, tensor.name()))
      others.push_back(tensor.name());
  emitWarning(model.location())
      << names.size() << (names.size() == 1 ? " Constant node (" : " Constant nodes (") << listNames(names) << ") with "
      << elements << " elements in the place of weights: they are trained. If they are constants, compile "
      << "with --freeze '" << freezePattern(names, others) << "'";
}

}  // namespace

void warnOfTraps(const Model& model, ArrayRef<const onnx::NodeProto*> nodes, Parameters& parameters) {
  for (const onnx::TensorProto& tensor : model.graph().initializer()) {
    const ParameterRole& role = parameters.role(tensor, nullptr, -1);
    if (!role.trainable || !parameters.isUsed(tensor)) continue;
    const char* what = isSinusoidal(model, tensor) ? "sines and cosines of the position"
                       : isMask(model, tensor)     ? "only zeros and ones, as a mask does,"
                                                   : nullptr;
    if (what) {
      parameters.suppressBufferWarning(role.name);
      emitWarning(model.location()) << "'" << role.name << "' holds " << what << " and would be "
                                    << "trained: exports do not say that it is a buffer, or that it has "
                                    << "requires_grad=False. Give --freeze '^" << llvm::Regex::escape(role.name)
                                    << "$' to keep it";
    }
  }
  warnOfConstants(model, parameters);
  warnOfFoldedNumbers(model, nodes, parameters);
  warnOfMergedLookups(model, nodes);
  warnOfLostDropout(model, nodes);
  warnOfMutations(model, nodes);
  for (const onnx::NodeProto* node : nodes)
    if (double smoothing = droppedSmoothing(*node)) {
      std::string text;
      llvm::raw_string_ostream(text) << llvm::format("%g", smoothing);
      emitWarning(model.location()) << "the exporter dropped label_smoothing=" << text << " from the loss '"
                                    << node->output(0) << "', which has no such attribute in ONNX: write the loss with "
                                    << "log_softmax, or export the model without its loss and give --loss";
    }
}

std::string freezePattern(ArrayRef<std::string> names, ArrayRef<std::string> others) {
  // Members that many modules have are named once, unless another module trains one of the same name.
  std::vector<std::string> members, whole;
  auto isMember = [](const std::string& name, StringRef member) {
    return name == member || StringRef(name).ends_with(("." + member).str());
  };
  for (const std::string& name : names) {
    const StringRef member = StringRef(name).substr(StringRef(name).rfind('.') + 1);
    const int64_t count = llvm::count_if(names, [&](const std::string& n) { return isMember(n, member); });
    const bool apart = count > 1 && llvm::none_of(others, [&](const std::string& n) { return isMember(n, member); });
    std::vector<std::string>& list = apart ? members : whole;
    if (std::string pattern = llvm::Regex::escape(apart ? member : name); !llvm::is_contained(list, pattern))
      list.push_back(std::move(pattern));
  }
  std::string pattern;
  auto add = [&](const char* begin, const std::vector<std::string>& list) {
    if (list.empty()) return;
    const bool single = list.size() == 1;
    pattern += (pattern.empty() ? "" : "|") + std::string(begin) + (single ? "" : "(") + llvm::join(list, "|") +
               (single ? "$" : ")$");
  };
  add("(^|\\.)", members);
  add("^", whole);
  return pattern;
}

}  // namespace sheaf::frontend
