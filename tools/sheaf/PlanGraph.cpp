#include "tools/sheaf/PlanGraph.h"

#include <set>

#include "ir/Train/TrainDialect.h"
#include "ir/Zero/ZeroDialect.h"
#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/Compression.h"
#include "llvm/Support/raw_ostream.h"
#include "passes/StepModule.h"
#include "passes/plan/Lowering.h"

namespace sheaf::tool {
namespace {

using namespace mlir;

enum Pass { kForward, kBackward, kUpdate };

bool isUpdate(Operation* op) {
  return isa<train::UpdateOp, zero::UpdateOp, zero::GatherUpdatedOp, zero::SquareSumOp, zero::GradientNormOp>(op);
}

// Whether the forward pass ends with an op. Of several micro-batches the sum of losses stands in the loss's place.
bool isLoss(Operation* op) {
  auto sum = dyn_cast<zero::AccumulateOp>(op);
  return isa<train::LossOp>(op) || (sum && sum.getSum() == "loss");
}

// "64x128xf32"; of several results the first.
std::string typeText(Operation* op) {
  auto type = op->getNumResults() ? dyn_cast<RankedTensorType>(op->getResult(0).getType()) : RankedTensorType();
  std::string text;
  llvm::raw_string_ostream stream(text);
  if (!type) return text;
  for (int64_t size : type.getShape()) stream << size << "x";
  stream << type.getElementType();
  return text;
}

// What an op is called: its bucket, its parameter, or the node that it comes from.
std::string labelOf(Operation* op, ModuleOp module) {
  if (auto view = dyn_cast<zero::ViewOp>(op)) {
    Operation* source = view.getBucket().getDefiningOp();
    auto name = source ? source->getAttrOfType<FlatSymbolRefAttr>("bucket") : FlatSymbolRefAttr();
    auto bucket = name ? module.lookupSymbol<zero::BucketOp>(name.getValue()) : zero::BucketOp();
    if (bucket)
      for (auto [parameter, offset] : llvm::zip(bucket.getParameters(), bucket.getOffsets()))
        if (offset == static_cast<int64_t>(view.getOffset()))
          return cast<FlatSymbolRefAttr>(parameter).getValue().str();
  }
  if (auto release = dyn_cast<zero::ReleaseOp>(op))
    if (Operation* gather = release.getGathered().getDefiningOp()) return labelOf(gather, module);
  for (const char* name : {"bucket", "parameter"})
    if (auto symbol = op->getAttrOfType<FlatSymbolRefAttr>(name)) return symbol.getValue().str();
  return plan_ir::labelOf(op->getLoc());
}

}  // namespace

int64_t PlanGraph::text(const std::string& text) {
  auto [at, fresh] = textIndices_.try_emplace(text, static_cast<int64_t>(texts_.size()));
  if (fresh) texts_.push_back(text);
  return at->second;
}

int64_t PlanGraph::scope(const std::string& path) {
  auto [at, fresh] = scopeIndices_.try_emplace(path, static_cast<int64_t>(scopePaths_.size()));
  if (fresh) scopePaths_.push_back(path);
  return at->second;
}

std::string PlanGraph::scopeOf(const std::string& label) const {
  const auto found = scopes_.find(label);
  return found == scopes_.end() ? "" : found->second;
}

void PlanGraph::add(ModuleOp module, const std::string& name) {
  func::FuncOp step = zero::stepOf(module);
  std::vector<Operation*> ops;
  llvm::DenseMap<Operation*, size_t> indexOf;
  for (Operation& op : step.getBody().front())
    if (!isa<train::ConstantOp, func::ReturnOp>(op)) indexOf[&op] = ops.size(), ops.push_back(&op);

  // Labels and modules. What no node says is of the module of its neighbours: a gather of the op that first reads it, a
  // release of the one before, a reduction of the last gradient.
  std::vector<std::string> labels, scopes;
  for (Operation* op : ops) {
    labels.push_back(labelOf(op, module));
    const std::string& label = labels.back();
    std::string scope = scopeOf(label);
    if (isa<train::ReadOp, train::UpdateOp, zero::ViewOp>(op))
      if (const size_t dot = label.rfind('.'); dot != std::string::npos) scope = label.substr(0, dot);
    scopes.push_back(std::move(scope));
  }
  for (size_t i = 0; i < ops.size(); ++i) {
    if (!scopes[i].empty() || !ops[i]->getDialect() || ops[i]->getDialect()->getNamespace() != "zero") continue;
    if (isa<zero::ReleaseOp>(ops[i])) {
      if (i > 0) scopes[i] = scopes[i - 1];
      continue;
    }
    for (Value operand : ops[i]->getOperands())
      if (Operation* source = operand.getDefiningOp();
          source && indexOf.contains(source) && !scopes[indexOf[source]].empty())
        scopes[i] = scopes[indexOf[source]];
    for (size_t next = i + 1; scopes[i].empty() && next < ops.size() && next < i + 64; ++next) scopes[i] = scopes[next];
  }

  std::vector<int64_t> op, label, scopeIndex, pass, type, inStart, in;
  bool backward = false;
  for (size_t i = 0; i < ops.size(); ++i) {
    op.push_back(text(ops[i]->getName().getStringRef().str()));
    label.push_back(text(labels[i]));
    scopeIndex.push_back(scope(scopes[i]));
    pass.push_back(isUpdate(ops[i]) ? kUpdate : backward ? kBackward : kForward);
    type.push_back(text(typeText(ops[i])));
    inStart.push_back(static_cast<int64_t>(in.size()));
    std::set<size_t> inputs;
    for (Value operand : ops[i]->getOperands())
      if (Operation* source = operand.getDefiningOp(); source && indexOf.contains(source))
        inputs.insert(indexOf[source]);
    for (size_t input : inputs) in.push_back(static_cast<int64_t>(input));
    backward |= isLoss(ops[i]);
  }
  inStart.push_back(static_cast<int64_t>(in.size()));
  auto column = [](const std::vector<int64_t>& numbers) { return json::Array(numbers.begin(), numbers.end()); };
  graphs_.push_back(json::Object{{"name", name},
                                 {"op", column(op)},
                                 {"label", column(label)},
                                 {"scope", column(scopeIndex)},
                                 {"pass", column(pass)},
                                 {"type", column(type)},
                                 {"inStart", column(inStart)},
                                 {"in", column(in)}});
}

Expected<std::string> PlanGraph::bytes() const {
  if (!llvm::compression::zlib::isAvailable())
    return Status::error("LLVM was built without zlib, which packs the plan's graph; use --no-graph");
  const std::string text =
      json::write(json::Object{{"version", 1}, {"texts", texts_}, {"scopes", scopePaths_}, {"graphs", graphs_}});
  llvm::SmallVector<uint8_t> packed;
  llvm::compression::zlib::compress(llvm::arrayRefFromStringRef(text), packed,
                                    llvm::compression::zlib::BestSizeCompression);
  return std::string(packed.begin(), packed.end());
}

}  // namespace sheaf::tool
