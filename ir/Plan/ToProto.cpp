// From the `plan` dialect to plan.proto.
#include "ir/Plan/PlanProto.h"
#include "ir/Plan/StepWorkAttribute.h"
#include "llvm/ADT/TypeSwitch.h"
#include "runtime/base/Text.h"
#include "runtime/plan/DigestTable.h"
#include "runtime/plan/LossScale.h"
#include "runtime/plan/Schedules.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/Words.h"

using namespace mlir;

namespace sheaf::plan_ir {

namespace {

struct Writer {
  const Kernels kernels;
  plan::Plan plan;
  llvm::DenseMap<Value, uint32_t> buffers;

  explicit Writer(Kernels kernels) : kernels(kernels) {}

  void operand(const TextOperand& from, plan::Operand* to) {
    to->set_buffer(buffers.lookup(from.buffer));
    to->set_offset(from.offset);
    to->set_bytes(from.bytes);
    to->set_shard_stride(from.stride);
    to->set_access(static_cast<plan::Access>(from.access));
    to->set_axis(from.axis);
  }

  LogicalResult hash(Operation* op, StringRef text, uint64_t& value) {
    if (!text.getAsInteger(16, value)) return success();
    return op->emitError() << "'" << text << "' is not a hexadecimal number of 64 bits";
  }

  template <typename Field>
  void source(ArrayRef<int64_t> from, Field* to) {
    if (from.size() < 3) return;
    plan::Source* source = to->mutable_source();
    source->set_file(from[0]);
    source->set_offset(from[1]);
    source->set_length(from[2]);
    for (int64_t hash : from.drop_front(3)) source->add_hashes(static_cast<uint64_t>(hash));
  }

