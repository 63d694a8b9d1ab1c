#include "frontend/onnx/export/PhaseModel.h"

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "ir/Plan/InstructionFields.h"
#include "ir/Train/ElementTypes.h"
#include "ir/Train/TrainDialect.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/TypeSwitch.h"
#include "llvm/Support/raw_ostream.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "onnx/onnx-ml.pb.h"
#include "runtime/plan/Types.h"

using namespace mlir;

namespace sheaf::frontend {
namespace {

constexpr int64_t kIrVersion = 10;  // the first with overloads of functions
constexpr int64_t kDomainVersion = 1;
constexpr size_t kMostText = 400;  // letters of an attribute that is shown as text: of a constant's elements, say

// A value without elements, such as a buffer, is shown as bytes.
int32_t dataType(Type type) {
  const plan::ElementFacts& facts = train::elementFacts(type);
  return facts.isElement() ? facts.onnx : onnx::TensorProto::INT8;
}

template <typename T>
std::string printed(const T& thing) {
  std::string text;
  llvm::raw_string_ostream stream(text);
  thing.print(stream);
  if (text.size() > kMostText) text = text.substr(0, kMostText) + "...";
  return text;
}

std::string nameOf(Location location) {
  if (auto name = dyn_cast<NameLoc>(location)) return name.getName().str();
  if (auto fused = dyn_cast<FusedLoc>(location))
    for (Location inner : fused.getLocations())
      if (std::string name = nameOf(inner); !name.empty()) return name;
  return "";
}

class Writer {
 public:
  Writer() : graph_(model_.mutable_graph()) {
    model_.set_ir_version(kIrVersion);
    model_.set_producer_name("sheaf");
  }

  void function(func::FuncOp step);
  void plan(const plan::Plan& plan);

  // The serialized model, once it has its nodes.
  std::string bytes() {
    for (const std::string& domain : domains_) {
      onnx::OperatorSetIdProto& opset = *model_.add_opset_import();
      opset.set_domain(domain);
      opset.set_version(kDomainVersion);
    }
    declare();
    std::string bytes;
    model_.SerializeToString(&bytes);
    return bytes;
  }

 private:
  // A name that no other value has.
  std::string fresh(const std::string& name) {
    const int64_t repeat = names_[name]++;
    return repeat ? name + "#" + std::to_string(repeat) : name;
  }

  static void setType(onnx::ValueInfoProto& value, const std::string& name, Type type) {
    value.set_name(name);
    auto ranked = dyn_cast<RankedTensorType>(type);
    onnx::TypeProto_Tensor& tensor = *value.mutable_type()->mutable_tensor_type();
    tensor.set_elem_type(dataType(ranked ? ranked.getElementType() : type));
    onnx::TensorShapeProto& shape = *tensor.mutable_shape();
    if (ranked)
      for (int64_t size : ranked.getShape()) shape.add_dim()->set_dim_value(size);
  }

  // ---- attributes

  void attribute(onnx::NodeProto& node, StringRef name, Attribute value) {
    if (auto dictionary = dyn_cast<DictionaryAttr>(value)) {
      for (NamedAttribute entry : dictionary) attribute(node, entry.getName(), entry.getValue());
      return;
    }
    onnx::AttributeProto& made = *node.add_attribute();
    made.set_name(name.str());
    auto text = [&](const std::string& string) {
      made.set_type(onnx::AttributeProto::STRING);
      made.set_s(string);
    };
    llvm::TypeSwitch<Attribute>(value)
        .Case([&](UnitAttr) { made.set_type(onnx::AttributeProto::INT), made.set_i(1); })
        .Case([&](FloatAttr number) {
          made.set_type(onnx::AttributeProto::FLOAT), made.set_f(static_cast<float>(number.getValueAsDouble()));
        })
        .Case([&](DenseI64ArrayAttr numbers) {
          made.set_type(onnx::AttributeProto::INTS);
          for (int64_t number : numbers.asArrayRef()) made.add_ints(number);
        })
        .Case([&](StringAttr string) { text(string.str()); })
        .Case([&](FlatSymbolRefAttr symbol) { text(symbol.getValue().str()); })
        .Default([&](Attribute other) {
          auto number = dyn_cast<IntegerAttr>(other);
          if (number && number.getValue().getSignificantBits() <= 64)
            made.set_type(onnx::AttributeProto::INT), made.set_i(number.getValue().getSExtValue());
          else
            text(printed(other));
        });
  }

