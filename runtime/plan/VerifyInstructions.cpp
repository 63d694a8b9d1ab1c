#include <algorithm>
#include <bit>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "runtime/base/Text.h"
#include "runtime/plan/Generations.h"
#include "runtime/plan/Images.h"
#include "runtime/plan/Library.h"
#include "runtime/plan/LossScale.h"
#include "runtime/plan/MicroBatches.h"
#include "runtime/plan/Tiles.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/Unrolled.h"
#include "runtime/plan/Verify.h"
#include "runtime/plan/Words.h"

namespace sheaf::plan {
namespace {

constexpr int kMaxOperands = 256;
constexpr int64_t kMaxRows = int64_t{1} << 48;
// What a GPU loads or stores at a time.
constexpr uint64_t kVectorBytes = 16;

// Those of the plan's images; the CPU if it has none.
Devices devicesOf(const Plan& plan) {
  if (plan.images().empty()) return {};
  return {.cpu = imageFor(plan, "cpu") != nullptr, .gpu = imageFor(plan, "cuda") != nullptr};
}

// The number of operands that an instruction of a kind has; nothing if other parts of the plan decide it.
std::optional<int> operandsOfKind(Instruction::KindCase kind) {
  switch (kind) {
    case Instruction::kRecord:
    case Instruction::kWait:
      return 0;
    case Instruction::kInput:
    case Instruction::kScalars:
    case Instruction::kOutput:
      return 1;
    case Instruction::kCollective:
    case Instruction::kTransfer:
      return 2;
    default:
      return std::nullopt;
  }
}

class InstructionVerifier {
 public:
  explicit InstructionVerifier(const Plan& plan)
      : plan_(plan),
        ranks_(static_cast<uint64_t>(plan.ranks())),
        devices_(devicesOf(plan)),
        images_(imageGroups(plan)),
        generations_(plan) {
    for (uint32_t update = 1; const Bucket& bucket : plan.buckets()) {
      buckets_.insert(bucket.name());
      declareUpdate(bucket.parameter_buffer(), update);
      if (bucket.master()) declareUpdate(bucket.states(0).buffer(), update);
      if (plan.generations_size() > 0) {
        stored_.insert(bucket.parameter_buffer());
        for (const State& state : bucket.states()) stored_.insert(state.buffer());
      }
      ++update;
    }
    updated_.resize(static_cast<size_t>(plan.buckets_size()));
  }

  Status run() {
    if (!imagesOfTwo_.empty()) return Status::error(imagesOfTwo_);
    SHEAF_RETURN_IF_ERROR(
        checkInstructions(plan_, [this](std::string_view section, int index, const Instruction& instruction) {
          section_ = section, index_ = index, instruction_ = &instruction;
          SHEAF_RETURN_IF_ERROR(this->instruction(instruction));
          return evaluated(instruction);
        }));
    for (int i = 0; i < plan_.outputs_size(); ++i)
      if (!outputs_.count({true, TENSOR, static_cast<uint32_t>(i)}))
        return Status::error(cat("the plan is wrong: output ", i, " '", shortName(plan_.outputs(i).name()),
                                 "': the evaluation does not write it"));
    if (plan_.generations_size() > 0 && !persists_)
      return Status::error(
          "the plan is wrong: it has two generations of its state in files, and its body does not persist them");
    if (plan_.has_loss_scale_buffer() && (!advancesLossScale_ || !outputs_.count({false, LOSS_SCALE, 0})))
      return Status::error("the plan is wrong: its body does not advance the loss scale and write it as an output");
    return {};
  }

 private:
  // What transfers take to a bucket's parameters belongs to its update, too.
  void declareUpdate(uint32_t buffer, uint32_t update) {
    const uint32_t owner = updateOf_.try_emplace(images_[buffer], update).first->second;
    if (owner == update) return;
    imagesOfTwo_ = cat("the plan is wrong: transfers join the parameters of buckets '",
                       shortName(plan_.buckets(static_cast<int>(owner - 1)).name()), "' and '",
                       shortName(plan_.buckets(static_cast<int>(update - 1)).name()), "'");
  }

  Status wrong(const std::string& why) const {
    return Status::error(cat("the plan is wrong: ", describe(plan_, section_, index_, *instruction_), ": ", why));
  }

  uint64_t address(const Operand& operand) const {
    return plan_.buffers(static_cast<int>(operand.buffer())).offset() + operand.offset();
  }

