// Seeded mutations of ONNX models that stay well-formed as protobuf messages and mostly as graphs: what is changed are
// attributes, shapes, types, names, opsets, edges, subgraphs and functions. Mutator.h changes bytes.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "onnx/onnx-ml.pb.h"
#include "test/fuzz/Mutator.h"

namespace sheaf::fuzz {

class ModelMutator {
 public:
  // Nodes, attributes and subgraphs of the donors are put into other models. The donors must outlive the mutator.
  explicit ModelMutator(const std::vector<const onnx::ModelProto*>& donors);

  // Changes the model in one to a few places.
  void mutate(onnx::ModelProto& model, Random& random) const;

 private:
  struct Parts;
  void mutateOnce(onnx::ModelProto& model, Parts& parts, Random& random) const;
  void changeAttribute(onnx::NodeProto& node, const Parts& parts, Random& random) const;
  void changeValue(onnx::AttributeProto& attribute, const Parts& parts, Random& random) const;
  void changeGraph(onnx::GraphProto& graph, const Parts& parts, Random& random) const;
  void changeNodes(google::protobuf::RepeatedPtrField<onnx::NodeProto>& nodes, const Parts& parts,
                   Random& random) const;
  void changeModel(onnx::ModelProto& model, Parts& parts, Random& random) const;

  std::vector<const onnx::NodeProto*> nodes_;
  std::vector<const onnx::AttributeProto*> attributes_, graphs_;
  std::map<std::string, std::vector<const onnx::AttributeProto*>> ofOperator_;  // attributes by operator
  std::map<std::string, std::vector<std::string>> words_;                       // values of string attributes, by name
};

}  // namespace sheaf::fuzz
