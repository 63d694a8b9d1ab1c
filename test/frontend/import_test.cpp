// The models as exporters write them: the first loss is PyTorch's, and nothing of ONNX's shape arithmetic is left.
#include <gmock/gmock.h>

#include <fstream>
#include <sstream>

#include "frontend/onnx/ops/Registry.h"
#include "ir/Train/TrainDialect.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "test/Paths.h"
#include "test/frontend/ModelBuilder.h"
#include "test/frontend/Reference.h"

using ::testing::HasSubstr;

namespace sheaf::test {
namespace {

const std::string kModels = sheaf::paths::kModels;

// The first loss of PyTorch's f64 run, from the JSON of the reference runs.
double referenceLoss(const std::string& name) {
  std::stringstream text;
  text << std::ifstream(kModels + "/" + name + ".json").rdbuf();
  std::string json = text.str();
  size_t at = json.find("[", json.find("\"loss\"", json.find(".f64\"")));
  return std::stod(json.substr(at + 1));
}

struct Case {
  std::string model, data, loss;
  std::string reference = data;  // of the runs
};

class FirstLoss : public ::testing::TestWithParam<Case> {};

TEST_P(FirstLoss, IsThatOfPyTorch) {
  auto options = withBatch(8);
  options.loss = GetParam().loss;
  Imported m = import(kModels + "/" + GetParam().model + ".onnx", options);
  ASSERT_TRUE(m.module);
  EXPECT_NEAR(firstLoss(*m.module, kModels, GetParam().data), referenceLoss(GetParam().reference), 1e-8);
}

INSTANTIATE_TEST_SUITE_P(Models, FirstLoss,
                         ::testing::Values(Case{"mlp", "mlp", ""}, Case{"cnn", "cnn", ""},
                                           Case{"moe", "mlp", "", "moe"}, Case{"unet", "cnn", "", "unet"},
                                           Case{"gpt2-tiny", "gpt2-tiny", ""},
                                           Case{"gpt2-tiny-optimized", "gpt2-tiny", ""},
                                           Case{"gpt2-tiny-logits", "gpt2-tiny", "cross_entropy(logits)"},
                                           Case{"llama-tiny", "gpt2-tiny", "", "llama-tiny"},
                                           Case{"llama-tiny-optimized", "gpt2-tiny", "", "llama-tiny"}),
                         [](auto& info) {
                           std::string name = info.param.model;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(Import, ShapeArithmeticIsGone) {
  Imported m = import(kModels + "/gpt2-tiny.onnx", withBatch(8, 4));
  ASSERT_TRUE(m.module);
  // Four layers of four projections and two products, and the head.
  EXPECT_EQ(m.count("matmul"), 25);
  EXPECT_EQ(m.count("layer_norm"), 9);
  EXPECT_EQ(m.count("parameter"), 52);
  // The only integers left are the token positions and the labels.
  EXPECT_EQ(m.count("compare"), 1);
  EXPECT_EQ(m.count("select"), 0);
  EXPECT_EQ(m.count("iota"), 0);
  auto step = m.module->lookupSymbol<mlir::func::FuncOp>("step");
  ASSERT_EQ(step.getNumArguments(), 2u);
  EXPECT_EQ(mlir::cast<mlir::RankedTensorType>(step.getArgumentTypes()[0]).getShape(),
            llvm::ArrayRef<int64_t>({8, 64}));
  EXPECT_THAT(m.decisions(), HasSubstr("m.lm_head.weight: trainable, tied (2 uses)"));
}

// The causal mask does not depend on the row of the batch, so it is stored once.
TEST(Import, MaskIsStoredOnceForTheBatch) {
  Imported m = import(kModels + "/llama-tiny.onnx", withBatch(16));
  ASSERT_TRUE(m.module);
  int masks = 0;
  m.module->walk([&](train::ConstantOp op) {
    auto type = mlir::cast<mlir::RankedTensorType>(op.getType());
    auto value = mlir::dyn_cast<mlir::DenseElementsAttr>(op.getValue());
    if (type.getRank() == 4 && value && !value.isSplat() && type.getDimSize(2) == 64 && type.getDimSize(3) == 64) {
      ++masks;
      EXPECT_EQ(type.getShape(), llvm::ArrayRef<int64_t>({1, 1, 64, 64}));
    }
  });
  EXPECT_EQ(masks, 1);
}

TEST(Import, FoldedWeightsAreRecovered) {
  Imported m = import(kModels + "/llama-tiny-optimized.onnx", withBatch(8));
  ASSERT_TRUE(m.module);
  ASSERT_EQ(m.warnings.size(), 1u);
  EXPECT_THAT(m.warnings[0], HasSubstr("folded 29 parameters"));
  auto q = m.module->lookupSymbol<train::ParameterOp>("m.model.layers.0.self_attn.q_proj.weight");
  ASSERT_TRUE(q);
  EXPECT_EQ(q.getPermutation(), llvm::ArrayRef<int64_t>({1, 0}));
  EXPECT_THAT(m.decisions(), HasSubstr("unsqueeze_14: constant"));

  Imported g = import(kModels + "/gpt2-tiny-optimized.onnx", withBatch(8));
  ASSERT_TRUE(g.module);
  auto table = g.module->lookupSymbol<train::ParameterOp>("m.transformer.wpe.weight");
  ASSERT_TRUE(table);
  EXPECT_EQ(mlir::cast<mlir::RankedTensorType>(table.getType()).getShape(), llvm::ArrayRef<int64_t>({64, 128}));
  EXPECT_FALSE(table.getPermutation());
}

// A graph whose weights are references into a file that does not exist compiles.
TEST(Import, WeightsAreNotRead) {
  Imported m = import(kModels + "/gpt2-mini.onnx", withBatch(8));
  ASSERT_TRUE(m.module);
  EXPECT_EQ(m.count("parameter"), 76);
  for (auto op : m.module->getOps<train::ParameterOp>()) {
    ASSERT_TRUE(op.getSourceAttr());
    EXPECT_EQ(op.getSourceAttr().getFile().getValue(), "gpt2-mini.weights");
    EXPECT_EQ(op.getSourceAttr().getLength(), mlir::cast<mlir::RankedTensorType>(op.getType()).getNumElements() * 4);
  }
}

TEST(Import, OperatorsAreListed) {
  auto list = frontend::registeredOperators();
  EXPECT_GT(list.size(), 100u);
  EXPECT_TRUE(std::is_sorted(list.begin(), list.end(),
                             [](auto& a, auto& b) { return std::tie(a.domain, a.name) < std::tie(b.domain, b.name); }));
  // One entry for an operator and opset, whatever the table: of two, one would be dead.
  for (size_t i = 1; i < list.size(); ++i) {
    if (list[i - 1].domain != list[i].domain || list[i - 1].name != list[i].name) continue;
    EXPECT_GT(list[i - 1].last, 0) << list[i].name;
    EXPECT_LT(list[i - 1].last, list[i].since) << list[i].name;
  }
}

// The limits of sizes hold for what a file stores and for what a leaf computes, not for the rows of all leaves
// together.
TEST(Import, ValuesOfAllRanksMayBeLarge) {
  auto errorsFor = [](int64_t rows, int64_t wide) {
    ModelBuilder m;
    m.input("x", {"N", 1}).output("loss", {});
    m.integers("shape", {2}, {1, wide});
    m.floats("w", {1}, {2});
    m.node("Mul", {"x", "w"}, {"a"});
    m.node("Expand", {"a", "shape"}, {"b"});
    setInteger(m.node("ReduceMean", {"b"}, {"loss"}), "keepdims", 0);
    return import(m, withBatch(rows)).errors;
  };
  EXPECT_THAT(errorsFor(1 << 16, int64_t(1) << 30), testing::IsEmpty());  // 2^46 elements
  EXPECT_THAT(errorsFor(1 << 16, int64_t(1) << 41),
              testing::Contains(HasSubstr("a tensor of this size is out of range")));
}

// Data have the rows first, so that an input whose rows are not is transposed in the step.
TEST(Import, RowsAreWhereOneSharedSymbolIs) {
  struct {
    Dims x, y;
    std::vector<std::pair<std::string, int64_t>> bind;
    std::vector<std::pair<std::string, int64_t>> rows;
    int transposed;  // inputs; -1: a size is missing
  } const kinds[] = {
      {{"N", 3}, {"N", 3}, {}, {}, 0},
      {{3, "N"}, {3, "N"}, {}, {}, 2},
      {{3, "N"}, {"N", 3}, {}, {}, 1},
      {{"T", "N"}, {"N", 3}, {{"T", 3}}, {}, 1},
      {{"T", "N"}, {"T", "N"}, {{"T", 3}}, {}, 2},
      {{"N", "T"}, {"N", "T"}, {{"T", 3}}, {}, 0},
      {{"N", "T"}, {"M", "T"}, {{"T", 3}}, {}, 0},
      {{"N", "T"}, {"M", "T"}, {}, {}, -1},
      {{"T", "N"}, {3, "N"}, {{"T", 3}}, {}, 2},
      {{"T", "N"}, {"S", "N"}, {{"T", 3}, {"S", 3}}, {{"x", 1}, {"y", 1}}, 2},
      {{"N", 3}, {"M", 3}, {}, {}, 0},
      // A first dimension of the batch, or of one example, leaves a sequence that is not bound.
      {{8, "T"}, {8, "T"}, {}, {}, -1},
      {{1, "T"}, {1, "T"}, {}, {}, -1},
      {{8, "T"}, {8, "T"}, {{"T", 3}}, {}, 0},
      {{3, "N"}, {3, "N"}, {}, {{"x", 1}, {"y", 1}}, 2},
  };
  for (const auto& kind : kinds) {
    SCOPED_TRACE(&kind - kinds);
    ModelBuilder m;
    m.input("x", kind.x).input("y", kind.y).output("loss", {});
    m.floats("w", {1}, {2});
    m.node("Mul", {"x", "w"}, {"a"});
    setInteger(m.node("ReduceMean", {"a"}, {"b"}), "keepdims", 0);
    m.node("Mul", {"y", "w"}, {"c"});
    setInteger(m.node("ReduceMean", {"c"}, {"d"}), "keepdims", 0);
    m.node("Add", {"b", "d"}, {"loss"});
    auto options = withBatch(8);
    options.bind = {kind.bind.begin(), kind.bind.end()};
    options.rows = {kind.rows.begin(), kind.rows.end()};
    Imported imported = import(m, options);
    ASSERT_EQ(bool(imported.module), kind.transposed >= 0);
    if (!imported.module) {
      EXPECT_THAT(imported.errors, testing::Contains(HasSubstr("dimension 'T' is not bound")));
      continue;
    }
    auto step = imported.module->lookupSymbol<mlir::func::FuncOp>("step");
    for (mlir::Type type : step.getArgumentTypes())
      EXPECT_EQ(mlir::cast<mlir::RankedTensorType>(type).getShape(), llvm::ArrayRef<int64_t>({8, 3}));
    EXPECT_EQ(imported.count("transpose"), kind.transposed);
  }
}

}  // namespace
}  // namespace sheaf::test
