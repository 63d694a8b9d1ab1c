// A node that ONNX's own checker refuses is an error: an attribute of another type, name or opset, and inputs or
// outputs that its operator does not have.
#include <gmock/gmock.h>
#include <unistd.h>

#include "frontend/onnx/importer/Importer.h"
#include "frontend/onnx/importer/Signatures.h"
#include "frontend/onnx/ops/Registry.h"
#include "ir/Train/TrainDialect.h"
#include "test/frontend/ModelBuilder.h"

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

namespace sheaf::test {
namespace {

using frontend::AttributeSignature;
using frontend::RegisteredOperator;
using frontend::Signature;
using onnx::AttributeProto;
using Type = AttributeProto::AttributeType;

constexpr int64_t kNewest = 28;

//===--- The table ---===//

TEST(Signatures, AreSortedAndReachTheNewestOpset) {
  const Signature* before = nullptr;
  int64_t newest = 0;
  for (const Signature& s : frontend::signatures()) {
    auto key = [](const Signature& of) { return std::tuple(of.domain, of.name, of.since); };
    if (before) {
      EXPECT_LT(key(*before), key(s)) << s.name.str() << " " << s.since;
    }
    before = &s;
    if (s.domain.empty()) newest = std::max(newest, s.since);
    EXPECT_LE(s.minInputs, s.maxInputs) << s.name.str();
    EXPECT_LE(s.minOutputs, s.maxOutputs) << s.name.str();
    EXPECT_EQ(frontend::findSignature(s.domain, s.name, s.since), &s);
  }
  EXPECT_EQ(newest, kNewest);
}

TEST(Signatures, AreThoseOfAnOpset) {
  auto since = [](const char* domain, const char* name, int64_t opset) {
    const Signature* s = frontend::findSignature(domain, name, opset);
    return s ? s->since : 0;
  };
  EXPECT_EQ(since("", "Clip", 10), 6);
  EXPECT_EQ(since("ai.onnx", "Clip", 11), 11);
  EXPECT_EQ(since("", "Clip", 99), 13);
  EXPECT_EQ(since("", "LayerNormalization", 16), 0);
  EXPECT_EQ(since("", "Frobnicate", 20), 0);
  EXPECT_EQ(since("", "Zzz", 20), 0);
  EXPECT_EQ(since("com.microsoft", "FusedMatMul", 1), 1);
  EXPECT_EQ(since("com.microsoft", "Clip", 13), 0);
  EXPECT_EQ(since("ai.onnx.preview.training", "Momentum", 1), 1);
  const Signature& cast = *frontend::findSignature("", "Cast", 19);
  std::vector<std::string> attributes;
  for (const AttributeSignature& a : cast.attributeList())
    attributes.push_back(a.name.str() + " " + AttributeProto::AttributeType_Name(a.type) + (a.required ? "!" : ""));
  EXPECT_THAT(attributes, ElementsAre("saturate INT", "to INT!"));
}

//===--- Every operator ---===//

// Imports models one after the other and collects their errors.
class Imports {
 public:
  Imports()
      : context(mlir::MLIRContext::Threading::DISABLED), handler(&context, [this](mlir::Diagnostic& d) {
          if (d.getSeverity() == mlir::DiagnosticSeverity::Error) errors.push_back(d.str());
        }) {
    context.loadDialect<train::TrainDialect, mlir::func::FuncDialect>();
  }

  // The first error; "" if there is none.
  std::string errorOf(const onnx::ModelProto& proto) {
    errors.clear();
    auto model = frontend::Model::of(context, proto, "test");
    if (model) frontend::Importer(context, *model, withBatch(1)).run();
    return errors.empty() ? "" : errors[0];
  }

