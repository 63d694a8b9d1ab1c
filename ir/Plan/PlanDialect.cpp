// Registration of the `plan` dialect and the syntax of operands.
#include "ir/Plan/PlanDialect.h"

#include "llvm/ADT/TypeSwitch.h"
#include "mlir/IR/DialectImplementation.h"
#include "runtime/base/Text.h"
#include "runtime/plan/Words.h"

using namespace mlir;
using namespace sheaf::plan_ir;

static ParseResult parseAccess(OpAsmParser& parser, int64_t& access) {
  StringRef keyword;
  SMLoc where = parser.getCurrentLocation();
  if (parser.parseKeyword(&keyword)) return failure();
  access = keyword == "r" ? kTextRead : keyword == "w" ? kTextWrite : keyword == "rw" ? kTextReadWrite : 0;
  return access ? success() : ParseResult(parser.emitError(where, "expected r, w or rw"));
}

static StringRef accessWord(int64_t access) {
  return access == kTextRead ? "r" : access == kTextWrite ? "w" : "rw";
}

// The indices that strides are multiplied by, by axis.
static constexpr StringLiteral kIndices[] = {"rank", "local", "node"};

static ParseResult parseIndex(OpAsmParser& parser, int64_t& axis) {
  StringRef keyword;
  SMLoc where = parser.getCurrentLocation();
  if (parser.parseKeyword(&keyword)) return failure();
  const auto* found = llvm::find(kIndices, keyword);
  if (found == std::end(kIndices)) return parser.emitError(where, "expected rank, local or node");
  axis = found - kIndices;
  return success();
}

// `r %x[0 : 4096 + rank * 1024], w %y[0 : 16]`
static ParseResult parseOperands(OpAsmParser& parser, SmallVectorImpl<OpAsmParser::UnresolvedOperand>& buffers,
                                 DenseI64ArrayAttr& offsets, DenseI64ArrayAttr& bytes, DenseI64ArrayAttr& strides,
                                 DenseI64ArrayAttr& axes, DenseI64ArrayAttr& access) {
  SmallVector<int64_t> o, b, s, x, a;
  auto one = [&]() -> ParseResult {
    int64_t mode, offset, size, stride = 0, axis = 0;
    if (parseAccess(parser, mode) || parser.parseOperand(buffers.emplace_back()) || parser.parseLSquare() ||
        parser.parseInteger(offset) || parser.parseColon() || parser.parseInteger(size))
      return failure();
    if (succeeded(parser.parseOptionalPlus()))
      if (parseIndex(parser, axis) || parser.parseStar() || parser.parseInteger(stride)) return failure();
    if (parser.parseRSquare()) return failure();
    o.push_back(offset), b.push_back(size), s.push_back(stride), x.push_back(axis), a.push_back(mode);
    return success();
  };
  if (parser.parseCommaSeparatedList(one)) return failure();
  Builder& builder = parser.getBuilder();
  offsets = builder.getDenseI64ArrayAttr(o);
  bytes = builder.getDenseI64ArrayAttr(b);
  strides = builder.getDenseI64ArrayAttr(s);
  axes = builder.getDenseI64ArrayAttr(x);
  access = builder.getDenseI64ArrayAttr(a);
  return success();
}

static void printOperands(OpAsmPrinter& printer, Operation*, OperandRange buffers, DenseI64ArrayAttr offsets,
                          DenseI64ArrayAttr bytes, DenseI64ArrayAttr strides, DenseI64ArrayAttr axes,
                          DenseI64ArrayAttr access) {
  for (unsigned i = 0; i < buffers.size(); ++i) {
    if (i) printer << ", ";
    printer << accessWord(access[i]) << ' ';
    printer.printOperand(buffers[i]);
    printer << "[" << offsets[i] << " : " << bytes[i];
    if (strides[i]) printer << " + " << kIndices[axes[i]] << " * " << strides[i];
    printer << "]";
  }
}

// `access [r, r, w] in_place [0, 1, 1]`; each is left out where it says nothing.
static ParseResult parseKernelAccess(OpAsmParser& parser, DenseI64ArrayAttr& access, DenseI64ArrayAttr& inPlace) {
  SmallVector<int64_t> a, p;
  auto list = AsmParser::Delimiter::Square;
  if (succeeded(parser.parseOptionalKeyword("access")) &&
      parser.parseCommaSeparatedList(list, [&] { return parseAccess(parser, a.emplace_back()); }))
    return failure();
  if (succeeded(parser.parseOptionalKeyword("in_place")) &&
      parser.parseCommaSeparatedList(list, [&] { return parser.parseInteger(p.emplace_back()); }))
    return failure();
  access = parser.getBuilder().getDenseI64ArrayAttr(a);
  inPlace = parser.getBuilder().getDenseI64ArrayAttr(p);
  return success();
}

