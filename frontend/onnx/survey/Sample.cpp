// Models of one node each, from the samples of the registry.
//
//   SAMPLE  = OPERAND, ...; ATTRIBUTE ...
//   OPERAND = f[SIZES] a parameter of f32 | i[SIZES] or b[SIZES] data of i64 or booleans | - absent
//           | {v,...} a constant vector of i64, f{v,...} and b{v,...} of f32 and booleans
//           | 3, 0.5 or true, a constant scalar of i64, f32 or bool
//   ATTRIBUTE = name=3 | name=0.5 | name=[3,4] | name=word; outputs=2 is how many results the node has, if not one
#include "frontend/onnx/importer/Importer.h"
#include "frontend/onnx/ops/Registry.h"

using namespace mlir;

namespace sheaf::frontend {
namespace {

constexpr int64_t kNewest = 28;  // opset

class SampleBuilder {
 public:
  explicit SampleBuilder(const RegisteredOperator& op) : op(op), graph(*model.mutable_graph()) {}

  std::optional<onnx::ModelProto> build() {
    model.set_ir_version(10);
    const bool isDefault = isDefaultDomain(op.domain);
    addOpset("", isDefault && op.last ? op.last : kNewest);
    if (!isDefault) addOpset(op.domain, op.since);
    // Every step needs data and a parameter, whatever the operator takes.
    addInput("one", {1});
    addParameter("free", {1});

    auto [operands, attributes] = StringRef(op.sample).split(';');
    onnx::NodeProto node;
    node.set_name(kSampleNode);
    node.set_op_type(op.name);
    if (!isDefault) node.set_domain(op.domain);
    while (!(operands = operands.trim()).empty()) {
      size_t end = operands.starts_with("{") || operands.substr(1).starts_with("{") ? operands.find('}')
                   : operands.substr(1).starts_with("[")                            ? operands.find(']')
                                                                                    : 0;
      end = std::min(operands.find(',', end), operands.size());
      if (!addOperand(operands.take_front(end).trim(), node)) return std::nullopt;
      operands = operands.drop_front(std::min(end + 1, operands.size()));
    }
    int64_t outputs = 1;
    while (!(attributes = attributes.trim()).empty()) {
      auto [one, rest] = attributes.split(' ');
      auto [name, value] = one.split('=');
      if (name == "outputs" ? value.getAsInteger(10, outputs) : !addAttribute(name, value, node)) return error(one);
      attributes = rest;
    }
    for (int64_t i = 0; i < outputs; ++i) node.add_output("y" + std::to_string(i));
    *graph.add_node() = node;

    auto sumOf = [&](const std::string& value) {
      add("ReduceSum", {value}, value + ".sum").add_attribute()->CopyFrom(integer("keepdims", 0));
      return value + ".sum";
    };
    std::vector<std::string> sums{sumOf("free")};
    for (const std::string& y : node.output()) {
      add("Cast", {y}, y + ".f").add_attribute()->CopyFrom(integer("to", onnx::TensorProto::FLOAT));
      sums.push_back(sumOf(y + ".f"));
    }
    add("Sum", sums, "total");
    add("Mul", {"one", "total"}, "loss");
    graph.add_output()->set_name("loss");
    return std::move(model);
  }

 private:
  std::nullopt_t error(StringRef where) {
    llvm::errs() << "the sample of " << op.name << " cannot be read at '" << where << "'\n";
    return std::nullopt;
  }

  void addOpset(StringRef domain, int64_t version) {
    onnx::OperatorSetIdProto& opset = *model.add_opset_import();
    opset.set_domain(domain.str());
    opset.set_version(version);
  }

  static onnx::AttributeProto integer(StringRef name, int64_t value) {
    onnx::AttributeProto attribute;
    attribute.set_name(name.str());
    attribute.set_type(onnx::AttributeProto::INT);
    attribute.set_i(value);
    return attribute;
  }

  onnx::NodeProto& add(const char* type, std::vector<std::string> inputs, const std::string& output) {
    onnx::NodeProto& node = *graph.add_node();
    node.set_op_type(type);
    node.set_name("around/" + output);
    for (const std::string& input : inputs) node.add_input(input);
    node.add_output(output);
    return node;
  }

  void addInput(const std::string& name, ArrayRef<int64_t> shape, int type = onnx::TensorProto::FLOAT) {
    onnx::ValueInfoProto& input = *graph.add_input();
    input.set_name(name);
    auto& tensor = *input.mutable_type()->mutable_tensor_type();
    tensor.set_elem_type(type);
    for (int64_t size : shape) tensor.mutable_shape()->add_dim()->set_dim_value(size);
  }

  void addParameter(const std::string& name, ArrayRef<int64_t> shape) {
    onnx::TensorProto& tensor = *graph.add_initializer();
    tensor.set_name(name);
    tensor.set_data_type(onnx::TensorProto::FLOAT);
    for (int64_t size : shape) tensor.add_dims(size);
    for (int64_t i = 0; i < *elementCount(shape); ++i) tensor.add_float_data(0.25f + 0.5f * float(i * 7 % 16) / 16);
  }