  void attributes(onnx::NodeProto& node, Operation* op, ArrayRef<StringRef> leftOut = {}) {
    for (NamedAttribute entry : op->getAttrs())
      if (!llvm::is_contained(leftOut, entry.getName().getValue())) attribute(node, entry.getName(), entry.getValue());
  }

  // Notes what an op takes and gives, for its declaration.
  void finish(onnx::NodeProto& node, const std::string& domain, const std::string& type) {
    domains_.insert(domain);
    node.set_domain(domain);
    node.set_op_type(type);
    std::vector<std::pair<int, int>>& arities = arities_[{domain, type}];
    const std::pair<int, int> arity{node.input_size(), node.output_size()};
    size_t at = static_cast<size_t>(std::find(arities.begin(), arities.end(), arity) - arities.begin());
    if (at == arities.size()) arities.push_back(arity);
    if (at > 0) node.set_overload(std::to_string(arity.first) + " to " + std::to_string(arity.second));
    for (const onnx::AttributeProto& one : node.attribute()) attributes_[{domain, type}].insert(one.name());
  }

  void declare() {
    for (const auto& [op, arities] : arities_)
      for (size_t i = 0; i < arities.size(); ++i) {
        const auto& [inputs, outputs] = arities[i];
        onnx::FunctionProto& function = *model_.add_functions();
        function.set_domain(op.first);
        function.set_name(op.second);
        if (i > 0) function.set_overload(std::to_string(inputs) + " to " + std::to_string(outputs));
        function.set_doc_string("An operation of Sheaf: it has no definition in ONNX. `make docs` describes it.");
        for (int k = 0; k < inputs; ++k) function.add_input("input" + std::to_string(k));
        for (int k = 0; k < outputs; ++k) function.add_output("output" + std::to_string(k));
        for (const std::string& name : attributes_[op]) function.add_attribute(name);
        onnx::OperatorSetIdProto& opset = *function.add_opset_import();
        opset.set_domain(op.first);
        opset.set_version(kDomainVersion);
      }
  }

  // ---- functions of tensors

  void operation(Operation& op) {
    onnx::NodeProto& node = *graph_->add_node();
    auto symbol = op.getAttrOfType<FlatSymbolRefAttr>("bucket");
    if (!symbol) symbol = op.getAttrOfType<FlatSymbolRefAttr>("parameter");
    std::string name = symbol ? symbol.getValue().str() : nameOf(op.getLoc());
    if (name.empty()) name = op.getName().stripDialect().str();
    node.set_name(name);
    for (Value operand : op.getOperands()) node.add_input(valueNames_.lookup(operand));
    attributes(node, &op);
    for (Region& region : op.getRegions())
      if (!region.empty()) this->region(node, region);
    for (Value result : op.getResults()) {
      valueNames_[result] = fresh(name);
      node.add_output(valueNames_[result]);
      setType(*graph_->add_value_info(), valueNames_[result], result.getType());
    }
    // What has no result changes state, or hands something out.
    if (op.getNumResults() == 0 && op.getName().stripDialect() != "release") {
      const std::string done = fresh(name + "." + op.getName().stripDialect().str());
      node.add_output(done);
      if (graph_ == model_.mutable_graph())
        setType(*graph_->add_output(), done,
                op.getNumOperands() ? op.getOperand(0).getType() : Type(Float32Type::get(op.getContext())));
    }
    finish(node, "sheaf." + op.getName().getDialectNamespace().str(), op.getName().stripDialect().str());
  }

