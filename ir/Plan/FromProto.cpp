// From plan.proto to the `plan` dialect.
#include "ir/Plan/PlanProto.h"
#include "ir/Plan/StepWorkAttribute.h"
#include "runtime/base/Text.h"
#include "runtime/plan/DigestTable.h"
#include "runtime/plan/LossScale.h"
#include "runtime/plan/Schedules.h"
#include "runtime/plan/Words.h"

using namespace mlir;

namespace sheaf::plan_ir {

namespace {

struct Reader {
  const plan::Plan& plan;
  OpBuilder builder;
  Location loc;
  SmallVector<Value> buffers;

  Reader(const plan::Plan& plan, MLIRContext& context)
      : plan(plan), builder(&context), loc(UnknownLoc::get(&context)) {}

  template <typename Repeated>
  SmallVector<int64_t> list(const Repeated& values) {
    return SmallVector<int64_t>(values.begin(), values.end());
  }
  template <typename Repeated>
  ArrayAttr strings(const Repeated& values) {
    SmallVector<Attribute> attributes;
    for (const std::string& value : values) attributes.push_back(builder.getStringAttr(value));
    return builder.getArrayAttr(attributes);
  }
  template <typename Message>
  SmallVector<int64_t> source(const Message& message) {
    if (!message.has_source()) return {};
    const plan::Source& from = message.source();
    SmallVector<int64_t> numbers{int64_t(from.file()), int64_t(from.offset()), int64_t(from.length())};
    for (uint64_t hash : from.hashes()) numbers.push_back(static_cast<int64_t>(hash));
    return numbers;
  }

  ElementTypeAttr typeOrNone(plan::ElementType type) {
    return type ? ElementTypeAttr::get(builder.getContext(), type) : ElementTypeAttr();
  }

  SpaceAttr spaceOrNone(const plan::Buffer& buffer) {
    return buffer.space() == plan::Buffer::DEVICE ? SpaceAttr() : SpaceAttr::get(builder.getContext(), buffer.space());
  }

  DictionaryAttr kinds(const google::protobuf::RepeatedPtrField<plan::KindBytes>& list) {
    SmallVector<NamedAttribute> kinds;
    for (const plan::KindBytes& kind : list)
      kinds.push_back(builder.getNamedAttr(plan::word(kind.kind()), builder.getI64IntegerAttr(kind.bytes())));
    return builder.getDictionaryAttr(kinds);
  }

  template <typename OpTy, typename... Args>
  OpTy instruction(const plan::Instruction& from, Args&&... args) {
    SmallVector<Value> values;
    SmallVector<int64_t> offsets, bytes, strides, axes, access;
    for (const plan::Operand& o : from.operands()) {
      values.push_back(buffers[o.buffer()]);
      offsets.push_back(o.offset()), bytes.push_back(o.bytes()), strides.push_back(o.shard_stride());
      axes.push_back(o.axis()), access.push_back(o.access());
    }
    return OpTy::create(builder, loc, int64_t(from.stream()), from.label(), values, offsets, bytes, strides, axes,
                        access, std::forward<Args>(args)...);
  }