  void addConstant(const std::string& name, onnx::TensorProto tensor) {
    onnx::AttributeProto& value = *add("Constant", {}, name).add_attribute();
    value.set_name("value");
    value.set_type(onnx::AttributeProto::TENSOR);
    *value.mutable_t() = std::move(tensor);
  }

  // Elements of one type, each as a number or `true`; a scalar if `isVector` is not set.
  std::optional<onnx::TensorProto> constant(char type, StringRef text, bool isVector) {
    onnx::TensorProto tensor;
    tensor.set_data_type(type == 'f'   ? onnx::TensorProto::FLOAT
                         : type == 'b' ? onnx::TensorProto::BOOL
                                       : onnx::TensorProto::INT64);
    SmallVector<StringRef> elements;
    if (!text.empty()) text.split(elements, ',');
    for (StringRef element : elements) {
      double number = 0;
      if (element.trim() != "true" && element.trim().getAsDouble(number)) return error(text);
      if (element.trim() == "true") number = 1;
      if (type == 'f') tensor.add_float_data(float(number));
      if (type == 'b') tensor.add_int32_data(number != 0);
      if (type == 'i') tensor.add_int64_data(int64_t(number));
    }
    if (isVector) tensor.add_dims(int64_t(elements.size()));
    return tensor;
  }

  bool addOperand(StringRef text, onnx::NodeProto& node) {
    if (text == "-") return node.add_input(""), true;
    const std::string number = std::to_string(node.input_size());
    const bool isVector = text.ends_with("}");
    if (isVector || !text.ends_with("]")) {
      const bool typed = text.starts_with("f{") || text.starts_with("b{");
      const char type = typed ? text[0] : text == "true" ? 'b' : !isVector && text.contains('.') ? 'f' : 'i';
      auto value = constant(type, isVector ? text.drop_back().split('{').second : text, isVector);
      if (!value) return false;
      addConstant("c" + number, std::move(*value));
      return node.add_input("c" + number), true;
    }
    Shape shape;
    SmallVector<StringRef> sizes;
    StringRef list = text.drop_front(2).drop_back();
    if (!list.empty()) list.split(sizes, ',');
    for (StringRef size : sizes)
      if (shape.emplace_back(); size.trim().getAsInteger(10, shape.back())) return error(text), false;
    if (text.starts_with("f[")) {
      // A number is a parameter if it is named like a module's member.
      const std::string name = shape.empty() ? "m.f" + number : "f" + number;
      addParameter(name, shape);
      // It is read by a node of its own, so that what is done with its gradient is not taken for the sample's.
      add("Identity", {name}, "p" + number);
      return node.add_input("p" + number), true;
    }
    if (!text.starts_with("i[") && !text.starts_with("b[")) return error(text), false;
    // Data are rows of the batch, of which there is one.
    Shape row(shape);
    row.insert(row.begin(), 1);
    addInput("data" + number, row, onnx::TensorProto::INT64);
    onnx::TensorProto sizesTensor;
    sizesTensor.set_data_type(onnx::TensorProto::INT64);
    sizesTensor.add_dims(int64_t(shape.size()));
    for (int64_t size : shape) sizesTensor.add_int64_data(size);
    addConstant("shape" + number, std::move(sizesTensor));
    add("Reshape", {"data" + number, "shape" + number}, "i" + number);
    if (text.starts_with("i[")) return node.add_input("i" + number), true;
    add("Cast", {"i" + number}, "b" + number).add_attribute()->CopyFrom(integer("to", onnx::TensorProto::BOOL));
    return node.add_input("b" + number), true;
  }

  bool addAttribute(StringRef name, StringRef value, onnx::NodeProto& node) {
    onnx::AttributeProto& attribute = *node.add_attribute();
    int64_t whole = 0;
    double real = 0;
    if (!value.getAsInteger(10, whole)) {
      attribute = integer(name, whole);
    } else if (value.starts_with("[")) {
      attribute.set_type(onnx::AttributeProto::INTS);
      SmallVector<StringRef> elements;
      value.drop_front().drop_back().split(elements, ',');
      for (StringRef element : elements) {
        if (element.getAsInteger(10, whole)) return false;
        attribute.add_ints(whole);
      }
    } else if (!value.getAsDouble(real)) {
      attribute.set_type(onnx::AttributeProto::FLOAT);
      attribute.set_f(float(real));
    } else {
      attribute.set_type(onnx::AttributeProto::STRING);
      attribute.set_s(value.str());
    }
    attribute.set_name(name.str());
    return true;
  }

  const RegisteredOperator& op;
  onnx::ModelProto model;
  onnx::GraphProto& graph;
};

}  // namespace

std::string sampleModel(const RegisteredOperator& op) {
  auto model = SampleBuilder(op).build();
  return model ? model->SerializeAsString() : "";
}

OwningOpRef<ModuleOp> importSample(MLIRContext& context, const RegisteredOperator& op) {
  context.loadDialect<train::TrainDialect, func::FuncDialect>();
  auto proto = SampleBuilder(op).build();
  if (!proto) return {};
  auto model = Model::of(context, std::move(*proto), "sample of " + op.name);
  if (!model) return {};
  ImportOptions options;
  options.batch = 1;
  return Importer(context, *model, options).run();
}

}  // namespace sheaf::frontend