  // The program of a fusion, as a graph within its node.
  void region(onnx::NodeProto& node, Region& region) {
    onnx::AttributeProto& attribute = *node.add_attribute();
    attribute.set_name("body");
    attribute.set_type(onnx::AttributeProto::GRAPH);
    onnx::GraphProto* outer = graph_;
    graph_ = attribute.mutable_g();
    graph_->set_name(fresh("body of " + node.name()));
    for (BlockArgument argument : region.front().getArguments()) {
      valueNames_[argument] = fresh(node.name() + ".argument");
      setType(*graph_->add_input(), valueNames_[argument], argument.getType());
    }
    for (Operation& op : region.front().without_terminator()) operation(op);
    for (Value result : region.front().getTerminator()->getOperands())
      setType(*graph_->add_output(), valueNames_.lookup(result), result.getType());
    graph_ = outer;
  }

  // ---- plans

  static void setBytes(onnx::ValueInfoProto& value, const std::string& name, uint64_t count) {
    value.set_name(name);
    onnx::TypeProto_Tensor& tensor = *value.mutable_type()->mutable_tensor_type();
    tensor.set_elem_type(onnx::TensorProto::UINT8);
    tensor.mutable_shape()->add_dim()->set_dim_value(static_cast<int64_t>(count));
  }

  const std::string& version(uint32_t buffer);
  void instruction(const plan::Instruction& from);
  void instructionAttributes(onnx::NodeProto& node, const plan::Instruction& from,
                             const plan_ir::InstructionFields& known);
  void operands(onnx::NodeProto& node, const plan::Instruction& from);