  Status operand(const char* name, int index, const Operand& operand) const {
    std::string what = index < 0 ? name : cat(name, " ", index);
    if (operand.buffer() >= static_cast<uint32_t>(plan_.buffers_size()))
      return wrong(indexError(cat(what, "'s buffer"), operand.buffer(), plan_.buffers_size()));
    const Buffer& buffer = plan_.buffers(static_cast<int>(operand.buffer()));
    if (operand.access() < READ || operand.access() > READ_WRITE) return wrong(cat(what, " has no access"));
    if (!isKnown(operand.axis()) ||
        (operand.axis() != WORLD && (plan_.ranks_per_node() == 0 || operand.shard_stride() == 0)))
      return wrong(cat(what, " is on an axis, and the plan has no nodes or the operand no stride"));
    if (!liesInBuffer(plan_, operand))
      return wrong(cat(what, ", ", placeText(operand), ", lies outside buffer '", shortName(buffer.name()), "' of ",
                       buffer.bytes()));
    const Buffer::Space reached = isOnHost(*instruction_) ? Buffer::HOST : Buffer::DEVICE;
    if (buffer.space() != reached && !instruction_->has_transfer() && !instruction_->has_persist())
      return wrong(cat(what, " is buffer '", shortName(buffer.name()), "' in space ", word(buffer.space()),
                       reached == Buffer::HOST          ? ", and a launch on the host works in the host's memory"
                       : buffer.space() == Buffer::HOST ? ", which only transfers and launches on the host reach"
                                                        : ", which only transfers reach"));
    if (generations_.isNext(operand.buffer()) && (section_ != "body" || (persists_ && !instruction_->has_persist())))
      return wrong(cat(what, " is buffer '", shortName(buffer.name()),
                       "', a next generation: there is one in the body only, until it is persisted"));
    if (operand.access() != READ && stored_.contains(operand.buffer()))
      return wrong(cat(what, " is buffer '", shortName(buffer.name()),
                       "', which is written: it is what a run goes on from after a crash"));
    return {};
  }

  // An operand of a known element type: exactly so many bytes, aligned, with that access.
  Status typed(const char* name, const Operand& at, uint64_t bytes, uint64_t alignment, Access access) const {
    SHEAF_RETURN_IF_ERROR(operand(name, -1, at));
    if (at.bytes() != bytes) return wrong(cat(name, " has ", at.bytes(), " bytes, it needs ", bytes));
    if (address(at) % alignment != 0 || at.shard_stride() % alignment != 0)
      return wrong(cat(name, " is not aligned to ", alignment, " bytes"));
    if (at.access() != access && at.access() != READ_WRITE)
      return wrong(cat(name, access == READ ? " is not read" : " is not written"));
    return {};
  }

  Status instruction(const Instruction& instruction) {
    if (instruction.stream() >= static_cast<uint32_t>(plan_.streams_size()))
      return wrong(indexError("its stream", instruction.stream(), plan_.streams_size()));
    if (const std::optional<int> needed = operandsOfKind(instruction.kind_case()))
      SHEAF_RETURN_IF_ERROR(hasOperands(*needed));
    SHEAF_RETURN_IF_ERROR(update(instruction));
    SHEAF_RETURN_IF_ERROR(lossScale(instruction));
    switch (instruction.kind_case()) {
      case Instruction::kKernel:
        return kernel(instruction);
      case Instruction::kCall:
        return call(instruction);
      case Instruction::kCollective:
        return collective(instruction);
      case Instruction::kRecord:
        return event(instruction.record().event());
      case Instruction::kWait:
        return event(instruction.wait().event());
      case Instruction::kInput:
        return input(instruction);
      case Instruction::kScalars:
        return typed("its destination", destinationOf(instruction),
                     static_cast<uint64_t>(plan_.scalars_size()) * sizeof(float), sizeof(float), WRITE);
      case Instruction::kOutput:
        return output(instruction);
      case Instruction::kTransfer:
        return transfer(instruction);
      case Instruction::kPersist:
        return persist(instruction);
      case Instruction::KIND_NOT_SET:
        break;
    }
    return wrong("it has no kind");
  }

  Status hasOperands(int needed) const {
    const int has = instruction_->operands_size();
    return has == needed ? Status() : wrong(cat("it has ", has, " operands, it needs ", needed));
  }

