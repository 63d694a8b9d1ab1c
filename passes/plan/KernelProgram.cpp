// States what a kernel computes, in terms of one leaf.
#include "passes/plan/KernelProgram.h"

#include "passes/plan/PlanBuilder.h"
#include "passes/train/FusionOps.h"
#include "runtime/base/Hash.h"
#include "runtime/base/Text.h"
#include "runtime/plan/leaves/KernelProgram.h"

using namespace mlir;

namespace sheaf::plan_ir {

namespace {

using plan::ProgramLine;

class ProgramWriter {
 public:
  explicit ProgramWriter(train::FusionOp fusion) : fusion(fusion), body(fusion.getBody().front()) {}

  SmallVector<std::string> run() {
    findRows();
    for (BlockArgument argument : body.getArguments()) {
      ProgramLine line = lineOf(ProgramLine::kOperand, argument);
      place(line, argument, pitchOf(argument.getArgNumber()));
      add(std::move(line), argument);
    }
    for (Operation& op : body.without_terminator())
      if (!addOp(&op)) return {};
    for (OpOperand& yielded : body.getTerminator()->getOpOperands()) {
      ProgramLine line = lineOf(ProgramLine::kResult, yielded.get());
      place(line, yielded.get(), pitchOf(body.getNumArguments() + yielded.getOperandNumber()));
      line.of = {numbers.lookup(yielded.get())};
      lines.push_back(line.text());
    }
    return std::move(lines);
  }

 private:
  // Where the leaves' rows are: a dimension of (outer x leaves x rows of a leaf).
  struct Rows {
    int64_t dimension, outer;
  };

  static RankedTensorType typeOf(Value v) { return cast<RankedTensorType>(v.getType()); }

  void findRows() {
    for (Operation& op : body.without_terminator()) {
      auto marks = op.getAttrOfType<DenseI64ArrayAttr>(train::kLeafRowsAttr);
      if (!marks) continue;
      leaves = marks[0];
      size_t i = 1;
      auto note = [&](Value v) {
        if (marks[i] >= 0) rows.try_emplace(v, Rows{marks[i], marks[i + 1]});
        i += 2;
      };
      for (Value v : op.getOperands()) note(v);
      for (Value v : op.getResults()) note(v);
    }
  }

  // A partial sum has rows of its own: those of all blocks.
  bool isPartial(Value v) const {
    Operation* op = v.getDefiningOp();
    return op && train::isColumnReduction(op);
  }
  int64_t leavesOf(Value v) const {
    if (isPartial(v)) return v.getDefiningOp<train::ReduceOp>().getLeaves();
    return rows.contains(v) ? leaves : 1;
  }
  SmallVector<int64_t> leafShape(Value v) {
    if (isPartial(v)) {
      const int64_t blocks = llvm::divideCeil(int64_t(fusion.getRows()), int64_t(fusion.getBlock()));
      return {blocks / leavesOf(v), train::columnsOf(v)};
    }
    SmallVector<int64_t> shape(typeOf(v).getShape());
    if (auto found = rows.find(v); found != rows.end()) shape[found->second.dimension] /= leaves;
    return shape;
  }

  ProgramLine lineOf(ProgramLine::Kind kind, Value v) {
    const SmallVector<int64_t> shape = leafShape(v);
    return {.kind = kind, .name = {}, .type = elementTypeOf(v), .shape = {shape.begin(), shape.end()}};
  }
  void place(ProgramLine& line, Value v, int64_t pitch) const {
    line.pitch = pitch;
    line.leaves = leavesOf(v) > 1 ? leavesOf(v) : 0;
    if (auto found = rows.find(v); line.leaves && !isPartial(v) && found != rows.end())
      line.outer =
          ShapedType::getNumElements(typeOf(v).getShape().take_front(found->second.dimension)) * found->second.outer;
  }
  int64_t pitchOf(int64_t operand) { return fusion.getPitches() ? (*fusion.getPitches())[operand] : 0; }

  void add(ProgramLine line, Value v) {
    numbers[v] = static_cast<uint32_t>(lines.size());
    lines.push_back(line.text());
  }

  // False: it is not known how it treats leaves.
  bool addOp(Operation* op) {
    const bool marked = op->hasAttr(train::kLeafRowsAttr);
    if (!marked && llvm::any_of(op->getOperands(), [&](Value v) { return rows.contains(v); })) return false;
    const bool elementwise = op->hasTrait<OpTrait::Elementwise>() || isa<train::FusableElementwise>(op);
    // A broadcast that only repeats a value for each leaf is a reshape within one leaf.
    const bool same = isa<train::ReshapeOp>(op) ||
                      (isa<train::BroadcastOp>(op) && leafShape(op->getOperand(0)) == leafShape(op->getResult(0)));
    const ProgramLine::Kind kind = elementwise                   ? ProgramLine::kMap
                                   : same                        ? ProgramLine::kSame
                                   : isa<train::BroadcastOp>(op) ? ProgramLine::kSpread
                                   : isa<train::ConstantOp>(op)  ? ProgramLine::kSplat
                                                                 : ProgramLine::kWhole;
    ProgramLine line = lineOf(kind, op->getResult(0));
    line.name = same ? "reshape" : op->getName().stripDialect().str();
    line.attributes = attributesOf(op);
    for (Value v : op->getOperands()) line.of.push_back(numbers.lookup(v));
    add(std::move(line), op->getResult(0));
    return true;
  }

  // What does not depend on how many leaves there are.
  uint64_t attributesOf(Operation* op) {
    std::string text;
    llvm::raw_string_ostream stream(text);
    if (auto constant = dyn_cast<train::ConstantOp>(op)) {
      cast<SplatElementsAttr>(constant.getValue()).getSplatValue<Attribute>().print(stream);
      return xxh64(text);
    }
    for (NamedAttribute attribute : op->getAttrDictionary()) {
      const StringRef name = attribute.getName().strref();
      if (name == train::kLeafRowsAttr || name == "leaves") continue;
      stream << name << '=';
      attribute.getValue().print(stream);
      stream << '\n';
    }
    if (isPartial(op->getResult(0))) stream << "block=" << fusion.getBlock();
    return text.empty() ? 0 : xxh64(text);
  }

  train::FusionOp fusion;
  Block& body;
  int64_t leaves = 1;
  llvm::DenseMap<Value, Rows> rows;
  llvm::DenseMap<Value, uint32_t> numbers;
  SmallVector<std::string> lines;
};

}  // namespace

SmallVector<std::string> programOf(train::FusionOp fusion) {
  return ProgramWriter(fusion).run();
}

}  // namespace sheaf::plan_ir