  onnx::ModelProto model_;
  onnx::GraphProto* graph_;  // that is being written
  std::map<std::string, int64_t> names_;
  llvm::DenseMap<Value, std::string> valueNames_;
  const plan::Plan* plan_ = nullptr;
  std::map<uint32_t, std::string> versions_;  // of buffers
  std::set<uint32_t> written_;
  std::map<uint32_t, std::string> events_, last_, waited_;  // by event, by stream
  std::set<std::string> domains_;
  std::map<std::pair<std::string, std::string>, std::vector<std::pair<int, int>>> arities_;
  std::map<std::pair<std::string, std::string>, std::set<std::string>> attributes_;
};

void Writer::function(func::FuncOp step) {
  graph_->set_name("step");
  for (BlockArgument argument : step.getArguments()) {
    auto name = step.getArgAttrOfType<StringAttr>(argument.getArgNumber(), "train.name");
    valueNames_[argument] = fresh(name ? name.str() : "input");
    setType(*graph_->add_input(), valueNames_[argument], argument.getType());
  }
  for (Operation& op : step.getBody().front())
    if (!isa<func::ReturnOp>(op)) operation(op);
}

void Writer::plan(const plan::Plan& plan) {
  plan_ = &plan;
  graph_->set_name("plan");
  for (const plan::Instruction& one : plan.prologue()) instruction(one);
  for (const plan::StepPart& part : plan.parts())
    for (const plan::Instruction& one : part.instructions()) instruction(one);
  for (const plan::InstructionList* list : {&plan.body(), &plan.epilogue()})
    for (const plan::Instruction& one : *list) instruction(one);
  for (const auto& [buffer, name] : versions_)
    if (const plan::Buffer& of = plan.buffers(static_cast<int>(buffer)); of.persistent() && written_.contains(buffer))
      setBytes(*graph_->add_output(), name, of.bytes());
}

// Returns the name of a buffer's present content. Its content before the run is an input of the graph.
const std::string& Writer::version(uint32_t buffer) {
  auto [at, unknown] = versions_.try_emplace(buffer);
  if (unknown) {
    const plan::Buffer& of = plan_->buffers(static_cast<int>(buffer));
    at->second = fresh(of.name());
    setBytes(*graph_->add_input(), at->second, of.bytes());
  }
  return at->second;
}

void setAttribute(onnx::AttributeProto& to, int64_t number) {
  to.set_type(onnx::AttributeProto::INT);
  to.set_i(number);
}

void setAttribute(onnx::AttributeProto& to, const std::string& text) {
  to.set_type(onnx::AttributeProto::STRING);
  to.set_s(text);
}

void Writer::instructionAttributes(onnx::NodeProto& node, const plan::Instruction& from,
                                   const plan_ir::InstructionFields& known) {
  for (const auto& [name, value] : known.fields) {
    onnx::AttributeProto& made = *node.add_attribute();
    made.set_name(name);
    std::visit([&](const auto& one) { setAttribute(made, one); }, value);
  }
  for (const plan::Attribute& attribute : from.call().attributes()) {
    onnx::AttributeProto& made = *node.add_attribute();
    made.set_name(attribute.name());
    if (attribute.has_real())
      made.set_type(onnx::AttributeProto::FLOAT), made.set_f(static_cast<float>(attribute.real()));
    else
      setAttribute(made, attribute.integer());
  }
  if (from.operands().empty()) return;
  auto list = [&](const char* name, auto value) {
    onnx::AttributeProto& made = *node.add_attribute();
    made.set_name(name);
    made.set_type(onnx::AttributeProto::INTS);
    for (const plan::Operand& operand : from.operands()) made.add_ints(static_cast<int64_t>(value(operand)));
  };
  list("offsets", [](const plan::Operand& o) { return o.offset(); });
  list("bytes", [](const plan::Operand& o) { return o.bytes(); });
  list("strides", [](const plan::Operand& o) { return o.shard_stride(); });
  list("axes", [](const plan::Operand& o) { return o.axis(); });
  list("access", [](const plan::Operand& o) { return o.access(); });
}

void Writer::instruction(const plan::Instruction& from) {
  onnx::NodeProto& node = *graph_->add_node();
  node.set_name(from.label());
  const plan_ir::InstructionFields known = plan_ir::fieldsOf(from);
  instructionAttributes(node, from, known);
  std::string& waited = waited_[from.stream()];
  if (from.has_record()) {
    const uint32_t event = from.record().event();
    if (!last_[from.stream()].empty()) node.add_input(last_[from.stream()]);
    node.add_output(events_[event] = fresh("event" + std::to_string(event)));
  } else if (from.has_wait()) {
    if (!waited.empty()) node.add_input(waited);
    if (const auto event = events_.find(from.wait().event()); event != events_.end()) node.add_input(event->second);
    node.add_output(waited = fresh("waited"));
  } else {
    operands(node, from);
    if (!waited.empty()) node.add_input(waited);
    waited.clear();
    if (node.output_size() == 0) node.add_output(fresh("handed out"));
  }
  if (!from.has_wait()) last_[from.stream()] = node.output(0);
  if (from.has_call()) return finish(node, "sheaf.call", from.call().function());
  finish(node, "sheaf.plan", known.word);
}

void Writer::operands(onnx::NodeProto& node, const plan::Instruction& from) {
  for (const plan::Operand& operand : from.operands()) {
    const uint64_t whole = plan_->buffers(static_cast<int>(operand.buffer())).bytes();
    if (operand.access() != plan::WRITE || operand.bytes() < whole) node.add_input(version(operand.buffer()));
  }
  for (const plan::Operand& operand : from.operands()) {
    if (operand.access() == plan::READ) continue;
    const plan::Buffer& buffer = plan_->buffers(static_cast<int>(operand.buffer()));
    const std::string name = fresh(buffer.name());
    versions_[operand.buffer()] = name;
    written_.insert(operand.buffer());
    node.add_output(name);
    setBytes(*graph_->add_value_info(), name, buffer.bytes());
  }
}

}  // namespace

std::string phaseModel(ModuleOp module) {
  Writer writer;
  if (auto step = module.lookupSymbol<func::FuncOp>("step")) writer.function(step);
  return writer.bytes();
}

std::string planModel(const plan::Plan& plan) {
  Writer writer;
  writer.plan(plan);
  return writer.bytes();
}

}  // namespace sheaf::frontend
