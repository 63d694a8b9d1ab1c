#include "frontend/onnx/ops/Registry.h"

#include "frontend/onnx/importer/Importer.h"

using namespace mlir;

namespace sheaf::frontend {
namespace {

constexpr llvm::ArrayRef<Operator> (*kTables[])() = {
    constantOperators, elementwiseOperators,   shapeOperators,     indexingOperators,  reductionOperators,
    productOperators,  normalizationOperators, lossOperators,      attentionOperators, controlOperators,
    sequenceOperators, einsumOperators,        recurrentOperators, resizeOperators,    imageOperators,
    signalOperators,   reorderOperators,       selectionOperators, randomOperators,    transposedOperators,
    modeOperators,     optimizerOperators,     microsoftOperators,
};

// ONNX's operators that have no handler, and why.
struct Unsupported {
  StringRef name;
  int64_t since;
  StringRef why;
};
constexpr StringRef kQuantized = "quantized arithmetic: it is for models that have been trained";
constexpr StringRef kStrings = "strings and files";
constexpr StringRef kPlaces = "windows whose places are data";
constexpr StringRef kRandom = "random numbers without an input, whose rows the ranks could share";
constexpr Unsupported kUnsupported[] = {
    {"BitCast", 26, "bits as another type"},
    {"ConvInteger", 10, kQuantized},
    {"DeformConv", 19, kPlaces},
    {"DequantizeLinear", 10, kQuantized},
    {"Det", 11, "a determinant"},
    {"DynamicQuantizeLinear", 11, kQuantized},
    {"ImageDecoder", 20, kStrings},
    {"LinearAttention", 27, "a linear attention"},
    {"MatMulInteger", 10, kQuantized},
    {"MaxRoiPool", 1, kPlaces},
    {"NonMaxSuppression", 10, "results whose number depends on data"},
    {"QLinearConv", 10, kQuantized},
    {"QLinearMatMul", 10, kQuantized},
    {"QuantizeLinear", 10, kQuantized},
    {"RandomNormal", 1, kRandom},
    {"RandomUniform", 1, kRandom},
    {"RegexFullMatch", 20, kStrings},
    {"RoiAlign", 10, kPlaces},
    {"StringConcat", 20, kStrings},
    {"StringNormalizer", 10, kStrings},
    {"StringSplit", 20, kStrings},
    {"TfIdfVectorizer", 9, kStrings},
};

// Of ONNX's own domain: how many cases the node tests have.
struct NodeTests {
  StringRef name;
  int64_t cases;
};
constexpr NodeTests kNodeTests[] = {
#include "frontend/onnx/survey/NodeTests.inc"
};

int64_t nodeTestsOf(StringRef domain, StringRef name) {
  if (!isDefaultDomain(domain)) return 0;
  for (const NodeTests& tests : kNodeTests)
    if (tests.name == name) return tests.cases;
  return 0;
}

NodeTestsLeftOut leftOut(const CasesLeftOut& cases) {
  return {cases.cases.str(), cases.why.str()};
}

// As many f32 [2, 3] as the operator requires, unless its row says otherwise.
std::string sampleOf(const Operator& op) {
  if (!op.facts.sample.empty() || !op.facts.lowering.empty()) return op.facts.sample.str();
  std::string sample;
  for (int64_t i = 0; i < op.required; ++i) sample += i ? ", f[2,3]" : "f[2,3]";
  return sample;
}

}  // namespace

const Operator* findOperator(StringRef domain, StringRef name, int64_t opset, const Operator*& other) {
  static const auto* byName = [] {
    auto* map = new llvm::StringMap<SmallVector<const Operator*, 1>>;
    for (auto table : kTables)
      for (const Operator& op : table()) (*map)[op.name].push_back(&op);
    return map;
  }();
  auto it = byName->find(name);
  if (it == byName->end()) return nullptr;
  for (const Operator* op : it->second) {
    if (op->facts.domain != (isDefaultDomain(domain) ? StringRef() : domain)) continue;
    if (op->since <= opset && (op->last == 0 || opset <= op->last)) return op;
    other = op;
  }
  return nullptr;
}

StringRef whyUnsupported(StringRef domain, StringRef name) {
  if (!isDefaultDomain(domain)) return {};
  const auto* row = llvm::find_if(kUnsupported, [&](const Unsupported& op) { return op.name == name; });
  return row == std::end(kUnsupported) ? StringRef() : row->why;
}

std::vector<RegisteredOperator> registeredOperators() {
  std::vector<RegisteredOperator> result;
  for (auto table : kTables)
    for (const Operator& op : table())
      result.push_back({.domain = op.facts.domain.empty() ? "ai.onnx" : op.facts.domain.str(),
                        .name = op.name.str(),
                        .since = op.since,
                        .last = op.last,
                        .sample = sampleOf(op),
                        .lowering = op.facts.lowering.str(),
                        .limits = op.facts.limits.str(),
                        .nodeTests = nodeTestsOf(op.facts.domain, op.name),
                        .leftOut = leftOut(op.facts.leftOut),
                        .leftOutOfPlans = leftOut(op.facts.leftOutOfPlans),
                        .noGradient = leftOut(op.facts.noGradient)});
  for (const Unsupported& op : kUnsupported)
    result.push_back({.domain = "ai.onnx",
                      .name = op.name.str(),
                      .since = op.since,
                      .unsupported = op.why.str(),
                      .nodeTests = nodeTestsOf("", op.name)});
  llvm::sort(result, [](auto& a, auto& b) {
    return std::tie(a.domain, a.name, a.since) < std::tie(b.domain, b.name, b.since);
  });
  return result;
}

}  // namespace sheaf::frontend