 private:
  mlir::MLIRContext context;
  std::vector<std::string> errors;
  mlir::ScopedDiagnosticHandler handler;
};

onnx::NodeProto& sampleNode(onnx::ModelProto& model) {
  for (onnx::NodeProto& node : *model.mutable_graph()->mutable_node())
    if (node.name() == frontend::kSampleNode) return node;
  std::abort();
}

void removeAttribute(onnx::NodeProto& node, llvm::StringRef name) {
  for (int i = node.attribute_size(); i-- > 0;)
    if (node.attribute(i).name() == name) node.mutable_attribute()->DeleteSubrange(i, 1);
}

// The operators that have a sample, with their signature at the sample's opset.
template <class Visit>
void forEachSample(Visit visit) {
  for (const RegisteredOperator& op : frontend::registeredOperators()) {
    if (!op.supported() || op.sample.empty()) continue;
    const int64_t opset = op.domain != "ai.onnx" ? op.since : op.last ? op.last : kNewest;
    onnx::ModelProto model;
    ASSERT_TRUE(model.ParseFromString(frontend::sampleModel(op))) << op.name;
    visit(op, frontend::findSignature(op.domain, op.name, opset), model);
  }
}

// The error of a sample whose node is changed.
template <class Change>
std::string errorOfChanged(Imports& imports, onnx::ModelProto model, Change change) {
  change(sampleNode(model));
  return imports.errorOf(model);
}

TEST(Signatures, OfEveryOperatorOfOnnx) {
  for (const RegisteredOperator& op : frontend::registeredOperators()) {
    // ONNX Runtime's training tools write it without a domain.
    if (op.domain != "ai.onnx" || op.name == "MaxPoolGrad") continue;
    EXPECT_TRUE(frontend::findSignature(op.domain, op.name, op.last ? op.last : kNewest)) << op.name;
  }
  forEachSample([](const RegisteredOperator& op, const Signature* signature, onnx::ModelProto& model) {
    if (!signature) return;
    const std::vector<AttributeSignature> known = signature->attributeList();
    for (const AttributeProto& given : sampleNode(model).attribute())
      EXPECT_TRUE(llvm::any_of(known, [&](const AttributeSignature& a) { return a.name == given.name(); }))
          << op.name << ": " << given.name();
  });
}

TEST(Signatures, AnAttributeOfAnotherTypeIsRefused) {
  Imports imports;
  int tried = 0;
  forEachSample([&](const RegisteredOperator& op, const Signature* signature, const onnx::ModelProto& model) {
    if (!signature) return;
    for (const AttributeSignature& a : signature->attributeList()) {
      const std::string name = a.name.str(), where = op.name + ": " + name;
      const std::string error = errorOfChanged(imports, model, [&](onnx::NodeProto& node) {
        removeAttribute(node, name);
        a.type == AttributeProto::INT ? setFloat(node, name, 1) : setInteger(node, name, 1);
      });
      EXPECT_THAT(error, AllOf(HasSubstr("(" + (op.domain == "ai.onnx" ? "" : op.domain + ".") + op.name + ", opset "),
                               HasSubstr("): the attribute " + name + " is a"), HasSubstr("; it takes "),
                               HasSubstr(AttributeProto::AttributeType_Name(a.type))))
          << where;
      if (a.required) {
        EXPECT_THAT(errorOfChanged(imports, model, [&](onnx::NodeProto& node) { removeAttribute(node, name); }),
                    HasSubstr("the attribute " + name + " is missing; it takes "))
            << where;
      }
      ++tried;
    }
  });
  EXPECT_GT(tried, 250);
}

TEST(Signatures, OtherAttributesAreRefusedIfTheyAreNotInternal) {
  Imports imports;
  forEachSample([&](const RegisteredOperator& op, const Signature* signature, const onnx::ModelProto& model) {
    auto with = [&](const char* name) {
      return errorOfChanged(imports, model, [&](onnx::NodeProto& node) { setInteger(node, name, 1); });
    };
    EXPECT_EQ(with("__internal"), "") << op.name;
    const char* refusal = "has no attribute frobnicate at opset ";
    const bool takesIt = !signature || signature->takesOtherAttributes();
    EXPECT_EQ(llvm::StringRef(with("frobnicate")).contains(refusal), !takesIt) << op.name;
  });
}

TEST(Signatures, MoreInputsAndOutputsAreRefused) {
  Imports imports;
  forEachSample([&](const RegisteredOperator& op, const Signature* signature, const onnx::ModelProto& model) {
    if (!signature) return;
    if (signature->maxInputs != Signature::kMany) {
      const std::string error = errorOfChanged(imports, model, [&](onnx::NodeProto& node) {
        while (node.input_size() <= signature->maxInputs) node.add_input("");
      });
      EXPECT_THAT(error, HasSubstr("has " + std::to_string(signature->maxInputs + 1) + " input")) << op.name;
    }
    if (signature->maxOutputs != Signature::kMany) {
      const std::string error = errorOfChanged(imports, model, [&](onnx::NodeProto& node) {
        while (node.output_size() <= signature->maxOutputs) node.add_output("");
      });
      EXPECT_THAT(error, HasSubstr("has " + std::to_string(signature->maxOutputs + 1) + " output")) << op.name;
    }
  });
}

//===--- What an error says ---===//

// loss = mean(op(x * w)), x [N, 2].
ModelBuilder with(const std::string& op, int64_t opset) {
  ModelBuilder m(opset);
  m.input("x", {"N", 2}).output("loss", {});
  m.floats("w", {2}, {1, 2});
  m.node("Mul", {"x", "w"}, {"h"});
  m.node(op, {"h"}, {"y"}).set_name("n");
  setInteger(m.node("ReduceMean", {"y"}, {"loss"}), "keepdims", 0);
  return m;
}
onnx::NodeProto& node(ModelBuilder& m) {
  return *m.graph().mutable_node(1);
}

AttributeProto& add(onnx::NodeProto& node, const std::string& name, Type type) {
  AttributeProto& a = *node.add_attribute();
  a.set_name(name);
  if (type != AttributeProto::UNDEFINED) a.set_type(type);
  return a;
}

TEST(Signatures, AnErrorSaysWhatTheOperatorTakes) {
  ModelBuilder slope = with("LeakyRelu", 20);
  setInteger(node(slope), "alpha", 1);
  EXPECT_EQ(errorOf(slope), "node 'n' (LeakyRelu, opset 20): the attribute alpha is an INT; it takes a FLOAT");
  ModelBuilder axis = with("Softmax", 20);
  setFloat(node(axis), "axis", 1);
  EXPECT_THAT(errorOf(axis), HasSubstr("the attribute axis is a FLOAT; it takes an INT"));
  ModelBuilder axes = with("ReduceSum", 11);
  setInteger(node(axes), "axes", 1);
  EXPECT_THAT(errorOf(axes), HasSubstr("the attribute axes is an INT; it takes INTS"));
  ModelBuilder missing = with("Cast", 20);
  EXPECT_THAT(errorOf(missing), HasSubstr("the attribute to is missing; it takes an INT"));
  ModelBuilder twice = with("Softmax", 20);
  setInteger(node(twice), "axis", 1);
  setInteger(node(twice), "axis", 0);
  EXPECT_THAT(errorOf(twice), HasSubstr("has the attribute axis twice; remove one of them"));
  ModelBuilder unknown = with("Elu", 20);
  setInteger(node(unknown), "beta", 1);
  EXPECT_THAT(
      errorOf(unknown),
      HasSubstr("has no attribute beta at opset 20 (its attributes are: alpha); remove it, or correct its name"));
}

// Such nodes are often right at another opset than the one that the model imports.
TEST(Signatures, AnErrorNamesTheOpsetThatTheNodeFits) {
  ModelBuilder attributes = with("Clip", 13);
  setFloat(node(attributes), "min", 0);
  EXPECT_THAT(errorOf(attributes),
              HasSubstr("has no attribute min at opset 13 (it has no attributes there); at opset 6 it has it: "
                        "change the node, or the opset that the model imports"));
  ModelBuilder inputs = with("Clip", 10);
  inputs.floats("limit", {}, {0});
  node(inputs).add_input("limit");
  node(inputs).add_input("limit");
  EXPECT_THAT(errorOf(inputs),
              HasSubstr("has 3 inputs; at opset 10 it takes 1, at opset 11 1 to 3: change the node, or "
                        "the opset that the model imports"));
  ModelBuilder outputs = with("Relu", 20);
  node(outputs).add_output("");
  EXPECT_THAT(errorOf(outputs), ::testing::EndsWith("has 2 outputs; at opset 20 it has 1"));
  ModelBuilder fewer = with("TopK", 9);
  setInteger(node(fewer), "k", 1);
  EXPECT_THAT(errorOf(fewer), ::testing::EndsWith("has 1 output; at opset 9 it has 2"));
}

TEST(Signatures, TheTypeIsThatOfTheValue) {
  auto error = [](Type type, auto set, const char* op = "Softmax", const char* name = "axis") {
    ModelBuilder m = with(op, 20);
    set(add(node(m), name, type));
    return errorOf(m);
  };
  auto none = [](AttributeProto&) {};
  auto integer = [](AttributeProto& a) { a.set_i(1); };
  auto number = [](AttributeProto& a) { a.set_f(1); };
  // The first files declared no types.
  EXPECT_EQ(error(AttributeProto::UNDEFINED, integer), "");
  EXPECT_THAT(error(AttributeProto::UNDEFINED, number), HasSubstr("the attribute axis is a FLOAT; it takes an INT"));
  EXPECT_THAT(error(AttributeProto::UNDEFINED, none), HasSubstr("the attribute axis is empty; it takes an INT"));
  // A 0 may be written without its field.
  EXPECT_EQ(error(AttributeProto::INT, none), "");
  EXPECT_THAT(error(AttributeProto::INT, number), HasSubstr("the attribute axis is a FLOAT; it takes an INT"));
  EXPECT_EQ(error(AttributeProto::INTS, none, "Transpose", "perm").find("the attribute"), std::string::npos);
  EXPECT_THAT(error(AttributeProto::UNDEFINED, none, "Transpose", "perm"),
              HasSubstr("the attribute perm is empty; it takes INTS"));
  EXPECT_THAT(error(AttributeProto::TENSOR, none, "ConstantOfShape", "value"),
              HasSubstr("the attribute value is empty; it takes a TENSOR"));
}

// The attribute of a function's node is its caller's.
TEST(Signatures, OfNodesInFunctions) {
  auto error = [](const char* op, const char* name, auto call) {
    ModelBuilder m = with("F", 20);
    node(m).set_domain("local");
    call(node(m));
    onnx::FunctionProto& function = *m.model.add_functions();
    function.set_name("F");
    function.set_domain("local");
    function.add_input("a");
    function.add_output("b");
    function.add_attribute("given");
    function.add_opset_import()->set_version(20);
    onnx::NodeProto& inner = *function.add_node();
    inner.set_op_type(op);
    inner.add_input("a");
    inner.add_output("b");
    add(inner, name, AttributeProto::UNDEFINED).set_ref_attr_name("given");
    return errorOf(m);
  };
  EXPECT_EQ(error("Elu", "alpha", [](auto& call) { setFloat(call, "given", 1); }), "");
  EXPECT_THAT(error("Elu", "alpha", [](auto& call) { setInteger(call, "given", 1); }),
              HasSubstr("the attribute alpha is an INT; it takes a FLOAT"));
  EXPECT_EQ(error("Elu", "alpha", [](auto& call) {}), "");
  EXPECT_THAT(error("Cast", "to", [](auto& call) {}), HasSubstr("the attribute to is missing; it takes an INT"));
  EXPECT_THAT(error("Elu", "beta", [](auto& call) {}), HasSubstr("has no attribute beta"));
  // A call of the model's own function has no signature.
  EXPECT_EQ(error("Elu", "alpha", [](auto& call) { setInteger(call, "frobnicate", 1); }), "");
}

TEST(Signatures, ASurveyCountsTheNodesThatAreRefused) {
  ModelBuilder m(20);
  m.input("x", {"N", 2}).output("loss", {});
  m.floats("w", {2}, {1, 2});
  m.node("Mul", {"x", "w"}, {"y0"});
  for (int i = 0; i < 2; ++i)
    setInteger(m.node("LeakyRelu", {"y" + std::to_string(i)}, {"y" + std::to_string(i + 1)}), "alpha", 1);
  setInteger(m.node("ReduceMean", {"y0"}, {"loss"}), "keepdims", 0);
  m.graph().mutable_node(2)->set_input(0, "y0");
  m.node("Sum", {"loss", "y1", "y2"}, {"all"});
  m.graph().mutable_output(0)->set_name("all");
  const std::string path = m.save();
  mlir::MLIRContext context(mlir::MLIRContext::Threading::DISABLED);
  frontend::Survey survey;
  frontend::surveyOnnx(context, path, withBatch(2), survey);
  unlink(path.c_str());
  ASSERT_EQ(survey.refused.size(), 1u);
  EXPECT_EQ(survey.refused[0].name, "LeakyRelu");
  EXPECT_EQ(survey.refused[0].count, 2);
  EXPECT_EQ(survey.refused[0].why, "the attribute alpha is an INT; it takes a FLOAT");
}

}  // namespace
}  // namespace sheaf::test
