// The losses that --loss adds, against PyTorch's values and gradients (losses.json, by losses.py), on one rank and on
// several that share the batch.
#include <gmock/gmock.h>

#include <algorithm>
#include <barrier>
#include <cctype>
#include <cmath>
#include <fstream>
#include <functional>
#include <sstream>
#include <thread>

#include "ir/Train/Evaluator.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Pass/PassManager.h"
#include "passes/train/Passes.h"
#include "runtime/base/Json.h"
#include "test/Paths.h"
#include "test/frontend/ModelBuilder.h"

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

namespace sheaf::test {
namespace {

struct LossCase {
  std::string loss;
  std::vector<int64_t> shape;
  bool merge = false;
  std::vector<double> x, p, target, vector, gradient;
  double value = 0;
};

std::vector<double> numbersOf(const json::Value* value) {
  std::vector<double> numbers;
  for (const json::Value& element : *value->array()) (void)element.number(numbers.emplace_back());
  return numbers;
}

int64_t rows = 0;

std::vector<LossCase> cases() {
  std::ifstream stream(sheaf::paths::kLosses);
  std::stringstream text;
  text << stream.rdbuf();
  auto root = json::parse(text.str());
  std::vector<LossCase> list;
  if (!root.ok()) return list;
  double count = 0;
  (void)root->object()->find("rows")->number(count);
  rows = int64_t(count);
  for (const json::Value& entry : *root->object()->find("cases")->array()) {
    const json::Object& object = *entry.object();
    LossCase one;
    one.loss = *object.find("loss")->string();
    for (double size : numbersOf(object.find("shape"))) one.shape.push_back(int64_t(size));
    one.merge = *object.find("merge")->boolean();
    one.x = numbersOf(object.find("x")), one.p = numbersOf(object.find("p"));
    one.target = numbersOf(object.find("target")), one.gradient = numbersOf(object.find("gradient"));
    if (object.find("vector")) one.vector = numbersOf(object.find("vector"));
    (void)object.find("value")->number(one.value);
    list.push_back(one);
  }
  return list;
}

std::vector<float> floatsOf(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

// y = x * p, or that with its first two dimensions merged.
ModelBuilder modelOf(const LossCase& c) {
  ModelBuilder m;
  Dims dims{"N"};
  dims.insert(dims.end(), c.shape.begin(), c.shape.end());
  m.input("x", dims).output("y", {});
  m.graph().mutable_output(0)->mutable_type()->mutable_tensor_type()->clear_shape();
  m.floats("p", c.shape, floatsOf(c.p));
  m.node("Mul", {"x", "p"}, {c.merge ? "whole" : "y"});
  if (c.merge) {
    std::vector<int64_t> merged{-1};
    merged.insert(merged.end(), c.shape.begin() + 1, c.shape.end());
    m.integers("merged", {int64_t(merged.size())}, merged);
    m.node("Reshape", {"whole", "merged"}, {"y"});
  }
  if (!c.vector.empty()) m.floats("v", {int64_t(c.vector.size())}, floatsOf(c.vector));
  return m;
}

struct Share {
  double loss = NAN;
  std::vector<double> gradient;
};

// This rank's part of a tensor whose leading dimension is the batch.
train::Tensor partOf(const std::vector<double>& whole, mlir::RankedTensorType type, int64_t rank) {
  train::Tensor part = train::Tensor::zeros(type);
  for (int64_t i = 0; i < part.size(); ++i) {
    double value = whole.at(size_t(rank * part.size() + i));
    if (part.isFloat())
      part.f[size_t(i)] = value;
    else
      part.i[size_t(i)] = int64_t(value);
  }
  return part;
}

// The sum of all ranks' shares.
Share onRanks(const LossCase& c, int64_t ranks) {
  frontend::ImportOptions options = withBatch(rows, ranks);
  options.loss = c.loss;
  options.train = {"p"};
  std::string file = modelFolder() + "/vector.npy";
  if (size_t at = options.loss.find("FILE"); at != std::string::npos) {
    options.loss.replace(at, 4, file);
    std::string header =
        "{'descr': '<f4', 'fortran_order': False, 'shape': (" + std::to_string(c.vector.size()) + ",), }";
    header.resize(117, ' ');
    std::vector<float> values = floatsOf(c.vector);
    std::ofstream(file, std::ios::binary)
        << std::string("\x93NUMPY\x01\x00\x76\x00", 10) << header << "\n"
        << std::string(reinterpret_cast<const char*>(values.data()), values.size() * 4);
  }
  Imported m = import(modelOf(c), options);
  if (!m.module) return {};
  mlir::PassManager passes(m.context.get());
  passes.addPass(train::createPartition());
  passes.addPass(train::createDifferentiate());
  if (mlir::failed(passes.run(*m.module))) return {};
  auto step = m.module->lookupSymbol<mlir::func::FuncOp>("step");
  auto typeOf = [&](unsigned i) { return mlir::cast<mlir::RankedTensorType>(step.getArgumentTypes()[i]); };
  train::Tensor p = partOf(c.p, mlir::RankedTensorType::get(c.shape, mlir::Float32Type::get(m.context.get())), 0);

  std::vector<Share> shares(ranks);
  std::vector<const train::Tensor*> terms(ranks);
  std::barrier<> barrier(ranks);
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      train::EvaluatorOptions evaluation;
      evaluation.globalSum = [&](train::Tensor& t) {
        train::Tensor mine = t;
        terms[rank] = &mine;
        barrier.arrive_and_wait();
        for (size_t k = 0; k < t.f.size(); ++k) {
          t.f[k] = 0;
          for (const train::Tensor* other : terms) t.f[k] += other->f[k];
        }
        barrier.arrive_and_wait();
      };
      auto result = train::evaluateFunction(step, {partOf(c.x, typeOf(0), rank), partOf(c.target, typeOf(1), rank)},
                                            {{"p", p}}, evaluation);
      if (mlir::succeeded(result)) shares[rank] = {result->loss->f[0], result->gradients.at("p").f};
    });
  for (std::thread& thread : threads) thread.join();
  Share sum{0, std::vector<double>(c.gradient.size(), 0)};
  for (const Share& share : shares) {
    sum.loss += share.loss;
    for (size_t k = 0; k < share.gradient.size(); ++k) sum.gradient[k] += share.gradient[k];
  }
  return sum;
}

// The evaluator computes in f64, but a constant of f32, such as a share of 1 / 5, is rounded.
constexpr double kTolerance = 1e-7;

class LossTest : public ::testing::TestWithParam<LossCase> {};

TEST_P(LossTest, IsPyTorchs) {
  const LossCase& c = GetParam();
  for (int64_t ranks : {1, 2, 4}) {
    Share actual = onRanks(c, ranks);
    EXPECT_NEAR(actual.loss, c.value, kTolerance * (1 + std::abs(c.value))) << ranks << " ranks";
    ASSERT_EQ(actual.gradient.size(), c.gradient.size()) << ranks << " ranks";
    for (size_t k = 0; k < c.gradient.size(); ++k)
      EXPECT_NEAR(actual.gradient[k], c.gradient[k], kTolerance * (1 + std::abs(c.gradient[k])))
          << ranks << " ranks, element " << k;
  }
}

std::string nameOf(const ::testing::TestParamInfo<LossCase>& info) {
  std::string name = info.param.loss;
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name + "_" + std::to_string(info.index);
}

INSTANTIATE_TEST_SUITE_P(Kinds, LossTest, ::testing::ValuesIn(cases()), nameOf);

TEST(Losses, EveryKindHasACaseAndItsPlaceInTheDocumentation) {
  std::ifstream stream(sheaf::paths::kOnnxPage);
  std::stringstream page;
  page << stream.rdbuf();
  std::vector<LossCase> all = cases();
  for (const frontend::SupportedLoss& loss : frontend::supportedLosses()) {
    std::string kind = loss.syntax.substr(0, loss.syntax.find('('));
    EXPECT_TRUE(std::any_of(all.begin(), all.end(), [&](const LossCase& c) {
      return c.loss.rfind(kind + "(", 0) == 0;
    })) << kind;
    EXPECT_THAT(page.str(), HasSubstr("| `" + loss.syntax + "` | " + loss.text + " |")) << "docs/onnx.md";
  }
}

std::string errorOf(const std::string& loss, bool labels = false) {
  ModelBuilder m;
  m.input("x", {"N", 4}).output("y", {"N", 4});
  if (labels) {
    m.input("labels", {"N", 4});
    m.node("Add", {"x", "labels"}, {"z"});
  } else {
    m.node("Identity", {"x"}, {"z"});
  }
  m.floats("w", {4}, {1, 2, 3, 4}).set_name("w");
  m.integers("i", {4}, {1, 2, 3, 4});
  m.node("Mul", {"z", "w"}, {"y"});
  frontend::ImportOptions options = withBatch(8);
  options.loss = loss;
  Imported imported = import(m, options);
  return imported.errors.empty() ? "" : imported.errors[0];
}

TEST(Losses, Errors) {
  EXPECT_EQ(errorOf("cross_entropy( y , label_smoothing=0.5 , target=answers )"), "");
  EXPECT_THAT(errorOf("mae(y)"), HasSubstr("there is no loss 'mae'; take one of cross_entropy, mse, l1, smooth_l1"));
  EXPECT_THAT(errorOf("mse(q)"), HasSubstr("'q' is not an output; the outputs are 'y' FLOAT[N,4]"));
  EXPECT_THAT(errorOf("mse(y"), HasSubstr("--loss mse(y: the closing ) is missing"));
  EXPECT_THAT(errorOf("CrossEntropy(y)"), HasSubstr("did you mean 'cross_entropy'?"));
  EXPECT_THAT(errorOf("Y"), HasSubstr("did you mean 'y'?"));
  EXPECT_THAT(errorOf("mse(Z)"), HasSubstr("did you mean 'z'?"));  // an inner value
  EXPECT_THAT(errorOf("mse(y, beta=1)"), HasSubstr("there is no 'beta'; it takes mse(PREDICTION) and target=NAME"));
  EXPECT_THAT(errorOf("smooth_l1(y, beta=-1)"), HasSubstr("beta=-1 must be a number of at least 0"));
  EXPECT_THAT(errorOf("smooth_l1(y, beta=nan)"), HasSubstr("beta=nan must be a number"));
  EXPECT_THAT(errorOf("smooth_l1(y, beta)"), HasSubstr("beta has no value"));
  EXPECT_THAT(errorOf("cross_entropy(y, label_smoothing=1.5)"), HasSubstr("must be a number from 0 to 1"));
  EXPECT_THAT(errorOf("cross_entropy(y, ignore_index=1.5)"), HasSubstr("ignore_index=1.5 must be an integer"));
  EXPECT_THAT(errorOf("cross_entropy(y, ignore_index=1, ignore_index=2)"), HasSubstr("is given twice"));
  EXPECT_THAT(errorOf("kl_div(y, log_target=yes)"), HasSubstr("must be true or false"));
  EXPECT_THAT(errorOf("cross_entropy(y, axis=0)"), HasSubstr("axis=0 is the batch"));
  EXPECT_THAT(errorOf("cross_entropy(y, axis=2)"), HasSubstr("axis 2 is out of range"));
  EXPECT_THAT(errorOf("cross_entropy(y, weight=nowhere)"),
              HasSubstr("weight=nowhere: is neither an initializer of the model nor a file"));
  EXPECT_THAT(errorOf("cross_entropy(y, weight=i)"), HasSubstr("must be a vector of 4 floating-point numbers"));
  for (const std::string taken : {"w", "z", "x"})
    EXPECT_THAT(errorOf("mse(y, target=" + taken + ")"), HasSubstr("already has a value named '" + taken + "'"));
  EXPECT_THAT(errorOf("y"), HasSubstr("give a loss of it, such as --loss 'cross_entropy(y)'"));
  EXPECT_THAT(errorOf("mse(y, target=labels)", true), HasSubstr("already has a value named 'labels'"));
}

// A graph may give away its softmax alone: then the loss is of the value before it.
TEST(Losses, OfAValueBeforeASoftmax) {
  for (bool written : {false, true}) {
    ModelBuilder m;
    m.input("x", {"N", 4}).output("p", {"N", 4});
    m.floats("w", {4}, {1, 2, 3, 4});
    m.node("Mul", {"x", "w"}, {"y"});
    if (written) {
      m.node("Exp", {"y"}, {"e"});
      m.integers("axes", {1}, {1});
      m.node("ReduceSum", {"e", "axes"}, {"s"});
      m.node("Div", {"e", "s"}, {"p"});
    } else {
      m.node("Softmax", {"y"}, {"p"});
    }
    frontend::ImportOptions options = withBatch(8);
    options.loss = "cross_entropy(p)";
    Imported refused = import(m, options);
    ASSERT_EQ(refused.errors.size(), 1u);
    EXPECT_THAT(refused.errors[0], HasSubstr("is a softmax already"));
    EXPECT_THAT(refused.errors[0], HasSubstr("give --loss 'cross_entropy(y)'"));
    options.loss = "cross_entropy(y)";
    Imported imported = import(m, options);
    ASSERT_TRUE(imported.module);
    EXPECT_EQ(imported.count("cross_entropy"), 1);
    EXPECT_EQ(imported.count("softmax"), 0);
  }
}

TEST(Losses, BinaryCrossEntropyOfASigmoidIsRefused) {
  ModelBuilder m;
  m.input("x", {"N", 4}).output("p", {"N", 4});
  m.floats("w", {4}, {1, 2, 3, 4});
  m.node("Mul", {"x", "w"}, {"y"});
  m.node("Sigmoid", {"y"}, {"p"});
  frontend::ImportOptions options = withBatch(8);
  options.loss = "bce_with_logits(p)";
  Imported refused = import(m, options);
  ASSERT_EQ(refused.errors.size(), 1u);
  EXPECT_THAT(refused.errors[0], HasSubstr("is a sigmoid already"));
  EXPECT_THAT(refused.errors[0], HasSubstr("bce_with_logits(y)"));
  options.loss = "bce_with_logits(y)";
  EXPECT_TRUE(import(m, options).module);
  options.loss = "mse(p)";
  EXPECT_TRUE(import(m, options).module);
}

// Every loss of every function of logits.
TEST(Losses, OfWhatIsSquashedAlready) {
  // Imports a loss of p = FUNCTION(y).
  auto importedWith = [](const std::string& loss, const Names& operators) {
    ModelBuilder m;
    m.input("x", {"N", 4}).output("p", {"N", 4});
    m.floats("w", {4}, {1, 2, 3, 4});
    m.node("Mul", {"x", "w"}, {"y"});
    for (size_t i = 0; i < operators.size(); ++i)
      m.node(operators[i], {i ? "v" + std::to_string(i - 1) : "y"},
             {i + 1 < operators.size() ? "v" + std::to_string(i) : "p"});
    frontend::ImportOptions options = withBatch(8);
    options.loss = loss + "(p)";
    return import(m, options);
  };
  const std::vector<std::pair<std::string, std::vector<Names>>> functions = {
      {"softmax", {{"Softmax"}, {"Softmax", "Identity"}}},
      {"log-softmax", {{"LogSoftmax"}, {"Softmax", "Log"}}},
      {"sigmoid", {{"Sigmoid"}}},
      {"log-sigmoid", {{"Sigmoid", "Log"}, {"Neg", "Softplus", "Neg"}}}};
  for (const auto& [function, spellings] : functions)
    for (const Names& operators : spellings) {
      const bool classes = function.ends_with("softmax"), logarithm = function.starts_with("log");
      for (const std::string loss : {"mse", "l1", "smooth_l1"})
        EXPECT_THAT(importedWith(loss, operators).errors, IsEmpty()) << function;
      const std::string usual = classes ? "cross_entropy(y)" : "bce_with_logits(y)";
      for (const std::string loss : {"cross_entropy", "bce_with_logits", "kl_div"}) {
        SCOPED_TRACE(loss + " of " + function);
        const bool fits = loss == "cross_entropy" ? function != "softmax" : logarithm && loss == "kl_div";
        const Imported imported = importedWith(loss, operators);
        if (fits)
          EXPECT_THAT(imported.errors, IsEmpty());
        else
          EXPECT_THAT(imported.errors,
                      ElementsAre(AllOf(HasSubstr("is a " + function + " already, and " + loss + " takes"),
                                        HasSubstr("give --loss '" + usual + "'"))));
        if (loss == "cross_entropy" && function == "sigmoid")
          EXPECT_THAT(imported.warnings,
                      ElementsAre(AllOf(HasSubstr("is a sigmoid, but cross_entropy expects unbounded"),
                                        HasSubstr("--loss 'bce_with_logits(y)'"))));
        else
          EXPECT_THAT(imported.warnings, IsEmpty());
      }
    }
}

// A softmax written out: with another reduction, a second exponential, a constant added to the sum, or a limit of it.
// What the nodes do not show, such as a softmax that ends in a product with one, the ops do.
TEST(Losses, WrittenOutSoftmaxesAreRefused) {
  for (const std::string form : {"sum", "l1", "two", "added", "clipped", "larger", "hidden"}) {
    ModelBuilder m;
    m.input("x", {"N", 4}).output("p", {"N", 4});
    m.floats("w", {4}, {1, 2, 3, 4}), m.floats("eps", {}, {1e-6F}), m.floats("one", {}, {1}),
        m.integers("axes", {1}, {1});
    m.node("Mul", {"x", "w"}, {"y"});
    m.node("Exp", {"y"}, {"e"});
    m.node("Exp", {"y"}, {"e2"});
    m.node(form == "l1" ? "ReduceL1" : "ReduceSum", {form == "two" ? "e2" : "e", "axes"}, {"s"});
    if (form == "added") m.node("Add", {"eps", "s"}, {"d"});
    if (form == "clipped") m.node("Clip", {"s", "eps"}, {"d"});
    if (form == "larger" || form == "hidden") m.node("Max", {"s", "eps"}, {"d"});
    const std::string divisor = form == "sum" || form == "l1" || form == "two" ? "s" : "d";
    m.node("Div", {"e", divisor}, {form == "hidden" ? "q" : "p"});
    if (form == "hidden") m.node("Sum", {"q"}, {"p"});
    frontend::ImportOptions options = withBatch(8);
    for (const std::string loss : {"cross_entropy", "bce_with_logits", "kl_div"}) {
      options.loss = loss + "(p)";
      const Imported imported = import(m, options);
      EXPECT_THAT(imported.errors, ElementsAre(HasSubstr("is a softmax already"))) << form << ", " << loss;
    }
  }
}

// Kernels exp(-d) / t and sigmoids exp(x) / (1 + exp(x)), for example.
TEST(Losses, AnExponentialDividedByAnotherValueThanItsSumIsNoSoftmax) {
  for (const std::string by : {"one", "one-more", "other-sum"}) {
    ModelBuilder m;
    m.input("x", {"N", 4}).output("p", {"N", 4});
    m.floats("w", {4}, {1, 2, 3, 4}), m.floats("one", {1}, {1}), m.integers("axes", {1}, {1});
    m.node("Mul", {"x", "w"}, {"y"});
    m.node("Exp", {"y"}, {"e"});
    m.node("Add", {"e", "one"}, {"one-more"});
    m.node("ReduceSum", {"y", "axes"}, {"other-sum"});
    m.node("Div", {"e", by}, {"p"});
    frontend::ImportOptions options = withBatch(8);
    for (const std::string loss : {"cross_entropy", "bce_with_logits", "kl_div"}) {
      options.loss = loss + "(p)";
      const Imported imported = import(m, options);
      EXPECT_TRUE(imported.module) << by << ", " << loss << ": " << (imported.errors.empty() ? "" : imported.errors[0]);
    }
  }
}

// The graph has values named like the targets, but the step does not compute them.
TEST(Losses, ATargetMayHaveTheNameOfAValueThatIsNotComputed) {
  ModelBuilder m;
  m.input("x", {"N", 4}).output("y", {"N", 4}).output("labels", {"N"});
  m.floats("w", {4}, {1, 2, 3, 4}), m.floats("targets", {4}, {1, 2, 3, 4});
  m.node("Mul", {"x", "w"}, {"y"});
  m.node("Sub", {"y", "targets"}, {"d"});
  m.node("ArgMax", {"y"}, {"labels"});
  frontend::ImportOptions options = withBatch(8);
  for (const std::string loss : {"cross_entropy(y)", "mse(y)"}) {
    options.loss = loss;
    const Imported imported = import(m, options);
    EXPECT_TRUE(imported.module) << loss << ": " << (imported.errors.empty() ? "" : imported.errors[0]);
  }
}

TEST(Losses, CrossEntropyOfOneClassIsRefused) {
  ModelBuilder m;
  m.input("x", {"N", 1}).output("y", {"N", 1});
  m.floats("w", {1}, {1});
  m.node("Mul", {"x", "w"}, {"y"});
  frontend::ImportOptions options = withBatch(8);
  options.loss = "cross_entropy(y)";
  const Imported refused = import(m, options);
  ASSERT_EQ(refused.errors.size(), 1u);
  EXPECT_THAT(refused.errors[0], AllOf(HasSubstr("has a single class"), HasSubstr("'bce_with_logits(y)'")));
  options.loss = "bce_with_logits(y)";
  EXPECT_TRUE(import(m, options).module);
}

struct LabelsCase {
  std::string loss;  // operator, or --loss
  Dims labels;
  bool shifted = false;
};

// What the import states of an input of labels; logits = x * w, [N, 4] or [N, 4, 6].
std::string statedOf(const LabelsCase& c) {
  ModelBuilder m;
  const bool tokens = c.labels.size() == 2;
  const bool node = c.loss.find('(') == std::string::npos;
  m.input("x", tokens ? Dims{"N", 4, 6} : Dims{"N", 4});
  m.floats("w", {4, 1}, {1, 2, 3, 4});
  if (!tokens) m.graph().mutable_initializer(0)->mutable_dims()->RemoveLast();
  m.node("Mul", {"x", "w"}, {"y"});
  if (node) {
    m.output("loss", {}).input("labels", c.labels, onnx::TensorProto::INT64);
    if (c.shifted) {
      m.integers("begin", {1}, {1});
      m.integers("end", {1}, {7});
      m.integers("axis", {1}, {1});
      m.node("Slice", {"labels", "begin", "end", "axis"}, {"used"});
    }
    setInteger(m.node(c.loss, {"y", c.shifted ? "used" : "labels"}, {"loss"}), "ignore_index", -1);
  } else {
    m.output("y", tokens ? Dims{"N", 4, 6} : Dims{"N", 4});
  }
  frontend::ImportOptions options = withBatch(8);
  if (!node) options.loss = c.loss;
  Imported imported = import(m, options);
  EXPECT_TRUE(imported.module) << (imported.errors.empty() ? "" : imported.errors[0]);
  if (!imported.module) return "";
  auto step = imported.module->lookupSymbol<mlir::func::FuncOp>("step");
  for (unsigned i = 0; i < step.getNumArguments(); ++i) {
    if (step.getArgAttrOfType<mlir::StringAttr>(i, "train.name") != "labels") continue;
    std::string text;
    llvm::raw_string_ostream out(text);
    if (auto classes = step.getArgAttrOfType<mlir::IntegerAttr>(i, "train.classes")) out << classes.getInt();
    if (auto ignored = step.getArgAttrOfType<mlir::IntegerAttr>(i, "train.ignored_label"))
      out << " " << ignored.getInt();
    if (step.getArgAttr(i, "train.tokens")) out << " tokens";
    if (step.getArgAttr(i, "train.perplexity")) out << " perplexity";
    return text;
  }
  return "no input 'labels'";
}

// The range of labels is stated where an input is used as it is, and a perplexity only of the plain mean over tokens.
TEST(Losses, StateWhatLabelsMayBe) {
  EXPECT_EQ(statedOf({"cross_entropy(y)", {"N"}}), "4 -100");
  EXPECT_EQ(statedOf({"cross_entropy(y, ignore_index=7)", {"N", 4}}), "6 7 tokens perplexity");
  EXPECT_EQ(statedOf({"cross_entropy(y, label_smoothing=0.1)", {"N", 4}}), "6 -100 tokens");
  EXPECT_EQ(statedOf({"SoftmaxCrossEntropyLoss", {"N"}}), "4 -1");
  EXPECT_EQ(statedOf({"SoftmaxCrossEntropyLoss", {"N", 6}}), "4 -1 tokens perplexity");
  EXPECT_EQ(statedOf({"SoftmaxCrossEntropyLoss", {"N", 7}, true}), " tokens perplexity");
  EXPECT_EQ(statedOf({"NegativeLogLikelihoodLoss", {"N"}}), "4 -1");
}

// A target has the rows first, and is compared with the output's elements of the same row, wherever they are.
TEST(Losses, TargetsFollowTheRows) {
  struct {
    Dims x;
    std::string nodes;  // after y = x: T[ranspose], M[erge the first two], S[plit them again], twice (V, two views)
    std::vector<int64_t> target;
    bool second = false;  // --rows x=1
  } const kinds[] = {
      {{8, "N", 3}, "", {4, 8, 3}},     {{8, "N", 3}, "M", {4, 8, 3}},
      {{8, "N", 3}, "MS", {4, 8, 3}},   {{8, "N", 3}, "T", {4, 8, 3}},
      {{"N", 8, 3}, "", {4, 8, 3}},     {{"N", 8, 3}, "M", {4, 8, 3}},
      {{"N", 8, 3}, "T", {4, 8, 3}},    {{"N", 8, 3}, "TM", {4, 8, 3}},
      {{"N", 4, 3}, "T", {4, 4, 3}},  // as many tokens as rows
      {{4, 4, 3}, "", {4, 4, 3}, true}, {{4, 4, 3}, "M", {4, 4, 3}, true},
      {{"N", 8, 3}, "V", {4, 2, 8, 3}},
  };
  for (const auto& kind : kinds) {
    SCOPED_TRACE(&kind - kinds);
    ModelBuilder m;
    m.input("x", kind.x).output("y", {});
    m.graph().mutable_output(0)->mutable_type()->mutable_tensor_type()->clear_shape();
    m.floats("p", {3}, {1, 1, 1});
    m.integers("merged", {2}, {-1, 3});
    m.integers("split", {3}, {8, -1, 3});
    m.node("Mul", {"x", "p"}, {kind.nodes.empty() ? "y" : "y0"});
    for (size_t i = 0; i < kind.nodes.size(); ++i) {
      const std::string from = "y" + std::to_string(i),
                        to = i + 1 == kind.nodes.size() ? "y" : "y" + std::to_string(i + 1);
      if (kind.nodes[i] == 'T')
        setIntegers(m.node("Transpose", {from}, {to}), "perm", {1, 0, 2});
      else if (kind.nodes[i] == 'V')
        setInteger(m.node("Concat", {from, from}, {to}), "axis", 0);
      else
        m.node("Reshape", {from, kind.nodes[i] == 'M' ? "merged" : "split"}, {to});
    }
    for (int64_t ranks : {1, 2}) {
      frontend::ImportOptions options = withBatch(4, ranks);
      options.loss = "mse(y)";
      options.train = {"p"};
      if (kind.second) options.rows = {{"x", 1}};
      Imported imported = import(m, options);
      ASSERT_TRUE(imported.module) << (imported.errors.empty() ? "" : imported.errors[0]);
      EXPECT_THAT(imported.warnings, ::testing::IsEmpty());
      auto step = imported.module->lookupSymbol<mlir::func::FuncOp>("step");
      auto typeOf = [&](unsigned i) { return mlir::cast<mlir::RankedTensorType>(step.getArgumentTypes()[i]); };
      EXPECT_EQ(typeOf(1).getShape(), llvm::ArrayRef(kind.target));
      if (ranks == 2) {
        mlir::PassManager passes(imported.context.get());
        passes.addPass(train::createPartition());
        ASSERT_TRUE(mlir::succeeded(passes.run(*imported.module)));
        EXPECT_EQ(imported.count("gather_rows"), 0);
        continue;
      }
      train::Tensor x = train::Tensor::zeros(typeOf(0)), target = train::Tensor::zeros(typeOf(1));
      const size_t row = x.f.size() / 4, copies = target.f.size() / x.f.size();
      for (size_t i = 0; i < x.f.size(); ++i) x.f[i] = double(i * i % 101);
      for (size_t i = 0; i < target.f.size(); ++i) target.f[i] = x.f[i / (row * copies) * row + i % row];
      train::Tensor p =
          train::Tensor::zeros(mlir::RankedTensorType::get({3}, mlir::Float32Type::get(imported.context.get())));
      p.f = {1, 1, 1};
      auto result = train::evaluateFunction(step, {x, target}, {{"p", p}});
      ASSERT_TRUE(mlir::succeeded(result));
      EXPECT_EQ(result->loss->f[0], 0);
    }
  }
}

TEST(Losses, RowsThatCannotBeFollowedAreNamed) {
  ModelBuilder m;
  m.input("x", {"N", 6}).output("y", {4, 6});
  m.floats("w", {6}, {1, 2, 3, 4, 5, 6});
  m.integers("shape", {2}, {4, 6});
  m.node("Mul", {"x", "w"}, {"a"});
  setIntegers(m.node("Transpose", {"a"}, {"b"}), "perm", {1, 0});
  m.node("Reshape", {"b", "shape"}, {"y"});
  frontend::ImportOptions options = withBatch(4);
  options.loss = "mse(y)";
  Imported imported = import(m, options);
  ASSERT_TRUE(imported.module);
  ASSERT_EQ(imported.warnings.size(), 1u);
  EXPECT_THAT(imported.warnings[0], HasSubstr("--loss cannot follow the rows of the batch"));
}

}  // namespace
}  // namespace sheaf::test