  LogicalResult declaration(Operation* op);
  LogicalResult instruction(Operation* op, plan::Instruction* out);
  using KindList = google::protobuf::RepeatedPtrField<plan::KindBytes>;
  LogicalResult memoryKinds(ProgramOp program, DictionaryAttr kinds, KindList* list);
  LogicalResult memorySpaces(ProgramOp program, DictionaryAttr spaces);
  LogicalResult header(ProgramOp program);
  LogicalResult section(Region& region, google::protobuf::RepeatedPtrField<plan::Instruction>* out) {
    for (Operation& op : region.front())
      if (failed(instruction(&op, out->Add()))) return failure();
    return success();
  }
};

LogicalResult Writer::declaration(Operation* op) {
  return llvm::TypeSwitch<Operation*, LogicalResult>(op)
      .Case([&](BufferOp b) {
        buffers[b.getResult()] = plan.buffers_size();
        plan::Buffer* out = plan.add_buffers();
        out->set_name(b.getName().str());
        out->set_kind(b.getKind());
        out->set_offset(b.getOffset());
        out->set_bytes(b.getBytes());
        out->set_persistent(b.getPersistent());
        out->set_space(spaceOf(b));
        return success();
      })
      .Case([&](FileOp f) {
        plan::File* out = plan.add_files();
        out->set_path(f.getPath().str());
        out->set_size(f.getSize());
        out->set_hash(f.getHash());
        return success();
      })
      .Case([&](BucketOp b) {
        plan::Bucket* out = plan.add_buckets();
        out->set_name(b.getName().str());
        out->set_type(b.getType());
        out->set_elements(b.getElements());
        out->set_parameter_buffer(buffers.lookup(b.getParameters()));
        out->set_parameters_sharded(b.getParametersSharded());
        for (auto [name, buffer] : llvm::zip(b.getStateNames().getAsRange<StringAttr>(), b.getStates())) {
          plan::State* state = out->add_states();
          state->set_name(name.getValue().str());
          state->set_buffer(buffers.lookup(buffer));
        }
        out->set_states_sharded(b.getStatesSharded());
        out->set_trainable(b.getTrainable());
        out->set_master(b.getMaster());
        if (b.getGradientType()) out->set_gradient_type(*b.getGradientType());
        out->set_group(static_cast<uint32_t>(b.getGroup()));
        return success();
      })
      .Case([&](ParameterOp p) {
        plan::Parameter* out = plan.add_parameters();
        out->set_name(p.getName().str());
        out->set_type(p.getType());
        for (int64_t d : p.getShape()) out->add_shape(d);
        for (int64_t d : p.getPermutation()) out->add_permutation(d);
        out->set_trainable(p.getTrainable());
        out->set_bucket(p.getBucket());
        out->set_offset(p.getOffset());
        source(p.getSource(), out);
        if (p.getSourceType()) out->set_source_type(*p.getSourceType());
        if (p.getAliases())
          for (StringAttr alias : p.getAliases()->getAsRange<StringAttr>()) out->add_aliases(alias.str());
        return success();
      })
      .Case([&](CopiedOp c) {
        plan::Parameter* out = plan.add_copied();
        out->set_name(c.getName().str());
        out->set_type(c.getType());
        for (int64_t d : c.getShape()) out->add_shape(d);
        for (int64_t d : c.getPermutation()) out->add_permutation(d);
        out->set_constant(c.getConstant());
        source(c.getSource(), out);
        if (c.getAliases())
          for (StringAttr alias : c.getAliases()->getAsRange<StringAttr>()) out->add_aliases(alias.str());
        return success();
      })
      .Case([&](ConstantOp c) {
        plan::Constant* out = plan.add_constants();
        out->set_buffer(buffers.lookup(c.getBuffer()));
        source(c.getSource(), out);
        return success();
      })
      .Case([&](GenerationOp g) {
        plan::Generation* out = plan.add_generations();
        out->set_current(buffers.lookup(g.getCurrent()));
        out->set_next(buffers.lookup(g.getNext()));
        return success();
      })
      .Case([&](InputOp i) {
        plan::Input* out = plan.add_inputs();
        out->set_name(i.getName().str());
        out->set_type(i.getType());
        for (int64_t d : i.getShape()) out->add_shape(d);
        out->set_whole(i.getWhole());
        out->set_row_mask(i.getRowMask());
        out->set_row_index(i.getRowIndex());
        if (i.getClasses()) out->set_classes(int64_t(*i.getClasses()));
        if (i.getIgnored()) out->set_ignored_label(int64_t(*i.getIgnored()));
        out->set_tokens(i.getTokens());
        out->set_perplexity(i.getPerplexity());
        out->set_ids(i.getIds());
        out->set_shifted(i.getShifted());
        return success();
      })
      .Case([&](OutputOp o) {
        plan::Output* out = plan.add_outputs();
        out->set_name(o.getName().str());
        out->set_type(o.getType());
        for (int64_t d : o.getShape()) out->add_shape(d);
        out->set_axis(o.getAxis());
        out->set_blocks(o.getBlocks());
        return success();
      })
      .Case([&](ScalarOp s) {
        plan::StepScalar* out = plan.add_scalars();
        out->set_kind(s.getKind());
        out->set_value(s.getValue().convertToDouble());
        out->set_group(static_cast<uint32_t>(s.getGroup()));
        return success();
      })
      .Case([&](LossScaleOp l) {
        plan.set_loss_scale_buffer(buffers.lookup(l.getBuffer()));
        return success();
      })
      .Case([&](ImageOp i) {
        plan::KernelImage* out = plan.add_images();
        out->set_target(i.getTarget().str());
        out->set_cpu(i.getCpu().str());
        for (auto feature : i.getFeatures().getAsRange<StringAttr>()) out->add_features(feature.getValue().str());
        out->set_code(i.getCode().str());
        if (i.getToolkit()) out->set_toolkit(i.getToolkit()->str());
        if (i.getGrids().size() != i.getOffsets().size() || i.getThreads().size() != i.getOffsets().size())
          return LogicalResult(op->emitError("needs as many grids and threads as offsets"));
        for (auto [offset, grid, threads] : llvm::zip(i.getOffsets(), i.getGrids(), i.getThreads())) {
          plan::KernelEntry* entry = out->add_entries();
          entry->set_offset(offset);
          entry->set_grid(grid);
          entry->set_threads(threads);
        }
        return success();
      })
      .Case([&](KernelOp k) {
        if (kernels == Kernels::kCompiled && !k.getFusion().empty())
          return LogicalResult(op->emitError("the kernel is not compiled yet"));
        plan::Kernel* out = plan.add_kernels();
        out->set_symbol(k.getSymbol().str());
        out->set_rows(k.getRows());
        out->set_block(k.getBlock());
        for (int64_t bytes : k.getOperandBytes()) out->add_operand_bytes(bytes);
        for (int64_t access : k.getAccess()) out->add_operand_access(static_cast<plan::Access>(access));
        for (int64_t number : k.getInPlace()) out->add_in_place(static_cast<uint32_t>(number));
        out->set_operations(k.getOperations());
        out->set_padding(k.getPadding());
        uint64_t program = 0;
        if (k.getProgram() && failed(hash(op, *k.getProgram(), program))) return failure();
        out->set_program(program);
        if (k.getOps())
          for (auto line : k.getOps()->getAsRange<StringAttr>()) out->add_ops(line.getValue().str());
        return success();
      })
      .Case([&](OriginOp o) {
        plan.mutable_origin()->set_leaves(o.getLeaves());
        for (auto option : o.getOptions().getAsRange<StringAttr>())
          plan.mutable_origin()->add_options(option.getValue().str());
        return success();
      })
      .Case([&](OriginProgramOp o) {
        if (o.getFunction() != "step" && o.getFunction() != "evaluation")
          return LogicalResult(op->emitError("is of neither \"step\" nor \"evaluation\""));
        if (o.getNames().size() != o.getHashes().size())
          return LogicalResult(op->emitError("needs as many names as hashes"));
        plan::Origin* origin = plan.mutable_origin();
        for (auto [name, text] : llvm::zip(o.getNames(), o.getHashes())) {
          uint64_t value = 0;
          if (failed(hash(op, cast<StringAttr>(text).getValue(), value))) return failure();
          plan::Origin::Part* part = o.getFunction() == "step" ? origin->add_step() : origin->add_evaluation();
          part->set_name(cast<StringAttr>(name).getValue().str());
          part->set_hash(value);
        }
        return success();
      })
      .Case([&](DigestsOp d) {
        const plan::DigestTable* table = plan::findDigestTable(d.getTable());
        if (!table) return LogicalResult(op->emitError() << "a plan has no table '" << d.getTable() << "'");
        for (auto entry : d.getEntries().getAsRange<StringAttr>()) {
          uint64_t value = 0;
          if (failed(hash(op, entry.getValue(), value))) return failure();
          (plan.mutable_digests()->*table->edit)()->Add(value);
        }
        return success();
      })
      .Case([&](PartOp p) {
        plan::StepPart* part = plan.add_parts();
        part->set_name(p.getName().str());
        return section(p.getBody(), part->mutable_instructions());
      })
      .Case([&](PrologueOp s) { return section(s.getBody(), plan.mutable_prologue()); })
      .Case([&](StepOp s) { return section(s.getBody(), plan.mutable_body()); })
      .Case([&](EpilogueOp s) { return section(s.getBody(), plan.mutable_epilogue()); })
      .Case([&](EvaluationOp s) { return section(s.getBody(), plan.mutable_evaluation()); })
      .Default([](Operation* other) { return other->emitError("is not a declaration or an instruction of a plan"); });
}

LogicalResult Writer::instruction(Operation* op, plan::Instruction* out) {
  auto stream = op->getAttrOfType<IntegerAttr>("stream");
  auto label = op->getAttrOfType<StringAttr>("label");
  if (!stream || !label) return op->emitError("is not an instruction");
  out->set_stream(stream.getInt());
  out->set_label(label.getValue().str());
  for (const TextOperand& o : operandsOf(op)) operand(o, out->add_operands());
  // Analyses of unfinished plans, which have not been verified, rely on these.
  const int needed = isa<AllGatherOp, ReduceScatterOp, AllReduceOp, TransferOp>(op) ? 2
                     : isa<ReadInputOp, ReadScalarsOp, WriteOutputOp>(op)           ? 1
                                                                                    : out->operands_size();
  if (out->operands_size() != needed) return op->emitError() << "takes " << needed << " operands";
  return llvm::TypeSwitch<Operation*, LogicalResult>(op)
      .Case([&](LaunchOp l) {
        plan::KernelLaunch* launch = out->mutable_kernel();
        launch->set_kernel(l.getKernel());
        launch->set_rows(l.getRows());
        launch->set_block(l.getBlock());
        launch->set_on_host(l.getOnHost());
        out->set_updates_bucket(l.getUpdatesBucket());
        return success();
      })
      .Case([&](CallOp c) {
        plan::LibraryCall* call = out->mutable_call();
        call->set_function(c.getFunction().str());
        for (NamedAttribute attribute : c.getParameters()) {
          plan::Attribute* to = call->add_attributes();
          to->set_name(attribute.getName().str());
          if (auto integer = dyn_cast<IntegerAttr>(attribute.getValue()))
            to->set_integer(integer.getInt());
          else if (auto real = dyn_cast<FloatAttr>(attribute.getValue()))
            to->set_real(real.getValueAsDouble());
          else
            return LogicalResult(op->emitError() << "attribute '" << attribute.getName() << "' must be a number");
        }
        call->set_scratch_per_thread(c.getScratchPerThread());
        call->set_device_scratch(c.getDeviceScratch());
        return success();
      })
      .Case<AllGatherOp, ReduceScatterOp, AllReduceOp>([&](auto c) {
        plan::Collective* to = out->mutable_collective();
        using Op = decltype(c);
        to->set_op(std::is_same_v<Op, AllGatherOp>       ? plan::ALL_GATHER
                   : std::is_same_v<Op, ReduceScatterOp> ? plan::REDUCE_SCATTER
                                                         : plan::ALL_REDUCE);
        to->set_communicator(c.getCommunicator());
        to->set_type(c.getType());
        to->set_count(c.getCount());
        to->set_bucket(c.getBucket().str());
        to->set_phase(c.getPhase());
        return success();
      })
      .Case([&](RecordOp r) {
        out->mutable_record()->set_event(r.getEvent());
        return success();
      })
      .Case([&](WaitOp w) {
        out->mutable_wait()->set_event(w.getEvent());
        return success();
      })
      .Case([&](ReadInputOp r) {
        out->mutable_input()->set_input(r.getInput());
        return success();
      })
      .Case([&](ReadScalarsOp) {
        out->mutable_scalars();
        return success();
      })
      .Case([&](WriteOutputOp w) {
        out->mutable_output()->set_output(w.getOutput());
        out->mutable_output()->set_tensor(w.getTensor());
        return success();
      })
      .Case([&](TransferOp t) {
        out->mutable_transfer()->set_kind(t.getKind());
        return success();
      })
      .Case([&](PersistOp p) {
        out->mutable_persist()->set_communicator(p.getCommunicator());
        return success();
      })
      .Default([](Operation* other) { return other->emitError("is not an instruction"); });
}

// In the kinds' order, whatever the order of the text.
LogicalResult Writer::memoryKinds(ProgramOp program, DictionaryAttr kinds, KindList* list) {
  for (NamedAttribute kind : kinds)
    if (!plan::valueOf<plan::BufferKind>(kind.getName().strref()) || !isa<IntegerAttr>(kind.getValue()))
      return program.emitError() << "by_kind: '" << kind.getName()
                                 << "' is not a kind of buffer with a number of bytes";
  for (const std::string& word : plan::words<plan::BufferKind>())
    if (auto bytes = kinds.getAs<IntegerAttr>(word)) {
      plan::KindBytes* to = list->Add();
      to->set_kind(*plan::valueOf<plan::BufferKind>(word));
      to->set_bytes(bytes.getInt());
    }
  return success();
}

// `spaces = {host = {peak_bytes = 4096 : i64, by_kind = {...}}}`
LogicalResult Writer::memorySpaces(ProgramOp program, DictionaryAttr spaces) {
  auto peak = [](DictionaryAttr of) { return of ? of.getAs<IntegerAttr>("peak_bytes") : IntegerAttr(); };
  for (NamedAttribute space : spaces)
    if (!plan::valueOf<plan::Buffer::Space>(space.getName().strref()) ||
        !peak(dyn_cast<DictionaryAttr>(space.getValue())))
      return program.emitError() << "spaces: '" << space.getName()
                                 << "' is not a space with its peak_bytes; the spaces are "
                                 << listText(plan::words<plan::Buffer::Space>(), SIZE_MAX);
  for (const std::string& word : plan::words<plan::Buffer::Space>())
    if (auto of = spaces.getAs<DictionaryAttr>(word)) {
      plan::SpaceMemory* to = plan.mutable_memory()->add_spaces();
      to->set_space(*plan::valueOf<plan::Buffer::Space>(word));
      to->set_peak_bytes(peak(of).getInt());
      if (auto kinds = of.getAs<DictionaryAttr>("by_kind"))
        if (failed(memoryKinds(program, kinds, to->mutable_by_kind()))) return failure();
    }
  return success();
}

LogicalResult Writer::header(ProgramOp program) {
  auto integer = [&](StringRef name) {
    auto attribute = program->getAttrOfType<IntegerAttr>(name);
    return attribute ? attribute.getInt() : 0;
  };
  auto text = [](DictionaryAttr from, StringRef name) {
    auto attribute = from.getAs<StringAttr>(name);
    return attribute ? attribute.getValue().str() : std::string();
  };
  auto real = [](DictionaryAttr from, StringRef name) {
    auto attribute = from.getAs<FloatAttr>(name);
    return attribute ? attribute.getValueAsDouble() : 0;
  };
  auto whole = [](DictionaryAttr from, StringRef name) {
    auto attribute = from.getAs<IntegerAttr>(name);
    return attribute ? attribute.getInt() : 0;
  };
  // The text of the oldest version is that of this one.
  plan.set_version(integer("version") == plan::kOldestPlanVersion ? plan::kPlanVersion : integer("version"));
  plan.set_producer(text(program->getAttrDictionary(), "producer"));
  plan.set_model(text(program->getAttrDictionary(), "model"));
  plan.set_ranks(integer("ranks"));
  plan.set_zero_stage(integer("zero"));
  plan.set_batch(integer("batch"));
  plan.set_max_threads(integer("max_threads"));
  plan.set_events(integer("events"));
  plan.set_communicators(integer("communicators"));
  plan.set_micro_batches(integer("micro_batches"));
  plan.set_ranks_per_node(integer("ranks_per_node"));
  plan.set_network_stage(integer("network_zero"));
  if (auto axes = program->getAttrOfType<ArrayAttr>("communicator_axes"))
    for (auto axis : axes.getAsRange<StringAttr>()) {
      std::optional<plan::Axis> value = plan::valueOf<plan::Axis>(std::string_view(axis.getValue()));
      if (!value)
        return program.emitError() << "communicator_axes: '" << axis.getValue() << "' is not one of "
                                   << listText(plan::words<plan::Axis>(), SIZE_MAX);
      plan.add_communicator_axes(*value);
    }
  if (auto dealing = program->getAttrOfType<StringAttr>("dealing")) {
    std::optional<plan::Dealing> value = plan::valueOf<plan::Dealing>(std::string_view(dealing.getValue()));
    if (!value)
      return program.emitError() << "dealing: '" << dealing.getValue() << "' is not one of "
                                 << listText(plan::words<plan::Dealing>(), SIZE_MAX);
    plan.set_dealing(*value);
  }
  if (auto turns = program->getAttrOfType<DenseI64ArrayAttr>("turns")) {
    if (turns.size() % 2) return program.emitError("turns: needs a part and a micro-batch for each");
    for (int64_t i = 0; i < turns.size(); i += 2) {
      plan::Turn* turn = plan.add_turns();
      turn->set_part(static_cast<uint32_t>(turns[i]));
      turn->set_micro_batch(static_cast<uint32_t>(turns[i + 1]));
    }
  }
  if (auto streams = program->getAttrOfType<ArrayAttr>("streams"))
    for (auto stream : streams.getAsRange<StringAttr>()) plan.add_streams(stream.getValue().str());
  if (auto decisions = program->getAttrOfType<ArrayAttr>("decisions"))
    for (auto decision : decisions.getAsRange<StringAttr>()) plan.add_decisions(decision.getValue().str());
  if (auto options = program->getAttrOfType<ArrayAttr>("options"))
    for (auto option : options.getAsRange<StringAttr>()) plan.add_options(option.getValue().str());
  if (auto inputs = program->getAttrOfType<ArrayAttr>("unneeded_inputs"))
    for (auto input : inputs.getAsRange<StringAttr>()) plan.add_unneeded_inputs(input.getValue().str());
  plan.mutable_memory()->set_peak_bytes(integer("peak_bytes"));
  plan.mutable_memory()->set_library_bytes(integer("library_bytes"));
  if (auto kinds = program->getAttrOfType<DictionaryAttr>("by_kind"))
    if (failed(memoryKinds(program, kinds, plan.mutable_memory()->mutable_by_kind()))) return failure();
  if (auto spaces = program->getAttrOfType<DictionaryAttr>("spaces"))
    if (failed(memorySpaces(program, spaces))) return failure();
  if (auto floor = program->getAttrOfType<DictionaryAttr>("floor")) {
    FailureOr<plan::StepWork> work = stepWorkOf(program, floor);
    if (failed(work)) return failure();
    *plan.mutable_floor() = std::move(*work);
  }
  if (auto training = program->getAttrOfType<DictionaryAttr>("training")) {
    plan::Training* to = plan.mutable_training();
    to->set_optimizer(text(training, "optimizer"));
    to->set_learning_rate(real(training, "learning_rate"));
    auto word = [&]<typename Attr>(StringRef name) -> FailureOr<decltype(Attr().getValue())> {
      if (!training.contains(name)) return decltype(Attr().getValue())();
      if (auto attribute = training.getAs<Attr>(name)) return attribute.getValue();
      return program.emitError() << "training: '" << name << "' must be #plan<" << Attr::getMnemonic() << " WORD>";
    };
    auto onNan = word.operator()<OnNanAttr>("on_nan");
    auto order = word.operator()<ReduceOrderAttr>("reduce_order");
    if (failed(onNan) || failed(order)) return failure();
    if (training.contains("schedule")) {
      Expected<plan::Schedule> schedule = plan::parseSchedule(text(training, "schedule"));
      if (!schedule.ok()) return program.emitError() << "training: " << schedule.status().message();
      *to->mutable_schedule() = std::move(*schedule);
    }
    if (training.contains("loss_scale")) {
      Expected<std::optional<plan::LossScale>> scale = plan::parseLossScale(text(training, "loss_scale"));
      if (!scale.ok()) return program.emitError() << "training: loss scale: " << scale.status().message();
      if (*scale) *to->mutable_loss_scale() = std::move(**scale);
    }
    if (auto groups = training.getAs<ArrayAttr>("groups"))
      for (auto entry : groups.getAsRange<DictionaryAttr>()) {
        plan::ParameterGroup* group = to->add_groups();
        group->set_name(text(entry, "name"));
        group->set_settings(text(entry, "settings"));
        if (entry.contains("learning_rate")) group->set_learning_rate(real(entry, "learning_rate"));
      }
    to->set_clip_norm(real(training, "clip_norm"));
    to->set_on_nan(*onNan);
    to->set_seed(whole(training, "seed"));
    to->set_reduce_order(*order);
  }
  return success();
}

}  // namespace

FailureOr<plan::Plan> toProto(ProgramOp program, Kernels kernels) {
  Writer writer(kernels);
  if (failed(writer.header(program))) return failure();
  for (Operation& op : program.getBody().front())
    if (failed(writer.declaration(&op))) return failure();
  return std::move(writer.plan);
}

}  // namespace sheaf::plan_ir