static void printKernelAccess(OpAsmPrinter& printer, Operation*, DenseI64ArrayAttr access, DenseI64ArrayAttr inPlace) {
  if (!access.empty()) {
    printer << "access [";
    llvm::interleaveComma(access.asArrayRef(), printer, [&](int64_t one) { printer << accessWord(one); });
    printer << "]";
  }
  if (!inPlace.empty()) printer << (access.empty() ? "" : " ") << "in_place [" << inPlace.asArrayRef() << "]";
}

// A list of instructions, which may be empty.
static ParseResult parseSection(OpAsmParser& parser, Region& body) {
  if (parser.parseRegion(body)) return failure();
  if (body.empty()) body.emplaceBlock();
  return success();
}

static void printSection(OpAsmPrinter& printer, Operation*, Region& body) {
  printer.printRegion(body);
}

template <::sheaf::plan::ProtoEnum Enum>
static ParseResult parseWord(AsmParser& parser, Enum& value) {
  StringRef text;
  SMLoc where = parser.getCurrentLocation();
  if (parser.parseKeyword(&text)) return failure();
  if (auto known = ::sheaf::plan::valueOf<Enum>(text)) return value = *known, success();
  return parser.emitError(where) << "'" << text << "' is not one of "
                                 << ::sheaf::listText(::sheaf::plan::words<Enum>(), SIZE_MAX);
}

template <::sheaf::plan::ProtoEnum Enum>
static void printWord(AsmPrinter& printer, Enum value) {
  printer << ::sheaf::plan::word(value);
}

#include "ir/Plan/PlanDialect.cpp.inc"
#define GET_ATTRDEF_CLASSES
#include "ir/Plan/PlanAttrs.cpp.inc"
#define GET_TYPEDEF_CLASSES
#include "ir/Plan/PlanTypes.cpp.inc"
#define GET_OP_CLASSES
#include "ir/Plan/PlanOps.cpp.inc"

void PlanDialect::initialize() {
  addTypes<
#define GET_TYPEDEF_LIST
#include "ir/Plan/PlanTypes.cpp.inc"
      >();
  addAttributes<
#define GET_ATTRDEF_LIST
#include "ir/Plan/PlanAttrs.cpp.inc"
      >();
  addOperations<
#define GET_OP_LIST
#include "ir/Plan/PlanOps.cpp.inc"
      >();
}

void BufferOp::getAsmResultNames(function_ref<void(Value, StringRef)> name) {
  name(getResult(), getName());
}

SmallVector<TextOperand> sheaf::plan_ir::operandsOf(Operation* instruction) {
  SmallVector<TextOperand> operands;
  auto offsets = instruction->getAttrOfType<DenseI64ArrayAttr>("offsets");
  if (!offsets) return operands;
  auto bytes = instruction->getAttrOfType<DenseI64ArrayAttr>("bytes");
  auto strides = instruction->getAttrOfType<DenseI64ArrayAttr>("strides");
  auto axes = instruction->getAttrOfType<DenseI64ArrayAttr>("axes");
  auto access = instruction->getAttrOfType<DenseI64ArrayAttr>("access");
  for (auto [i, buffer] : llvm::enumerate(instruction->getOperands()))
    operands.push_back({buffer, offsets[i], bytes[i], strides[i], access[i], static_cast<plan::Axis>(axes[i])});
  return operands;
}

int64_t sheaf::plan_ir::ranksOn(ProgramOp program, plan::Axis axis) {
  const int64_t ranks = program->getAttrOfType<IntegerAttr>("ranks").getInt();
  auto perNode = program->getAttrOfType<IntegerAttr>("ranks_per_node");
  const int64_t each = perNode ? perNode.getInt() : ranks;
  return axis == plan::NODE ? each : axis == plan::NETWORK ? ranks / each : ranks;
}

::sheaf::plan::Buffer::Space sheaf::plan_ir::spaceOf(BufferOp buffer) {
  return buffer.getSpace().value_or(plan::Buffer::DEVICE);
}

::sheaf::plan::Buffer::Space sheaf::plan_ir::spaceOf(Value buffer) {
  return spaceOf(buffer.getDefiningOp<BufferOp>());
}

int64_t sheaf::plan_ir::streamOf(Operation* instruction) {
  return instruction->getAttrOfType<IntegerAttr>("stream").getInt();
}