  // The evaluation leaves what lives from step to step as it was: training goes on as if it had not run.
  Status evaluated(const Instruction& instruction) const {
    if (section_ != "evaluation") return {};
    if (instruction.has_scalars()) return wrong("step scalars belong to a step, not to the evaluation");
    Status status;
    forEachOperand(instruction, [&](const Operand& operand) {
      const Buffer& buffer = plan_.buffers(static_cast<int>(operand.buffer()));
      if (status.ok() && operand.access() != READ && buffer.persistent())
        status = wrong(cat("it writes buffer '", shortName(buffer.name()),
                           "', which lives from step to step: the evaluation may not change it"));
    });
    return status;
  }

  Status kernel(const Instruction& instruction) const {
    const KernelLaunch& launch = instruction.kernel();
    if (launch.kernel() >= static_cast<uint32_t>(plan_.kernels_size()))
      return wrong(indexError("its kernel", launch.kernel(), plan_.kernels_size()));
    const Kernel& kernel = plan_.kernels(static_cast<int>(launch.kernel()));
    if (instruction.operands_size() > kMaxOperands) return wrong(cat("it has more than ", kMaxOperands, " operands"));
    if (instruction.operands_size() != kernel.operand_bytes_size())
      return wrong(cat("kernel '", kernel.symbol(), "' takes ", kernel.operand_bytes_size(), " operands, not ",
                       instruction.operands_size()));
    if (launch.rows() < 0 || launch.rows() > kMaxRows || launch.block() < 1 || launch.block() > kMaxRows)
      return wrong(cat("its rows ", launch.rows(), " or block ", launch.block(), " is out of range"));
    // The kernel's bytes are counted over its own rows and blocks.
    if (launch.rows() != kernel.rows() || launch.block() != kernel.block())
      return wrong(cat("its rows ", launch.rows(), " in blocks of ", launch.block(), " are not kernel '",
                       kernel.symbol(), "'s: ", kernel.rows(), " in blocks of ", kernel.block()));
    for (int i = 0; i < instruction.operands_size(); ++i) {
      const Operand& at = instruction.operands(i);
      SHEAF_RETURN_IF_ERROR(operand("operand", i, at));
      if (at.bytes() < kernel.operand_bytes(i))
        return wrong(cat("operand ", i, " has ", at.bytes(), " bytes, kernel '", kernel.symbol(), "' uses ",
                         kernel.operand_bytes(i)));
      // A GPU takes no vector from elsewhere. What is smaller than a vector is a scalar of the step.
      const uint64_t alignment = std::bit_floor(std::min<uint64_t>(kernel.operand_bytes(i), kVectorBytes));
      const uint64_t start = at.offset() | at.shard_stride();
      if (alignment > 1 && start % alignment != 0 && imageFor(plan_, "cuda"))
        return wrong(cat("operand ", i, " does not start at a multiple of the ", alignment,
                         " bytes that a GPU loads and stores at a time"));
    }
    if (Status status = checkLaunch(plan_, instruction); !status.ok()) return wrong(status.message());
    if (launch.on_host()) SHEAF_RETURN_IF_ERROR(onHost(launch));
    return updatesDeclared(instruction);
  }

  Status onHost(const KernelLaunch& launch) const {
    if (instruction_->updates_bucket() == 0) return wrong("only updates of buckets may be launched on the host");
    const KernelImage* image = hostImage(plan_);
    if (!image || !hasKernel(*image, launch.kernel()))
      return wrong(cat("it is on the host, and the plan has no image with kernel '",
                       plan_.kernels(static_cast<int>(launch.kernel())).symbol(),
                       "' for that: compile the model again"));
    return {};
  }

  // Who changes parameters is declared to: what holds for updates is shown of those.
  Status updatesDeclared(const Instruction& launch) const {
    for (const Operand& operand : launch.operands()) {
      if (operand.access() == READ) continue;
      auto updates = updateOf_.find(images_[operand.buffer()]);
      if (updates != updateOf_.end() && updates->second != launch.updates_bucket())
        return wrong(cat("it writes the parameters of bucket '",
                         plan_.buckets(static_cast<int>(updates->second - 1)).name(),
                         "' and is not declared as its update"));
    }
    return {};
  }

