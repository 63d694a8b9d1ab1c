// Records what decides bits, as hashes of the program of one leaf.
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/DialectResourceBlobManager.h"
#include "passes/StepModule.h"
#include "passes/train/Passes.h"
#include "runtime/base/Hash.h"
#include "runtime/base/Text.h"

namespace sheaf::train {
#define GEN_PASS_DEF_RECORDORIGIN
#include "passes/train/Passes.h.inc"
}  // namespace sheaf::train

using namespace mlir;
using namespace sheaf;
using namespace sheaf::train;

namespace {

// The text of ops that is hashed: what they are and what they use, by the number of its definition.
class Program {
 public:
  std::string text;

  void define(Value value) {
    numbers.try_emplace(value, int64_t(numbers.size()));
    print(value.getType());
  }

  void add(Operation* op) {
    text += cat('\n', op->getName().getStringRef().str(), '(');
    for (Value operand : op->getOperands()) text += cat(numbers.lookup(operand), ' ');
    text += ')';
    // Where the initial bytes of a parameter lie does not matter; what they are is in the plan's tables.
    const bool parameter = isa<ParameterOp>(op);
    for (NamedAttribute attribute : op->getAttrDictionary()) {
      const StringRef name = attribute.getName().strref();
      if (parameter && (name == "source" || name == "value")) continue;
      text += cat('\n', name.str(), '=');
      add(attribute.getValue());
    }
    for (Value result : op->getResults()) define(result);
    for (Region& region : op->getRegions())
      for (Block& block : region) {
        text += '{';
        for (BlockArgument argument : block.getArguments()) define(argument);
        for (Operation& inner : block) add(&inner);
        text += '}';
      }
  }

  // The bytes of elements, of which a text may state only a name or a part.
  void add(Attribute attribute) {
    auto raw = [&](Type type, ArrayRef<char> bytes) {
      print(type);
      text += cat(' ', bytes.size(), ':');
      text.append(bytes.begin(), bytes.end());
    };
    if (auto dense = dyn_cast<DenseElementsAttr>(attribute)) return raw(dense.getType(), dense.getRawData());
    if (auto resource = dyn_cast<DenseResourceElementsAttr>(attribute))
      return raw(resource.getType(), resource.getRawHandle().getBlob()->getData());
    print(attribute);
  }

 private:
  template <typename T>
  void print(T what) {
    text += ' ';
    llvm::raw_string_ostream stream(text);
    what.print(stream);
  }

  DenseMap<Value, int64_t> numbers;
};

// The node that an op comes from.
std::string nodeOf(Location location) {
  if (auto name = dyn_cast<NameLoc>(location)) return name.getName().str();
  if (auto fused = dyn_cast<FusedLoc>(location))
    for (Location inner : fused.getLocations())
      if (std::string node = nodeOf(inner); !node.empty()) return node;
  return "";
}

struct RecordOrigin : sheaf::train::impl::RecordOriginBase<RecordOrigin> {
  using Base::Base;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    func::FuncOp function = zero::stepOf(module);
    if (!function || function.isExternal()) return;
    Builder builder(&getContext());
    SmallVector<Attribute> names, hashes;
    Program program;
    auto close = [&](const std::string& name) {
      names.push_back(builder.getStringAttr(name));
      hashes.push_back(builder.getStringAttr(hexText(xxh64(program.text))));
      program.text.clear();
    };
    for (BlockArgument argument : function.getArguments()) {
      program.define(argument);
      if (DictionaryAttr attributes = function.getArgAttrDict(argument.getArgNumber())) program.add(attributes);
      auto name = function.getArgAttrOfType<StringAttr>(argument.getArgNumber(), "train.name");
      close(cat("input ", name ? name.str() : cat(argument.getArgNumber())));
    }
    for (Operation& op : *module.getBody()) {
      auto symbol = op.getAttrOfType<StringAttr>(SymbolTable::getSymbolAttrName());
      if (isa<func::FuncOp>(op) || !symbol) continue;
      program.add(&op);
      close(cat(isa<ParameterOp>(op) ? "parameter " : "optimizer ", symbol.str()));
    }
    std::string node;
    for (Operation& op : function.getBody().front()) {
      const std::string own = nodeOf(op.getLoc());
      if (own != node && !program.text.empty()) close(node);
      node = own;
      program.add(&op);
    }
    close(node);
    module->setAttr(
        "train.origin",
        builder.getDictionaryAttr({builder.getNamedAttr("leaves", builder.getI64IntegerAttr(zero::ranksOf(module))),
                                   builder.getNamedAttr("names", builder.getArrayAttr(names)),
                                   builder.getNamedAttr("hashes", builder.getArrayAttr(hashes))}));
  }
};

}  // namespace
