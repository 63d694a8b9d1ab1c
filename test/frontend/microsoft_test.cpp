// Graphs of ONNX Runtime's training tools: its fused gradients, ATen's embedding, and what optimizer_model.onnx and
// checkpoint say.
#include <flatbuffers/flatbuffers.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>

#include "ir/Train/TrainDialect.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Pass/PassManager.h"
#include "passes/train/Passes.h"
#include "test/Paths.h"
#include "test/frontend/ModelBuilder.h"
#include "test/frontend/Reference.h"

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

namespace sheaf::test {
namespace {

void importDomain(ModelBuilder& m, const std::string& domain) {
  onnx::OperatorSetIdProto& import = *m.model.add_opset_import();
  import.set_domain(domain);
  import.set_version(1);
}

void boolean(ModelBuilder& m, const std::string& name, bool value) {
  onnx::TensorProto& tensor = m.integers(name, {}, {});
  tensor.set_data_type(onnx::TensorProto::BOOL);
  tensor.add_int32_data(value);
}

// sce_loss_grad_bias_fusion adds what was summed with the gradient as a sixth input.
TEST(Microsoft, TheBiasOfACrossEntropysGradientIsAdded) {
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{2, 3}, {6}, {3}}) {
    ModelBuilder m;
    importDomain(m, "com.microsoft");
    m.input("x", {"N"}).output("loss", {});
    const float third = -1.0986123f;  // the logarithm
    m.floats("scores", {2, 3}, {third, third, third, third, third, third});
    m.floats("dy", {}, {1});
    m.integers("labels", {2}, {0, 2});
    m.floats("bias", shape, shape[0] == 3 ? std::vector<float>{1, 2, 3} : std::vector<float>{1, 2, 3, 4, 5, 6});
    m.node("SoftmaxCrossEntropyLossInternalGrad", {"dy", "scores", "labels", "", "", "bias"}, {"g"}, "com.microsoft");
    // The weights of the elements tell them apart: 1, 10, ... 100,000.
    m.floats("w", {2, 3}, {1, 10, 100, 1000, 10000, 100000});
    m.node("Mul", {"g", "w"}, {"y"});
    setInteger(m.node("ReduceSum", {"y"}, {"sum"}), "keepdims", 0);
    setInteger(m.node("ReduceSum", {"x"}, {"zero"}), "keepdims", 0);
    m.node("Add", {"sum", "zero"}, {"loss"});
    const std::string path = m.save();
    Imported i = import(path, withBatch(1));
    if (shape[0] == 3) {
      EXPECT_THAT(i.errors.at(0), HasSubstr("a bias of as many elements"));
      continue;
    }
    ASSERT_TRUE(i.module);
    // (1/3 - [class is the label]) / 2 labels, and the bias.
    const double gradient = (1 + 10 + 100 + 1000 + 10000 + 100000) / 6.0 - (1 + 100000) / 2.0, bias = 654321;
    EXPECT_NEAR(firstLoss(*i.module, modelFolder(), ""), gradient + bias, 0.1);
  }
}

// ONNX Runtime divides by no sum that is 0. The labels are inputs, which are 0: all are ignored, or none is.
TEST(Microsoft, AMeanOverNoLabelsIsZero) {
  for (bool weighted : {false, true})
    for (int ignored : {0, 1}) {
      ModelBuilder m;
      importDomain(m, "com.microsoft");
      m.input("labels", {"N"}, onnx::TensorProto::INT64).output("loss", {});
      m.floats("scores", {2, 3}, {1, 1, 1, 1, 1, 1});
      m.floats("weights", {3}, {2, 1, 1});
      m.integers("ignored", {}, {ignored});
      m.node("SoftmaxCrossEntropyLossInternal", {"scores", "labels", weighted ? "weights" : "", "ignored"}, {"loss"},
             "com.microsoft");
      const std::string path = m.save();
      Imported i = import(path, withBatch(2));
      ASSERT_TRUE(i.module);
      EXPECT_NEAR(firstLoss(*i.module, modelFolder(), ""), ignored == 0 ? 0 : std::log(3), 1e-6);
    }
}