  // Nothing but one call of the body, by the rule of the training, changes the loss scale.
  Status lossScale(const Instruction& instruction) {
    bool writes = false;
    forEachOperand(instruction, [&](const Operand& operand) {
      writes |=
          operand.access() != READ && plan_.has_loss_scale_buffer() && operand.buffer() == plan_.loss_scale_buffer();
    });
    const bool advances =
        instruction.has_call() && instruction.call().function() == Schema<AdvanceLossScaleCall>::kName;
    if (!writes && !advances) return {};
    if (!writes || !advances)
      return wrong(advances ? "it advances no loss scale of the plan" : "it writes the loss scale");
    if (section_ != "body" || advancesLossScale_) return wrong("the loss scale is advanced twice, or outside the body");
    const LossScaleRule rule = ruleOf(plan_.training().loss_scale());
    LibraryCall expected = toWire(AdvanceLossScaleCall{rule});
    const std::vector<Attribute> stated = canonicalAttributes(instruction.call());
    bool same = stated.size() == static_cast<size_t>(expected.attributes_size());
    for (size_t i = 0; same && i < stated.size(); ++i)
      same = stated[i].SerializeAsString() == expected.attributes(static_cast<int>(i)).SerializeAsString();
    if (!same)
      return wrong(
          cat("its attributes are not those of the loss scale ", lossScaleText(plan_.training().loss_scale())));
    advancesLossScale_ = true;
    return {};
  }

  Status call(const Instruction& call) const {
    if (call.operands_size() > kMaxOperands) return wrong(cat("it has more than ", kMaxOperands, " operands"));
    for (int i = 0; i < call.operands_size(); ++i) SHEAF_RETURN_IF_ERROR(operand("operand", i, call.operands(i)));
    if (Status status = checkLibraryCall(call, plan_.max_threads(), devices_); !status.ok())
      return wrong(status.message());
    if (call.call().device_scratch() == 0) return {};
    const Operand& scratch = call.operands(call.operands_size() - 1);
    if (const uint64_t at = address(scratch); at % kDeviceAlignment != 0 || scratch.shard_stride() != 0)
      return wrong(cat("its scratch on a GPU starts at byte ", at, " of the arena",
                       scratch.shard_stride() ? " and depends on the rank" : "", ", but must start at a multiple of ",
                       kDeviceAlignment, ": compile the model again"));
    return {};
  }

  Status event(uint32_t event) const {
    return event < plan_.events() ? Status() : wrong(indexError("its event", event, plan_.events()));
  }

  Status collective(const Instruction& instruction) const {
    const Collective& collective = instruction.collective();
    uint64_t size = elementBytes(collective.type());
    if (!isKnown(collective.op())) return wrong("its collective is unknown");
    if (!isKnown(collective.phase())) return wrong("its phase is not known");
    if (!isFloat(collective.type()) && collective.op() != ALL_GATHER)
      return wrong(cat("a collective cannot sum elements of type ", word(collective.type())));
    if (size == 0) return wrong("its type is not known");
    if (collective.communicator() >= plan_.communicators())
      return wrong(indexError("its communicator", collective.communicator(), plan_.communicators()));
    const Axis axis = axisOf(plan_, collective);
    if (axis == WORLD && plan_.ranks_per_node() > 0 && collective.op() != ALL_REDUCE)
      return wrong("between all ranks of a plan with nodes there are all-reduces only");
    if (collective.count() == 0 || collective.count() > kMaxBytes / ranks_ / size)
      return wrong(cat(collective.count(), " elements are out of range"));
    if (!collective.bucket().empty() && !buckets_.count(collective.bucket()))
      return wrong(cat("its bucket '", shortName(collective.bucket()), "' is not in the plan"));
    const int64_t members = ranksOn(plan_, axis);
    uint64_t part = collective.count() * size, whole = part * static_cast<uint64_t>(members);
    const Operand &source = sourceOf(instruction), &destination = destinationOf(instruction);
    SHEAF_RETURN_IF_ERROR(typed("its source", source, collective.op() == REDUCE_SCATTER ? whole : part, size, READ));
    SHEAF_RETURN_IF_ERROR(
        typed("its destination", destination, collective.op() == ALL_GATHER ? whole : part, size, WRITE));
    // Other ranks read the source while this rank writes its destination: they may share bytes only where each rank's
    // part is in its own place.
    const ArenaRange from = arenaRange(plan_, source), to = arenaRange(plan_, destination);
    if (from.begin < to.end && to.begin < from.end) {
      if (continues(instruction)) return wrong("it adds to its destination, which its source overlaps");
      // Where a rank's part begins, from the array of all parts on.
      Operand index;
      index.set_shard_stride(part);
      index.set_axis(axis);
      const RankStrides within = stridesOf(plan_, index);
      RankStrides of = stridesOf(plan_, source), at = stridesOf(plan_, destination);
      RankStrides& array = collective.op() == ALL_GATHER ? at : of;
      if (collective.op() != ALL_REDUCE) array.local += within.local, array.node += within.node;
      const bool moves =
          (ranksPerNode(plan_) > 1 && of.local != at.local) || (nodesOf(plan_) > 1 && of.node != at.node);
      if (address(source) != address(destination) || moves)
        return wrong("its source and destination overlap without being in place");
    }
    return {};
  }

