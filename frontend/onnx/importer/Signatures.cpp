// Compares nodes with the signatures of their operators: OpSchema::Verify of onnx/defs/schema.cc does the same.
#include "frontend/onnx/importer/Signatures.h"

#include "frontend/onnx/importer/Importer.h"

using namespace mlir;

namespace sheaf::frontend {
namespace {

using onnx::AttributeProto;
using Type = AttributeProto::AttributeType;

constexpr int64_t kMany = Signature::kMany;
constexpr Signature kSignatures[] = {
#include "frontend/onnx/schema/Signatures.inc"
};

// The types by their letters in Signatures.inc.
constexpr std::pair<char, Type> kTypes[] = {
    {'f', AttributeProto::FLOAT},      {'F', AttributeProto::FLOATS},        {'i', AttributeProto::INT},
    {'I', AttributeProto::INTS},       {'s', AttributeProto::STRING},        {'S', AttributeProto::STRINGS},
    {'t', AttributeProto::TENSOR},     {'T', AttributeProto::TENSORS},       {'g', AttributeProto::GRAPH},
    {'G', AttributeProto::GRAPHS},     {'p', AttributeProto::SPARSE_TENSOR}, {'P', AttributeProto::SPARSE_TENSORS},
    {'y', AttributeProto::TYPE_PROTO}, {'Y', AttributeProto::TYPE_PROTOS},
};

// True if the field of this type is present.
bool holds(const AttributeProto& attribute, Type type) {
  switch (type) {
    case AttributeProto::FLOAT:
      return attribute.has_f();
    case AttributeProto::INT:
      return attribute.has_i();
    case AttributeProto::STRING:
      return attribute.has_s();
    case AttributeProto::TENSOR:
      return attribute.has_t();
    case AttributeProto::GRAPH:
      return attribute.has_g();
    case AttributeProto::SPARSE_TENSOR:
      return attribute.has_sparse_tensor();
    case AttributeProto::TYPE_PROTO:
      return attribute.has_tp();
    case AttributeProto::FLOATS:
      return attribute.floats_size();
    case AttributeProto::INTS:
      return attribute.ints_size();
    case AttributeProto::STRINGS:
      return attribute.strings_size();
    case AttributeProto::TENSORS:
      return attribute.tensors_size();
    case AttributeProto::GRAPHS:
      return attribute.graphs_size();
    case AttributeProto::SPARSE_TENSORS:
      return attribute.sparse_tensors_size();
    case AttributeProto::TYPE_PROTOS:
      return attribute.type_protos_size();
    case AttributeProto::UNDEFINED:
      break;
  }
  return false;
}

// The default of a number or a string, and an empty list, may be written without their field.
bool mayBeAbsent(Type type) {
  return type != AttributeProto::TENSOR && type != AttributeProto::GRAPH && type != AttributeProto::SPARSE_TENSOR &&
         type != AttributeProto::TYPE_PROTO;
}

// The type of the attribute's value; UNDEFINED if it has none. Files of IR version 1 do not declare it. If a file
// declares one type and holds another, a handler would read the declared one, which is 0.
Type typeOf(const AttributeProto& attribute) {
  const Type declared = attribute.type();
  if (declared != AttributeProto::UNDEFINED && holds(attribute, declared)) return declared;
  for (auto [letter, type] : kTypes)
    if (holds(attribute, type)) return type;
  return mayBeAbsent(declared) ? declared : AttributeProto::UNDEFINED;
}

// "an INT", "INTS", "empty"
std::string words(Type type) {
  if (type == AttributeProto::UNDEFINED) return "empty";
  const std::string& name = AttributeProto::AttributeType_Name(type);
  return (name.back() == 'S' ? "" : name.front() == 'I' ? "an " : "a ") + name;
}

// "1", "1 to 3", "at least 2"
std::string range(int64_t min, int64_t max) {
  if (max == kMany) return "at least " + std::to_string(min);
  return std::to_string(min) + (min == max ? "" : " to " + std::to_string(max));
}

// The definition of the same operator at another opset for which `test` holds: the newest of the earlier ones, else the
// first of the later ones; null if there is none.
const Signature* other(const Signature& signature, llvm::function_ref<bool(const Signature&)> test) {
  const Signature* found = nullptr;
  for (const Signature& s : kSignatures)
    if (s.domain == signature.domain && s.name == signature.name && test(s) && (!found || s.since < signature.since))
      found = &s;
  return found;
}

constexpr StringRef kRemedy = ": change the node, or the opset that the model imports";

LogicalResult checkAttributes(const Node& node, const Signature& signature) {
  const std::vector<AttributeSignature> known = signature.attributeList();
  auto find = [](const std::vector<AttributeSignature>& list, StringRef name) {
    return llvm::find_if(list, [&](const AttributeSignature& a) { return a.name == name; });
  };
  llvm::StringSet<> names;
  for (const AttributeProto& given : node.proto.attribute()) {
    const StringRef name = given.name();
    if (!names.insert(name).second) return node.error() << "has the attribute " << name << " twice; remove one of them";
    auto expected = find(known, name);
    if (expected == known.end()) {
      // A tool may leave notes of its own.
      if (name.starts_with("__") || signature.takesOtherAttributes()) continue;
      auto diagnostic = node.error() << "has no attribute " << name << " at opset " << node.opset;
      if (known.empty()) {
        diagnostic << " (it has no attributes there)";
      } else {
        diagnostic << " (its attributes are: ";
        llvm::interleaveComma(known, diagnostic, [&](const AttributeSignature& a) { diagnostic << a.name; });
        diagnostic << ")";
      }
      auto hasIt = [&](const Signature& s) {
        auto list = s.attributeList();
        return find(list, name) != list.end();
      };
      if (const Signature* has = other(signature, hasIt))
        return diagnostic << "; at opset " << has->since << " it has it" << kRemedy;
      return diagnostic << "; remove it, or correct its name";
    }
    const AttributeProto* attribute = node.attribute(name);
    if (!attribute) continue;  // a parameter of the function that the caller has not given
    if (Type type = typeOf(*attribute); type != expected->type)
      return node.error() << "the attribute " << name << " is " << words(type) << "; it takes "
                          << words(expected->type);
  }
  for (const AttributeSignature& a : known)
    if (a.required && !node.has(a.name))
      return node.error() << "the attribute " << a.name << " is missing; it takes " << words(a.type);
  return success();
}

LogicalResult checkCount(const Node& node, const Signature& signature, int64_t count, StringRef what, StringRef takes,
                         int64_t Signature::*min, int64_t Signature::*max) {
  auto fits = [&](const Signature& s) { return s.*min <= count && count <= s.*max; };
  if (fits(signature)) return success();
  auto diagnostic = node.error() << "has " << count << " " << what << (count == 1 ? "" : "s") << "; at opset "
                                 << node.opset << " it " << takes << " " << range(signature.*min, signature.*max);
  if (const Signature* s = other(signature, fits))
    diagnostic << ", at opset " << s->since << " " << range(s->*min, s->*max) << kRemedy;
  return diagnostic;
}

}  // namespace

std::vector<AttributeSignature> Signature::attributeList() const {
  std::vector<AttributeSignature> list;
  for (auto [first, rest] = attributes.split(' '); !first.empty(); std::tie(first, rest) = rest.split(' ')) {
    if (first == "...") break;
    auto [attribute, type] = first.split(':');
    list.push_back({attribute, llvm::find_if(kTypes, [&](auto& t) { return t.first == type.front(); })->second,
                    type.ends_with("!")});
  }
  return list;
}

ArrayRef<Signature> signatures() {
  return kSignatures;
}

const Signature* findSignature(StringRef domain, StringRef name, int64_t opset) {
  const std::tuple key(isDefaultDomain(domain) ? StringRef() : domain, name, opset);
  const Signature* after = llvm::upper_bound(kSignatures, key, [](const auto& key, const Signature& s) {
    return key < std::tuple(s.domain, s.name, s.since);
  });
  if (after == std::begin(kSignatures)) return nullptr;
  const Signature& found = *std::prev(after);
  return found.domain == std::get<0>(key) && found.name == name ? &found : nullptr;
}

LogicalResult checkSignature(const Node& node) {
  const Signature* signature = findSignature(node.proto.domain(), node.proto.op_type(), node.opset);
  if (!signature) return success();
  if (failed(checkAttributes(node, *signature)) || failed(checkCount(node, *signature, node.inputs(), "input", "takes",
                                                                     &Signature::minInputs, &Signature::maxInputs)))
    return failure();
  return checkCount(node, *signature, node.outputs(), "output", "has", &Signature::minOutputs, &Signature::maxOutputs);
}

}  // namespace sheaf::frontend
