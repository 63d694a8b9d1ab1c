// Turns the step into a plan: buffers, and three lists of instructions.
#include "llvm/ADT/TypeSwitch.h"
#include "mlir/IR/IRMapping.h"
#include "passes/plan/Lowering.h"
#include "runtime/plan/Library.h"

namespace sheaf::plan_ir {
#define GEN_PASS_DEF_LOWERTOPLAN
#include "passes/plan/Passes.h.inc"
}  // namespace sheaf::plan_ir

using namespace mlir;

namespace sheaf::plan_ir {

StringRef typeName(Type element) {
  if (element.isF32()) return "F32";
  if (element.isF64()) return "F64";
  if (element.isBF16()) return "BF16";
  if (element.isF16()) return "F16";
  switch (element.getIntOrFloatBitWidth()) {
    case 1:
      return "BOOL";
    case 8:
      return element.isUnsignedInteger() ? "U8" : "I8";
    case 16:
      return "I16";
    case 32:
      return "I32";
    default:
      return "I64";
  }
}

std::string labelOf(mlir::Location loc) {
  if (auto name = dyn_cast<NameLoc>(loc)) return name.getName().str();
  if (auto fused = dyn_cast<FusedLoc>(loc))
    for (mlir::Location inner : fused.getLocations())
      if (std::string label = labelOf(inner); !label.empty()) return label;
  return "";
}

Value Lowering::buffer(StringRef name, StringRef kind, int64_t bytes, bool persistent) {
  int64_t repeat = names[name]++;
  std::string unique = repeat ? (name + "." + Twine(repeat)).str() : name.str();
  return BufferOp::create(head, module.getLoc(), BufferType::get(head.getContext()), unique, kind, int64_t(0), bytes,
                          persistent);
}

Location Lowering::placeResult(Value value, bool stridedAllowed) {
  // Follow reshapes to whoever fixes the place.
  Value leaf = value;
  while (leaf.hasOneUse() && isa<train::ReshapeOp>(*leaf.user_begin())) leaf = leaf.user_begin()->getResult(0);
  Operation* reduction = nullptr;
  for (OpOperand& use : leaf.getUses())
    if (isa<zero::AllReduceOp, zero::ReduceScatterOp>(use.getOwner())) {
      reduction = use.getOwner();
      BucketStorage& storage = buckets[reduction->getAttrOfType<FlatSymbolRefAttr>("bucket").getValue()];
      // The reduction overwrites the slot at stages 0 and 1, so nobody may read the value after it.
      if (lastUse.lookup(value) > position[reduction]) break;
      return {storage.gradient, storage.op.getOffsets()[use.getOperandNumber()] * storage.width};
    }
  if (stridedAllowed && leaf.hasOneUse()) {
    auto concat = dyn_cast<train::ConcatOp>(*leaf.user_begin());
    auto type = concat ? cast<RankedTensorType>(concat.getResult().getType()) : RankedTensorType();
    if (concat && concat.getAxis() == uint64_t(type.getRank() - 1)) {
      if (!locations.contains(concat.getResult())) locations[concat.getResult()] = placeResult(concat.getResult());
      Location at = locations[concat.getResult()];
      if (!at.rowStride) {
        int64_t width = widthOf(type.getElementType());
        for (Value piece : concat.getOperands().take_front(leaf.use_begin()->getOperandNumber()))
          at.offset += cast<RankedTensorType>(piece.getType()).getShape().back() * width;
        at.rowStride = type.getShape().back() * width;
        at.rowBytes = cast<RankedTensorType>(leaf.getType()).getShape().back() * width;
        return at;
      }
    }
  }
  std::string label = labelOf(value.getLoc());
  Value fresh = buffer(label.empty() ? "value" : label, "activations", bytesOf(value));
  ownedBuffers[fresh] = true;
  lastUse[fresh] = lastUse.lookup(value);
  return {fresh};
}

Operand Lowering::operand(Value value, int64_t access) const {
  Location at = locate(value);
  int64_t bytes = bytesOf(value);
  if (at.rowStride) bytes = (bytes / at.rowBytes - 1) * at.rowStride + at.rowBytes;
  return {at.buffer, at.offset, bytes, at.shardStride, access};
}

void Lowering::call(mlir::Location loc, StringRef function, ArrayRef<Operand> operands,
                    ArrayRef<std::pair<StringRef, int64_t>> integers, ArrayRef<std::pair<StringRef, double>> reals) {
  ::sheaf::plan::LibraryCall message;
  message.set_function(function.str());
  SmallVector<NamedAttribute> attributes;
  for (auto [name, value] : integers) {
    attributes.push_back(head.getNamedAttr(name, head.getI64IntegerAttr(value)));
    auto* attribute = message.add_attributes();
    attribute->set_name(name.str());
    attribute->set_integer(value);
  }
  for (auto [name, value] : reals) {
    attributes.push_back(head.getNamedAttr(name, head.getF64FloatAttr(value)));
    auto* attribute = message.add_attributes();
    attribute->set_name(name.str());
    attribute->set_real(value);
  }
  SmallVector<Operand> all(operands);
  int64_t scratch = ::sheaf::plan::scratchPerThread(message);
  if (scratch)
    all.push_back({buffer("scratch", "workspace", scratch * maxThreads), 0, scratch * maxThreads, 0, kReadWrite});
  instruction<CallOp>(loc, kComputeStream, labelOf(loc), all, function, head.getDictionaryAttr(attributes), scratch);
}

void Lowering::launch(train::FusionOp fusion, ArrayRef<Operand> operands, StringRef label, int64_t updates) {
  // Fusions with the same text are one kernel.
  std::string text;
  llvm::raw_string_ostream stream(text);
  fusion->print(stream, OpPrintingFlags().useLocalScope());
  // The operand list differs from launch to launch; what follows it is the kernel.
  text = text.substr(text.find(") rows "));
  auto [entry, fresh] = kernels.try_emplace(text, kernels.size());
  if (fresh) {
    SmallVector<int64_t> bytes;
    for (const Operand& operand : operands) bytes.push_back(operand.bytes);
    auto kernel = KernelOp::create(head, fusion.getLoc(), ("kernel" + Twine(entry->second)).str(), int64_t(0),
                                   int64_t(0), int64_t(fusion.getRows()), int64_t(fusion.getBlock()), bytes);
    Block* block = head.createBlock(&kernel.getFusion());
    SmallVector<mlir::Location> locations(fusion->getNumOperands(), fusion.getLoc());
    block->addArguments(fusion->getOperandTypes(), locations);
    IRMapping mapping;
    mapping.map(fusion->getOperands(), block->getArguments());
    head.setInsertionPointToEnd(block);
    head.clone(*fusion, mapping);
    head.setInsertionPointAfter(kernel);
  }
  instruction<LaunchOp>(fusion.getLoc(), kComputeStream, label, operands, entry->second, int64_t(fusion.getRows()),
                        int64_t(fusion.getBlock()), updates);
}

namespace {

struct LowerToPlan : impl::LowerToPlanBase<LowerToPlan> {
  using Base::Base;
  void runOnOperation() override;
};

// Lowers one module; split from the pass so that its parts can share state.
struct StepLowering : Lowering {
  using Lowering::Lowering;
  ProgramOp program;
  PrologueOp prologue;
  StepOp body;
  EpilogueOp epilogue;
  llvm::StringMap<int64_t> files;