  Status transfer(const Instruction& instruction) const {
    const Transfer& transfer = instruction.transfer();
    if (!isKnown(transfer.kind())) return wrong("its kind is not known");
    const Operand &from = sourceOf(instruction), &to = destinationOf(instruction);
    SHEAF_RETURN_IF_ERROR(operand("its source", -1, from));
    SHEAF_RETURN_IF_ERROR(operand("its destination", -1, to));
    if (from.access() != READ || to.access() != WRITE)
      return wrong("it must read its source and write its destination, and nothing else");
    const Buffer& source = plan_.buffers(static_cast<int>(from.buffer()));
    const Buffer& destination = plan_.buffers(static_cast<int>(to.buffer()));
    if (!joins(transfer.kind(), source.space(), destination.space()))
      return wrong(cat("it moves bytes from space ", word(source.space()), " to ", word(destination.space()),
                       ", which is not what ", word(transfer.kind()), " does"));
    if (source.bytes() != destination.bytes() || from.offset() != to.offset() || from.bytes() != to.bytes() ||
        from.shard_stride() != to.shard_stride() || from.axis() != to.axis())
      return wrong(cat("its source, ", placeText(from), " in buffer '", shortName(source.name()), "' of ",
                       source.bytes(), ", is not at the same place as its destination, ", placeText(to), " in buffer '",
                       shortName(destination.name()), "' of ", destination.bytes()));
    if (from.bytes() == 0) return wrong("it moves nothing");
    // Files are read and written in blocks, which two transfers must not share.
    const bool ofFile = source.space() == Buffer::FILE || destination.space() == Buffer::FILE;
    const bool ends = from.bytes() % kFileAlignment == 0 || from.offset() + from.bytes() == source.bytes();
    if (ofFile && ((from.offset() | from.shard_stride()) % kFileAlignment != 0 || !ends))
      return wrong(cat("its place in the file, ", placeText(from), ", is not one of whole blocks of ", kFileAlignment,
                       " bytes"));
    return {};
  }

  // Once in the body. Its operands are all that is to be durable before it is complete, and all that must not be
  // overwritten before: so the order of accesses says what may be written when.
  Status persist(const Instruction& persist) {
    if (plan_.generations().empty()) return wrong("the plan has no generations in files that it could persist");
    if (section_ != "body" || persists_) return wrong("files are persisted twice, or outside the body");
    persists_ = true;
    const int votes = plan_.ranks() > 1, scale = plan_.has_loss_scale_buffer();
    const int needed = votes + scale + 2 * plan_.generations_size();
    SHEAF_RETURN_IF_ERROR(hasOperands(needed));
    for (int i = 0; i < needed; ++i) SHEAF_RETURN_IF_ERROR(operand("operand", i, persist.operands(i)));
    if (votes) {
      const uint32_t communicator = persist.persist().communicator();
      if (communicator >= plan_.communicators() || axisOf(plan_, static_cast<int>(communicator)) != WORLD)
        return wrong("its communicator is not one of all ranks");
      const Operand& vote = persist.operands(0);
      SHEAF_RETURN_IF_ERROR(typed("its vote", vote, sizeof(float), sizeof(float), WRITE));
      if (plan_.buffers(static_cast<int>(vote.buffer())).space() != Buffer::DEVICE || vote.shard_stride() != 0)
        return wrong("its vote is not on the device, or depends on the rank");
    }
    auto whole = [&](int i, uint32_t buffer) {
      const Operand& at = persist.operands(i);
      return at.buffer() == buffer && at.access() == READ && at.offset() == 0 && at.shard_stride() == 0 &&
             at.bytes() == plan_.buffers(static_cast<int>(buffer)).bytes();
    };
    if (scale && !whole(votes, plan_.loss_scale_buffer())) return wrong("it does not read the loss scale");
    for (int i = 0; i < plan_.generations_size(); ++i)
      if (const int at = votes + scale + 2 * i;
          !whole(at, plan_.generations(i).current()) || !whole(at + 1, plan_.generations(i).next()))
        return wrong(cat("operands ", at, " and ", at + 1, " are not all of generation ", i, ", current and next"));
    return {};
  }

