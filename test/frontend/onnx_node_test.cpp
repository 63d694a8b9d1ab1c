// ONNX's own node tests (Debian's libonnx-testdata) as an oracle of the importer and of the reference evaluator that is
// neither ours nor written with ours in mind: every test whose operators are all in the importer's table must import,
// evaluate and agree, or be left out by its row in the registry, with the reason. Each is tried twice: with its inputs
// as data, so that the evaluator computes, and with its inputs known, so that the importer folds.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>

#include "frontend/onnx/importer/Importer.h"
#include "frontend/onnx/ops/Registry.h"
#include "ir/Train/Evaluator.h"
#include "mlir/IR/Verifier.h"
#include "test/Paths.h"

namespace {

using namespace mlir;
namespace fs = std::filesystem;
namespace fe = sheaf::frontend;
using sheaf::train::Tensor;

// Whether an operator's row in the registry leaves a case out.
bool isLeftOut(const std::string& name) {
  static const auto* patterns = [] {
    auto* list = new std::vector<std::regex>;
    for (const fe::RegisteredOperator& op : fe::registeredOperators())
      if (!op.leftOut.cases.empty()) list->emplace_back(op.leftOut.cases);
    return list;
  }();
  return llvm::any_of(*patterns, [&](const std::regex& pattern) { return std::regex_match(name, pattern); });
}

// Operators whose outputs after the first are optional and not imported: tests that ask for them still check the first.
const std::set<std::string> kFirstOutputOnly = {"LayerNormalization"};

std::string readFile(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

// The elements of a tensor as little-endian bytes, booleans a byte each.
std::string bytesOf(const onnx::TensorProto& tensor, Type type) {
  if (!tensor.raw_data().empty()) return tensor.raw_data();
  std::string bytes;
  auto append = [&](auto value) { bytes.append(reinterpret_cast<const char*>(&value), sizeof(value)); };
  for (float v : tensor.float_data()) append(v);
  for (double v : tensor.double_data()) append(v);
  for (int64_t v : tensor.int64_data()) append(v);
  unsigned width = type.getIntOrFloatBitWidth();
  for (int32_t v : tensor.int32_data()) {
    if (width == 32) append(v);
    if (width == 16) append(int16_t(v));
    if (width <= 8) append(int8_t(v));
  }
  return bytes;
}

struct NamedTensor {
  std::string bytes;
  Tensor value;
};

std::optional<NamedTensor> decode(MLIRContext& context, const onnx::TensorProto& proto) {
  Type type = fe::elementType(&context, proto.data_type());
  if (!type) return std::nullopt;
  auto shaped = RankedTensorType::get(SmallVector<int64_t>(proto.dims().begin(), proto.dims().end()), type);
  NamedTensor result{bytesOf(proto, type), Tensor::zeros(shaped)};
  unsigned width = std::max(type.getIntOrFloatBitWidth() / 8, 1u);
  if (result.bytes.size() != size_t(shaped.getNumElements()) * width) return std::nullopt;
  for (int64_t i = 0; i < shaped.getNumElements(); ++i) {
    uint64_t bits = 0;
    for (unsigned b = 0; b < width; ++b) bits |= uint64_t(uint8_t(result.bytes[i * width + b])) << 8 * b;
    if (auto floating = dyn_cast<FloatType>(type)) {
      APFloat number(floating.getFloatSemantics(), APInt(8 * width, bits));
      bool inexact;
      number.convert(APFloat::IEEEdouble(), APFloat::rmNearestTiesToEven, &inexact);
      result.value.f[i] = number.convertToDouble();
    } else {
      APInt number(8 * width, bits);
      result.value.i[i] = type.isUnsignedInteger() || type.isInteger(1) ? number.getZExtValue() : number.getSExtValue();
    }
  }
  return result;
}

struct Case {
  std::string name;
  fs::path folder;
  onnx::ModelProto model;

  const auto& nodes() const { return model.graph().node(); }
};

// Which inputs an import knows the values of; the first that imports counts.
enum class Known { nothing, integers, scalars, everything };

struct Outcome {
  enum { passed, failed, unsupported } kind;
  std::string message;
};

Outcome fail(const std::string& message) {
  return {Outcome::failed, message};
}

// "" if they agree as ONNX's own runner requires.
std::string difference(const Tensor& actual, const Tensor& expected) {
  std::string text;
  llvm::raw_string_ostream out(text);
  if (actual.type != expected.type) {
    out << "is a " << actual.type << ", not a " << expected.type;
    return text;
  }
  unsigned width = actual.type.getElementTypeBitWidth();
  for (int64_t i = 0; i < actual.size(); ++i) {
    if (actual.isFloat()) {
      double a = actual.f[i], e = expected.f[i];
      if (a == e || (std::isnan(a) && std::isnan(e)) ||
          std::abs(a - e) <= 1e-7 + (width == 16 ? 2e-3 : 1e-3) * std::abs(e))
        continue;
      out << "element " << i << " is " << a << ", not " << e;
      return text;
    }
    if (actual.i[i] == expected.i[i]) continue;
    out << "element " << i << " is " << actual.i[i] << ", not " << expected.i[i];
    return text;
  }
  return text;
}

// Imports and evaluates a case once; `imported`: whether the import succeeded.
Outcome attempt(const Case& test, const fs::path& data, Known known, bool& imported) {
  imported = false;
  MLIRContext context(MLIRContext::Threading::DISABLED);
  context.loadDialect<sheaf::train::TrainDialect, func::FuncDialect>();
  std::string diagnostics;
  ScopedDiagnosticHandler handler(&context, [&](Diagnostic& d) { diagnostics += d.str() + "\n"; });
  auto model = fe::Model::load(context, (test.folder / "model.onnx").string());
  if (!model) return fail("does not load: " + diagnostics);

  fe::ImportOptions options;
  fe::Importer importer(context, *model, options);
  OpBuilder& builder = importer.builder;
  OwningOpRef<ModuleOp> module = ModuleOp::create(builder.getUnknownLoc());
  builder.setInsertionPointToEnd(module->getBody());
  auto function = func::FuncOp::create(builder, builder.getUnknownLoc(), "step", builder.getFunctionType({}, {}));
  Block* body = function.addEntryBlock();
  builder.setInsertionPointToEnd(body);

  fe::Scope scope;
  std::vector<Tensor> arguments;
  for (int i = 0; i < model->graph().input_size(); ++i) {
    const onnx::ValueInfoProto& input = model->graph().input(i);
    if (!input.type().has_tensor_type()) return {Outcome::unsupported, "inputs that are not tensors"};
    onnx::TensorProto proto;
    proto.ParseFromString(readFile(data / ("input_" + std::to_string(i) + ".pb")));
    auto tensor = decode(context, proto);
    if (!tensor) return {Outcome::unsupported, "element type " + fe::dataTypeName(proto.data_type()).str()};
    auto type = tensor->value.type;
    bool isKnown = known == Known::everything || (known >= Known::integers && !tensor->value.isFloat()) ||
                   (known == Known::scalars && type.getNumElements() == 1);
    if (isKnown) {
      auto constant = sheaf::train::Constant::fromBytes(type, tensor->bytes);
      if (!constant) return fail("input " + std::to_string(i) + " cannot be a constant");
      scope.values[input.name()] = {fe::Tensor(*constant), std::nullopt};
    } else {
      (void)function.insertArgument(function.getNumArguments(), type, {}, builder.getUnknownLoc());
      scope.values[input.name()] = {fe::Tensor(body->getArguments().back()), std::nullopt};
      arguments.push_back(std::move(tensor->value));
    }
  }

  auto nodes = model->graph().node();
  // Its outputs were computed with an epsilon that ONNX's script for it leaves out of the node; 1e-6 is the default.
  if (test.name == "test_adam_multiple") {
    onnx::AttributeProto& epsilon = *nodes.Mutable(0)->add_attribute();
    epsilon.set_name("epsilon");
    epsilon.set_type(onnx::AttributeProto::FLOAT);
    epsilon.set_f(1e-2f);
  }
  for (onnx::NodeProto& node : nodes)
    if (kFirstOutputOnly.count(node.op_type()))
      while (node.output_size() > 1) node.mutable_output()->RemoveLast();
  if (failed(importer.importNodes(nodes, scope))) return fail(diagnostics);
  SmallVector<Value> results;
  std::vector<Tensor> expected;
  for (int i = 0; i < model->graph().output_size(); ++i) {
    const onnx::ValueInfoProto& output = model->graph().output(i);
    if (i > 0 && nodes.size() == 1 && kFirstOutputOnly.count(nodes.Get(0).op_type())) break;
    if (!output.type().has_tensor_type()) return {Outcome::unsupported, "outputs that are not tensors"};
    onnx::TensorProto proto;
    proto.ParseFromString(readFile(data / ("output_" + std::to_string(i) + ".pb")));
    auto tensor = decode(context, proto);
    if (!tensor) return {Outcome::unsupported, "element type " + fe::dataTypeName(proto.data_type()).str()};
    fe::GraphValue* value = importer.lookup(output.name(), scope, nullptr);
    if (!value || !value->tensor) return fail("has no output '" + output.name() + "': " + diagnostics);
    results.push_back(importer.emit.materialize(value->tensor));
    expected.push_back(std::move(tensor->value));
  }
  imported = true;
  func::ReturnOp::create(builder, builder.getUnknownLoc(), results);
  function.setType(builder.getFunctionType(body->getArgumentTypes(), ValueRange(results).getTypes()));
  if (failed(verify(*module))) return fail("the module is not valid: " + diagnostics);

  sheaf::train::EvaluatorOptions evaluatorOptions;
  evaluatorOptions.round = true;
  auto evaluation = sheaf::train::evaluateFunction(function, arguments, {}, evaluatorOptions);
  if (failed(evaluation)) return fail("cannot be evaluated: " + diagnostics);
  for (auto [i, tensor] : llvm::enumerate(expected))
    if (std::string wrong = difference(evaluation->results[i], tensor); !wrong.empty())
      return fail("output " + std::to_string(i) + " " + wrong);
  return {Outcome::passed, ""};
}

Outcome run(const Case& test) {
  for (fs::path data : fs::directory_iterator(test.folder)) {
    if (!fs::is_directory(data)) continue;
    Outcome computed{Outcome::failed, ""};
    bool imported = false;
    std::string first;
    for (Known known : {Known::nothing, Known::integers, Known::scalars, Known::everything}) {
      computed = attempt(test, data, known, imported);
      if (first.empty()) first = computed.message;
      if (imported || computed.kind == Outcome::unsupported) break;
    }
    if (!imported) return {computed.kind, computed.kind == Outcome::failed ? first : computed.message};
    if (computed.kind != Outcome::passed) return computed;
    Outcome folded = attempt(test, data, Known::everything, imported);
    if (folded.kind != Outcome::passed) return {folded.kind, "with known inputs: " + folded.message};
  }
  return {Outcome::passed, ""};
}

// The tests by operator; those of several nodes (operators written out as their functions) under "Expanded".
struct Suite {
  std::map<std::string, std::vector<Case>> byOperator;
  std::map<std::string, int> unsupported;  // tests by the first operator that is not in the table

  Suite() {
    std::map<std::string, std::vector<fe::RegisteredOperator>> table;
    auto key = [](const std::string& domain, const std::string& name) {
      return (domain.empty() ? "ai.onnx" : domain) + "." + name;
    };
    for (auto& op : fe::registeredOperators()) table[key(op.domain, op.name)].push_back(op);
    std::set<fs::path> folders;
    for (const auto& entry : fs::directory_iterator(fs::path(sheaf::paths::kOnnxNodeTests)))
      folders.insert(entry.path());
    for (const fs::path& folder : folders) {
      Case test{folder.filename().string(), folder, {}};
      if (!test.model.ParseFromString(readFile(folder / "model.onnx"))) continue;
      auto isSupported = [&](const onnx::NodeProto& node) {
        int64_t opset = 0;
        for (const auto& import : test.model.opset_import())
          if (import.domain() == node.domain()) opset = import.version();
        return llvm::any_of(table[key(node.domain(), node.op_type())],
                            [&](const fe::RegisteredOperator& op) { return op.covers(opset); });
      };
      auto missing = llvm::find_if_not(test.nodes(), isSupported);
      if (missing != test.nodes().end())
        ++unsupported[(missing->domain().empty() ? "" : missing->domain() + ".") + missing->op_type()];
      else
        byOperator[test.nodes().size() == 1 ? test.nodes().Get(0).op_type() : "Expanded"].push_back(std::move(test));
    }
  }

  static const Suite& get() {
    static const Suite suite;
    return suite;
  }
  static std::vector<std::string> operators() {
    std::vector<std::string> names;
    for (const auto& [name, tests] : get().byOperator) names.push_back(name);
    return names;
  }
};

struct Counts {
  int passed = 0, excluded = 0, unsupported = 0;
} counts;

class OnnxNodeTest : public testing::TestWithParam<std::string> {};

TEST_P(OnnxNodeTest, Conforms) {
  for (const Case& test : Suite::get().byOperator.at(GetParam())) {
    Outcome outcome = run(test);
    if (outcome.kind == Outcome::unsupported) {
      ++counts.unsupported;
      std::cout << test.name << ": " << outcome.message << " (not supported)\n";
    } else if (isLeftOut(test.name)) {
      ++counts.excluded;
      EXPECT_NE(outcome.kind, Outcome::passed) << test.name << " passes: take it off its row in the registry";
    } else {
      counts.passed += outcome.kind == Outcome::passed;
      EXPECT_EQ(outcome.kind, Outcome::passed) << test.name << ": " << outcome.message;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Operators, OnnxNodeTest, testing::ValuesIn(Suite::operators()),
                         [](const auto& info) { return info.param; });

// The last word: what was counted, and which operators of ONNX's tests are not in the table.
class Report : public testing::Environment {
 public:
  void TearDown() override {
    int others = 0;
    std::string names;
    for (const auto& [name, tests] : Suite::get().unsupported) {
      others += tests;
      names += " " + name + "(" + std::to_string(tests) + ")";
    }
    std::cout << "ONNX node tests: " << counts.passed << " passed, " << counts.excluded << " excluded, "
              << counts.unsupported << " of types that are not supported, " << others
              << " of operators that are not supported:" << names << "\n";
  }
};
const auto* report = testing::AddGlobalTestEnvironment(new Report);

}  // namespace