  void declarations();
  void originProgram(StringRef function, const google::protobuf::RepeatedPtrField<plan::Origin::Part>& parts);
  void instructions(Region& region, const google::protobuf::RepeatedPtrField<plan::Instruction>& list);
  void one(const plan::Instruction& from);
  void header(ProgramOp program);
};

void Reader::header(ProgramOp program) {
  auto integer = [&](StringRef name, int64_t value) { program->setAttr(name, builder.getI64IntegerAttr(value)); };
  integer("version", plan.version());
  program->setAttr("producer", builder.getStringAttr(plan.producer()));
  program->setAttr("model", builder.getStringAttr(plan.model()));
  integer("ranks", plan.ranks());
  integer("zero", plan.zero_stage());
  integer("batch", plan.batch());
  integer("max_threads", plan.max_threads());
  integer("events", plan.events());
  integer("communicators", plan.communicators());
  integer("peak_bytes", plan.memory().peak_bytes());
  integer("library_bytes", plan.memory().library_bytes());
  program->setAttr("streams", strings(plan.streams()));
  if (plan.ranks_per_node()) {
    SmallVector<Attribute> axes;
    for (int axis : plan.communicator_axes())
      axes.push_back(builder.getStringAttr(plan::word(static_cast<plan::Axis>(axis))));
    integer("ranks_per_node", plan.ranks_per_node());
    integer("network_zero", plan.network_stage());
    program->setAttr("communicator_axes", builder.getArrayAttr(axes));
  }
  if (plan.micro_batches()) {
    SmallVector<int64_t> turns;
    for (const plan::Turn& turn : plan.turns()) turns.append({int64_t(turn.part()), int64_t(turn.micro_batch())});
    integer("micro_batches", plan.micro_batches());
    program->setAttr("dealing", builder.getStringAttr(plan::word(plan.dealing())));
    program->setAttr("turns", builder.getDenseI64ArrayAttr(turns));
  }
  program->setAttr("decisions", strings(plan.decisions()));
  if (plan.unneeded_inputs_size() > 0) program->setAttr("unneeded_inputs", strings(plan.unneeded_inputs()));
  if (plan.options_size() > 0) program->setAttr("options", strings(plan.options()));
  program->setAttr("by_kind", kinds(plan.memory().by_kind()));
  SmallVector<NamedAttribute> spaces;
  for (const plan::SpaceMemory& memory : plan.memory().spaces())
    spaces.push_back(
        builder.getNamedAttr(plan::word(memory.space()),
                             builder.getDictionaryAttr({
                                 builder.getNamedAttr("by_kind", kinds(memory.by_kind())),
                                 builder.getNamedAttr("peak_bytes", builder.getI64IntegerAttr(memory.peak_bytes())),
                             })));
  if (!spaces.empty()) program->setAttr("spaces", builder.getDictionaryAttr(spaces));
  if (plan.has_floor()) program->setAttr("floor", stepWorkAttribute(builder, plan.floor()));
  if (plan.has_training()) {
    const plan::Training& training = plan.training();
    MLIRContext* context = builder.getContext();
    SmallVector<Attribute> groups;
    for (const plan::ParameterGroup& group : training.groups()) {
      NamedAttrList entry;
      entry.set("name", builder.getStringAttr(group.name()));
      entry.set("settings", builder.getStringAttr(group.settings()));
      if (group.has_learning_rate()) entry.set("learning_rate", builder.getF64FloatAttr(group.learning_rate()));
      groups.push_back(entry.getDictionary(context));
    }
    NamedAttrList attributes;
    if (training.has_loss_scale())
      attributes.set("loss_scale", builder.getStringAttr(plan::lossScaleText(training.loss_scale())));
    attributes.append(ArrayRef<NamedAttribute>{
        builder.getNamedAttr("groups", builder.getArrayAttr(groups)),
        builder.getNamedAttr("optimizer", builder.getStringAttr(training.optimizer())),
        builder.getNamedAttr("learning_rate", builder.getF64FloatAttr(training.learning_rate())),
        builder.getNamedAttr("schedule", builder.getStringAttr(plan::scheduleText(training.schedule()))),
        builder.getNamedAttr("clip_norm", builder.getF64FloatAttr(training.clip_norm())),
        builder.getNamedAttr("on_nan", OnNanAttr::get(context, training.on_nan())),
        builder.getNamedAttr("seed", builder.getI64IntegerAttr(training.seed())),
        builder.getNamedAttr("reduce_order", ReduceOrderAttr::get(context, training.reduce_order())),
    });
    program->setAttr("training", attributes.getDictionary(context));
  }
}

void Reader::declarations() {
  for (const plan::Buffer& b : plan.buffers())
    buffers.push_back(BufferOp::create(builder, loc, BufferType::get(builder.getContext()), b.name(), b.kind(),
                                       int64_t(b.offset()), int64_t(b.bytes()), b.persistent(), spaceOrNone(b)));
  for (const plan::File& f : plan.files()) FileOp::create(builder, loc, f.path(), int64_t(f.size()), int64_t(f.hash()));
  for (const plan::Bucket& b : plan.buckets()) {
    SmallVector<Value> states;
    SmallVector<Attribute> names;
    for (const plan::State& state : b.states()) {
      states.push_back(buffers[state.buffer()]);
      names.push_back(builder.getStringAttr(state.name()));
    }
    BucketOp::create(builder, loc, b.name(), b.type(), int64_t(b.elements()), buffers[b.parameter_buffer()],
                     b.parameters_sharded(), states, builder.getArrayAttr(names), b.states_sharded(), b.trainable(),
                     b.master(), typeOrNone(b.gradient_type()), b.group());
  }
  for (const plan::Parameter& p : plan.parameters()) {
    SmallVector<StringRef> aliases(p.aliases().begin(), p.aliases().end());
    ParameterOp::create(builder, loc, p.name(), p.type(), list(p.shape()), list(p.permutation()), p.trainable(),
                        int64_t(p.bucket()), int64_t(p.offset()), source(p), typeOrNone(p.source_type()),
                        aliases.empty() ? ArrayAttr() : builder.getStrArrayAttr(aliases));
  }
  for (const plan::Parameter& p : plan.copied()) {
    SmallVector<StringRef> aliases(p.aliases().begin(), p.aliases().end());
    CopiedOp::create(builder, loc, p.name(), p.type(), list(p.shape()), list(p.permutation()), p.constant(), source(p),
                     aliases.empty() ? ArrayAttr() : builder.getStrArrayAttr(aliases));
  }
  for (const plan::Constant& c : plan.constants())
    ConstantOp::create(builder, loc, buffers[c.buffer()], source(c), ElementsAttr());
  for (const plan::Generation& g : plan.generations())
    GenerationOp::create(builder, loc, buffers[g.current()], buffers[g.next()]);
  for (const plan::Input& i : plan.inputs())
    InputOp::create(builder, loc, i.name(), i.type(), list(i.shape()), i.whole(), i.row_mask(), i.row_index(),
                    i.classes() ? builder.getI64IntegerAttr(i.classes()) : IntegerAttr(),
                    i.has_ignored_label() ? builder.getI64IntegerAttr(i.ignored_label()) : IntegerAttr(), i.tokens(),
                    i.perplexity(), i.ids(), i.shifted());
  for (const plan::Output& o : plan.outputs())
    OutputOp::create(builder, loc, o.name(), o.type(), list(o.shape()), int64_t(o.axis()), int64_t(o.blocks()));
  for (const plan::StepScalar& s : plan.scalars())
    ScalarOp::create(builder, loc, s.kind(), APFloat(s.value()), s.group());
  if (plan.has_loss_scale_buffer()) LossScaleOp::create(builder, loc, buffers[plan.loss_scale_buffer()]);
  for (const plan::KernelImage& i : plan.images()) {
    SmallVector<int64_t> offsets, grids, threads;
    for (const plan::KernelEntry& entry : i.entries()) {
      offsets.push_back(static_cast<int64_t>(entry.offset()));
      grids.push_back(entry.grid());
      threads.push_back(entry.threads());
    }
    ImageOp::create(builder, loc, i.target(), i.cpu(), strings(i.features()), offsets, grids, threads, i.code(),
                    i.toolkit().empty() ? StringAttr() : builder.getStringAttr(i.toolkit()));
  }
  for (const plan::Kernel& k : plan.kernels())
    KernelOp::create(builder, loc, k.symbol(), int64_t(k.rows()), int64_t(k.block()), list(k.operand_bytes()),
                     list(k.operand_access()), list(k.in_place()), int64_t(k.operations()), int64_t(k.padding()),
                     k.program() ? builder.getStringAttr(hexText(k.program())) : StringAttr(),
                     k.ops_size() > 0 ? strings(k.ops()) : ArrayAttr());
  if (plan.has_origin()) {
    OriginOp::create(builder, loc, plan.origin().leaves(), strings(plan.origin().options()));
    originProgram("step", plan.origin().step());
    originProgram("evaluation", plan.origin().evaluation());
  }
  for (const plan::DigestTable& table : plan::kDigestTables) {
    const plan::DigestTable::List& list = (plan.digests().*table.get)();
    SmallVector<Attribute> entries;
    for (uint64_t digest : list) entries.push_back(builder.getStringAttr(hexText(digest)));
    if (!entries.empty()) DigestsOp::create(builder, loc, table.name, builder.getArrayAttr(entries));
  }
}

void Reader::originProgram(StringRef function, const google::protobuf::RepeatedPtrField<plan::Origin::Part>& parts) {
  SmallVector<Attribute> names, hashes;
  for (const plan::Origin::Part& part : parts) {
    names.push_back(builder.getStringAttr(part.name()));
    hashes.push_back(builder.getStringAttr(hexText(part.hash())));
  }
  if (!names.empty())
    OriginProgramOp::create(builder, loc, function, builder.getArrayAttr(names), builder.getArrayAttr(hashes));
}

void Reader::instructions(Region& region, const google::protobuf::RepeatedPtrField<plan::Instruction>& list) {
  builder.createBlock(&region);
  for (const plan::Instruction& instruction : list) one(instruction);
}

void Reader::one(const plan::Instruction& from) {
  switch (from.kind_case()) {
    case plan::Instruction::kKernel: {
      const plan::KernelLaunch& k = from.kernel();
      instruction<LaunchOp>(from, int64_t(k.kernel()), k.rows(), k.block(), int64_t(from.updates_bucket()),
                            k.on_host());
      break;
    }
    case plan::Instruction::kCall: {
      const plan::LibraryCall& c = from.call();
      instruction<CallOp>(from, c.function(), attributesOf(builder, c), int64_t(c.scratch_per_thread()),
                          int64_t(c.device_scratch()));
      break;
    }
    case plan::Instruction::kCollective: {
      const plan::Collective& c = from.collective();
      auto create = [&]<typename OpTy>() {
        instruction<OpTy>(from, int64_t(c.communicator()), c.type(), int64_t(c.count()), c.bucket(), c.phase());
      };
      if (c.op() == plan::ALL_GATHER)
        create.operator()<AllGatherOp>();
      else if (c.op() == plan::REDUCE_SCATTER)
        create.operator()<ReduceScatterOp>();
      else
        create.operator()<AllReduceOp>();
      break;
    }
    case plan::Instruction::kRecord:
      RecordOp::create(builder, loc, int64_t(from.record().event()), int64_t(from.stream()), from.label());
      break;
    case plan::Instruction::kWait:
      WaitOp::create(builder, loc, int64_t(from.wait().event()), int64_t(from.stream()), from.label());
      break;
    case plan::Instruction::kInput:
      instruction<ReadInputOp>(from, int64_t(from.input().input()));
      break;
    case plan::Instruction::kScalars:
      instruction<ReadScalarsOp>(from);
      break;
    case plan::Instruction::kOutput:
      instruction<WriteOutputOp>(from, from.output().output(), int64_t(from.output().tensor()));
      break;
    case plan::Instruction::kTransfer:
      instruction<TransferOp>(from, from.transfer().kind());
      break;
    case plan::Instruction::kPersist:
      instruction<PersistOp>(from, int64_t(from.persist().communicator()));
      break;
    case plan::Instruction::KIND_NOT_SET:
      break;
  }
}

}  // namespace

DictionaryAttr attributesOf(OpBuilder& builder, const plan::LibraryCall& call) {
  SmallVector<NamedAttribute> attributes;
  for (const plan::Attribute& a : call.attributes())
    attributes.push_back(builder.getNamedAttr(a.name(), a.has_real() ? Attribute(builder.getF64FloatAttr(a.real()))
                                                                     : builder.getI64IntegerAttr(a.integer())));
  return builder.getDictionaryAttr(attributes);
}

OwningOpRef<ModuleOp> fromProto(MLIRContext& context, const plan::Plan& plan) {
  Reader reader(plan, context);
  OwningOpRef<ModuleOp> module = ModuleOp::create(reader.loc);
  reader.builder.setInsertionPointToEnd(module->getBody());
  auto program = ProgramOp::create(reader.builder, reader.loc);
  reader.header(program);
  Block* block = reader.builder.createBlock(&program.getBody());
  reader.declarations();
  auto section = [&]<typename OpTy>(const auto& list) {
    reader.builder.setInsertionPointToEnd(block);
    reader.instructions(OpTy::create(reader.builder, reader.loc).getBody(), list);
  };
  section.operator()<PrologueOp>(plan.prologue());
  for (const plan::StepPart& part : plan.parts()) {
    reader.builder.setInsertionPointToEnd(block);
    reader.instructions(PartOp::create(reader.builder, reader.loc, part.name()).getBody(), part.instructions());
  }
  section.operator()<StepOp>(plan.body());
  section.operator()<EpilogueOp>(plan.epilogue());
  if (plan.evaluation_size() > 0) section.operator()<EvaluationOp>(plan.evaluation());
  return module;
}

}  // namespace sheaf::plan_ir
