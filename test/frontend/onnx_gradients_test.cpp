// The gradients of ONNX's operators, with the attributes and optional inputs that ONNX's node tests name: the gradient
// of every case with respect to its floating-point inputs against central differences, in f64. The cases are those of
// test/models/onnx-node-tests.xz, a graph each (test/models/onnx_node_tests.py describes the file), and the samples of
// the registry, one for each operator. What is left out is left out by the operators' rows in the registry.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <regex>
#include <set>

#include "frontend/onnx/importer/Import.h"
#include "frontend/onnx/ops/Registry.h"
#include "ir/Train/Evaluator.h"
#include "ir/Train/TrainDialect.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/MemoryBuffer.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Diagnostics.h"
#include "onnx/onnx-ml.pb.h"
#include "test/Paths.h"
#include "test/frontend/DirectionalDerivative.h"
#include "test/frontend/ModelBuilder.h"
#include "test/frontend/Reference.h"

namespace {

using namespace sheaf;
using namespace sheaf::test;
using train::Tensor;

// Whether an operator's row leaves a case out: it does not pass, or its gradient is not the derivative.
bool isLeftOut(const std::string& name) {
  static const auto* patterns = [] {
    auto* list = new std::vector<std::regex>;
    for (const frontend::RegisteredOperator& op : frontend::registeredOperators())
      for (const frontend::NodeTestsLeftOut* left : {&op.leftOut, &op.noGradient})
        if (!left->cases.empty()) list->emplace_back(left->cases);
    return list;
  }();
  return llvm::any_of(*patterns, [&](const std::regex& pattern) { return std::regex_match(name, pattern); });
}

constexpr int kFewest = 1000;
int compared = 0;  // cases

struct Archive {
  std::unique_ptr<llvm::MemoryBuffer> file;
  llvm::json::Value header = nullptr;
  llvm::StringRef data;

  static const Archive& get() {
    static const Archive* archive = [] {
      auto* made = new Archive;
      auto file = llvm::MemoryBuffer::getFile(std::string(sheaf::paths::kModels) + "/onnx-node-tests", false, false);
      if (!file) std::abort();
      made->file = std::move(*file);
      llvm::StringRef all = made->file->getBuffer();
      uint64_t length = 0;
      std::memcpy(&length, all.data(), 8);
      auto parsed = llvm::json::parse(all.substr(8, length));
      if (!parsed) std::abort();
      made->header = std::move(*parsed);
      made->data = all.drop_front(8 + length);
      return made;
    }();
    return *archive;
  }
  llvm::StringRef span(const llvm::json::Array& where, size_t at = 0) const {
    int64_t begin = *where[at].getAsInteger(), end = *where[at + 1].getAsInteger();
    return data.substr(begin, end - begin);
  }
};

const llvm::json::Object& entryOf(const std::string& name) {
  return *Archive::get().header.getAsObject()->getObject(name);
}

std::string operatorOf(const llvm::json::Object& entry) {
  const llvm::json::Array& ops = *entry.getArray("ops");
  return ops.size() == 1 ? ops[0].getAsString()->str() : "Expanded";
}

std::map<std::string, std::vector<std::string>> casesByOperator() {
  std::map<std::string, std::vector<std::string>> cases;
  for (const auto& [key, value] : *Archive::get().header.getAsObject()) {
    const llvm::json::Object& entry = *value.getAsObject();
    if (!entry.get("graph")) continue;
    bool floats = false;
    for (const auto& [input, what] : *entry.getObject("inputs"))
      floats |= *(*what.getAsArray())[0].getAsString() == "f4";
    if (floats && operatorOf(entry) != "Expanded") cases[operatorOf(entry)].push_back(std::string(key.str()));
  }
  return cases;
}

// The model of a case with its floating-point inputs as parameters.
void writeModel(const std::string& name, const std::string& path) {
  const llvm::json::Object& entry = entryOf(name);
  onnx::ModelProto model;
  model.set_ir_version(9);
  model.add_opset_import()->set_version(*entry.getInteger("opset"));
  onnx::GraphProto& graph = *model.mutable_graph();
  llvm::StringRef bytes = Archive::get().span(*entry.getArray("graph"));
  ASSERT_TRUE(graph.ParseFromArray(bytes.data(), int(bytes.size())));
  auto inputs = graph.input();
  graph.clear_input();
  for (const onnx::ValueInfoProto& input : inputs) {
    const llvm::json::Array& what = *entry.getObject("inputs")->getArray(input.name());
    if (*what[0].getAsString() != "f4") {
      *graph.add_input() = input;
      continue;
    }
    onnx::TensorProto& tensor = *graph.add_initializer();
    tensor.set_name(input.name());
    tensor.set_data_type(onnx::TensorProto::FLOAT);
    for (const llvm::json::Value& size : *what[1].getAsArray()) tensor.add_dims(*size.getAsInteger());
    tensor.set_raw_data(Archive::get().span(what, 2).str());
  }
  // A step needs an input.
  onnx::ValueInfoProto& one = *graph.add_input();
  one.set_name("one");
  one.mutable_type()->mutable_tensor_type()->set_elem_type(onnx::TensorProto::FLOAT);
  one.mutable_type()->mutable_tensor_type()->mutable_shape()->add_dim()->set_dim_value(1);
  onnx::NodeProto& zero = *graph.add_node();
  zero.set_op_type("Mul");
  zero.add_input("one");
  zero.add_input(name.substr(5) + "/.total");
  zero.add_output("loss");
  graph.add_output()->set_name("loss");
  std::ofstream(path, std::ios::binary) << model.SerializeAsString();
}

class OnnxGradients : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { folder = modelFolder(); }

