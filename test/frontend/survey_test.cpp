// An import that goes on after errors says all of them at once, and what would be trained.
#include <gmock/gmock.h>
#include <unistd.h>

#include "ir/Train/TrainDialect.h"
#include "test/Paths.h"
#include "test/frontend/ModelBuilder.h"

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

namespace sheaf::test {
namespace {

using frontend::Survey;

struct Surveyed {
  Survey survey;
  bool module = false;
};

Surveyed surveyed(const std::string& path, frontend::ImportOptions options = {}) {
  mlir::MLIRContext context(mlir::MLIRContext::Threading::DISABLED);
  // Nothing reaches those who listen to the context.
  mlir::ScopedDiagnosticHandler handler(&context, [](mlir::Diagnostic& d) { ADD_FAILURE() << d.str(); });
  Surveyed result;
  result.module = bool(frontend::surveyOnnx(context, path, options, result.survey));
  EXPECT_EQ(result.module, result.survey.trainable());
  return result;
}

Surveyed surveyed(const ModelBuilder& model, frontend::ImportOptions options = {}) {
  std::string path = model.save();
  Surveyed result = surveyed(path, options);
  unlink(path.c_str());
  return result;
}

void setShape(ModelBuilder& m, const std::string& name, Dims dims) {
  ModelBuilder other;
  other.output(name, dims);
  *m.graph().add_value_info() = other.graph().output(0);
}

// y = Strange(x * a) + Strange(x * b) + a; loss = mean(y). `typed`: the model states what Strange makes.
ModelBuilder strange(bool typed) {
  ModelBuilder m;
  m.input("x", {"N", "length"}).output("loss", {});
  m.floats("a", {1}, {1});
  m.floats("b", {1}, {2});
  m.node("Mul", {"x", "a"}, {"xa"});
  m.node("Mul", {"x", "b"}, {"xb"});
  m.node("Strange", {"xa"}, {"sa"}).set_name("first");
  m.node("Strange", {"xb"}, {"sb"});
  m.node("Add", {"sa", "sb"}, {"s"});
  m.node("Odd", {"s"}, {"o"}, "some.domain");
  m.node("Add", {"o", "a"}, {"y"});
  setInteger(m.node("ReduceMean", {"y"}, {"loss"}), "keepdims", 0);
  auto* import = m.model.add_opset_import();
  import->set_domain("some.domain");
  import->set_version(3);
  if (typed)
    for (const char* name : {"sa", "sb", "o"}) setShape(m, name, {"N", "length"});
  return m;
}

TEST(Survey, AModelThatCanBeTrained) {
  Surveyed s = surveyed(std::string(sheaf::paths::kModels) + "/mlp.onnx", withBatch(8, 2));
  EXPECT_TRUE(s.module);
  EXPECT_TRUE(s.survey.exact);
  EXPECT_EQ(s.survey.trained.count, 6);
  EXPECT_EQ(s.survey.trained.elements, 85002);
  EXPECT_EQ(s.survey.trained.bytes, 4 * 85002);
  EXPECT_EQ(s.survey.frozen.count, 0);
  EXPECT_THAT(s.survey.missing, IsEmpty());
}

TEST(Survey, EveryUnsupportedOperatorIsCounted) {
  for (bool typed : {false, true}) {
    frontend::ImportOptions options = withBatch(2);
    options.bind = {{"length", 4}};
    Surveyed s = surveyed(strange(typed), options);
    ASSERT_EQ(s.survey.unsupported.size(), 2u);
    EXPECT_EQ(s.survey.unsupported[0].name, "Strange");
    EXPECT_EQ(s.survey.unsupported[0].count, 2);
    EXPECT_EQ(s.survey.unsupported[0].node, "first");
    EXPECT_EQ(s.survey.unsupported[0].opset, 20);
    EXPECT_EQ(s.survey.unsupported[1].name, "some.domain.Odd");
    EXPECT_EQ(s.survey.unsupported[1].opset, 3);
    EXPECT_THAT(s.survey.refused, IsEmpty());
    EXPECT_THAT(s.survey.obstacles, IsEmpty());
    EXPECT_EQ(s.survey.trained.count, 2);
    // Where types are stated, the import gets to the loss, so what a gradient reaches is known.
    EXPECT_EQ(s.survey.exact, typed);
  }
}

TEST(Survey, AllKindsOfObstaclesAtOnce) {
  ModelBuilder m = strange(true);
  m.node("Mul", {"xa", "late"}, {"bad"});  // refused
  m.floats("late", {3}, {1, 2, 3});
  m.node("Add", {"bad", "y"}, {"worse"});
  m.graph().clear_output();
  m.output("worse", {"N", "length"}).output("i", {"N"}, onnx::TensorProto::INT64);
  onnx::TensorProto& weights = m.floats("far", {1}, {});
  weights.clear_raw_data();
  weights.set_data_location(onnx::TensorProto::EXTERNAL);
  setMetadata(*weights.mutable_external_data(), "location", "not-there.data");
  m.node("Mul", {"xa", "far"}, {"i"});
  frontend::ImportOptions options;
  options.train = {"."};
  Surveyed s = surveyed(m, options);
  EXPECT_FALSE(s.module);
  EXPECT_EQ(s.survey.unsupported.size(), 2u);
  ASSERT_EQ(s.survey.refused.size(), 1u);
  EXPECT_EQ(s.survey.refused[0].name, "Mul");
  EXPECT_THAT(s.survey.refused[0].why, AllOf(HasSubstr("do not broadcast together"), HasSubstr("sizes were assumed")));
  EXPECT_THAT(s.survey.unbound, ElementsAre(std::pair<std::string, std::string>("length", "x")));
  EXPECT_THAT(s.survey.losses, ElementsAre("cross_entropy(worse)", "mse(worse)"));
  EXPECT_THAT(s.survey.obstacles, ElementsAre(HasSubstr("has no scalar output to minimise")));
  ASSERT_EQ(s.survey.missing.size(), 1u);
  EXPECT_EQ(s.survey.missing[0].name, "not-there.data");
  EXPECT_EQ(s.survey.missing[0].needed, 4);
  EXPECT_FALSE(s.survey.missing[0].exists);
  EXPECT_THAT(s.survey.notes, Contains(HasSubstr("one row a rank is assumed")));
}

TEST(Survey, InFunctionsAndBranches) {
  ModelBuilder m;
  m.input("x", {"N", 4}).output("loss", {});
  m.floats("a", {4}, {1, 2, 3, 4});
  onnx::FunctionProto& function = *m.model.add_functions();
  function.set_name("Block");
  function.set_domain("local");
  function.add_input("u");
  function.add_output("v");
  function.add_opset_import()->set_version(20);
  for (auto [from, to] : {std::pair{"u", "t"}, {"t", "v"}}) {
    onnx::NodeProto& node = *function.add_node();
    node.set_op_type("Strange");
    node.add_input(from);
    node.add_output(to);
  }
  auto* import = m.model.add_opset_import();
  import->set_domain("local");
  import->set_version(1);
  m.node("Mul", {"x", "a"}, {"y0"});
  for (int i = 0; i < 3; ++i) m.node("Block", {"y" + std::to_string(i)}, {"y" + std::to_string(i + 1)}, "local");
  setInteger(m.node("ReduceMean", {"y3"}, {"loss"}), "keepdims", 0);
  Surveyed s = surveyed(m, withBatch(2));
  ASSERT_EQ(s.survey.unsupported.size(), 1u);
  EXPECT_EQ(s.survey.unsupported[0].count, 6);
  EXPECT_EQ(s.survey.trained.count, 1);
}

TEST(Survey, NothingToTrain) {
  ModelBuilder m;
  m.input("x", {"N", 4}).output("loss", {});
  setInteger(m.node("ReduceMean", {"x"}, {"loss"}), "keepdims", 0);
  Surveyed s = surveyed(m, withBatch(2));
  EXPECT_THAT(s.survey.obstacles, ElementsAre(HasSubstr("nothing is trainable")));
  EXPECT_EQ(s.survey.trained.count, 0);
}

TEST(Survey, WrongOptions) {
  frontend::ImportOptions options = withBatch(7, 2);
  options.bind = {{"nothing", 3}, {"nothing", 4}};
  Surveyed s = surveyed(std::string(sheaf::paths::kModels) + "/mlp.onnx", options);
  EXPECT_THAT(s.survey.obstacles, AllOf(Contains(HasSubstr("--batch 7 does not divide into 2 ranks")),
                                        Contains(HasSubstr("names the dimension 'nothing' twice")),
                                        Contains(HasSubstr("no input has a dimension of that name"))));
}

TEST(Survey, NoModel) {
  EXPECT_THAT(surveyed("/nowhere.onnx").survey.obstacles, ElementsAre(HasSubstr("cannot read the model")));
}

}  // namespace
}  // namespace sheaf::test
