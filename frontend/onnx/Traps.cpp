// What exporters lose or change without a word, named with what avoids it: position tables and masks that would be
// trained, label smoothing that is gone. (Parameters.cpp names folded and merged parameters, OpsTraining.cpp dropout
// and batch norm.)
#include <cmath>
#include <cstring>

#include "frontend/onnx/Parameters.h"
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
  StringRef call = Model::metadata(node.metadata_props(), "pkg.torch.onnx.fx_node");
  size_t begin = call.find("cross_entropy_loss.default](args = (");
  if (begin == StringRef::npos || node.op_type() != "SoftmaxCrossEntropyLoss") return 0;
  call = call.drop_front(begin).split("args = (").second;
  SmallVector<StringRef> arguments;
  call.take_front(call.find(')')).split(arguments, ", ");
  double smoothing = 0;
  return arguments.size() == 6 && !arguments[5].getAsDouble(smoothing) ? smoothing : 0;
}

}  // namespace

void warnOfTraps(const Model& model, ArrayRef<const onnx::NodeProto*> nodes, const Parameters& parameters) {
  for (const onnx::TensorProto& tensor : model.graph().initializer()) {
    const ParameterRole& role = parameters.role(tensor, nullptr, -1);
    if (!role.trainable || !parameters.isUsed(tensor)) continue;
    const char* what = isSinusoidal(model, tensor) ? "sines and cosines of the position"
                       : isMask(model, tensor)     ? "only zeros and ones, as a mask does,"
                                                   : nullptr;
    if (what)
      emitWarning(model.location()) << "'" << role.name << "' holds " << what << " and would be "
                                    << "trained: exports do not say that it is a buffer, or that it has "
                                    << "requires_grad=False. Give --freeze '^" << llvm::Regex::escape(role.name)
                                    << "$' to keep it";
  }
  for (const onnx::NodeProto* node : nodes)
    if (double smoothing = droppedSmoothing(*node)) {
      std::string text;
      llvm::raw_string_ostream(text) << llvm::format("%g", smoothing);
      emitWarning(model.location()) << "the exporter dropped label_smoothing=" << text << " from the loss '"
                                    << node->output(0) << "', which has no such attribute in ONNX: write the loss with "
                                    << "log_softmax, or export the model without its loss and give --loss";
    }
}

}  // namespace sheaf::frontend
