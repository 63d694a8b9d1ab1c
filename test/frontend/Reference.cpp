#include "test/frontend/Reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <sstream>

#include "ir/Train/TrainDialect.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"

using namespace mlir;

namespace sheaf::test {
namespace {

std::string readFile(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  std::stringstream bytes;
  bytes << stream.rdbuf();
  return bytes.str();
}

template <class T>
T at(const std::string& bytes, size_t offset, int64_t i) {
  T value{};
  if (offset + (i + 1) * sizeof(T) <= bytes.size())
    std::memcpy(&value, bytes.data() + offset + i * sizeof(T), sizeof(T));
  return value;
}

train::Tensor fromBytes(const std::string& bytes, size_t offset, RankedTensorType type) {
  train::Tensor tensor = train::Tensor::zeros(type);
  Type element = type.getElementType();
  for (int64_t i = 0; i < tensor.size(); ++i) {
    if (element.isF32())
      tensor.f[i] = at<float>(bytes, offset, i);
    else if (element.isF64())
      tensor.f[i] = at<double>(bytes, offset, i);
    else if (element.isInteger(64))
      tensor.i[i] = at<int64_t>(bytes, offset, i);
    else if (element.isInteger(32))
      tensor.i[i] = at<int32_t>(bytes, offset, i);
  }
  return tensor;
}

}  // namespace

train::Tensor readRows(const std::string& path, RankedTensorType type) {
  std::string bytes = readFile(path);
  size_t header = 10 + at<uint16_t>(bytes, 8, 0);
  return fromBytes(bytes, header, type);
}

std::map<std::string, train::Tensor> readParameters(ModuleOp module, const std::string& folder) {
  std::map<std::string, train::Tensor> parameters;
  for (auto op : module.getOps<train::ParameterOp>()) {
    auto type = cast<RankedTensorType>(op.getType());
    if (auto value = op.getValueAttr())
      parameters[op.getSymName().str()] = *train::toTensor(value);
    else if (auto source = op.getSourceAttr())
      parameters[op.getSymName().str()] =
          fromBytes(readFile(folder + "/" + source.getFile().str()), source.getOffset(), type);
  }
  return parameters;
}

double firstLoss(ModuleOp module, const std::string& folder, const std::string& prefix) {
  auto step = module.lookupSymbol<func::FuncOp>("step");
  std::vector<train::Tensor> arguments;
  for (auto [i, type] : llvm::enumerate(step.getArgumentTypes())) {
    std::string name = step.getArgAttrOfType<StringAttr>(unsigned(i), "train.name").str();
    auto tensor = cast<RankedTensorType>(type);
    arguments.push_back(prefix.empty() ? train::Tensor::zeros(tensor)
                                       : readRows(folder + "/" + prefix + "." + name + ".npy", tensor));
  }
  auto result = train::evaluateFunction(step, arguments, readParameters(module, folder));
  if (failed(result) || !result->loss) return std::numeric_limits<double>::quiet_NaN();
  return result->loss->f[0];
}

double lossOf(const ModelBuilder& model) {
  const std::string path = model.save();
  Imported imported = import(path, withBatch(1));
  for (const std::string& error : imported.errors) ADD_FAILURE() << error;
  return imported.module ? firstLoss(*imported.module, modelFolder(), "") : std::nan("");
}

}  // namespace sheaf::test
