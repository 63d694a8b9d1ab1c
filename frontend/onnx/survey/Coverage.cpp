#include "frontend/onnx/survey/Coverage.h"

#include <map>
#include <set>

#include "frontend/onnx/importer/Model.h"
#include "frontend/onnx/ops/Registry.h"

using namespace mlir;

namespace sheaf::frontend {
namespace {

std::string domainOf(StringRef domain) {
  return domain.empty() ? "ai.onnx" : domain.str();
}

class Uses {
 public:
  explicit Uses(const Model& model) : model(model) {
    for (const RegisteredOperator& op : registeredOperators()) table[op.domain + ":" + op.name].push_back(op);
    for (const onnx::FunctionProto& function : model.proto().functions())
      functions.insert(domainOf(function.domain()) + ":" + function.name());
  }

  void count(const google::protobuf::RepeatedPtrField<onnx::NodeProto>& nodes, const onnx::FunctionProto* function) {
    for (const onnx::NodeProto& node : nodes) {
      add(domainOf(node.domain()), node.op_type(), opsetOf(node.domain(), function));
      for (const onnx::AttributeProto& attribute : node.attribute())
        if (attribute.has_g()) count(attribute.g().node(), function);
    }
  }

  std::vector<OperatorUse> list() const {
    std::vector<OperatorUse> result;
    for (const auto& [key, use] : uses) result.push_back(use);
    return result;
  }

 private:
  int64_t opsetOf(StringRef domain, const onnx::FunctionProto* function) const {
    int64_t opset = 0;
    if (function)
      for (const onnx::OperatorSetIdProto& import : function->opset_import())
        if (domainOf(import.domain()) == domainOf(domain)) opset = std::max<int64_t>(opset, import.version());
    return opset ? opset : model.opset(domain);
  }

  void add(const std::string& domain, const std::string& name, int64_t opset) {
    OperatorUse& use = uses[{domain, name, opset}];
    if (use.nodes++) return;
    use.domain = domain, use.name = name, use.opset = opset;
    auto rows = table.find(domain + ":" + name);
    use.supported = functions.count(domain + ":" + name) ||
                    (rows != table.end() &&
                     llvm::any_of(rows->second, [&](const RegisteredOperator& op) { return op.covers(opset); }));
  }

  const Model& model;
  std::map<std::string, std::vector<RegisteredOperator>> table;
  std::set<std::string> functions;
  std::map<std::tuple<std::string, std::string, int64_t>, OperatorUse> uses;
};

}  // namespace

FailureOr<std::vector<OperatorUse>> operatorUses(MLIRContext& context, StringRef path) {
  std::unique_ptr<Model> model = Model::load(context, path);
  if (!model) return failure();
  Uses uses(*model);
  uses.count(model->graph().node(), nullptr);
  for (const onnx::FunctionProto& function : model->proto().functions()) uses.count(function.node(), &function);
  return uses.list();
}

}  // namespace sheaf::frontend
