#include "frontend/onnx/export/PhaseModel.h"

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "ir/Plan/PlanDialect.h"
#include "ir/Train/ElementTypes.h"
#include "ir/Train/TrainDialect.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/TypeSwitch.h"
#include "llvm/Support/raw_ostream.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "onnx/onnx-ml.pb.h"

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
  explicit Writer(ModuleOp module) : module_(module) {}

  std::string run() {
    model_.set_ir_version(kIrVersion);
    model_.set_producer_name("sheaf");
    onnx::GraphProto& graph = *model_.mutable_graph();
    for (auto program : module_.getOps<plan_ir::ProgramOp>()) {
      graph.set_name("plan");
      planProgram(program);
    }
    if (auto step = module_.lookupSymbol<func::FuncOp>("step")) {
      graph.set_name("step");
      graph_ = &graph;
      function(step);
    }
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

  void function(func::FuncOp step) {
    for (BlockArgument argument : step.getArguments()) {
      auto name = step.getArgAttrOfType<StringAttr>(argument.getArgNumber(), "train.name");
      valueNames_[argument] = fresh(name ? name.str() : "input");
      setType(*graph_->add_input(), valueNames_[argument], argument.getType());
    }
    for (Operation& op : step.getBody().front())
      if (!isa<func::ReturnOp>(op)) operation(op);
  }

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

  void planProgram(plan_ir::ProgramOp program) {
    graph_ = model_.mutable_graph();
    Block& block = program.getBody().front();
    for (auto prologue : block.getOps<plan_ir::PrologueOp>()) section(prologue.getBody());
    for (auto part : block.getOps<plan_ir::PartOp>()) section(part.getBody());
    for (auto body : block.getOps<plan_ir::StepOp>()) section(body.getBody());
    for (auto epilogue : block.getOps<plan_ir::EpilogueOp>()) section(epilogue.getBody());
    for (auto buffer : block.getOps<plan_ir::BufferOp>())
      if (const auto found = versions_.find(buffer.getResult());
          found != versions_.end() && buffer.getPersistent() && written_.contains(buffer.getResult()))
        bytes(*graph_->add_output(), found->second, buffer.getBytes());
  }

  static void bytes(onnx::ValueInfoProto& value, const std::string& name, int64_t count) {
    value.set_name(name);
    onnx::TypeProto_Tensor& tensor = *value.mutable_type()->mutable_tensor_type();
    tensor.set_elem_type(onnx::TensorProto::UINT8);
    tensor.mutable_shape()->add_dim()->set_dim_value(count);
  }

  // What a buffer holds now; what it held before the run is an input of the graph.
  const std::string& version(Value buffer) {
    auto [at, unknown] = versions_.try_emplace(buffer);
    if (unknown) {
      auto op = buffer.getDefiningOp<plan_ir::BufferOp>();
      at->second = fresh(op.getName().str());
      bytes(*graph_->add_input(), at->second, op.getBytes());
    }
    return at->second;
  }

  void section(Region& region) {
    if (region.empty()) return;
    for (Operation& op : region.front()) instruction(op);
  }

  void instruction(Operation& op) {
    onnx::NodeProto& node = *graph_->add_node();
    const int64_t stream = op.getAttrOfType<IntegerAttr>("stream").getInt();
    node.set_name(op.getAttrOfType<StringAttr>("label").str());
    attributes(node, &op, {"label", "operandSegmentSizes"});
    std::string& waited = waited_[stream];
    if (auto record = dyn_cast<plan_ir::RecordOp>(op)) {
      if (!last_[stream].empty()) node.add_input(last_[stream]);
      node.add_output(events_[record.getEvent()] = fresh("event" + std::to_string(record.getEvent())));
    } else if (auto wait = dyn_cast<plan_ir::WaitOp>(op)) {
      if (!waited.empty()) node.add_input(waited);
      if (const auto event = events_.find(wait.getEvent()); event != events_.end()) node.add_input(event->second);
      node.add_output(waited = fresh("waited"));
    } else {
      operands(node, op);
      if (!waited.empty()) node.add_input(waited);
      waited.clear();
    }
    if (node.output_size() == 0 && !isa<plan_ir::RecordOp, plan_ir::WaitOp>(op)) node.add_output(fresh("handed out"));
    if (!isa<plan_ir::WaitOp>(op) && node.output_size()) last_[stream] = node.output(0);
    if (auto call = dyn_cast<plan_ir::CallOp>(op)) return finish(node, "sheaf.call", call.getFunction().str());
    finish(node, "sheaf.plan", op.getName().stripDialect().str());
  }

  void operands(onnx::NodeProto& node, Operation& op) {
    const auto access = op.getAttrOfType<DenseI64ArrayAttr>("access").asArrayRef();
    const auto sizes = op.getAttrOfType<DenseI64ArrayAttr>("bytes").asArrayRef();
    std::vector<std::pair<Value, int64_t>> writes;
    for (size_t i = 0; i < access.size(); ++i) {
      Value buffer = op.getOperand(static_cast<unsigned>(i));
      const int64_t whole = buffer.getDefiningOp<plan_ir::BufferOp>().getBytes();
      if (access[i] != plan::WRITE || sizes[i] < whole) node.add_input(version(buffer));
      if (access[i] != plan::READ) writes.emplace_back(buffer, whole);
    }
    for (auto [buffer, whole] : writes) {
      const std::string name = fresh(buffer.getDefiningOp<plan_ir::BufferOp>().getName().str());
      versions_[buffer] = name;
      written_.insert(buffer);
      node.add_output(name);
      bytes(*graph_->add_value_info(), name, whole);
    }
  }

  ModuleOp module_;
  onnx::ModelProto model_;
  onnx::GraphProto* graph_ = nullptr;  // that is being written
  std::map<std::string, int64_t> names_;
  llvm::DenseMap<Value, std::string> valueNames_;
  llvm::DenseMap<Value, std::string> versions_;  // of buffers
  llvm::DenseSet<Value> written_;
  std::map<int64_t, std::string> events_, last_, waited_;  // by event, by stream
  std::set<std::string> domains_;
  std::map<std::pair<std::string, std::string>, std::vector<std::pair<int, int>>> arities_;
  std::map<std::pair<std::string, std::string>, std::set<std::string>> attributes_;
};

}  // namespace

std::string phaseModel(ModuleOp module) {
  return Writer(module).run();
}

}  // namespace sheaf::frontend
