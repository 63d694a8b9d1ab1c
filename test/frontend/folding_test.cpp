// What the importer folds is what the same node computes of data: random nodes over random small tensors, imported with
// all inputs known, with some, and with none, give the same bits.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>

#include "frontend/onnx/importer/Importer.h"
#include "ir/Train/Evaluator.h"
#include "mlir/IR/Verifier.h"
#include "test/frontend/ModelBuilder.h"

namespace sheaf::test {
namespace {

using namespace mlir;
using train::Constant;
using Dims = SmallVector<int64_t>;

// One node and the values of its inputs. Inputs in `shapes` decide the result's shape: always known.
struct Case {
  onnx::NodeProto node;
  std::vector<Constant> inputs;
  std::vector<bool> shapes;

  void add(Constant value, bool shape = false) {
    node.add_input("x" + std::to_string(inputs.size()));
    inputs.push_back(std::move(value));
    shapes.push_back(shape);
  }
};

class Folding : public ::testing::Test {
 protected:
  Folding() {
    context.loadDialect<train::TrainDialect, func::FuncDialect>();
    // Nodes are imported one at a time: all that counts of the model is its opset.
    model = frontend::Model::load(context, ModelBuilder::unary("Neg", 20, {1}, {1}).save());
  }

  int64_t below(int64_t n) { return int64_t(random() % uint64_t(n)); }
  bool chance(int n) { return below(n) == 0; }
  template <class T>
  T pick(std::initializer_list<T> values) {
    return values.begin()[below(int64_t(values.size()))];
  }

  Type elementType(int32_t dataType) { return frontend::elementType(&context, dataType); }
  int32_t anyFloat() {
    using T = onnx::TensorProto;
    return pick<int32_t>({T::FLOAT, T::FLOAT, T::DOUBLE, T::FLOAT16, T::BFLOAT16});
  }
  int32_t anyInteger() {
    using T = onnx::TensorProto;
    return pick<int32_t>({T::INT64, T::INT64, T::INT32, T::INT16, T::INT8, T::UINT8});
  }
  int32_t anyNumber() { return chance(2) ? anyFloat() : anyInteger(); }

  // Ordinary numbers, and those at which types and conversions end.
  double number() {
    if (!chance(3)) return double(below(33) - 16) / 4;
    return pick<double>({0,      -0.0,    1,      -1,     2.5,     -128, 127,   255.5, 65504,    3e9,       -3e9,
                         0x1p31, -0x1p31, 0x1p53, 0x1p63, -0x1p63, 1e19, 1e-40, 1e300, INFINITY, -INFINITY, NAN});
  }

  Constant tensor(ArrayRef<int64_t> shape, int32_t dataType, int64_t limit = 0) {
    auto type = RankedTensorType::get(shape, elementType(dataType));
    train::Tensor t = train::Tensor::zeros(type);
    bool repeats = chance(4);
    double same = number();
    for (double& x : t.f) x = repeats ? same : number();
    for (int64_t& x : t.i) {
      double v = repeats ? same : number();
      x = limit           ? below(2 * limit) - limit
          : std::isnan(v) ? 7
          : v >= 0x1p63   ? INT64_MAX
                          : int64_t(std::max(v, -0x1p63));
      // Rounds to f32 in one way directly and in another by way of f64.
      if (!limit && chance(20)) x = (int64_t(1) << 54) + (1 << 30) + 1;
      if (type.getElementType().isInteger(1)) x = below(2);
    }
    return t.isFloat() ? Constant::fromTensor(t) : Constant::integers(type, t.i);
  }
  Constant integers(ArrayRef<int64_t> values) {
    return Constant::integers(RankedTensorType::get({int64_t(values.size())}, IntegerType::get(&context, 64)), values);
  }
  Dims anyShape(int64_t least = 0) {
    Dims shape(least + below(4 - least));
    for (int64_t& size : shape) size = 1 + below(3);
    return shape;
  }
  // A shape that broadcasts with the other.
  Dims partOf(Dims shape) {
    for (int64_t& size : shape)
      if (chance(3)) size = 1;
    if (chance(3)) shape.erase(shape.begin(), shape.begin() + below(shape.size() + 1));
    return shape;
  }

