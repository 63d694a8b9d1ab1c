#include "test/fuzz/ModelMutator.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>

namespace sheaf::fuzz {

using Nodes = google::protobuf::RepeatedPtrField<onnx::NodeProto>;
using Type = onnx::TensorProto;

// What a mutation can touch. Pointers are valid until the model changes its structure.
struct ModelMutator::Parts {
  std::vector<Nodes*> lists;  // of the graph, its subgraphs, functions, and training algorithms; none is empty
  std::vector<onnx::GraphProto*> graphs;
  std::vector<onnx::TensorProto*> tensors;
  std::vector<onnx::ValueInfoProto*> values;
  std::vector<std::string> names;  // of values

  explicit Parts(onnx::ModelProto& model) {
    add(*model.mutable_graph());
    for (onnx::FunctionProto& function : *model.mutable_functions()) {
      add(*function.mutable_node());
      names.insert(names.end(), function.input().begin(), function.input().end());
    }
    for (onnx::TrainingInfoProto& info : *model.mutable_training_info()) {
      if (info.has_algorithm()) add(*info.mutable_algorithm());
      if (info.has_initialization()) add(*info.mutable_initialization());
    }
  }

 private:
  void add(onnx::GraphProto& graph) {
    graphs.push_back(&graph);
    for (onnx::TensorProto& tensor : *graph.mutable_initializer()) {
      tensors.push_back(&tensor);
      names.push_back(tensor.name());
    }
    for (auto* list : {graph.mutable_input(), graph.mutable_output(), graph.mutable_value_info()})
      for (onnx::ValueInfoProto& value : *list) values.push_back(&value);
    for (const onnx::ValueInfoProto& input : graph.input()) names.push_back(input.name());
    add(*graph.mutable_node());
  }
  void add(Nodes& nodes) {
    if (!nodes.empty()) lists.push_back(&nodes);
    for (onnx::NodeProto& node : nodes) {
      names.insert(names.end(), node.output().begin(), node.output().end());
      for (onnx::AttributeProto& attribute : *node.mutable_attribute()) {
        if (attribute.has_g()) add(*attribute.mutable_g());
        if (attribute.has_t()) tensors.push_back(attribute.mutable_t());
      }
    }
  }
};

namespace {

template <typename List>
auto& pick(List& list, Random& random) {
  return list[static_cast<int>(random.below(static_cast<uint64_t>(list.size())))];
}

template <typename List>
void remove(List& list, Random& random) {
  if (list.empty()) return;
  list.DeleteSubrange(static_cast<int>(random.below(static_cast<uint64_t>(list.size()))), 1);
}

// Mostly a size, axis or count that could be meant; else one at which code tends to overflow or to run out of memory.
int64_t number(Random& random, int64_t near) {
  switch (random.below(6)) {
    case 0:
      return static_cast<int64_t>(random.below(8)) - 3;
    case 1:
      return near + static_cast<int64_t>(random.below(5)) - 2;
    case 2:
      return static_cast<int64_t>(interesting(random, static_cast<uint64_t>(near)));
    case 3:
      return int64_t{1} << random.below(63);
    case 4:
      return -(int64_t{1} << random.below(63));
    default:
      return static_cast<int64_t>(random.below(100));
  }
}

double real(Random& random, double near) {
  constexpr double kValues[] = {0,
                                -0.0,
                                1,
                                -1,
                                0.5,
                                2,
                                1e-9,
                                1e9,
                                1e38,
                                -1e38,
                                1e300,
                                std::numeric_limits<double>::infinity(),
                                std::numeric_limits<double>::quiet_NaN()};
  return random.oneIn(3) ? near * (random.oneIn(2) ? 1.5 : -1e6) : kValues[random.below(std::size(kValues))];
}

size_t widthOf(int type) {
  switch (type) {
    case Type::DOUBLE:
    case Type::INT64:
    case Type::UINT64:
    case Type::COMPLEX64:
      return 8;
    case Type::FLOAT:
    case Type::INT32:
    case Type::UINT32:
      return 4;
    case Type::FLOAT16:
    case Type::BFLOAT16:
    case Type::INT16:
    case Type::UINT16:
      return 2;
    default:
      return 1;
  }
}

int elementType(Random& random) {
  constexpr int kUsual[] = {Type::FLOAT,   Type::INT64, Type::BOOL, Type::INT32,   Type::DOUBLE,
                            Type::FLOAT16, Type::UINT8, Type::INT8, Type::BFLOAT16};
  return random.oneIn(6) ? static_cast<int>(random.below(30)) : kUsual[random.below(std::size(kUsual))];
}

void changeElement(onnx::TensorProto& tensor, Random& random) {
  if (tensor.int64_data_size()) {
    int64_t& value = *tensor.mutable_int64_data()->Mutable(
        static_cast<int>(random.below(static_cast<uint64_t>(tensor.int64_data_size()))));
    value = number(random, value);
  } else if (tensor.int32_data_size()) {
    int32_t& value = *tensor.mutable_int32_data()->Mutable(
        static_cast<int>(random.below(static_cast<uint64_t>(tensor.int32_data_size()))));
    value = static_cast<int32_t>(number(random, value));
  } else if (tensor.float_data_size()) {
    float& value = *tensor.mutable_float_data()->Mutable(
        static_cast<int>(random.below(static_cast<uint64_t>(tensor.float_data_size()))));
    value = static_cast<float>(real(random, value));
  } else if (const size_t width = widthOf(tensor.data_type()); tensor.raw_data().size() >= width) {
    std::string& bytes = *tensor.mutable_raw_data();
    char* at = bytes.data() + width * random.below(bytes.size() / width);
    if (tensor.data_type() == Type::FLOAT) {
      float value;
      std::memcpy(&value, at, 4);
      value = static_cast<float>(real(random, value));
      std::memcpy(at, &value, 4);
    } else {
      int64_t value = 0;
      std::memcpy(&value, at, width);
      value = number(random, value);
      std::memcpy(at, &value, width);
    }
  }
}

// Gives a tensor as many bytes as its shape takes, if these are few.
void fit(onnx::TensorProto& tensor) {
  uint64_t bytes = widthOf(tensor.data_type());
  for (int64_t dim : tensor.dims()) {
    if (dim < 0 || dim > (1 << 16) || (bytes *= static_cast<uint64_t>(dim)) > (1 << 16)) return;
  }
  std::string data = tensor.raw_data();
  data.resize(bytes, '\1');
  for (auto clear : {&Type::clear_float_data, &Type::clear_int32_data, &Type::clear_int64_data,
                     &Type::clear_double_data, &Type::clear_external_data, &Type::clear_data_location})
    (tensor.*clear)();
  tensor.set_raw_data(data);
}

void changeTensor(onnx::TensorProto& tensor, Random& random) {
  switch (random.below(8)) {
    case 0:
      tensor.set_data_type(elementType(random));
      break;
    case 1:
      if (tensor.dims_size())
        tensor.set_dims(static_cast<int>(random.below(static_cast<uint64_t>(tensor.dims_size()))), number(random, 3));
      break;
    case 2:
      tensor.add_dims(number(random, 1));
      break;
    case 3:
      if (tensor.dims_size()) tensor.mutable_dims()->RemoveLast();
      break;
    case 4: {  // weights of any size in a file that does not exist
      tensor.clear_raw_data();
      tensor.clear_external_data();
      onnx::StringStringEntryProto& place = *tensor.add_external_data();
      place.set_key(random.oneIn(8) ? "offset" : "location");
      place.set_value("weights.bin");
      tensor.set_data_location(Type::EXTERNAL);
      if (tensor.dims_size()) tensor.set_dims(0, number(random, tensor.dims(0)));
      return;
    }
    default:
      return changeElement(tensor, random);
  }
  if (!random.oneIn(4)) fit(tensor);
}

void changeValueInfo(onnx::ValueInfoProto& value, Random& random) {
  if (!value.type().has_tensor_type() || random.oneIn(20)) {
    if (random.oneIn(2))
      value.mutable_type()->mutable_sequence_type()->mutable_elem_type()->mutable_tensor_type();
    else
      value.mutable_type()->mutable_tensor_type();
    return;
  }
  auto& tensor = *value.mutable_type()->mutable_tensor_type();
  auto& dims = *tensor.mutable_shape()->mutable_dim();
  switch (random.below(6)) {
    case 0:
      tensor.set_elem_type(elementType(random));
      break;
    case 1:
      dims.Add()->set_dim_value(number(random, 1));
      break;
    case 2:
      remove(dims, random);
      break;
    case 3:
      if (!dims.empty()) pick(dims, random).set_dim_param(random.oneIn(2) ? "N" : random.oneIn(2) ? "" : "M");
      break;
    case 4:
      if (random.oneIn(4)) tensor.clear_shape();
      break;
    default:
      if (!dims.empty()) pick(dims, random).set_dim_value(number(random, 4));
  }
}

}  // namespace

ModelMutator::ModelMutator(const std::vector<const onnx::ModelProto*>& donors) {
  auto take = [&](auto& self, const Nodes& nodes) -> void {
    for (const onnx::NodeProto& node : nodes) {
      nodes_.push_back(&node);
      for (const onnx::AttributeProto& attribute : node.attribute()) {
        attributes_.push_back(&attribute);
        ofOperator_[node.op_type()].push_back(&attribute);
        if (attribute.type() == onnx::AttributeProto::STRING) {
          auto& words = words_[attribute.name()];
          if (std::find(words.begin(), words.end(), attribute.s()) == words.end()) words.push_back(attribute.s());
        }
        if (!attribute.has_g()) continue;
        graphs_.push_back(&attribute);
        self(self, attribute.g().node());
      }
    }
  };
  for (const onnx::ModelProto* donor : donors) {
    take(take, donor->graph().node());
    for (const onnx::FunctionProto& function : donor->functions()) take(take, function.node());
  }
}

void ModelMutator::changeValue(onnx::AttributeProto& attribute, const Parts& parts, Random& random) const {
  switch (attribute.type()) {
    case onnx::AttributeProto::INT:
      attribute.set_i(number(random, attribute.i()));
      break;
    case onnx::AttributeProto::INTS:
      if (attribute.ints().empty() || random.oneIn(6))
        attribute.add_ints(number(random, 1));
      else if (random.oneIn(6))
        attribute.mutable_ints()->RemoveLast();
      else
        for (uint64_t round = 1 + random.below(3); round > 0; --round) {
          int64_t& value = *attribute.mutable_ints()->Mutable(
              static_cast<int>(random.below(static_cast<uint64_t>(attribute.ints_size()))));
          value = number(random, value);
        }
      break;
    case onnx::AttributeProto::FLOAT:
      attribute.set_f(static_cast<float>(real(random, attribute.f())));
      break;
    case onnx::AttributeProto::FLOATS:
      if (attribute.floats().empty() || random.oneIn(4))
        attribute.add_floats(static_cast<float>(real(random, 1)));
      else
        attribute.set_floats(static_cast<int>(random.below(static_cast<uint64_t>(attribute.floats_size()))),
                             static_cast<float>(real(random, attribute.floats(0))));
      break;
    case onnx::AttributeProto::STRING: {
      if (random.oneIn(4)) return attribute.set_s(mutateText(attribute.s(), random));
      auto words = words_.find(attribute.name());
      attribute.set_s(words == words_.end() ? "" : pick(words->second, random));
      break;
    }
    case onnx::AttributeProto::STRINGS:
      if (attribute.strings().empty() || random.oneIn(4))
        attribute.add_strings("Relu");
      else
        pick(*attribute.mutable_strings(), random) = random.oneIn(2) ? "Affine" : pick(attribute.strings(), random);
      break;
    case onnx::AttributeProto::TENSOR:
      changeTensor(*attribute.mutable_t(), random);
      break;
    case onnx::AttributeProto::GRAPH:
      if (!graphs_.empty() && random.oneIn(3))
        *attribute.mutable_g() = pick(graphs_, random)->g();
      else
        changeGraph(*attribute.mutable_g(), parts, random);
      break;
    default:
      attribute.set_type(onnx::AttributeProto::INT);
  }
}

void ModelMutator::changeAttribute(onnx::NodeProto& node, const Parts& parts, Random& random) const {
  if (node.attribute().empty() || random.oneIn(8)) {
    // One that the operator takes, if another node shows which it takes.
    auto known = ofOperator_.find(node.op_type());
    const auto& from = known == ofOperator_.end() || random.oneIn(8) ? attributes_ : known->second;
    if (!from.empty()) *node.add_attribute() = *pick(from, random);
  }
  if (node.attribute().empty()) return;
  onnx::AttributeProto& attribute = pick(*node.mutable_attribute(), random);
  switch (random.below(16)) {
    case 0:
      return remove(*node.mutable_attribute(), random);
    case 1:
      return attribute.set_type(static_cast<onnx::AttributeProto::AttributeType>(random.below(15)));
    case 2:
      return attribute.set_ref_attr_name(random.oneIn(2) ? attribute.name() : "a");
    default:
      changeValue(attribute, parts, random);
  }
}

void ModelMutator::changeGraph(onnx::GraphProto& graph, const Parts& parts, Random& random) const {
  auto named = [&](onnx::ValueInfoProto& value) {
    value.set_name(parts.names.empty() ? "x" : pick(parts.names, random));
  };
  switch (random.below(6)) {
    case 0:
      return remove(*graph.mutable_input(), random);
    case 1:
      return remove(*graph.mutable_output(), random);
    case 2:
      return named(*graph.add_input());
    case 3:
      return named(*graph.add_output());
    case 4:
      if (!graph.output().empty()) named(pick(*graph.mutable_output(), random));
      return;
    default:
      remove(*graph.mutable_initializer(), random);
  }
}

void ModelMutator::changeNodes(Nodes& nodes, const Parts& parts, Random& random) const {
  const int at = static_cast<int>(random.below(static_cast<uint64_t>(nodes.size())));
  switch (random.below(6)) {
    case 0:
      nodes.DeleteSubrange(at, 1);
      return;
    case 1:
      nodes.SwapElements(at, static_cast<int>(random.below(static_cast<uint64_t>(nodes.size()))));
      return;
    case 2:
      if (nodes_.empty()) return;
      nodes[at].set_op_type(pick(nodes_, random)->op_type());
      return;
    default:
      break;
  }
  // Another operator in front of a node's input, which takes values of this model.
  if (nodes_.empty() || nodes[at].input().empty()) return;
  onnx::NodeProto node = *pick(nodes_, random);
  for (std::string& input : *node.mutable_input()) input = pick(parts.names, random);
  std::string& replaced = pick(*nodes[at].mutable_input(), random);
  if (node.input_size()) node.set_input(0, replaced);
  const std::string result = "fuzz." + std::to_string(random.below(1000000));
  for (int i = 0; i < node.output_size(); ++i) node.set_output(i, i ? result + "." + std::to_string(i) : result);
  replaced = result;
  *nodes.Add() = std::move(node);
  for (int i = nodes.size() - 1; i > at; --i) nodes.SwapElements(i, i - 1);
}

// Opsets, functions, training algorithms.
void ModelMutator::changeModel(onnx::ModelProto& model, Parts& parts, Random& random) const {
  Nodes& nodes = *pick(parts.lists, random);
  onnx::NodeProto& node = pick(nodes, random);
  switch (random.below(4)) {
    case 0:
      if (!model.opset_import().empty())
        pick(*model.mutable_opset_import(), random)
            .set_version(random.oneIn(4) ? number(random, 20) : static_cast<int64_t>(7 + random.below(22)));
      return;
    case 1: {  // the node as a function
      onnx::FunctionProto& function = *model.add_functions();
      function.set_name(random.oneIn(8) ? "If" : "Fuzz" + std::to_string(model.functions_size()));
      function.set_domain("fuzz");
      *function.mutable_input() = node.input();
      *function.mutable_output() = node.output();
      *function.mutable_opset_import() = model.opset_import();
      *function.add_node() = node;
      for (onnx::AttributeProto& attribute : *function.mutable_node(0)->mutable_attribute()) {
        if (!random.oneIn(2)) continue;
        *function.add_attribute() = attribute.name();
        attribute.set_ref_attr_name(attribute.name());
      }
      node.set_op_type(function.name());
      node.set_domain("fuzz");
      if (random.oneIn(8)) *function.add_node() = node;
      return;
    }
    case 2:
      if (model.training_info_size()) {
        onnx::TrainingInfoProto& info = pick(*model.mutable_training_info(), random);
        auto& bindings = random.oneIn(3) ? *info.mutable_initialization_binding() : *info.mutable_update_binding();
        if (bindings.empty() || random.oneIn(4)) bindings.Add();
        onnx::StringStringEntryProto& binding = pick(bindings, random);
        (random.oneIn(2) ? binding.mutable_key() : binding.mutable_value())->assign(pick(parts.names, random));
      } else if (model.functions_size()) {
        onnx::FunctionProto& function = pick(*model.mutable_functions(), random);
        if (function.input_size() && random.oneIn(2))
          remove(*function.mutable_input(), random);
        else if (function.output_size())
          pick(*function.mutable_output(), random) = pick(parts.names, random);
      }
      return;
    default:
      node.set_domain(random.oneIn(2) ? "com.microsoft" : "ai.onnx.preview.training");
  }
}

void ModelMutator::mutateOnce(onnx::ModelProto& model, Parts& parts, Random& random) const {
  if (parts.lists.empty() || parts.names.empty()) return;
  // A list first: subgraphs and functions are short. Nodes with attributes are tried more often.
  Nodes& nodes = *pick(parts.lists, random);
  onnx::NodeProto *any = &pick(nodes, random), *other = &pick(nodes, random);
  onnx::NodeProto& node = other->attribute_size() > any->attribute_size() ? *other : *any;
  switch (random.below(16)) {
    case 0:
    case 1:
    case 2:
    case 3:
    case 4:
      return changeAttribute(node, parts, random);
    case 5:
    case 6:
      if (node.input_size() && !random.oneIn(6))
        pick(*node.mutable_input(), random) = random.oneIn(5) ? "" : pick(parts.names, random);
      else if (random.oneIn(2))
        node.add_input(pick(parts.names, random));
      else
        remove(*node.mutable_input(), random);
      return;
    case 7:
      if (node.output_size() && random.oneIn(3))
        pick(*node.mutable_output(), random) = random.oneIn(3) ? "" : pick(parts.names, random);
      else if (random.oneIn(3))
        remove(*node.mutable_output(), random);
      else
        node.add_output("fuzz.more");
      return;
    case 8:
    case 9:
    case 10:
      if (!parts.tensors.empty()) changeTensor(*pick(parts.tensors, random), random);
      return;
    case 11:
      if (!parts.values.empty()) changeValueInfo(*pick(parts.values, random), random);
      return;
    case 12:
      return changeGraph(*pick(parts.graphs, random), parts, random);
    case 13:
      return changeModel(model, parts, random);
    default:
      changeNodes(nodes, parts, random);
  }
}

void ModelMutator::mutate(onnx::ModelProto& model, Random& random) const {
  do {
    Parts parts(model);
    mutateOnce(model, parts, random);
  } while (random.oneIn(2));
}

}  // namespace sheaf::fuzz