  Status input(const Instruction& instruction) const {
    const ReadInput& read = instruction.input();
    if (read.input() >= static_cast<uint32_t>(plan_.inputs_size()))
      return wrong(indexError("its input", read.input(), plan_.inputs_size()));
    const Input& input = plan_.inputs(static_cast<int>(read.input()));
    uint64_t size = elementBytes(input.type());
    return typed("its destination", destinationOf(instruction), *elementCount(shapeOf(input)) * size, size, WRITE);
  }

  Status output(const Instruction& instruction) {
    const WriteOutput& output = instruction.output();
    if (!isKnown(output.output())) return wrong("its output is not known");
    const bool body = section_ == "body", evaluation = section_ == "evaluation";
    if (!body && !evaluation) return wrong("outputs are written in the body and in the evaluation only");
    const bool ofStepOnly = output.output() == GRADIENT_NORM || output.output() == LOSS_SCALE;
    if (body ? output.output() != LOSS && !ofStepOnly : ofStepOnly)
      return wrong(cat("the ", section_, " does not write the output ", word(output.output())));
    if (!outputs_.insert({evaluation, output.output(), output.tensor()}).second)
      return wrong("the output is written twice");
    if (output.output() != TENSOR) {
      if (output.tensor() != 0) return wrong(cat("the output ", word(output.output()), " is not a tensor"));
      uint64_t bytes = output.output() == GRADIENT_NORM ? sizeof(double) : sizeof(float);
      return typed("its source", sourceOf(instruction), bytes, bytes, READ);
    }
    if (output.tensor() >= static_cast<uint32_t>(plan_.outputs_size()))
      return wrong(indexError("its tensor", output.tensor(), plan_.outputs_size()));
    const Output& tensor = plan_.outputs(static_cast<int>(output.tensor()));
    const uint64_t size = elementBytes(tensor.type());
    return typed("its source", sourceOf(instruction), *elementCount(shapeOf(tensor)) * size, size, READ);
  }

  Status update(const Instruction& instruction) {
    uint32_t update = instruction.updates_bucket();
    if (update == 0) return {};
    if (update > static_cast<uint32_t>(plan_.buckets_size()))
      return wrong(indexError("its updated bucket", update - 1, plan_.buckets_size()));
    const Bucket& bucket = plan_.buckets(static_cast<int>(update - 1));
    if (section_ != "body" || updated_[update - 1])
      return wrong(cat("bucket '", bucket.name(), "' is updated twice, or outside the body"));
    updated_[update - 1] = true;
    if (!bucket.trainable()) return wrong(cat("bucket '", bucket.name(), "' is frozen"));
    if (!instruction.has_kernel() || instruction.operands_size() < 2)
      return wrong("an update is a kernel of parameter, gradient and more");
    uint64_t whole = bucket.elements() * elementBytes(gradientType(bucket)), gradient = instruction.operands(1).bytes();
    const uint64_t part = whole / static_cast<uint64_t>(partsFrom(plan_, 1));
    if (gradient != whole && gradient != part)
      return wrong(
          cat("its gradient has ", gradient, " bytes, bucket '", bucket.name(), "' has ", whole, " or ", part));
    return {};
  }

  const Plan& plan_;
  const uint64_t ranks_;
  const Devices devices_;
  std::set<std::string> buckets_;
  const std::vector<uint32_t> images_;
  std::map<uint32_t, uint32_t>
      updateOf_;             // from the images of a buffer of parameters to `updates_bucket` of who writes
  std::string imagesOfTwo_;  // why they are not one bucket's; empty: they are
  std::set<std::tuple<bool, int, uint32_t>> outputs_;  // of the evaluation or not, kind, tensor
  std::vector<bool> updated_;
  const Generations generations_;
  std::set<uint32_t> stored_;  // buffers of all state, if that outlives a crash
  bool advancesLossScale_ = false, persists_ = false;
  std::string_view section_;
  int index_ = 0;
  const Instruction* instruction_ = nullptr;
};

}  // namespace

bool liesInBuffer(const Plan& plan, const Operand& operand) {
  const auto ranks = static_cast<uint64_t>(plan.ranks());
  return operand.offset() <= kMaxBytes && operand.bytes() <= kMaxBytes && operand.shard_stride() <= kMaxBytes / ranks &&
         operand.offset() + operand.bytes() + mostRankOffset(plan, operand) <=
             plan.buffers(static_cast<int>(operand.buffer())).bytes();
}

Status verifyInstructions(const Plan& plan) {
  return InstructionVerifier(plan).run();
}

}  // namespace sheaf::plan