  // "" if the gradients agree; else what differs. `tried`: whether there was a gradient to compare.
  std::string check(const std::string& name, bool& tried) {
    std::string path = folder + "/" + name + ".onnx";
    writeModel(name, path);
    return compare(path, tried, [&](llvm::StringRef input, Tensor& tensor) {
      const llvm::json::Array& what = *entryOf(name).getObject("inputs")->getArray(input);
      llvm::StringRef bytes = Archive::get().span(what, 2);
      for (size_t i = 0; i < tensor.i.size(); ++i) std::memcpy(&tensor.i[i], bytes.data() + 8 * i, 8);
    });
  }

  // The gradient of a model's loss with respect to its parameters, or to those that are trained. `read` fills an input;
  // `one` is 1.
  std::string compare(const std::string& path, bool& tried,
                      llvm::function_ref<void(llvm::StringRef input, Tensor& tensor)> read, bool trainedOnly = false) {
    tried = false;
    Imported imported = import(path, withBatch(1));
    if (!imported.module) return imported.errors.empty() ? "does not import" : "";  // counted by the other tests
    mlir::ModuleOp module = *imported.module;
    std::map<std::string, Tensor> at = readParameters(module, folder);
    mlir::func::FuncOp step = *module.getOps<mlir::func::FuncOp>().begin();
    std::vector<Tensor> arguments;
    for (mlir::BlockArgument argument : step.getArguments()) {
      auto attribute = step.getArgAttrOfType<mlir::StringAttr>(argument.getArgNumber(), "train.name");
      arguments.push_back(Tensor::zeros(mlir::cast<mlir::RankedTensorType>(argument.getType())));
      if (attribute.getValue() == "one") {
        arguments.back().f[0] = 1;
        continue;
      }
      read(attribute.getValue(), arguments.back());
    }
    tried = true;
    return checkDerivatives(module, arguments, at, "/p.", trainedOnly);
  }

  std::string folder;
};

TEST_P(OnnxGradients, AgreeWithDifferences) {
  const auto cases = casesByOperator();
  for (const std::string& name : cases.at(GetParam())) {
    bool tried = false;
    if (isLeftOut(name)) continue;
    EXPECT_EQ(check(name, tried), "") << name;
    compared += tried;
  }
}

std::vector<std::string> samples() {
  std::vector<std::string> names;
  for (const frontend::RegisteredOperator& op : frontend::registeredOperators())
    if (!op.sample.empty()) names.push_back(op.domain + "." + op.name);
  return names;
}

// An archive that nothing is compared of would pass.
class Report : public testing::Environment {
 public:
  void TearDown() override {
    std::cout << "gradients of " << compared << " cases compared\n";
    const bool all =
        testing::UnitTest::GetInstance()->test_to_run_count() == int(casesByOperator().size() + samples().size());
    if (all) {
      EXPECT_GE(compared, kFewest);
    }
  }
};
const auto* report = testing::AddGlobalTestEnvironment(new Report);

std::vector<std::string> operators() {
  std::vector<std::string> names;
  for (const auto& [name, cases] : casesByOperator()) names.push_back(name);
  return names;
}

// The samples, which have random numbers of their own: what dropout and its relatives draw is the same at every step.
class SampleGradients : public OnnxGradients {};

TEST_P(SampleGradients, AgreeWithDifferences) {
  for (const frontend::RegisteredOperator& op : frontend::registeredOperators()) {
    if (op.domain + "." + op.name != GetParam()) continue;
    const std::string path = folder + "/sample-" + GetParam() + ".onnx";
    std::ofstream(path, std::ios::binary) << frontend::sampleModel(op);
    bool tried = false;
    const bool trainedOnly = !op.noGradient.why.empty();
    EXPECT_EQ(compare(
                  path, tried, [](llvm::StringRef, Tensor&) {}, trainedOnly),
              "");
    EXPECT_TRUE(tried) << "the sample does not import";
    compared += tried;
  }
}

INSTANTIATE_TEST_SUITE_P(Operators, SampleGradients, testing::ValuesIn(samples()), [](const auto& info) {
  std::string name = info.param;
  for (char& c : name) c = c == '.' ? '_' : c;
  return name;
});

INSTANTIATE_TEST_SUITE_P(Operators, OnnxGradients, testing::ValuesIn(operators()),
                         [](const auto& info) { return info.param; });

}  // namespace