  int64_t moduleInteger(StringRef name, int64_t otherwise) {
    auto attribute = module->getAttrOfType<IntegerAttr>(name);
    return attribute ? attribute.getInt() : otherwise;
  }

  LogicalResult run();
  void createProgram();
  void declareBuckets();
  void declareParameter(zero::BucketOp bucket, int64_t index, train::ParameterOp parameter, int64_t offset);
  int64_t file(StringRef path);
  void declareInputs();
  void analyzeUses();
  void constant(train::ConstantOp op);
  void zeroPadding(BucketStorage& storage);
  void collective(zero::BucketOp bucket, StringRef op, mlir::Location loc, StringRef phase, const Operand& source,
                  const Operand& destination);
  LogicalResult lowerZero(Operation* op);
  LogicalResult lowerUpdate(zero::UpdateOp op);
  void lowerNorm(zero::GradientNormOp op);
  int64_t scalarSlot(StringRef kind, double value);
};

void StepLowering::createProgram() {
  OpBuilder builder = OpBuilder::atBlockEnd(module.getBody());
  program = ProgramOp::create(builder, module.getLoc());
  Block* block = builder.createBlock(&program.getBody());
  head.setInsertionPointToEnd(block);
  OpBuilder tail = OpBuilder::atBlockEnd(block);
  prologue = PrologueOp::create(tail, module.getLoc());
  body = StepOp::create(tail, module.getLoc());
  epilogue = EpilogueOp::create(tail, module.getLoc());
  for (Region* region : {&prologue.getBody(), &body.getBody(), &epilogue.getBody()}) builder.createBlock(region);
  head.setInsertionPoint(prologue);
  section.setInsertionPointToEnd(&body.getBody().front());
  program->setAttr("version", head.getI64IntegerAttr(1));
  program->setAttr("producer", head.getStringAttr("sheaf " SHEAF_VERSION));
  for (auto [from, to] :
       {std::pair("train.model", "model"), {"train.training", "training"}, {"train.decisions", "decisions"}})
    if (Attribute attribute = module->getAttr(from)) program->setAttr(to, attribute);
  program->setAttr("ranks", head.getI64IntegerAttr(ranks));
  program->setAttr("zero", head.getI64IntegerAttr(moduleInteger("zero.stage", 0)));
  program->setAttr("batch", head.getI64IntegerAttr(moduleInteger("train.batch", ranks)));
  program->setAttr("max_threads", head.getI64IntegerAttr(maxThreads));
  program->setAttr("streams", head.getStrArrayAttr({"compute", "communication"}));
  program->setAttr("communicators", head.getI64IntegerAttr(ranks > 1 ? 1 : 0));
  program->setAttr("events", head.getI64IntegerAttr(0));
}

int64_t StepLowering::file(StringRef path) {
  auto [entry, fresh] = files.try_emplace(path, files.size());
  if (fresh) FileOp::create(head, module.getLoc(), path, int64_t(0), int64_t(0));
  return entry->second;
}

void StepLowering::declareParameter(zero::BucketOp bucket, int64_t index, train::ParameterOp parameter,
                                    int64_t offset) {
  auto type = cast<RankedTensorType>(parameter.getType());
  SmallVector<int64_t> source;
  if (auto from = parameter.getSource())
    source = {file(from->getFile().getValue()), from->getOffset(), from->getLength()};
  auto op = ParameterOp::create(head, parameter.getLoc(), parameter.getSymName(), typeName(type.getElementType()),
                                type.getShape(), parameter.getPermutation().value_or(ArrayRef<int64_t>()),
                                bool(bucket.getOptimizer()), index, offset, source);
  if (auto value = parameter.getValue()) op->setAttr("value", *value);
}

void StepLowering::declareBuckets() {
  SymbolTable symbols(module);
  int64_t index = 0;
  for (auto bucket : module.getOps<zero::BucketOp>()) {
    BucketStorage& storage = buckets[bucket.getSymName()];
    storage.op = bucket;
    storage.index = index;
    storage.elements = bucket.getElements();
    storage.width = widthOf(bucket.getElementType());
    storage.parametersSharded = stage == 3;
    storage.statesSharded = stage >= 1;
    int64_t whole = storage.elements * storage.width;
    StringRef name = bucket.getSymName();
    storage.parameters =
        buffer((name + ".parameters").str(), "parameters", storage.parametersSharded ? whole / ranks : whole, true);
    SmallVector<Attribute> stateNames;
    if (bucket.getOptimizer()) {
      auto optimizer = symbols.lookup<train::OptimizerOp>(*bucket.getOptimizer());
      for (auto state : optimizer.getStates().getAsRange<StringAttr>()) {
        stateNames.push_back(state);
        storage.states.push_back(buffer((name + "." + state.getValue()).str(), "optimizer",
                                        storage.elements * 4 / (storage.statesSharded ? ranks : 1), true));
      }
      storage.gradient = buffer((name + ".gradients").str(), stage >= 2 ? "gathered" : "gradients", whole);
    }
    BucketOp::create(head, bucket.getLoc(), name, typeName(bucket.getElementType()), storage.elements,
                     storage.parameters, storage.parametersSharded, storage.states, head.getArrayAttr(stateNames),
                     storage.statesSharded, bool(bucket.getOptimizer()));
    for (auto [symbol, offset] : llvm::zip(bucket.getParameters().getAsRange<FlatSymbolRefAttr>(), bucket.getOffsets()))
      declareParameter(bucket, index, symbols.lookup<train::ParameterOp>(symbol.getValue()), offset);
    ++index;
  }
}

void StepLowering::declareInputs() {
  for (auto [i, argument] : llvm::enumerate(step.getArguments())) {
    auto type = cast<RankedTensorType>(argument.getType());
    StringRef name = step.getArgAttrOfType<StringAttr>(i, "train.name").getValue();
    InputOp::create(head, module.getLoc(), name, typeName(type.getElementType()), type.getShape());
    locations[argument] = {buffer(name, "activations", bytesOf(argument))};
    instruction<ReadInputOp>(module.getLoc(), kComputeStream, name, {operand(argument, kWrite)}, int64_t(i));
  }
}

// Positions of ops, and the last reader of every value, through the views that share its bytes.
void StepLowering::analyzeUses() {
  Block& block = step.getBody().front();
  for (auto [i, op] : llvm::enumerate(block)) position[&op] = i;
  auto note = [&](Value v) {
    int64_t last = -1;
    for (Operation* user : v.getUsers()) {
      last = std::max(last, position[user]);
      if (isa<train::ReshapeOp, train::SliceOp, train::GlobalSumOp, train::ConcatOp>(user))
        last = std::max(last, lastUse.lookup(user->getResult(0)));
    }
    lastUse[v] = last;
  };
  for (Operation& op : llvm::reverse(block))
    for (Value v : op.getResults()) note(v);
}

void StepLowering::constant(train::ConstantOp op) {
  Value store = buffer("constant", "constants", bytesOf(op.getResult()), true);
  locations[op.getResult()] = {store};
  ConstantOp::create(head, op.getLoc(), store, ArrayRef<int64_t>(), op.getValue());
}

// Padding between and behind members takes part in reductions and norms: it must be zero.
void StepLowering::zeroPadding(BucketStorage& storage) {
  int64_t end = 0;
  auto gap = [&](int64_t begin, int64_t until) {
    if (begin < until)
      call(storage.op.getLoc(), "zero",
           {{storage.gradient, begin * storage.width, (until - begin) * storage.width, 0, kWrite}}, {});
  };
  SymbolTable symbols(module);
  for (auto [symbol, offset] :
       llvm::zip(storage.op.getParameters().getAsRange<FlatSymbolRefAttr>(), storage.op.getOffsets())) {
    gap(end, offset);
    auto type = symbols.lookup<train::ParameterOp>(symbol.getValue()).getType();
    end = offset + cast<RankedTensorType>(type).getNumElements();
  }
  gap(end, storage.elements);
}

void StepLowering::collective(zero::BucketOp bucket, StringRef op, mlir::Location loc, StringRef phase,
                              const Operand& source, const Operand& destination) {
  int64_t shard = int64_t(bucket.getElements()) / ranks;
  StringRef type = typeName(bucket.getElementType()), name = bucket.getSymName();
  if (op == "all_gather")
    instruction<AllGatherOp>(loc, kCommunicationStream, name, {source, destination}, int64_t(0), type, shard, name,
                             phase);
  else if (op == "reduce_scatter")
    instruction<ReduceScatterOp>(loc, kCommunicationStream, name, {source, destination}, int64_t(0), type, shard, name,
                                 phase);
  else
    instruction<AllReduceOp>(loc, kCommunicationStream, name, {source, destination}, int64_t(0), type,
                             int64_t(bucket.getElements()), name, phase);
}

int64_t StepLowering::scalarSlot(StringRef kind, double value) {
  for (auto [i, scalar] : llvm::enumerate(scalars))
    if (scalar.first == kind && scalar.second == value) return i;
  scalars.emplace_back(kind.str(), value);
  return scalars.size() - 1;
}

LogicalResult StepLowering::lowerUpdate(zero::UpdateOp op) {
  BucketStorage& storage = buckets[op.getBucket()];
  SymbolTable symbols(module);
  auto optimizer = symbols.lookup<train::OptimizerOp>(*storage.op.getOptimizer());
  int64_t n = cast<RankedTensorType>(op.getGradient().getType()).getNumElements();
  bool sharded = n != storage.elements;

  // The update as a fusion over [rows, columns] of the elements; scalars are broadcast.
  int64_t columns = 32;
  while (columns < 1024 && n % (columns * 2) == 0) columns *= 2;
  int64_t rows = n / columns, block = std::max<int64_t>(1, std::min<int64_t>(rows, 16384 / columns));
  Type element = head.getF32Type();
  auto full = RankedTensorType::get({rows, columns}, element), one = RankedTensorType::get({1, 1}, element);

  OpBuilder builder(op);
  SmallVector<Type> types(2 + storage.states.size(), full);
  SmallVector<Operand> operands;
  int64_t stride = sharded && !storage.parametersSharded ? n * storage.width : 0;
  operands.push_back({storage.parameters, 0, n * storage.width, stride, kRead});
  operands.push_back(operand(op.getGradient(), kRead));
  for (Value state : storage.states) operands.push_back({state, 0, n * 4, 0, kRead});
  SmallVector<std::pair<unsigned, double>> constants;
  Block& rule = optimizer.getBody().front();
  SmallVector<unsigned> scalarArguments;
  for (auto [i, scalar] : llvm::enumerate(optimizer.getScalars().getAsRange<DictionaryAttr>())) {
    unsigned argument = 2 + storage.states.size() + i;
    StringRef kind = scalar.getAs<StringAttr>("kind").getValue();
    double value = scalar.contains("value") ? scalar.getAs<FloatAttr>("value").getValueAsDouble() : 0;
    if (kind == "constant") {
      constants.push_back({argument, value});
      continue;
    }
    scalarArguments.push_back(argument);
    types.push_back(one);
    if (kind == "clip_scale" || kind == "finite")
      operands.push_back({normScalars, kind == "finite" ? 4 : 0, 4, 0, kRead});
    else
      operands.push_back({scalarBuffer, scalarSlot(kind, value) * 4, 4, 0, kRead});
  }

  // The fusion's operands are placeholders; only its region and the addresses matter.
  SmallVector<Value> placeholders;
  for (Type type : types)
    placeholders.push_back(
        train::ConstantOp::create(builder, op.getLoc(), DenseElementsAttr::get(cast<ShapedType>(type), 0.0f)));
  SmallVector<Type> results(1 + storage.states.size(), full);
  SmallVector<int64_t> elementwise;
  for (size_t i = 0; i < 2 + storage.states.size(); ++i) elementwise.push_back(i);
  auto fusion = train::FusionOp::create(builder, op.getLoc(), results, placeholders, rows, columns, block, elementwise);
  Block* block0 = builder.createBlock(&fusion.getBody());
  SmallVector<mlir::Location> locs(types.size(), op.getLoc());
  block0->addArguments(types, locs);
  IRMapping mapping;
  for (size_t i = 0; i < 2 + storage.states.size(); ++i) mapping.map(rule.getArgument(i), block0->getArgument(i));
  for (auto [i, argument] : llvm::enumerate(scalarArguments))
    mapping.map(
        rule.getArgument(argument),
        train::BroadcastOp::create(builder, op.getLoc(), full, block0->getArgument(2 + storage.states.size() + i))
            .getResult());
  for (auto [argument, value] : constants)
    mapping.map(
        rule.getArgument(argument),
        train::ConstantOp::create(builder, op.getLoc(), DenseElementsAttr::get(full, float(value))).getResult());
  for (Operation& inner : rule) {
    if (auto constant = dyn_cast<train::ConstantOp>(inner)) {
      auto splat = cast<DenseElementsAttr>(constant.getValue());
      auto type = RankedTensorType::get({rows, columns}, splat.getElementType());
      mapping.map(constant.getResult(),
                  train::ConstantOp::create(builder, op.getLoc(),
                                            DenseElementsAttr::get(type, splat.getSplatValue<Attribute>()))
                      .getResult());
      continue;
    }
    Operation* clone = builder.clone(inner, mapping);
    for (Value result : clone->getResults())
      result.setType(RankedTensorType::get({rows, columns}, cast<RankedTensorType>(result.getType()).getElementType()));
  }
  operands.push_back({storage.parameters, 0, n * storage.width, stride, kWrite});
  for (Value state : storage.states) operands.push_back({state, 0, n * 4, 0, kWrite});
  launch(fusion, operands, ("update " + op.getBucket()).str(), storage.index + 1);
  fusion.erase();
  for (Value placeholder : placeholders) placeholder.getDefiningOp()->erase();
  return success();
}

void StepLowering::lowerNorm(zero::GradientNormOp op) {
  int64_t count = op.getPartials().size();
  Value partials = op.getPartials().empty() ? Value() : locate(op.getPartials().front()).buffer;
  if (ranks > 1)
    instruction<AllGatherOp>(op.getLoc(), kCommunicationStream, "gradient norm",
                             {{partials, 0, count * 8, count * 8, kRead}, {partials, 0, ranks * count * 8, 0, kWrite}},
                             int64_t(0), "F64", count, "", "update");
  locations[op.getNorm()] = {buffer("gradient_norm", "activations", 8)};
  locations[op.getScalars()] = {normScalars};
  SmallVector<Operand> operands{
      {partials, 0, ranks * count * 8, 0, kRead}, operand(op.getNorm(), kWrite), {normScalars, 0, 8, 0, kWrite}};
  if (op.getClip()) {
    auto training = module->getAttrOfType<DictionaryAttr>("train.training");
    auto limit = training ? training.getAs<FloatAttr>("clip_norm") : FloatAttr();
    int64_t slot = scalarSlot("max_norm", limit ? limit.getValueAsDouble() : 0);
    operands.push_back({scalarBuffer, slot * 4, 4, 0, kRead});
  }
  call(op.getLoc(), "gradient_norm", operands, {{"ranks", ranks}, {"buckets", count}, {"clip", op.getClip()}});
  instruction<WriteOutputOp>(op.getLoc(), kComputeStream, "gradient norm", {operand(op.getNorm(), kRead)},
                             "gradient_norm");
}

LogicalResult StepLowering::lowerZero(Operation* op) {
  BucketStorage* storage = nullptr;
  if (auto symbol = op->getAttrOfType<FlatSymbolRefAttr>("bucket")) storage = &buckets[symbol.getValue()];
  int64_t whole = storage ? storage->elements * storage->width : 0, shard = whole / ranks;
  return llvm::TypeSwitch<Operation*, LogicalResult>(op)
      .Case([&](zero::ParametersOp p) {
        locations[p.getResult()] = {storage->parameters};
        return success();
      })
      .Case([&](zero::AllGatherOp g) {
        bool carried = g->hasAttr("carried");
        Value gathered = buffer((g.getBucket() + ".gathered").str(), "gathered", whole, carried);
        locations[g.getResult()] = {gathered};
        Operand source{storage->parameters, 0, shard, 0, kRead}, destination{gathered, 0, whole, 0, kWrite};
        if (!carried) {
          collective(storage->op, "all_gather", op->getLoc(), g.getPhase(), source, destination);
          return success();
        }
        // Carried into the next step: gathered once before the first, and again at the end of each.
        OpBuilder::InsertionGuard guard(section);
        section.setInsertionPointToEnd(&prologue.getBody().front());
        collective(storage->op, "all_gather", op->getLoc(), g.getPhase(), source, destination);
        section.setInsertionPointToEnd(&epilogue.getBody().front());  // moved to the body's end when it is complete
        collective(storage->op, "all_gather", op->getLoc(), g.getPhase(), source, destination);
        return success();
      })
      .Case([&](zero::ReleaseOp) { return success(); })
      .Case([&](zero::ViewOp v) {
        Location at = locate(v.getBucket());
        at.offset += int64_t(v.getOffset()) * widthOf(cast<RankedTensorType>(v.getType()).getElementType());
        locations[v.getResult()] = at;
        return success();
      })
      .Case<zero::AllReduceOp, zero::ReduceScatterOp>([&](auto reduce) {
        for (auto [i, gradient] : llvm::enumerate(reduce.getGradients())) {
          int64_t offset = storage->op.getOffsets()[i] * storage->width, bytes = bytesOf(gradient);
          Location at = locate(gradient);
          if (at.buffer == storage->gradient && at.offset == offset) continue;
          auto type = cast<RankedTensorType>(gradient.getType());
          copy(op->getLoc(), operand(gradient, kRead), {storage->gradient, offset, bytes, 0, kWrite}, storage->width,
               {type.getNumElements()}, {1}, {1});
        }
        zeroPadding(*storage);
        Operand source{storage->gradient, 0, whole, 0, kRead};
        if (ranks == 1 || stage == 0) {
          locations[reduce.getResult()] = {storage->gradient};
          if (ranks > 1)
            collective(storage->op, "all_reduce", op->getLoc(), "backward", source,
                       {storage->gradient, 0, whole, 0, kWrite});
          return success();
        }
        Location at{storage->gradient, 0, shard};
        if (stage >= 2) at = {buffer((storage->op.getSymName() + ".reduced").str(), "gradients", shard)};
        locations[reduce.getResult()] = at;
        collective(storage->op, "reduce_scatter", op->getLoc(), "backward", source,
                   {at.buffer, 0, shard, at.shardStride, kWrite});
        return success();
      })
      .Case([&](zero::SquareSumOp s) {
        Location at = locate(s.getGradient());
        // At stage 0 the gradient is whole: the rank sums its own part of it, as at every other stage.
        Operand part{at.buffer, at.offset, shard, stage == 0 ? shard : at.shardStride, kRead};
        Location to = locate(s.getResult());
        call(op->getLoc(), "square_sum", {part, {to.buffer, to.offset, 8, to.shardStride, kWrite}},
             {{"n", storage->elements / ranks}});
        return success();
      })
      .Case([&](zero::GradientNormOp n) {
        lowerNorm(n);
        return success();
      })
      .Case([&](zero::UpdateOp u) { return lowerUpdate(u); })
      .Case([&](zero::GatherUpdatedOp) {
        collective(storage->op, "all_gather", op->getLoc(), "update", {storage->parameters, 0, shard, shard, kRead},
                   {storage->parameters, 0, whole, 0, kWrite});
        return success();
      })
      .Default([](Operation* other) { return other->emitError("cannot be lowered to a plan"); });
}

LogicalResult StepLowering::run() {
  createProgram();
  analyzeUses();
  declareBuckets();
  scalarBuffer = buffer("scalars", "activations", 0);
  normScalars = buffer("norm_scalars", "activations", 8);
  declareInputs();

  // The partial norms of all buckets lie side by side, each rank's in a row.
  for (auto norm : step.getOps<zero::GradientNormOp>()) {
    int64_t count = norm.getPartials().size();
    Value partials = buffer("norm_partials", "activations", ranks * count * 8);
    for (auto [i, partial] : llvm::enumerate(norm.getPartials()))
      locations[partial] = {partials, int64_t(i) * 8, ranks > 1 ? count * 8 : 0};
  }
  for (Operation& op : llvm::make_early_inc_range(step.getBody().front())) {
    if (isa<func::ReturnOp>(op)) break;
    if (auto constantOp = dyn_cast<train::ConstantOp>(op)) {
      if (!constantOp->use_empty()) constant(constantOp);
    } else if (auto loss = dyn_cast<train::LossOp>(op)) {
      Operand value = operand(loss.getValue(), kRead);
      if (ranks > 1) {
        Operand global{buffer("loss", "activations", 4), 0, 4, 0, kWrite};
        instruction<AllReduceOp>(op.getLoc(), kCommunicationStream, "loss", {value, global}, int64_t(0), "F32",
                                 int64_t(1), "", "forward");
        value = global;
        value.access = kRead;
      }
      instruction<WriteOutputOp>(op.getLoc(), ranks > 1 ? kCommunicationStream : kComputeStream, "loss", {value},
                                 "loss");
    } else if (op.getDialect()->getNamespace() == "zero") {
      if (failed(lowerZero(&op))) return failure();
    } else if (failed(lowerOp(&op))) {
      return failure();
    }
  }
  // The gathers carried into the next step are the last of this one.
  for (Operation& op : llvm::make_early_inc_range(epilogue.getBody().front()))
    op.moveBefore(&body.getBody().front(), body.getBody().front().end());

  auto scalarOp = scalarBuffer.getDefiningOp<BufferOp>();
  if (scalars.empty()) {
    scalarOp.erase();
  } else {
    scalarOp.setBytes(scalars.size() * 4);
    for (auto& [kind, value] : scalars) ScalarOp::create(head, module.getLoc(), kind, APFloat(value));
    section.setInsertionPointToStart(&body.getBody().front());
    instruction<ReadScalarsOp>(module.getLoc(), kComputeStream, "step scalars",
                               {{scalarBuffer, 0, int64_t(scalars.size()) * 4, 0, kWrite}});
  }
  for (auto buffer : llvm::make_early_inc_range(program.getBody().front().getOps<BufferOp>()))
    if (buffer->use_empty()) buffer.erase();
  return success();
}

void LowerToPlan::runOnOperation() {
  ModuleOp module = getOperation();
  auto step = module.lookupSymbol<func::FuncOp>("step");
  if (!step) return;
  StepLowering lowering(module, step);
  lowering.ranks = lowering.moduleInteger("train.ranks", 1);
  lowering.stage = lowering.ranks > 1 ? lowering.moduleInteger("zero.stage", 0) : 0;
  lowering.maxThreads = maxThreads;
  if (failed(lowering.run())) return signalPassFailure();
  for (Operation& op : llvm::make_early_inc_range(*module.getBody()))
    if (!isa<ProgramOp>(op)) op.erase();
  for (StringRef name :
       {"train.model", "train.training", "train.decisions", "train.ranks", "train.batch", "zero.stage"})
    module->removeAttr(name);
}

}  // namespace
}  // namespace sheaf::plan_ir