// As PyTorch's: the row at the padding index has no gradient.
TEST(Microsoft, PaddingRowsOfATenEmbeddingsHaveNoGradient) {
  for (int padding : {-1, 0, 2}) {
    SCOPED_TRACE(padding);
    ModelBuilder m;
    importDomain(m, "org.pytorch.aten");
    m.input("ids", {"N"}, onnx::TensorProto::INT64).output("loss", {});
    m.floats("table", {4, 1}, {1, 2, 3, 4});
    m.integers("padding", {}, {padding});
    boolean(m, "scaled", padding == 2);
    boolean(m, "sparse", false);
    setString(m.node("ATen", {"table", "ids", "padding", "scaled", "sparse"}, {"rows"}, "org.pytorch.aten"), "operator",
              "embedding");
    setInteger(m.node("ReduceSum", {"rows"}, {"loss"}), "keepdims", 0);
    const std::string path = m.save();
    Imported i = import(path, withBatch(3));
    ASSERT_TRUE(i.module);
    ASSERT_EQ(i.warnings.size(), padding == 2 ? 1u : 0u);
    if (padding == 2) {
      EXPECT_THAT(i.warnings[0], HasSubstr("scale_grad_by_freq"));
    }
    mlir::PassManager passes(i.context.get());
    passes.addPass(train::createDifferentiate());
    ASSERT_TRUE(mlir::succeeded(passes.run(*i.module)));
    auto step = i.module->lookupSymbol<mlir::func::FuncOp>("step");
    train::Tensor ids = train::Tensor::zeros(mlir::cast<mlir::RankedTensorType>(step.getArgumentTypes()[0]));
    ids.i = {0, 1, 2};
    auto result = train::evaluateFunction(step, {ids}, readParameters(*i.module, modelFolder()));
    ASSERT_TRUE(mlir::succeeded(result));
    EXPECT_EQ(result->loss->f[0], 6);
    for (int row = 0; row < 4; ++row)
      EXPECT_EQ(result->gradients.at("table").f[row], row < 3 && row != padding ? 1 : 0) << row;
  }
}

//===--- Training artifacts ---===//

// A folder with the perceptron's training_model.onnx, and the optimizer_model.onnx of these nodes.
class Artifacts {
 public:
  using Change = std::function<void(ModelBuilder&)>;

  explicit Artifacts(const Change& change) {
    std::filesystem::create_directories(folder);
    std::filesystem::copy_file(std::string(paths::kModels) + "/artifacts/mlp/training_model.onnx", path());
    ModelBuilder m;
    importDomain(m, "com.microsoft");
    change(m);
    std::ofstream(folder + "/optimizer_model.onnx", std::ios::binary) << m.model.SerializeAsString();
  }
  ~Artifacts() { std::filesystem::remove_all(folder); }

  std::string path() const { return folder + "/training_model.onnx"; }
  Imported imported(const std::string& optimizer = "") const {
    frontend::ImportOptions options = withBatch(8);
    options.optimizer = optimizer;
    return import(path(), options);
  }

  static inline int made = 0;
  const std::string folder =
      ::testing::TempDir() + "/artifacts-" + std::to_string(getpid()) + "-" + std::to_string(made++);
};

onnx::NodeProto& adamW(ModelBuilder& m, const std::string& gradients, const std::string& signal = "") {
  return m.node("AdamWOptimizer", {"rate", "step", "params", gradients, "first", "second", signal}, {"updated"},
                "com.microsoft");
}
onnx::NodeProto& clip(ModelBuilder& m, const std::string& gradients = "gradients") {
  return m.node("InplaceClipGradNorm", {gradients}, {"clipped"}, "com.microsoft");
}

TEST(Artifacts, TheOptimizerClipsAsItsGraphDoes) {
  for (bool sgd : {false, true}) {
    const Artifacts artifacts([&](ModelBuilder& m) {
      setFloat(clip(m), "max_norm", 0.25f);
      if (sgd)
        m.node("SGDOptimizerV2", {"rate", "params", "clipped"}, {"updated"}, "com.microsoft");
      else
        setInteger(adamW(m, "clipped"), "adam_mode", 1);
    });
    for (const char* given : {"", "sgd:lr=1"}) {
      Imported i = artifacts.imported(given);
      ASSERT_TRUE(i.module);
      auto norm = (*i.module)->getAttrOfType<mlir::FloatAttr>("train.default_clip_norm");
      ASSERT_TRUE(norm);
      EXPECT_EQ(norm.getValueAsDouble(), 0.25);
      auto optimizer = (*i.module)->getAttrOfType<mlir::StringAttr>("train.default_optimizer");
      EXPECT_EQ(
          optimizer.str(),
          sgd ? "sgd" : "adamw_hf:beta1=0.899999976,beta2=0.999000013,eps=9.99999994e-09,weight_decay=0.00999999978");
    }
  }
  const Artifacts usual([](ModelBuilder& m) { clip(m), adamW(m, "clipped"); });
  auto norm = (*usual.imported().module)->getAttrOfType<mlir::FloatAttr>("train.default_clip_norm");
  ASSERT_TRUE(norm);
  EXPECT_EQ(norm.getValueAsDouble(), 1);  // ONNX Runtime's default
  const Artifacts without([](ModelBuilder& m) { adamW(m, "gradients"); });
  EXPECT_FALSE((*without.imported().module)->hasAttr("train.default_clip_norm"));
}

