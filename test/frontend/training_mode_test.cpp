// Operators that differ between training and evaluation, and what exporters lose of them: batch norm, dropout, traps.
#include <gmock/gmock.h>

#include <cmath>

#include "ir/Train/BatchNorm.h"
#include "ir/Train/Evaluator.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "test/frontend/ModelBuilder.h"
#include "test/frontend/Reference.h"

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

namespace sheaf::test {
namespace {

using Mode = frontend::ImportOptions::BatchNorm;
constexpr const char* kFxNode = "pkg.torch.onnx.fx_node";

// loss = mean(BatchNormalization(x [N, 2] w)).
struct NormModel : ModelBuilder {
  explicit NormModel(int64_t opset = 20, Names more = {}) : ModelBuilder(opset) {
    input("x", {"N", 2}).output("loss", {});
    floats("w", {2}, {1, 1});
    floats("bn.weight", {2}, {1, 2});
    floats("bn.bias", {2}, {0, 1});
    floats("bn.running_mean", {2}, {0, 0});
    floats("bn.running_var", {2}, {1, 1});
    ModelBuilder::node("Mul", {"x", "w"}, {"h"});
    Names outputs{"y"};
    outputs.insert(outputs.end(), more.begin(), more.end());
    ModelBuilder::node("BatchNormalization", {"h", "bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"},
                       outputs);
    setInteger(ModelBuilder::node("ReduceMean", {"y"}, {"loss"}), "keepdims", 0);
  }
  onnx::NodeProto& norm() { return *graph().mutable_node(1); }
  NormModel& exportedAs(const std::string& call) {
    setMetadata(*norm().mutable_metadata_props(), kFxNode, call);
    return *this;
  }
};

Imported importAs(const ModelBuilder& model, Mode mode, int64_t batch = 4, int64_t ranks = 1) {
  frontend::ImportOptions options = withBatch(batch, ranks);
  options.batchNorm = mode;
  return import(model, options);
}

TEST(BatchNorm, TrainingModeNormalizesByTheBatchAndFollowsIt) {
  NormModel m(15, {"mean", "var"});
  setInteger(m.norm(), "training_mode", 1);
  setFloat(m.norm(), "momentum", 0.75f);
  Imported i = import(m, withBatch(4));
  ASSERT_TRUE(i.module);
  EXPECT_THAT(i.warnings, ElementsAre());
  EXPECT_EQ(i.count("batch_norm"), 1);
  EXPECT_EQ(i.count("update"), 2);
  EXPECT_THAT(i.decisions(), HasSubstr("bn.running_mean: running statistics, updated with momentum 0.75"));
  EXPECT_THAT(i.decisions(), HasSubstr("bn.weight: trainable"));
  auto mean = i.module->lookupSymbol<train::ParameterOp>("bn.running_mean");
  ASSERT_TRUE(mean);
  EXPECT_FALSE(mean.getTrainable());
  EXPECT_TRUE(train::isStatistic(mean));
  i.module->walk([](train::OptimizerOp rule) {
    EXPECT_TRUE(train::isStatistic(rule));
    EXPECT_EQ(cast<train::ScalarAttr>(rule.getScalars()[0]).getValue().getValueAsDouble(), 0.25);
  });
}

// The moments that the updates get: of x = 0, the mean of h is 0; so shift x by the parameter of an Add.
TEST(BatchNorm, PyTorchFollowsTheUnbiasedVariance) {
  for (bool pytorch : {false, true}) {
    ModelBuilder m(15);
    m.output("loss", {});
    m.input("x", {3, 1});
    m.floats("a", {3, 1}, {1, 2, 6});  // mean 3, population variance 14/3, unbiased 7
    for (auto [name, value] : {std::pair("s", 1.f), {"b", 0.f}, {"m", 0.f}, {"v", 1.f}}) m.floats(name, {1}, {value});
    m.node("Add", {"x", "a"}, {"h"});
    setInteger(m.node("BatchNormalization", {"h", "s", "b", "m", "v"}, {"y", "mo", "vo"}), "training_mode", 1);
    setInteger(m.node("ReduceMean", {"y"}, {"loss"}), "keepdims", 0);
    if (pytorch) m.model.set_producer_name("pytorch");
    std::string path = m.save();
    Imported i = import(path, withBatch(3));
    ASSERT_TRUE(i.module);
    auto step = i.module->lookupSymbol<mlir::func::FuncOp>("step");
    auto type = mlir::cast<mlir::RankedTensorType>(step.getArgument(0).getType());
    auto parameters = readParameters(*i.module, modelFolder());
    auto result = train::evaluateFunction(step, {train::Tensor::zeros(type)}, parameters);
    ASSERT_TRUE(mlir::succeeded(result));
    EXPECT_NEAR(result->gradients.at("m").f[0], 3, 1e-6);
    EXPECT_NEAR(result->gradients.at("v").f[0], pytorch ? 7 : 14. / 3, 1e-6);
  }
}

// Before opset 14 the other outputs say that it is training.
TEST(BatchNorm, OldOpsetsAskForMoments) {
  Imported training = import(NormModel(9, {"mean", "var", "saved_mean", "saved_var"}), withBatch(4));
  EXPECT_THAT(training.warnings, ElementsAre());
  EXPECT_EQ(training.count("update"), 2);
  NormModel everyPosition(7);
  setInteger(everyPosition.norm(), "spatial", 0);
  Imported i = import(everyPosition, withBatch(4));
  ASSERT_EQ(i.errors.size(), 1u);
  EXPECT_THAT(i.errors[0], HasSubstr("spatial = 0"));
}

TEST(BatchNorm, MetadataSayWhatWasExported) {
  const std::string call = "%n = call_function[target=torch.ops.aten._native_batch_norm_legit";
  Imported training =
      import(NormModel().exportedAs(call + "_functional.default](args = (%h, %w, %b, %m, %v, True, 0.1, 1e-05)"),
             withBatch(4));
  EXPECT_THAT(training.warnings, ElementsAre());
  EXPECT_EQ(training.count("batch_norm"), 1);
  Imported evaluation = import(
      NormModel().exportedAs(call + "_no_training.default](args = (%h, %w, %b, %m, %v, 0.1, 1e-05)"), withBatch(4));
  ASSERT_EQ(evaluation.warnings.size(), 1u);
  EXPECT_THAT(evaluation.warnings[0], HasSubstr("exported in evaluation mode"));
  EXPECT_THAT(evaluation.warnings[0], HasSubstr("--batch-norm sync"));
  EXPECT_EQ(evaluation.count("batch_norm"), 0);
  EXPECT_EQ(evaluation.count("update"), 0);
  // Scale and bias of constants (affine=False), with metadata and without.
  for (bool stated : {true, false}) {
    NormModel plain;
    for (auto [name, value] : {std::pair("ones", 1.f), {"zeros", 0.f}}) {
      onnx::NodeProto constant;
      constant.set_op_type("ConstantOfShape");
      constant.add_input("size");
      constant.add_output(name);
      onnx::AttributeProto& a = *constant.add_attribute();
      a.set_name("value");
      a.set_type(onnx::AttributeProto::TENSOR);
      *a.mutable_t() = floatTensor("", {1}, {value});
      *plain.graph().add_node() = constant;
    }
    plain.integers("size", {1}, {2});
    // The constants first.
    auto& nodes = *plain.graph().mutable_node();
    std::rotate(nodes.pointer_begin(), nodes.pointer_begin() + 3, nodes.pointer_end());
    onnx::NodeProto& norm = *plain.graph().mutable_node(3);
    norm.set_input(1, "ones");
    norm.set_input(2, "zeros");
    if (stated)
      setMetadata(*norm.mutable_metadata_props(), kFxNode,
                  call + "_functional.default](args = (%h, None, None, %m, %v, True, 0.1, 1e-05)");
    Imported i = import(plain, withBatch(4));
    EXPECT_EQ(i.warnings.size(), stated ? 0u : 1u);
    EXPECT_EQ(i.count("batch_norm"), 1);
    EXPECT_EQ(i.count("update"), 2);
  }
}

TEST(BatchNorm, ASilentGraphIsTrainedWithAWarning) {
  Imported i = import(NormModel(), withBatch(4));
  ASSERT_EQ(i.warnings.size(), 1u);
  EXPECT_THAT(i.warnings[0], HasSubstr("--batch-norm eval"));
  EXPECT_THAT(i.warnings[0], HasSubstr("training=torch.onnx.TrainingMode.TRAINING"));
  EXPECT_EQ(i.count("batch_norm"), 1);
  // With the option there is nothing to say; frozen scale and bias are not trained.
  EXPECT_THAT(importAs(NormModel(), Mode::sync).warnings, ElementsAre());
  frontend::ImportOptions frozen = withBatch(4);
  frozen.freeze = {"^bn"};
  Imported f = import(NormModel(), frozen);
  EXPECT_THAT(f.warnings, ElementsAre());
  EXPECT_EQ(f.count("batch_norm"), 0);
  // The attribute is an answer.
  NormModel evaluation;
  setInteger(evaluation.norm(), "training_mode", 0);
  EXPECT_EQ(import(evaluation, withBatch(4)).count("batch_norm"), 0);
}

TEST(BatchNorm, EvaluationReadsTheStatisticsAndTrainsScaleAndBias) {
  Imported i = importAs(NormModel(), Mode::eval);
  EXPECT_THAT(i.warnings, ElementsAre());
  EXPECT_EQ(i.count("update"), 0);
  EXPECT_EQ(i.count("batch_norm"), 0);
  EXPECT_THAT(i.decisions(), HasSubstr("bn.running_mean: frozen, running statistics"));
  EXPECT_THAT(i.decisions(), HasSubstr("bn.weight: trainable"));
  // --train does not train them either.
  frontend::ImportOptions options = withBatch(4);
  options.batchNorm = Mode::eval;
  options.train = {"."};
  EXPECT_THAT(import(NormModel(), options).decisions(), HasSubstr("bn.running_var: frozen, running statistics"));
}

TEST(BatchNorm, LocalMomentsWarnOfTheirDependenceOnRanks) {
  Imported two = importAs(NormModel(), Mode::local, 4, 2);
  ASSERT_EQ(two.warnings.size(), 1u);
  EXPECT_THAT(two.warnings[0], HasSubstr("depend on the number of ranks"));
  two.module->walk([](train::BatchNormOp op) { EXPECT_TRUE(op.getLocal()); });
  EXPECT_THAT(importAs(NormModel(), Mode::local).warnings, ElementsAre());
}

// A local variance is estimated from the n of the batch first; -train-partition corrects it for leaves that have less.
TEST(BatchNorm, EstimatesOfVariancesAreMarked) {
  for (Mode mode : {Mode::sync, Mode::local}) {
    NormModel m;
    m.model.set_producer_name("pytorch");
    Imported i = importAs(m, mode, 4, 2);
    ASSERT_TRUE(i.module);
    int marked = 0;
    i.module->walk([&](train::MulOp op) {
      if (!op->hasAttr("train.unbiased")) return;
      ++marked;
      auto norm = op.getLhs().getDefiningOp<train::BatchNormOp>();
      ASSERT_TRUE(norm && op.getLhs() == norm.getVariance());
      auto factor = op.getRhs().getDefiningOp<train::ConstantOp>();
      ASSERT_TRUE(factor);
      const auto type = cast<mlir::RankedTensorType>(norm.getOperand().getType());
      const double n = double(type.getNumElements() / type.getDimSize(1));
      EXPECT_FLOAT_EQ(cast<mlir::SplatElementsAttr>(factor.getValue()).getSplatValue<float>(), float(n / (n - 1)));
    });
    EXPECT_EQ(marked, 1);
  }
}

TEST(BatchNorm, OneElementAChannelIsRefused) {
  Imported one = importAs(NormModel(), Mode::sync, 1);
  ASSERT_EQ(one.errors.size(), 1u);
  EXPECT_THAT(one.errors[0], HasSubstr("has 1 element a channel, whose variance is 0"));
  EXPECT_TRUE(importAs(NormModel(), Mode::sync, 2, 2).module);
  Imported local = importAs(NormModel(), Mode::local, 2, 2);
  ASSERT_EQ(local.errors.size(), 1u);
  EXPECT_THAT(local.errors[0], HasSubstr("on a rank"));
}

// A module that is called twice moves its statistics twice: once to the first batch's moments, then to the second's.
TEST(BatchNorm, SharedStatisticsFollowEveryUse) {
  ModelBuilder m(15);
  m.input("x", {4, 1}).output("loss", {});
  m.floats("a", {4, 1}, {0, 1, 2, 5});   // mean 2
  m.floats("c", {4, 1}, {1, 3, 5, 11});  // mean 5
  for (auto [name, value] : {std::pair("s", 1.f), {"b", 0.f}, {"m", 8.f}, {"v", 1.f}}) m.floats(name, {1}, {value});
  for (std::string at : {"a", "c"}) {
    m.node("Add", {"x", at}, {"h" + at});
    onnx::NodeProto& n = m.node("BatchNormalization", {"h" + at, "s", "b", "m", "v"}, {"y" + at, "m" + at, "v" + at});
    setInteger(n, "training_mode", 1);
    setFloat(n, "momentum", 0.5f);
  }
  m.node("Mul", {"ya", "yc"}, {"y"});
  setInteger(m.node("ReduceMean", {"y"}, {"loss"}), "keepdims", 0);
  std::string path = m.save();
  Imported i = import(path, withBatch(4));
  ASSERT_TRUE(i.module);
  EXPECT_EQ(i.count("update"), 2);
  auto step = i.module->lookupSymbol<mlir::func::FuncOp>("step");
  auto type = mlir::cast<mlir::RankedTensorType>(step.getArgument(0).getType());
  auto result = train::evaluateFunction(step, {train::Tensor::zeros(type)}, readParameters(*i.module, modelFolder()));
  ASSERT_TRUE(mlir::succeeded(result));
  // 8 to 5, to 5: that is 8 + 0.75 (4 - 8) with 4 = (0.25 * 2 + 0.5 * 5) / 0.75.
  EXPECT_NEAR(result->gradients.at("m").f[0], 4, 1e-6);
  i.module->walk([](train::OptimizerOp rule) {
    EXPECT_EQ(cast<train::ScalarAttr>(rule.getScalars()[0]).getValue().getValueAsDouble(), 0.75);
  });
}

// PyTorch's optimizer merges what is equal: of a fresh batch norm, scale and variance, bias and mean.
TEST(BatchNorm, MergedStatisticsAreUnmerged) {
  NormModel m;
  m.norm().set_input(3, "bn.bias");
  m.norm().set_input(4, "bn.weight");
  for (auto [value, key, text] : {std::tuple("w", "pkg.torch.export.graph_signature.InputSpec.kind", "PARAMETER"),
                                  {"bn.weight", "pkg.torch.export.graph_signature.InputSpec.kind", "PARAMETER"},
                                  {"bn.bias", "pkg.torch.export.graph_signature.InputSpec.kind", "PARAMETER"},
                                  {"val_1", "pkg.onnxscript.optimizer.folded_from", "['val_0']"}}) {
    onnx::ValueInfoProto& info = *m.graph().add_value_info();
    info.set_name(value);
    setMetadata(*info.mutable_metadata_props(), key, text);
  }
  Imported merged = importAs(m, Mode::sync);
  ASSERT_EQ(merged.errors.size(), 1u);
  EXPECT_THAT(merged.errors[0], HasSubstr("Export with optimize=False"));
  setMetadata(*m.norm().mutable_metadata_props(), "pkg.torch.onnx.name_scopes", "['', 'bn', 'norm']");
  Imported i = importAs(m, Mode::sync);
  ASSERT_TRUE(i.module);
  EXPECT_THAT(i.decisions(), HasSubstr("bn.weight: trainable"));
  EXPECT_THAT(i.decisions(), HasSubstr("bn.running_mean: running statistics"));
  EXPECT_THAT(i.decisions(), HasSubstr("bn.running_var: running statistics"));
}

// Whatever training does, an evaluation reads the statistics and updates nothing.
TEST(BatchNorm, TheEvaluationReadsTheStatistics) {
  for (Mode mode : {Mode::automatic, Mode::sync, Mode::local, Mode::eval}) {
    NormModel m(15, {"mean", "var"});
    setInteger(m.norm(), "training_mode", 1);
    frontend::ImportOptions options = withBatch(4, 2);
    options.batchNorm = mode;
    options.form = frontend::Form::kEvaluation;
    Imported i = import(m, options);
    ASSERT_TRUE(i.module);
    EXPECT_THAT(i.warnings, ElementsAre());
    EXPECT_EQ(i.count("batch_norm"), 0);
    EXPECT_EQ(i.count("update"), 0);
    EXPECT_EQ(i.count("optimizer"), 0);
    for (const char* name : {"bn.running_mean", "bn.running_var"}) {
      auto statistic = i.module->lookupSymbol<train::ParameterOp>(name);
      ASSERT_TRUE(statistic) << name;
      EXPECT_TRUE(train::isStatistic(statistic));
    }
  }
}

// --- dropout ---

// loss = mean(dropout(x + w)) with the mask as an output, in training mode.
ModelBuilder dropoutModel(bool useMask, int64_t opset = 13, float ratio = 0.25f) {
  ModelBuilder m(opset);
  m.input("x", {"N", 8}).output("loss", {});
  m.floats("w", {8}, {1, 2, 3, 4, 5, 6, 7, 8});
  m.node("Add", {"x", "w"}, {"h"});
  if (opset >= 12) {
    m.floats("ratio", {}, {ratio});
    onnx::TensorProto& flag = m.integers("training", {}, {});
    flag.set_data_type(onnx::TensorProto::BOOL);
    flag.add_int32_data(1);
    m.node("Dropout", {"h", "ratio", "training"}, {"d", "mask"});
  } else {
    setFloat(m.node("Dropout", {"h"}, {"d", "mask"}), "ratio", ratio);
  }
  if (useMask) {
    m.node("Cast", {"mask"}, {"kept"});
    setInteger(*m.graph().mutable_node(m.graph().node_size() - 1), "to", onnx::TensorProto::FLOAT);
    m.node("Mul", {"h", "kept"}, {"masked"});  // equals 0.75 d
    onnx::AttributeProto& rest = *m.node("Constant", {}, {"rest"}).add_attribute();
    rest.set_name("value");
    rest.set_type(onnx::AttributeProto::TENSOR);
    *rest.mutable_t() = floatTensor("", {}, {1 - ratio});
    m.node("Mul", {"d", "rest"}, {"scaled"});
    m.node("Sub", {"masked", "scaled"}, {"y"});
    m.node("Abs", {"y"}, {"z"});
  }
  setInteger(m.node("ReduceMean", {useMask ? "z" : "d"}, {"loss"}), "keepdims", 0);
  return m;
}

TEST(Dropout, AnUnusedMaskCostsNothing) {
  Imported i = import(dropoutModel(false), withBatch(4));
  ASSERT_TRUE(i.module);
  EXPECT_EQ(i.count("dropout"), 1);
  EXPECT_EQ(i.count("compare"), 0);
  // TorchScript writes dropout with ratio 0, too.
  Imported none = import(dropoutModel(false, 13, 0), withBatch(4));
  ASSERT_TRUE(none.module);
  EXPECT_EQ(none.count("dropout"), 0);
  EXPECT_THAT(none.warnings, ElementsAre());
}

TEST(Dropout, TheMaskIsTheResults) {
  ModelBuilder m = dropoutModel(true);
  std::string path = m.save();
  Imported i = import(path, withBatch(16));
  ASSERT_TRUE(i.module) << (i.errors.empty() ? "" : i.errors[0]);
  EXPECT_EQ(i.count("dropout"), 2);
  EXPECT_NEAR(firstLoss(*i.module, modelFolder(), ""), 0, 1e-6);
  // Inference: everything is kept.
  ModelBuilder old = dropoutModel(true, 11, 0);
  std::string oldPath = old.save();
  Imported j = import(oldPath, withBatch(16));
  ASSERT_TRUE(j.module) << (j.errors.empty() ? "" : j.errors[0]);
  EXPECT_EQ(j.count("dropout"), 0);
  EXPECT_NEAR(firstLoss(*j.module, oldPath.substr(0, oldPath.rfind('/')), ""), 0, 1e-6);
}

// --- traps ---

TEST(Traps, FoldedBatchNormIsNamedAndTrained) {
  for (bool torchScript : {false, true}) {
    const std::string weight = torchScript ? "onnx::Conv_24" : "c.weight";
    ModelBuilder m;
    m.input("x", {"N", 1, 2, 2}).output("loss", {});
    m.floats(weight, {1, 1, 1, 1}, {2});
    m.floats("s", {1}, {3});
    m.node("Conv", {"x", weight}, {"y"});
    m.node("Mul", {"y", "s"}, {"z"});
    setInteger(m.node("ReduceMean", {"z"}, {"loss"}), "keepdims", 0);
    if (!torchScript) {
      onnx::ValueInfoProto& info = *m.graph().add_value_info();
      info.set_name("s");
      setMetadata(*info.mutable_metadata_props(), "pkg.torch.export.graph_signature.InputSpec.kind", "PARAMETER");
      setMetadata(*m.graph().mutable_node(0)->mutable_metadata_props(), kFxNode,
                  "%n = call_function[target=torch.ops.aten._native_batch_norm_legit_functional.default](args = (%c))");
    }
    Imported i = import(m, withBatch(4));
    ASSERT_EQ(i.warnings.size(), 1u);
    EXPECT_THAT(i.warnings[0], HasSubstr("folded BatchNormalization"));
    EXPECT_THAT(i.warnings[0], HasSubstr("optimize=False"));
    EXPECT_THAT(i.decisions(), HasSubstr(weight + ": trainable"));
  }
}

// A table [positions, 4] of sines and cosines, or, disturbed, of nothing.
ModelBuilder tableModel(double disturbance) {
  ModelBuilder m;
  m.input("x", {"N", 8, 4}).output("loss", {});
  std::vector<float> table;
  for (int p = 0; p < 8; ++p)
    for (int j = 0; j < 4; ++j)
      table.push_back(float((j % 2 ? std::cos(p * std::pow(0.01, j / 2)) : std::sin(p * std::pow(0.01, j / 2))) +
                            (p == 5 && j == 2 ? disturbance : 0)));
  m.floats("pos.table", {1, 8, 4}, table);
  m.node("Add", {"x", "pos.table"}, {"y"});
  setInteger(m.node("ReduceMean", {"y"}, {"loss"}), "keepdims", 0);
  return m;
}

TEST(Traps, SinusoidsThatWouldBeTrainedAreNamed) {
  Imported i = import(tableModel(0), withBatch(4));
  ASSERT_EQ(i.warnings.size(), 1u);
  EXPECT_THAT(i.warnings[0], HasSubstr("--freeze '^pos\\.table$'"));
  EXPECT_THAT(import(tableModel(0.01), withBatch(4)).warnings, ElementsAre());
  ModelBuilder other = tableModel(0);
  other.floats("v", {4}, {1, 2, 3, 4});
  other.graph().mutable_node(0)->set_output(0, "t");
  other.node("Mul", {"t", "v"}, {"y"});
  other.graph().mutable_node()->SwapElements(1, 2);
  frontend::ImportOptions options = withBatch(4);
  options.freeze = {"^pos\\.table$"};
  Imported frozen = import(other, options);
  EXPECT_TRUE(frozen.module);
  EXPECT_THAT(frozen.warnings, ElementsAre());
}

TEST(Traps, MasksThatWouldBeTrainedAreNamed) {
  for (float some : {1.0f, 0.5f}) {
    ModelBuilder m;
    m.input("x", {"N", 3}).output("loss", {});
    m.floats("w", {3, 3}, {1, 2, 3, 4, 5, 6, 7, 8, 9});
    m.floats("mask", {3, 3}, {1, 0, 0, some, 1, 0, 1, 1, 1});
    m.node("Mul", {"w", "mask"}, {"masked"});
    m.node("MatMul", {"x", "masked"}, {"y"});
    setInteger(m.node("ReduceMean", {"y"}, {"loss"}), "keepdims", 0);
    Imported i = import(m, withBatch(4));
    ASSERT_TRUE(i.module);
    ASSERT_EQ(i.warnings.size(), some == 1 ? 1u : 0u);
    if (some == 1) {
      EXPECT_THAT(i.warnings[0], HasSubstr("--freeze '^mask$'"));
    }
  }
}

TEST(Traps, DroppedLabelSmoothingIsNamed) {
  for (bool smooth : {false, true}) {
    ModelBuilder m;
    m.input("x", {"N", 3}).input("labels", {"N"}, onnx::TensorProto::INT64).output("loss", {});
    m.floats("w", {3}, {1, 2, 3});
    m.node("Mul", {"x", "w"}, {"y"});
    onnx::NodeProto& loss = m.node("SoftmaxCrossEntropyLoss", {"y", "labels"}, {"loss"});
    setMetadata(
        *loss.mutable_metadata_props(), kFxNode,
        std::string("%l : [num_users=1] = call_function[target=torch.ops.aten.cross_entropy_loss.default](args = "
                    "(%y, %labels, None, 1, -100") +
            (smooth ? ", 0.1" : "") + "), kwargs = {})");
    Imported i = import(m, withBatch(4));
    ASSERT_EQ(i.warnings.size(), smooth ? 1u : 0u);
    if (smooth) {
      EXPECT_THAT(i.warnings[0], HasSubstr("label_smoothing=0.1"));
    }
  }
}

TEST(Traps, ConstantsComputedFromSeveralParametersAreNamed) {
  ModelBuilder m;
  m.input("x", {"N", 2}).output("loss", {});
  m.floats("w", {2}, {1, 2});
  m.floats("val_7", {2}, {3, 4});
  for (auto [value, key, text] : {std::tuple("w", "pkg.torch.export.graph_signature.InputSpec.kind", "PARAMETER"),
                                  {"val_7", "pkg.onnxscript.optimizer.folded_from", "['m.a.weight', 'm.b.weight']"}}) {
    onnx::ValueInfoProto& info = *m.graph().add_value_info();
    info.set_name(value);
    setMetadata(*info.mutable_metadata_props(), key, text);
  }
  m.node("Mul", {"x", "w"}, {"y"});
  m.node("Add", {"y", "val_7"}, {"z"});
  setInteger(m.node("ReduceMean", {"z"}, {"loss"}), "keepdims", 0);
  Imported i = import(m, withBatch(4));
  ASSERT_EQ(i.warnings.size(), 1u);
  EXPECT_THAT(i.warnings[0], HasSubstr("which are not trained: 'm.a.weight' in 'val_7'"));
}

}  // namespace
}  // namespace sheaf::test
