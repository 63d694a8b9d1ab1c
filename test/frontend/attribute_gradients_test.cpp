// The gradients of ONNX's operators for the attributes that their schemas name: every value of an enumerated attribute,
// and combinations of those that depend on each other (attribute_cases.py), against central differences in f64. A
// combination may be refused for a reason that is listed here; so may an attribute be left out.
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <random>
#include <regex>
#include <set>

#include "frontend/onnx/importer/Import.h"
#include "frontend/onnx/importer/Signatures.h"
#include "frontend/onnx/ops/Registry.h"
#include "ir/Train/TrainDialect.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/raw_ostream.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "test/Paths.h"
#include "test/frontend/DirectionalDerivative.h"
#include "test/frontend/ModelBuilder.h"
#include "test/frontend/Reference.h"

namespace {

using namespace sheaf;
using namespace sheaf::test;
using train::Tensor;
namespace json = llvm::json;

// Combinations that are refused: what the error says, and why.
struct Refusal {
  const char *operators, *says, *why;
};
const Refusal kRefused[] = {
    {"BatchNormalization", "spatial = 0, with moments of every position, is not supported",
     "no exporter writes it; opset 9 has removed it"},
};
std::set<const Refusal*> seen;

constexpr int kFewest = 1900;
int compared = 0;  // cases

// Attributes of operators that are imported, and why no case has them.
struct LeftOut {
  const char *operators, *attributes, *why;
};
const LeftOut kLeftOut[] = {
    {"Constant|ConstantOfShape|EyeLike|MelWeightMatrix|Optional|Range|SequenceEmpty|(Blackman|Hamming|Hann)Window",
     ".*", "what it makes is the same whatever is trained"},
    {"Bernoulli|Multinomial|RandomNormalLike|RandomUniformLike", ".*", "draws numbers, which have no gradient"},
    {"Unique", ".*", "takes what is known when the graph is compiled"},
};

json::Value parsed(const char* path) {
  std::ifstream file(path);
  auto value = json::parse(std::string{std::istreambuf_iterator<char>(file), {}});
  if (!value) std::abort();
  return std::move(*value);
}

const std::map<std::string, std::vector<const json::Object*>>& casesByOperator() {
  static const auto* cases = [] {
    static const json::Value all = parsed(sheaf::paths::kAttributeCases);
    auto* found = new std::map<std::string, std::vector<const json::Object*>>;
    for (const json::Value& one : *all.getAsArray())
      (*found)[one.getAsObject()->getString("op")->str()].push_back(one.getAsObject());
    return found;
  }();
  return *cases;
}

std::vector<int64_t> integersOf(const json::Array& list) {
  std::vector<int64_t> values;
  for (const json::Value& v : list) values.push_back(*v.getAsInteger());
  return values;
}
Names namesOf(const json::Array& list) {
  Names names;
  for (const json::Value& v : list) names.push_back(v.getAsString()->str());
  return names;
}

void setAttributes(onnx::NodeProto& node, const json::Object& attributes);

void setGraph(onnx::GraphProto& graph, const json::Object& from) {
  for (const std::string& name : namesOf(*from.getArray("in"))) graph.add_input()->set_name(name);
  for (const std::string& name : namesOf(*from.getArray("out"))) graph.add_output()->set_name(name);
  for (const json::Value& inner : *from.getArray("nodes")) {
    const json::Object& node = *inner.getAsObject();
    onnx::NodeProto& made = *graph.add_node();
    made.set_op_type(node.getString("op")->str());
    for (const std::string& name : namesOf(*node.getArray("in"))) made.add_input(name);
    for (const std::string& name : namesOf(*node.getArray("out"))) made.add_output(name);
    setAttributes(made, *node.getObject("attrs"));
  }
}

void setAttributes(onnx::NodeProto& node, const json::Object& attributes) {
  for (const auto& [key, value] : attributes) {
    const std::string name = key.str();
    const auto& [kind, what] = *value.getAsObject()->begin();
    onnx::AttributeProto& attribute = *node.add_attribute();
    attribute.set_name(name);
    if (kind == "int") {
      attribute.set_type(onnx::AttributeProto::INT);
      attribute.set_i(*what.getAsInteger());
    } else if (kind == "float") {
      attribute.set_type(onnx::AttributeProto::FLOAT);
      attribute.set_f(float(*what.getAsNumber()));
    } else if (kind == "string") {
      attribute.set_type(onnx::AttributeProto::STRING);
      attribute.set_s(what.getAsString()->str());
    } else if (kind == "ints") {
      attribute.set_type(onnx::AttributeProto::INTS);
      for (const json::Value& v : *what.getAsArray()) attribute.add_ints(*v.getAsInteger());
    } else if (kind == "floats") {
      attribute.set_type(onnx::AttributeProto::FLOATS);
      for (const json::Value& v : *what.getAsArray()) attribute.add_floats(float(*v.getAsNumber()));
    } else if (kind == "strings") {
      attribute.set_type(onnx::AttributeProto::STRINGS);
      for (const json::Value& v : *what.getAsArray()) attribute.add_strings(v.getAsString()->str());
    } else {
      attribute.set_type(onnx::AttributeProto::GRAPH);
      setGraph(*attribute.mutable_g(), *what.getAsObject());
    }
  }
}

// A known tensor as a Constant, which is not a parameter.
void addConstant(ModelBuilder& m, const std::string& name, const json::Array& values, const json::Array& dims,
                 int type) {
  onnx::AttributeProto& attribute = *m.node("Constant", {}, {name}).add_attribute();
  attribute.set_name("value");
  attribute.set_type(onnx::AttributeProto::TENSOR);
  onnx::TensorProto& tensor = *attribute.mutable_t();
  tensor.set_data_type(type);
  for (int64_t d : integersOf(dims)) tensor.add_dims(d);
  for (const json::Value& v : values) {
    if (type == onnx::TensorProto::FLOAT) tensor.add_float_data(float(*v.getAsNumber()));
    if (type == onnx::TensorProto::INT64) tensor.add_int64_data(*v.getAsInteger());
    if (type == onnx::TensorProto::BOOL) tensor.add_int32_data(int32_t(*v.getAsInteger()));
  }
}

// The oldest opset that has what the loss is made with. What is older is called as a function of its own opset.
constexpr int64_t kOpset = 13;

void inFunction(ModelBuilder& m, onnx::NodeProto& node, int64_t opset) {
  onnx::FunctionProto& function = *m.model.add_functions();
  function.set_name("Old");
  function.set_domain("test");
  *function.add_node() = node;
  for (int i = 0; i < node.input_size(); ++i) {
    function.add_input("of" + std::to_string(i));
    if (!node.input(i).empty()) function.mutable_node(0)->set_input(i, function.input(i));
  }
  *function.mutable_output() = node.output();
  function.add_opset_import()->set_version(opset);
  node.clear_attribute();
  node.set_op_type("Old");
  node.set_domain("test");
}

// loss = sum over the outputs of cos(i) * output[i], and of a parameter of its own, so that there is always one.
ModelBuilder modelOf(const json::Object& of) {
  const int64_t opset = *of.getInteger("opset");
  ModelBuilder m(std::max(opset, kOpset));
  const std::string op = of.getString("op")->str();
  m.input("one", {1}).output("loss", {});
  m.floats("fixed", {1}, {1});
  std::mt19937 random(3);
  Names inputs;
  for (const auto& [i, value] : llvm::enumerate(*of.getArray("in"))) {
    inputs.push_back("");
    const json::Object* input = value.getAsObject();
    if (!input) continue;
    const bool fixed = input->getBoolean("fixed").value_or(false);
    const std::string name = inputs.back() = (fixed ? "fixed.in" : "in") + std::to_string(i);
    if (const json::Array* shape = input->getArray("f")) {
      std::uniform_real_distribution<float> values(float(*input->getNumber("low")), float(*input->getNumber("high")));
      std::vector<int64_t> dims = integersOf(*shape);
      int64_t count = 1;
      for (int64_t d : dims) count *= d;
      std::vector<float> elements(count);
      for (float& x : elements) x = values(random);
      m.floats(name, dims, elements);
    } else if (const json::Array* floats = input->getArray("c")) {
      addConstant(m, name, *floats, *input->getArray("d"), onnx::TensorProto::FLOAT);
    } else if (const json::Array* integers = input->getArray("i")) {
      addConstant(m, name, *integers, *input->getArray("d"), onnx::TensorProto::INT64);
    } else {
      addConstant(m, name, *input->getArray("b"), *input->getArray("d"), onnx::TensorProto::BOOL);
    }
  }
  if (op == "If") inputs.resize(1);  // its branches read the others
  while (!inputs.empty() && inputs.back().empty()) inputs.pop_back();
  const std::vector<int64_t> outs = integersOf(*of.getArray("outs"));
  Names outputs(size_t(*std::max_element(outs.begin(), outs.end())) + 1);
  for (int64_t out : outs) outputs[size_t(out)] = "out" + std::to_string(out);
  while (int64_t(outputs.size()) < frontend::findSignature("", op, opset)->minOutputs)
    outputs.push_back("unused" + std::to_string(outputs.size()));
  onnx::NodeProto& node = m.node(op, inputs, outputs);
  setAttributes(node, *of.getObject("attrs"));
  if (opset < kOpset) inFunction(m, node, opset);

  m.integers("all", {1}, {-1});
  m.integers("zero", {}, {0});
  m.integers("step", {}, {1});
  m.node("Mul", {"one", "fixed"}, {"own"});
  Names terms{"own"};
  for (int64_t out : outs) {
    const std::string name = "out" + std::to_string(out);
    auto made = [&](const char* what) { return name + "." + what; };
    setInteger(m.node("Cast", {name}, {made("float")}), "to", onnx::TensorProto::FLOAT);
    m.node("Reshape", {made("float"), "all"}, {made("flat")});
    m.node("Size", {name}, {made("size")});
    m.node("Range", {"zero", made("size"), "step"}, {made("positions")});
    setInteger(m.node("Cast", {made("positions")}, {made("angles")}), "to", onnx::TensorProto::FLOAT);
    m.node("Cos", {made("angles")}, {made("weights")});
    m.node("Mul", {made("flat"), made("weights")}, {made("weighted")});
    m.node("ReduceSum", {made("weighted")}, {made("sum")});
    terms.push_back(made("sum"));
  }
  m.node("Sum", terms, {"total"});
  setInteger(m.node("ReduceSum", {"total"}, {"loss"}), "keepdims", 0);
  return m;
}

// "" if the gradients agree or the case is refused for a reason; else what is wrong.
std::string check(const json::Object& of) {
  const std::string op = of.getString("op")->str(), path = modelOf(of).save();
  Imported imported = import(path, withBatch(1));
  if (!imported.module) {
    unlink(path.c_str());
    for (const Refusal& refusal : kRefused)
      if (std::regex_match(op, std::regex(refusal.operators)) &&
          imported.errors.at(0).find(refusal.says) != std::string::npos)
        return seen.insert(&refusal), "";
    return imported.errors.at(0);
  }
  std::map<std::string, Tensor> at = readParameters(*imported.module, modelFolder());
  unlink(path.c_str());
  mlir::func::FuncOp step = *imported.module->getOps<mlir::func::FuncOp>().begin();
  std::vector<Tensor> arguments;
  for (mlir::Type type : step.getArgumentTypes()) {
    arguments.push_back(Tensor::zeros(mlir::cast<mlir::RankedTensorType>(type)));
    for (double& x : arguments.back().f) x = 1;
  }
  ++compared;
  return checkDerivatives(*imported.module, arguments, at, "fixed");
}

class AttributeGradients : public testing::TestWithParam<std::string> {};

TEST_P(AttributeGradients, AgreeWithDifferences) {
  for (const json::Object* of : casesByOperator().at(GetParam())) {
    std::string text;
    llvm::raw_string_ostream(text) << json::Value(json::Object(*of));
    EXPECT_EQ(check(*of), "") << text;
  }
}

std::vector<std::string> operators() {
  std::vector<std::string> names;
  for (const auto& [name, cases] : casesByOperator()) names.push_back(name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Operators, AttributeGradients, testing::ValuesIn(operators()),
                         [](const auto& info) { return info.param; });

// By operator, the attributes that a node and the nodes of its subgraphs have.
void collectAttributes(const json::Object& node, std::map<std::string, std::set<std::string>>& found) {
  for (const auto& [name, value] : *node.getObject("attrs")) {
    found[node.getString("op")->str()].insert(name.str());
    if (const json::Object* graph = value.getAsObject()->getObject("graph"))
      for (const json::Value& inner : *graph->getArray("nodes")) collectAttributes(*inner.getAsObject(), found);
  }
}

// Every attribute of every operator that is imported is in a case, or on the list above.
TEST(Attributes, AreAllTriedOrLeftOutForAReason) {
  std::set<std::string> imported;
  for (const frontend::RegisteredOperator& op : frontend::registeredOperators())
    if (op.supported() && op.domain == "ai.onnx") imported.insert(op.name);
  std::map<std::string, std::set<std::string>> tried;
  for (const auto& [op, cases] : casesByOperator())
    for (const json::Object* of : cases) collectAttributes(*of, tried);
  std::set<const LeftOut*> used;
  const json::Value schemas = parsed(sheaf::paths::kAttributes);
  for (const auto& [key, attributes] : *schemas.getAsObject()) {
    const std::string op = key.str();
    if (!imported.contains(op)) continue;
    for (const auto& [name, type] : *attributes.getAsObject()) {
      const std::string attribute = name.str();
      const LeftOut* found = nullptr;
      for (const LeftOut& entry : kLeftOut)
        if (std::regex_match(op, std::regex(entry.operators)) &&
            std::regex_match(attribute, std::regex(entry.attributes)))
          found = &entry;
      if (tried[op].contains(attribute)) continue;
      if (found) used.insert(found);
      EXPECT_TRUE(found) << op << " has the attribute " << attribute << " (" << type.getAsString()->str()
                         << "), which no case of attribute_cases.py has";
    }
  }
  for (const LeftOut& entry : kLeftOut) EXPECT_TRUE(used.contains(&entry)) << entry.operators << ": off the list";
}

// A list of cases that nothing is compared of would pass.
class Report : public testing::Environment {
 public:
  void TearDown() override {
    size_t ran = 0;
    for (int i = 0; i < testing::UnitTest::GetInstance()->total_test_suite_count(); ++i)
      ran += size_t(testing::UnitTest::GetInstance()->GetTestSuite(i)->test_to_run_count());
    std::cout << "gradients of " << compared << " cases compared\n";
    if (ran != casesByOperator().size() + 1) return;
    EXPECT_GE(compared, kFewest);
    for (const Refusal& refusal : kRefused) EXPECT_TRUE(seen.contains(&refusal)) << refusal.says << ": off the list";
  }
};
const auto* report = testing::AddGlobalTestEnvironment(new Report);

}  // namespace