// Nothing in an optimizer's graph is left out silently: it is an error, unless the optimizer is named or not needed.
TEST(Artifacts, AnOptimizerIsReadAsAWholeOrRefused) {
  const std::pair<const char*, Artifacts::Change> cases[] = {
      {"a node ReduceAllL2", [](auto& m) { m.node("ReduceAllL2", {"g"}, {"n"}, "com.microsoft"), adamW(m, "g"); }},
      {"a node Mul",
       [](auto& m) {
         m.node("Mul", {"gradients", "scale"}, {"g"}), adamW(m, "g");
       }},
      {"AdamWOptimizer and AdamWOptimizer", [](auto& m) { adamW(m, "a"), adamW(m, "b"); }},
      {"AdamWOptimizer and SGDOptimizerV2",
       [](auto& m) {
         adamW(m, "a"), m.node("SGDOptimizerV2", {"rate", "p", "g"}, {"u"}, "com.microsoft");
       }},
      {"does not clip the gradients", [](auto& m) { clip(m), adamW(m, "gradients"); }},
      {"norm_type", [](auto& m) { setString(clip(m), "norm_type", "inf"), adamW(m, "clipped"); }},
      {"no positive max_norm", [](auto& m) { setFloat(clip(m), "max_norm", 0), adamW(m, "clipped"); }},
      {"an attribute max_norm_clip", [](auto& m) { setFloat(adamW(m, "gradients"), "max_norm_clip", 1); }},
      {"update_signal", [](auto& m) { adamW(m, "gradients", "signal"); }},
      {"without correct_bias", [](auto& m) { setInteger(adamW(m, "gradients"), "correct_bias", 0); }},
      {"correct_bias is not supported; give --optimizer, and --clip-norm, since the file clips gradients",
       [](auto& m) { clip(m), setInteger(adamW(m, "clipped"), "correct_bias", 0); }},
      {"InplaceClipGradNorm and InplaceClipGradNorm; only one InplaceClipGradNorm is supported",
       [](auto& m) { clip(m), clip(m), adamW(m, "clipped"); }},
      {"adam_mode", [](auto& m) { setInteger(adamW(m, "gradients"), "adam_mode", 2); }},
      {"no optimizer that is supported", [](auto&) {}},
  };
  for (const auto& [says, change] : cases) {
    SCOPED_TRACE(says);
    const Artifacts artifacts(change);
    EXPECT_THAT(artifacts.imported().errors.at(0),
                AllOf(HasSubstr("optimizer_model.onnx"), HasSubstr(says), HasSubstr("--optimizer")));
    Imported named = artifacts.imported("sgd:lr=1");
    ASSERT_TRUE(named.module);
    EXPECT_FALSE((*named.module)->hasAttr("train.default_clip_norm"));
    EXPECT_THAT(named.decisions(), HasSubstr("nothing in optimizer_model.onnx is used"));
    frontend::ImportOptions evaluation = withBatch(8);
    evaluation.form = frontend::Form::kEvaluation;
    EXPECT_TRUE(import(artifacts.path(), evaluation).module);
  }
}

TEST(Artifacts, TheStateOfAnOptimizerIsReportedAsLeftOut) {
  for (int64_t step : {0, 12}) {
    const Artifacts artifacts([](ModelBuilder& m) { adamW(m, "gradients"); });
    // Checkpoint {module_state: {}, optimizer_groups: [{step}]} of OrtCheckpoint.fbs.
    flatbuffers::FlatBufferBuilder b;
    auto field = [](int number) { return flatbuffers::voffset_t(4 + 2 * number); };
    auto begin = b.StartTable();
    b.AddElement<int64_t>(field(1), step, 0);
    std::vector<flatbuffers::Offset<flatbuffers::Table>> groups{
        flatbuffers::Offset<flatbuffers::Table>(b.EndTable(begin))};
    auto list = b.CreateVector(groups);
    begin = b.StartTable();
    flatbuffers::Offset<flatbuffers::Table> state(b.EndTable(begin));
    begin = b.StartTable();
    b.AddOffset(field(1), state);
    b.AddOffset(field(2), list);
    b.Finish(flatbuffers::Offset<flatbuffers::Table>(b.EndTable(begin)), "ODTC");
    std::ofstream(artifacts.folder + "/checkpoint", std::ios::binary)
        .write(reinterpret_cast<const char*>(b.GetBufferPointer()), std::streamsize(b.GetSize()));
    Imported i = artifacts.imported();
    ASSERT_TRUE(i.module);
    const auto reports = HasSubstr("the state of an optimizer after step 12, which is not read");
    if (step) {
      EXPECT_THAT(i.warnings, Contains(reports));
    } else {
      EXPECT_THAT(i.warnings, Not(Contains(HasSubstr("state of an optimizer"))));
    }
  }
}

}  // namespace
}  // namespace sheaf::test