  struct Outcome {
    std::string error;  // of the import; empty if it succeeded
    std::vector<train::Tensor> results;
    bool folded = true;  // whether every result is a constant
  };
  Outcome import(const Case& test, ArrayRef<bool> known);
  Case anyCase();
  void shapeNode(Case& test, const std::string& op);

  MLIRContext context{MLIRContext::Threading::DISABLED};
  std::unique_ptr<frontend::Model> model;
  std::mt19937_64 random{1};
};

Folding::Outcome Folding::import(const Case& test, ArrayRef<bool> known) {
  Outcome outcome;
  ScopedDiagnosticHandler handler(&context, [&](Diagnostic& d) { outcome.error += d.str(); });
  frontend::ImportOptions options;
  frontend::Importer importer(context, *model, options);
  OpBuilder& builder = importer.builder;
  Location location = builder.getUnknownLoc();
  OwningOpRef<ModuleOp> module = ModuleOp::create(location);
  builder.setInsertionPointToEnd(module->getBody());
  auto function = func::FuncOp::create(builder, location, "step", builder.getFunctionType({}, {}));
  Block* body = function.addEntryBlock();
  builder.setInsertionPointToEnd(body);
  frontend::Scope scope;
  std::vector<train::Tensor> arguments;
  for (auto [i, value] : llvm::enumerate(test.inputs)) {
    std::string name = "x" + std::to_string(i);
    if (known[i] || test.shapes[i]) {
      scope.values[name] = {frontend::Tensor(value), std::nullopt};
    } else {
      scope.values[name] = {frontend::Tensor(body->addArgument(value.type, location)), std::nullopt};
      arguments.push_back(value.elements());
    }
  }
  if (failed(importer.importNode(test.node, scope, 1))) return outcome;
  SmallVector<Value> results;
  for (const std::string& name : test.node.output()) {
    frontend::Tensor& tensor = importer.lookup(name, scope, nullptr)->tensor;
    outcome.folded &= tensor.constant() != nullptr;
    results.push_back(importer.emit.materialize(tensor));
  }
  func::ReturnOp::create(builder, location, results);
  function.setType(builder.getFunctionType(body->getArgumentTypes(), ValueRange(results).getTypes()));
  EXPECT_TRUE(succeeded(verify(*module))) << outcome.error;
  train::EvaluatorOptions evaluatorOptions;
  evaluatorOptions.round = true;
  auto evaluation = train::evaluateFunction(function, arguments, {}, evaluatorOptions);
  if (succeeded(evaluation)) outcome.results = std::move(evaluation->results);
  return outcome;
}

constexpr const char* kUnary[] = {"Neg",         "Abs",
                                  "Sign",        "Exp",
                                  "Log",         "Sqrt",
                                  "Reciprocal",  "Tanh",
                                  "Sigmoid",     "Erf",
                                  "Relu",        "Sin",
                                  "Cos",         "Floor",
                                  "Ceil",        "Round",
                                  "IsNaN",       "Gelu",
                                  "Softplus",    "Elu",
                                  "LeakyRelu",   "Softsign",
                                  "HardSigmoid", "HardSwish",
                                  "Mish",        "Celu",
                                  "Selu",        "ThresholdedRelu",
                                  "Softmax",     "LogSoftmax",
                                  "Identity",    "ReduceL1",
                                  "ReduceL2",    "ReduceLogSumExp",
                                  "Sinh",        "Cosh",
                                  "Asinh",       "Acosh",
                                  "Atanh",       "Tan",
                                  "Asin",        "Acos",
                                  "Atan",        "BitwiseNot"};
constexpr const char* kBinary[] = {"Add",
                                   "Sub",
                                   "Mul",
                                   "Div",
                                   "Pow",
                                   "Mod",
                                   "Min",
                                   "Max",
                                   "Equal",
                                   "Less",
                                   "Greater",
                                   "LessOrEqual",
                                   "GreaterOrEqual",
                                   "BitwiseAnd",
                                   "BitwiseOr",
                                   "BitwiseXor",
                                   "BitShift",
                                   "Sum",
                                   "Mean"};
constexpr const char* kReductions[] = {"ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"};
constexpr const char* kShape[] = {"Reshape",  "Transpose", "Slice", "Concat",  "Gather",    "GatherElements",
                                  "GatherND", "Expand",    "Tile",  "Pad",     "Unsqueeze", "CumSum",
                                  "Trilu",    "OneHot",    "Split", "Flatten", "EyeLike",   "Squeeze"};

void Folding::shapeNode(Case& test, const std::string& op) {
  Dims shape = anyShape(1);
  int64_t rank = shape.size(), axis = below(rank);
  if (op == "Trilu" || op == "EyeLike") shape = {1 + below(4), 1 + below(4)};
  int32_t type = chance(5) ? onnx::TensorProto::BOOL : anyNumber();
  if (op == "CumSum") type = anyNumber();
  if (op == "EyeLike") setInteger(test.node, "k", below(5) - 2);
  if (op == "OneHot") {
    test.add(tensor(shape, chance(2) ? onnx::TensorProto::INT64 : onnx::TensorProto::INT32, 4));
    test.add(integers({4}), true);
    test.add(tensor({2}, type));
    return;
  }
  test.add(tensor(shape, type));
  if (op == "Reshape") {
    int64_t count = test.inputs[0].type.getNumElements();
    test.add(integers(chance(2) ? Dims{count, 1} : Dims{-1, shape.back()}), true);
  } else if (op == "Transpose") {
    std::vector<int64_t> permutation(rank);
    for (int64_t d = 0; d < rank; ++d) permutation[d] = d;
    std::shuffle(permutation.begin(), permutation.end(), random);
    setIntegers(test.node, "perm", permutation);
  } else if (op == "Slice") {
    auto place = [&] { return pick<int64_t>({0, 1, 2, -1, -2, -3, 5, INT64_MAX, INT64_MIN}); };
    test.add(integers({place()}), true);
    test.add(integers({place()}), true);
    test.add(integers({axis - (chance(2) ? rank : 0)}), true);
    test.add(integers({pick<int64_t>({1, 2, -1, -2, 3})}), true);
  } else if (op == "Concat") {
    setInteger(test.node, "axis", axis - (chance(2) ? rank : 0));
    shape[axis] = 1 + below(2);
    test.add(tensor(shape, type));
  } else if (op == "Gather") {
    setInteger(test.node, "axis", axis);
    test.add(tensor(anyShape(), chance(2) ? onnx::TensorProto::INT64 : onnx::TensorProto::INT32, shape[axis]));
  } else if (op == "GatherElements") {
    setInteger(test.node, "axis", axis);
    int64_t size = shape[axis];
    shape[axis] = 1 + below(3);
    test.add(tensor(shape, onnx::TensorProto::INT64, size));
  } else if (op == "GatherND") {
    Dims at = anyShape();
    at.push_back(1 + below(rank));
    int64_t least = *std::min_element(shape.begin(), shape.end());
    test.add(tensor(at, onnx::TensorProto::INT64, least));
  } else if (op == "Expand") {
    Dims to(shape);
    for (int64_t& size : to)
      if (size == 1) size = 1 + below(3);
    if (chance(3)) to.insert(to.begin(), 2);
    test.add(integers(to), true);
  } else if (op == "Tile") {
    Dims repeats;
    for (int64_t d = 0; d < rank; ++d) repeats.push_back(1 + below(2));
    test.add(integers(repeats), true);
  } else if (op == "Pad") {
    Dims pads;
    for (int64_t d = 0; d < 2 * rank; ++d) pads.push_back(below(4) - 1);
    test.add(integers(pads), true);
    if (chance(2)) test.add(tensor({}, type), true);
  } else if (op == "Unsqueeze") {
    test.add(integers({below(rank + 1)}), true);
  } else if (op == "CumSum") {
    setInteger(test.node, "exclusive", below(2));
    setInteger(test.node, "reverse", below(2));
    test.add(integers({axis}), true);
  } else if (op == "Trilu") {
    setInteger(test.node, "upper", below(2));
    if (chance(2)) test.add(integers({below(5) - 2}), true);
  } else if (op == "Split") {
    setInteger(test.node, "axis", axis);
    setInteger(test.node, "num_outputs", 2);
    test.node.add_output("y1");
  }
}

Case Folding::anyCase() {
  Case test;
  test.node.add_output("y");
  auto name = [&](const auto& names) {
    test.node.set_op_type(names[below(std::size(names))]);
    return test.node.op_type();
  };
  switch (below(8)) {
    case 0: {
      std::string op = name(kUnary);
      test.add(tensor(anyShape(1), op == "BitwiseNot" ? anyInteger() : chance(3) ? anyNumber() : anyFloat()));
      if (op == "Gelu" && chance(2)) setString(test.node, "approximate", "tanh");
      break;
    }
    case 1:
    case 2: {
      std::string op = name(kBinary);
      Dims shape = anyShape();
      int32_t type = op.rfind("Bit", 0) == 0 ? anyInteger() : anyNumber();
      if (op == "BitShift") setString(test.node, "direction", chance(2) ? "LEFT" : "RIGHT");
      if (op == "Mod" && (frontend::elementType(&context, type).isF32() || chance(2))) setInteger(test.node, "fmod", 1);
      test.add(tensor(partOf(shape), type));
      test.add(tensor(partOf(shape), op == "Pow" && chance(3) ? anyNumber() : type));
      break;
    }
    case 3: {
      test.node.set_op_type("Cast");
      test.add(tensor(anyShape(), chance(5) ? onnx::TensorProto::BOOL : anyNumber()));
      setInteger(test.node, "to", chance(5) ? onnx::TensorProto::BOOL : anyNumber());
      break;
    }
    case 4: {
      std::string op = name(std::array{"And", "Or", "Xor", "Not", "Where", "Clip"});
      Dims shape = anyShape();
      int32_t type = op == "Clip" ? anyNumber() : onnx::TensorProto::BOOL;
      test.add(tensor(partOf(shape), type));
      if (op == "Clip") {
        test.add(tensor({}, type));
        test.add(tensor({}, type));
      } else if (op == "Where") {
        type = anyNumber();
        test.add(tensor(partOf(shape), type));
        test.add(tensor(partOf(shape), type));
      } else if (op != "Not") {
        test.add(tensor(partOf(shape), type));
      }
      break;
    }
    case 5: {
      name(kReductions);
      Dims shape = anyShape(1);
      test.add(tensor(shape, anyNumber()));
      if (chance(2)) test.add(integers({below(shape.size())}), true);
      setInteger(test.node, "keepdims", below(2));
      break;
    }
    default:
      shapeNode(test, name(kShape));
  }
  return test;
}

// "" if they have the same bits; one NaN is as good as another.
std::string difference(const train::Tensor& a, const train::Tensor& b) {
  std::string text;
  llvm::raw_string_ostream out(text);
  if (a.type != b.type) out << a.type << " against " << b.type;
  for (int64_t k = 0; text.empty() && k < a.size(); ++k) {
    bool same = a.isFloat() ? (std::isnan(a.f[k]) && std::isnan(b.f[k])) ||
                                  (a.f[k] == b.f[k] && std::signbit(a.f[k]) == std::signbit(b.f[k]))
                            : a.i[k] == b.i[k];
    if (!same && a.isFloat()) out << "element " << k << ": " << a.f[k] << " against " << b.f[k];
    if (!same && !a.isFloat()) out << "element " << k << ": " << a.i[k] << " against " << b.i[k];
  }
  return text;
}

TEST_F(Folding, KnownInputsGiveTheBitsOfData) {
  std::map<std::string, int> compared;
  for (int i = 0; i < 6000; ++i) {
    Case test = anyCase();
    SCOPED_TRACE("case " + std::to_string(i) + ": " + test.node.ShortDebugString());
    size_t n = test.inputs.size();
    SmallVector<bool> none(n, false), all(n, true), some;
    for (size_t k = 0; k < n; ++k) some.push_back(chance(2));
    Outcome data = import(test, none);
    for (ArrayRef<bool> known : {ArrayRef<bool>(all), ArrayRef<bool>(some)}) {
      Outcome folded = import(test, known);
      // An index out of range is an error of the import where it is known.
      ASSERT_EQ(folded.results.size(), data.results.size()) << folded.error << " against " << data.error;
      for (auto [a, b] : llvm::zip(folded.results, data.results)) ASSERT_EQ(difference(a, b), "");
      if (known.data() == all.data()) {
        ASSERT_TRUE(folded.folded);
      }
    }
    compared[test.node.op_type()] += !data.results.empty();
  }
  for (ArrayRef<const char*> names : {ArrayRef<const char*>(kUnary), ArrayRef<const char*>(kBinary),
                                      ArrayRef<const char*>(kReductions), ArrayRef<const char*>(kShape)})
    for (const char* name : names) EXPECT_GT(compared[name], 5) << name;
}

// One node on known inputs: elements of the result.
TEST_F(Folding, EdgesAreThoseOfTheEvaluator) {
  auto fold = [&](Case test) {
    test.node.add_output("y");
    SmallVector<bool> all(test.inputs.size(), true);
    Outcome outcome = import(test, all);
    EXPECT_EQ(outcome.error, "");
    EXPECT_TRUE(outcome.folded);
    return outcome.results.empty() ? std::vector<int64_t>() : outcome.results[0].i;
  };
  auto floats = [&](std::vector<double> values) {
    train::Tensor t{RankedTensorType::get({int64_t(values.size())}, Float32Type::get(&context)), values, {}};
    return Constant::fromTensor(t);
  };
  Case cast;
  cast.node.set_op_type("Cast");
  setInteger(cast.node, "to", onnx::TensorProto::INT32);
  cast.add(floats({3e9, -3e9, NAN, -2.9}));
  EXPECT_EQ(fold(cast), (std::vector<int64_t>{INT32_MAX, INT32_MIN, 0, -2}));

  for (auto [op, expected] : {std::pair("Div", std::vector<int64_t>{INT64_MIN, 0, -3}), {"Mod", {0, 0, 1}}}) {
    Case divide;
    divide.node.set_op_type(op);
    divide.add(integers({INT64_MIN, 5, -7}));
    divide.add(integers({-1, 0, 2}));
    EXPECT_EQ(fold(divide), expected) << op;
  }
  Case range;
  range.node.set_op_type("Range");
  for (int64_t v : {INT64_MAX - 5, INT64_MAX, int64_t(2)}) range.add(integers({v}));
  EXPECT_EQ(fold(range), (std::vector<int64_t>{INT64_MAX - 5, INT64_MAX - 3, INT64_MAX - 1}));
}

// Rows against columns: a small mask is folded, a large one stays a comparison; a splat is folded whatever its size.
TEST_F(Folding, LimitsLeaveOpsInPlace) {
  frontend::ImportOptions options;
  frontend::Importer importer(context, *model, options);
  Block body;
  importer.builder.setInsertionPointToEnd(&body);
  frontend::Emitter& e = importer.emit;
  Type i64 = IntegerType::get(&context, 64);
  auto mask = [&](int64_t n) {
    return e.compare(train::ComparePredicate::le, e.iota(i64, {n, n}, 1), e.iota(i64, {n, n}, 0));
  };
  EXPECT_TRUE(mask(2048).constant());
  EXPECT_FALSE(mask(2049).constant());
  frontend::Tensor splat = e.splat(i64, {1 << 20, 1 << 20}, 2);
  EXPECT_TRUE(e.binary<train::MulOp>(splat, splat).constant());
  EXPECT_FALSE(e.iota(i64, {frontend::kMaxFolded + 1}, 0).constant());
  // All constants alive count, and twice, for copies in attributes: 160 MB each.
  int64_t count = int64_t(20) << 20;
  frontend::Tensor line = e.iota(i64, {count}, 0), negative = e.unary<train::NegOp>(line);
  EXPECT_TRUE(line.constant());
  EXPECT_TRUE(negative.constant());
  EXPECT_FALSE(e.unary<train::AbsOp>(line).constant());
}

}  // namespace
}  // namespace sheaf::test
