#include "runtime/plan/Verify.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "runtime/base/Hash.h"
#include "runtime/base/Text.h"
#include "runtime/plan/Generations.h"
#include "runtime/plan/Library.h"
#include "runtime/plan/LossScale.h"
#include "runtime/plan/PlanFile.h"
#include "runtime/plan/Schedules.h"
#include "runtime/plan/StepWork.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/Words.h"

namespace sheaf::plan {
namespace {

constexpr int64_t kMaxMicroBatches = 1 << 20;
// Of a step, each as often as it runs.
constexpr size_t kMaxStepInstructions = size_t{1} << 26;

Status wrong(const std::string& what, const std::string& why) {
  return Status::error(cat("the plan is wrong: ", what, ": ", why));
}

template <ProtoEnum Enum>
std::string unknown(Enum value) {
  return cat(static_cast<int>(value), " is not one of its values, which are ", listText(words<Enum>()));
}

class TableVerifier {
 public:
  explicit TableVerifier(const Plan& plan) : plan_(plan), ranks_(static_cast<uint64_t>(plan.ranks())) {}

  Status run() {
    SHEAF_RETURN_IF_ERROR(header());
    SHEAF_RETURN_IF_ERROR(nodes());
    SHEAF_RETURN_IF_ERROR(turns());
    SHEAF_RETURN_IF_ERROR(buffers());
    SHEAF_RETURN_IF_ERROR(files());
    SHEAF_RETURN_IF_ERROR(buckets());
    SHEAF_RETURN_IF_ERROR(parameters());
    SHEAF_RETURN_IF_ERROR(copied());
    SHEAF_RETURN_IF_ERROR(constants());
    SHEAF_RETURN_IF_ERROR(generations());
    SHEAF_RETURN_IF_ERROR(inputs());
    SHEAF_RETURN_IF_ERROR(outputs());
    SHEAF_RETURN_IF_ERROR(training());
    SHEAF_RETURN_IF_ERROR(origin());
    Status kernels = verifyKernels(plan_);
    return kernels.ok() ? kernels : Status::error(cat("the plan is wrong: ", kernels.message()));
  }

 private:
  Status header() {
    if (plan_.version() != kPlanVersion) return Status::error(otherVersion(plan_.version()));
    if (plan_.ranks() < 1 || plan_.ranks() > kMaxRanks)
      return wrong("ranks", cat(plan_.ranks(), " is not between 1 and ", kMaxRanks));
    if (plan_.zero_stage() < 0 || plan_.zero_stage() > 3)
      return wrong("zero_stage", cat(plan_.zero_stage(), " is not between 0 and 3"));
    if (plan_.micro_batches() < 0 || plan_.micro_batches() > kMaxMicroBatches)
      return wrong("micro_batches", cat(plan_.micro_batches(), " is not between 0 and ", kMaxMicroBatches));
    const int64_t pieces = plan_.ranks() * microBatches(plan_);
    if (plan_.batch() < 1 || plan_.batch() > int64_t{1} << 40 || plan_.batch() % pieces != 0)
      return wrong("batch", cat(plan_.batch(), " is not a positive multiple of the ", plan_.ranks(), " ranks",
                                pieces > plan_.ranks() ? cat(" times ", microBatches(plan_), " micro-batches") : "",
                                ", or is above 2^40"));
    if (plan_.max_threads() < 1 || plan_.max_threads() > kMaxThreads)
      return wrong("max_threads", cat(plan_.max_threads(), " is not between 1 and ", kMaxThreads));
    if (plan_.streams_size() < 1 || plan_.streams_size() > static_cast<int>(kMaxStreams))
      return wrong("streams", cat(plan_.streams_size(), " are not between 1 and ", kMaxStreams));
    if (plan_.events() > kMaxEvents) return wrong("events", cat(plan_.events(), " are more than ", kMaxEvents));
    if (plan_.communicators() > kMaxCommunicators)
      return wrong("communicators", cat(plan_.communicators(), " are more than ", kMaxCommunicators));
    return {};
  }

  Status nodes() {
    const int64_t each = plan_.ranks_per_node();
    if (each == 0) {
      if (plan_.network_stage() != 0 || plan_.communicator_axes_size() > 0)
        return wrong("ranks_per_node", "it is 0, and there is a stage between nodes or an axis of a communicator");
      return {};
    }
    if (each < 0 || (each & (each - 1)) != 0 || plan_.ranks() % each != 0)
      return wrong("ranks_per_node", cat(each, " is not a power of two that divides the ", plan_.ranks(), " ranks"));
    if (plan_.network_stage() < 0 || plan_.network_stage() > plan_.zero_stage())
      return wrong("network_stage",
                   cat(plan_.network_stage(), " is not between 0 and the stage within nodes, ", plan_.zero_stage()));
    if ((each == 1 || each == plan_.ranks()) && plan_.network_stage() != plan_.zero_stage())
      return wrong("network_stage", cat(plan_.network_stage(), " differs from the stage within nodes, ",
                                        plan_.zero_stage(), ", and an axis has one rank"));
    if (static_cast<uint32_t>(plan_.communicator_axes_size()) != plan_.communicators())
      return wrong("communicator_axes",
                   cat("there are ", plan_.communicator_axes_size(), " for ", plan_.communicators(), " communicators"));
    for (int axis : plan_.communicator_axes())
      if (!isKnown(static_cast<Axis>(axis))) return wrong("communicator_axes", unknown(static_cast<Axis>(axis)));
    return {};
  }

  // The body is the last micro-batch's turn. Every micro-batch has one, in which parts is the plan's affair: what they
  // compute is in the digests.
  Status turns() {
    std::set<std::string> names{"prologue", "body", "epilogue", "evaluation"};
    for (int i = 0; i < plan_.parts_size(); ++i)
      if (const std::string& name = plan_.parts(i).name(); name.empty() || !names.insert(name).second)
        return wrong(named("part", i, name), "its name is empty or taken");
    if (!isKnown(plan_.dealing())) return wrong("dealing", unknown(plan_.dealing()));
    std::vector<bool> runs(static_cast<size_t>(plan_.parts_size()));
    size_t instructions = 0;
    for (int i = 0; i < plan_.turns_size(); ++i) {
      const Turn& turn = plan_.turns(i);
      if (turn.part() >= static_cast<uint32_t>(plan_.parts_size()))
        return wrong(cat("turn ", i), indexError("its part", turn.part(), plan_.parts_size()));
      if (turn.micro_batch() >= static_cast<uint64_t>(microBatches(plan_)))
        return wrong(cat("turn ", i),
                     cat("its micro-batch ", turn.micro_batch(), " is not one of the step's ", microBatches(plan_)));
      runs[turn.part()] = true;
      instructions += static_cast<size_t>(plan_.parts(static_cast<int>(turn.part())).instructions_size());
      if (instructions > kMaxStepInstructions)
        return wrong("turns", cat("a step has more than ", kMaxStepInstructions, " instructions"));
    }
    for (int i = 0; i < plan_.parts_size(); ++i)
      if (!runs[static_cast<size_t>(i)])
        return wrong(named("part", i, plan_.parts(i).name()), "no turn of the step runs it");
    return {};
  }

  Status buffers() {
    for (int i = 0; i < plan_.buffers_size(); ++i) {
      const Buffer& buffer = plan_.buffers(i);
      std::string what = named("buffer", i, buffer.name());
      if (buffer.kind() < PARAMETERS || buffer.kind() > CONSTANTS) return wrong(what, "its kind is not known");
      if (!isKnown(buffer.space())) return wrong(what, cat("its space ", unknown(buffer.space())));
      const uint64_t alignment = buffer.space() == Buffer::FILE ? kFileAlignment : kAlignment;
      if (buffer.offset() % alignment != 0)
        return wrong(what, cat("offset ", buffer.offset(), " is not a multiple of ", alignment));
      if (buffer.bytes() == 0 || buffer.bytes() > kMaxBytes || buffer.offset() > kMaxBytes)
        return wrong(what, cat("its size ", buffer.bytes(), " or offset ", buffer.offset(), " is out of range"));
    }
    SHEAF_RETURN_IF_ERROR(peak("memory", Buffer::DEVICE, plan_.memory().peak_bytes(), plan_.memory().by_kind()));
    int before = Buffer::DEVICE;
    for (const SpaceMemory& memory : plan_.memory().spaces()) {
      if (!isKnown(memory.space()) || memory.space() <= before)
        return wrong("memory.spaces", "its spaces are not known, not in order, or the device's is among them");
      before = memory.space();
      SHEAF_RETURN_IF_ERROR(
          peak(cat("memory in space ", word(memory.space())), memory.space(), memory.peak_bytes(), memory.by_kind()));
    }
    for (const Buffer& buffer : plan_.buffers())
      if (buffer.space() != Buffer::DEVICE && peakBytes(plan_, buffer.space()) == 0)
        return wrong("memory.spaces", cat("nothing is declared of space ", word(buffer.space()), ", and buffer '",
                                          shortName(buffer.name()), "' lies there"));

    std::vector<int> order(static_cast<size_t>(plan_.buffers_size()));
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(),
              [&](int a, int b) { return addressOf(plan_.buffers(a)) < addressOf(plan_.buffers(b)); });
    int highest = -1, highestPersistent = -1;  // those among the buffers before that end last
    auto end = [&](int i) { return i < 0 ? 0 : addressOf(plan_.buffers(i)) + plan_.buffers(i).bytes(); };
    for (int i : order) {
      const Buffer& buffer = plan_.buffers(i);
      int other = buffer.persistent() ? highest : highestPersistent;
      if (other >= 0 && addressOf(buffer) < end(other))
        return wrong(named("buffer", i, buffer.name()),
                     cat("it shares bytes with ", named("buffer", other, plan_.buffers(other).name()),
                         ", and one of them is persistent"));
      if (end(i) > end(highest)) highest = i;
      if (buffer.persistent() && end(i) > end(highestPersistent)) highestPersistent = i;
    }
    return {};
  }

  // What is declared of a space's arena.
  Status peak(const std::string& what, Buffer::Space space, uint64_t bytes,
              const google::protobuf::RepeatedPtrField<KindBytes>& kinds) {
    if (const uint64_t top = arenaTop(plan_, space); bytes != top)
      return wrong(cat(what, ".peak_bytes"), cat("declared are ", bytes, " bytes, the topmost buffer ends at ", top));
    std::set<int> declared;
    for (const KindBytes& kind : kinds)
      if (!declared.insert(kind.kind()).second)
        return wrong(cat(what, ".by_kind"), cat("the bytes of ", word(kind.kind()), " are declared twice"));
    for (const Buffer& buffer : plan_.buffers())
      if (buffer.space() == space && !declared.contains(buffer.kind()))
        return wrong(cat(what, ".by_kind"), cat("no bytes of ", word(buffer.kind()), " are declared, and buffer '",
                                                shortName(buffer.name()), "' has some"));
    return {};
  }

  Status files() {
    for (int i = 0; i < plan_.files_size(); ++i) {
      const std::string& path = plan_.files(i).path();
      std::string what = named("file", i, path);
      if (path.empty() || path.size() > kMaxPathBytes || path.find('\0') != std::string::npos)
        return wrong(what, cat("its path is empty, longer than ", kMaxPathBytes, " bytes or has a null byte"));
      if (path[0] == '/') return wrong(what, "its path is absolute; paths are relative to the plan's folder");
      if (plan_.files(i).size() > kMaxBytes) return wrong(what, "its size is out of range");
    }
    return {};
  }

  Status source(const std::string& what, const Source& source) {
    if (source.file() >= static_cast<uint32_t>(plan_.files_size()))
      return wrong(what, indexError("its source file", source.file(), plan_.files_size()));
    const File& file = plan_.files(static_cast<int>(source.file()));
    if (source.offset() > kMaxBytes || source.length() > kMaxBytes ||
        (file.size() != 0 && source.offset() + source.length() > file.size()))
      return wrong(what, cat("its source, ", source.length(), " bytes at ", source.offset(), ", lies outside file '",
                             file.path(), "' of ", file.size()));
    const uint64_t pieces = (source.length() + kSourceHashBytes - 1) / kSourceHashBytes;
    if (source.hashes_size() > 0 && static_cast<uint64_t>(source.hashes_size()) != pieces)
      return wrong(what, cat("its source has hashes of ", source.hashes_size(), " pieces, it consists of ", pieces));
    return {};
  }

  // A buffer that holds `elements` of a bucket from step to step.
  Status storage(const std::string& what, uint32_t index, BufferKind kind, uint64_t elements, uint64_t size,
                 int64_t parts) {
    if (index >= static_cast<uint32_t>(plan_.buffers_size()))
      return wrong(what, indexError("its buffer", index, plan_.buffers_size()));
    const Buffer& buffer = plan_.buffers(static_cast<int>(index));
    std::string name = cat("buffer '", buffer.name(), "' ");
    if (!buffer.persistent() || buffer.kind() != kind)
      return wrong(what, cat("its ", name, "is not a persistent buffer of kind ", word(kind)));
    uint64_t bytes = elements / static_cast<uint64_t>(parts) * size;
    if (bytes > buffer.bytes())
      return wrong(what, cat("its ", name, "has ", buffer.bytes(), " bytes, it needs ", bytes));
    if (parts > 1 && bytes % kAlignment != 0)
      return wrong(what, cat("a shard of ", bytes, " bytes is not a multiple of ", kAlignment));
    if (!storage_.insert(index).second) return wrong(what, cat("its ", name, "holds something else already"));
    return {};
  }

  Status buckets() {
    std::set<std::string> names;
    for (int i = 0; i < plan_.buckets_size(); ++i) {
      const Bucket& bucket = plan_.buckets(i);
      std::string what = named("bucket", i, bucket.name());
      if (bucket.name().empty() || !names.insert(bucket.name()).second)
        return wrong(what, "its name is empty or taken");
      if (!isFloat(bucket.type())) return wrong(what, cat("its type is ", word(bucket.type())));
      SHEAF_RETURN_IF_ERROR(inGroups(bucket.group(), what));
      if (bucket.elements() == 0 || bucket.elements() > kMaxBytes || bucket.elements() % ranks_ != 0)
        return wrong(what, cat(bucket.elements(), " elements are not a positive multiple of the ", ranks_,
                               " ranks, or are above 2^50"));
      if (ranks_ > 1 && bucket.trainable() && bucket.states_size() > 0 &&
          bucket.states_sharded() != (plan_.zero_stage() >= 1))
        return wrong(what, cat("stage ", plan_.zero_stage(),
                               plan_.zero_stage() >= 1 ? " shards optimizer state, this bucket's is whole"
                                                       : " keeps optimizer state whole, this bucket's is sharded"));
      if (ranks_ > 1 && bucket.parameters_sharded() && plan_.zero_stage() < 3)
        return wrong(what, cat("stage ", plan_.zero_stage(), " does not shard parameters"));
      if (!isFloat(gradientType(bucket)))
        return wrong(what, cat("its gradients are of type ", word(gradientType(bucket))));
      // The optimizer computes in f32, so that is what it must find.
      if (bucket.trainable() && bucket.master() != (bucket.type() != F32))
        return wrong(what,
                     cat("it is trained in ", word(bucket.type()),
                         bucket.master() ? " and keeps the same again as master weights" : " without master weights"));
      if (bucket.master() && (!bucket.trainable() || bucket.states_size() == 0))
        return wrong(what, "it has no state that could hold its master weights");
      SHEAF_RETURN_IF_ERROR(storage(what, bucket.parameter_buffer(), PARAMETERS, bucket.elements(),
                                    elementBytes(bucket.type()), parameterParts(plan_, bucket)));
      std::set<std::string> states;
      for (const State& state : bucket.states()) {
        std::string whatState = cat(what, ", state '", shortName(state.name()), "'");
        if (state.name().empty() || state.name() == "parameter" || state.name().find('/') != std::string::npos ||
            !states.insert(state.name()).second)
          return wrong(whatState, "its name is empty, taken or has a '/' in it");
        SHEAF_RETURN_IF_ERROR(
            storage(whatState, state.buffer(), OPTIMIZER, bucket.elements(), sizeof(float), stateParts(plan_, bucket)));
      }
    }
    return {};
  }

  // Two places in files for each. Without any the files do not outlive the run; with some they hold all state.
  Status generations() {
    std::set<uint32_t> taken;
    for (int i = 0; i < plan_.generations_size(); ++i) {
      const Generation& generation = plan_.generations(i);
      const std::string what = cat("generation ", i);
      for (uint32_t buffer : {generation.current(), generation.next()}) {
        if (buffer >= static_cast<uint32_t>(plan_.buffers_size()))
          return wrong(what, indexError("its buffer", buffer, plan_.buffers_size()));
        if (!taken.insert(buffer).second) return wrong(what, "a buffer of it is another generation as well");
      }
      const Buffer& current = plan_.buffers(static_cast<int>(generation.current()));
      const Buffer& next = plan_.buffers(static_cast<int>(generation.next()));
      if (!storage_.contains(generation.current()) || storage_.contains(generation.next()))
        return wrong(what, "its current buffer is that of no state, or its next one is");
      if (current.space() != Buffer::FILE || next.space() != Buffer::FILE || !next.persistent() ||
          current.kind() != next.kind() || current.bytes() != next.bytes())
        return wrong(what, cat("buffers '", shortName(current.name()), "' and '", shortName(next.name()),
                               "' are not persistent buffers in files of one kind and size"));
    }
    if (plan_.generations_size() == 0) return {};
    if (const std::vector<std::string> outside = stateOutsideFiles(plan_); !outside.empty())
      return wrong("generations", cat("files are to hold all state, and lack ", listText(outside, 3)));
    return {};
  }

  Status parameters() {
    std::set<std::string> names;
    std::vector<std::vector<int>> members(static_cast<size_t>(plan_.buckets_size()));
    for (int i = 0; i < plan_.parameters_size(); ++i) {
      const Parameter& parameter = plan_.parameters(i);
      std::string what = named("parameter", i, parameter.name());
      if (parameter.name().empty() || !names.insert(parameter.name()).second)
        return wrong(what, "its name is empty or taken");
      if (parameter.bucket() >= static_cast<uint32_t>(plan_.buckets_size()))
        return wrong(what, indexError("its bucket", parameter.bucket(), plan_.buckets_size()));
      const Bucket& bucket = plan_.buckets(static_cast<int>(parameter.bucket()));
      if (parameter.type() != bucket.type() || parameter.trainable() != bucket.trainable())
        return wrong(what, "its type or trainability is not its bucket's");
      std::optional<uint64_t> count = elementCount(shapeOf(parameter));
      if (!count || *count == 0) return wrong(what, cat("its shape is ", shapeText(shapeOf(parameter))));
      if (parameter.offset() > bucket.elements() || *count > bucket.elements() - parameter.offset())
        return wrong(what, cat("elements [", parameter.offset(), ", +", *count, ") lie outside bucket '", bucket.name(),
                               "' of ", bucket.elements()));
      if (parameter.offset() * elementBytes(bucket.type()) % kAlignment != 0)
        return wrong(what, cat("it does not start at a multiple of ", kAlignment, " bytes"));
      SHEAF_RETURN_IF_ERROR(permutation(what, parameter));
      if (parameter.has_source()) {
        SHEAF_RETURN_IF_ERROR(source(what, parameter.source()));
        uint64_t bytes = *count * elementBytes(sourceType(parameter));
        if (!isFloat(sourceType(parameter)))
          return wrong(what, cat("its source is of type ", word(sourceType(parameter))));
        if (parameter.source().length() != bytes)
          return wrong(what, cat("its source has ", parameter.source().length(), " bytes, its shape needs ", bytes));
      }
      members[parameter.bucket()].push_back(i);
    }
    for (std::vector<int>& list : members) {
      std::sort(list.begin(), list.end(),
                [&](int a, int b) { return plan_.parameters(a).offset() < plan_.parameters(b).offset(); });
      for (size_t i = 1; i < list.size(); ++i) {
        const Parameter& before = plan_.parameters(list[i - 1]);
        const Parameter& after = plan_.parameters(list[i]);
        if (before.offset() + *elementCount(shapeOf(before)) > after.offset())
          return wrong(named("parameter", list[i], after.name()),
                       cat("it overlaps '", before.name(), "' in its bucket"));
      }
    }
    return {};
  }

  Status copied() {
    std::set<std::string> names;
    for (const Parameter& parameter : plan_.parameters()) names.insert(parameter.name());
    for (int i = 0; i < plan_.copied_size(); ++i) {
      const Parameter& tensor = plan_.copied(i);
      const std::string what = named("copied tensor", i, tensor.name());
      if (tensor.name().empty() || !names.insert(tensor.name()).second)
        return wrong(what, "its name is empty or taken");
      if (elementBytes(tensor.type()) == 0) return wrong(what, "its type is not known");
      const std::optional<uint64_t> count = elementCount(shapeOf(tensor));
      if (!count) return wrong(what, cat("its shape is ", shapeText(shapeOf(tensor))));
      SHEAF_RETURN_IF_ERROR(permutation(what, tensor));
      if (!tensor.has_source()) continue;
      SHEAF_RETURN_IF_ERROR(source(what, tensor.source()));
      if (const uint64_t bytes = *count * elementBytes(tensor.type()); tensor.source().length() != bytes)
        return wrong(what, cat("its source has ", tensor.source().length(), " bytes, its shape needs ", bytes));
    }
    return {};
  }

  static Status permutation(const std::string& what, const Parameter& parameter) {
    if (parameter.permutation_size() == 0) return {};
    std::vector<int64_t> sorted(parameter.permutation().begin(), parameter.permutation().end());
    std::sort(sorted.begin(), sorted.end());
    for (size_t i = 0; i < sorted.size(); ++i)
      if (sorted[i] != static_cast<int64_t>(i)) return wrong(what, "its permutation does not list each dimension once");
    if (parameter.permutation_size() != parameter.shape_size())
      return wrong(what, "its permutation does not fit its shape");
    return {};
  }

  Status constants() {
    for (int i = 0; i < plan_.constants_size(); ++i) {
      const Constant& constant = plan_.constants(i);
      std::string what = cat("constant ", i);
      if (constant.buffer() >= static_cast<uint32_t>(plan_.buffers_size()))
        return wrong(what, indexError("its buffer", constant.buffer(), plan_.buffers_size()));
      const Buffer& buffer = plan_.buffers(static_cast<int>(constant.buffer()));
      if (!buffer.persistent() || buffer.kind() != CONSTANTS || buffer.space() != Buffer::DEVICE)
        return wrong(what, cat("buffer '", buffer.name(), "' is not a persistent buffer of constants on the device"));
      SHEAF_RETURN_IF_ERROR(source(what, constant.source()));
      if (constant.source().length() > buffer.bytes())
        return wrong(what, cat("its ", constant.source().length(), " bytes do not fit buffer '", buffer.name(), "' of ",
                               buffer.bytes()));
    }
    return {};
  }

  Status inputs() {
    std::set<std::string> names;
    for (int i = 0; i < plan_.inputs_size(); ++i) {
      const Input& input = plan_.inputs(i);
      std::string what = named("input", i, input.name());
      if (input.name().empty() || !names.insert(input.name()).second) return wrong(what, "its name is empty or taken");
      if (elementBytes(input.type()) == 0) return wrong(what, "its type is not known");
      std::optional<uint64_t> count = elementCount(shapeOf(input));
      if (!count || *count == 0 || (input.shape_size() == 0 && !input.whole()))
        return wrong(what, cat("its shape is ", shapeText(shapeOf(input))));
      if (input.row_mask() && (input.whole() || input.type() != F32 || input.shape_size() != 1))
        return wrong(what, "it says which rows count, but is not one f32 for each row");
      if (input.row_index() && (input.whole() || input.row_mask() || input.type() != I64 || input.shape_size() != 1))
        return wrong(what, "it has the rows' numbers, but is not one i64 for each row");
      const bool ofLabels = input.classes() != 0 || input.has_ignored_label() || input.tokens() || input.perplexity();
      if (ofLabels && (isFloat(input.type()) || input.classes() < 0 || (input.has_ignored_label() && !input.classes())))
        return wrong(what, "what it says of class labels is not of integers in a range");
      if (input.whole()) continue;
      if (const int64_t rows = rowsAtOnce(plan_) / plan_.ranks(); input.shape(0) != rows)
        return wrong(what, cat("it has ", input.shape(0), " rows on a rank, the batch gives a rank ", rows,
                               microBatches(plan_) > 1 ? " for a micro-batch" : ""));
    }
    return {};
  }

  Status outputs() {
    std::set<std::string> names;
    for (int i = 0; i < plan_.outputs_size(); ++i) {
      const Output& output = plan_.outputs(i);
      std::string what = named("output", i, output.name());
      if (output.name().empty() || !names.insert(output.name()).second)
        return wrong(what, "its name is empty or taken");
      if (elementBytes(output.type()) == 0) return wrong(what, "its type is not known");
      std::optional<uint64_t> count = elementCount(shapeOf(output));
      if (!count || *count == 0) return wrong(what, cat("its shape is ", shapeText(shapeOf(output))));
      if (output.blocks() == 0) continue;
      const uint64_t rows = static_cast<uint64_t>(rowsAtOnce(plan_)) / ranks_;
      if (output.axis() >= static_cast<uint32_t>(output.shape_size()) || output.blocks() > kMaxBytes / rows ||
          static_cast<uint64_t>(output.shape(static_cast<int>(output.axis()))) % (output.blocks() * rows) != 0)
        return wrong(what, cat("dimension ", output.axis(), " of its shape ", shapeText(shapeOf(output)),
                               " does not hold ", output.blocks(), " times the ", rows, " rows of a rank"));
    }
    return {};
  }

  Status training() {
    for (int i = 0; i < plan_.scalars_size(); ++i) {
      const StepScalar& scalar = plan_.scalars(i);
      const std::string what = named("scalar", i, word(scalar.kind()));
      if (!isKnown(scalar.kind())) return wrong(what, "its kind is not known");
      if (!std::isfinite(scalar.value())) return wrong(what, "its value is not finite");
      SHEAF_RETURN_IF_ERROR(inGroups(scalar.group(), what));
    }
    const Training& training = plan_.training();
    if (!std::isfinite(training.learning_rate()) || training.learning_rate() < 0)
      return wrong("training.learning_rate", cat(training.learning_rate()));
    if (!std::isfinite(training.clip_norm()) || training.clip_norm() < 0)
      return wrong("training.clip_norm", cat(training.clip_norm()));
    if (!isKnown(training.on_nan())) return wrong("training.on_nan", unknown(training.on_nan()));
    if (!isKnown(training.reduce_order())) return wrong("training.reduce_order", unknown(training.reduce_order()));
    if (Status status = checkSchedule(training.schedule()); !status.ok())
      return wrong("training.schedule", status.message());
    SHEAF_RETURN_IF_ERROR(lossScale(training));
    for (int i = 0; i < training.groups_size(); ++i)
      if (const double rate = training.groups(i).learning_rate(); !std::isfinite(rate) || rate < 0)
        return wrong(named("parameter group", i, training.groups(i).name()), cat("its learning rate is ", rate));
    return {};
  }

  Status lossScale(const Training& training) {
    if (training.has_loss_scale() != plan_.has_loss_scale_buffer())
      return wrong("training.loss_scale",
                   training.has_loss_scale() ? "its state has no buffer" : "it is absent, but its state has a buffer");
    if (!training.has_loss_scale()) return {};
    if (Status status = checkLossScale(training.loss_scale()); !status.ok())
      return wrong("training.loss_scale", status.message());
    return storage("the loss scale", plan_.loss_scale_buffer(), OPTIMIZER, kLossScaleState, sizeof(double), 1);
  }

  Status inGroups(uint32_t group, const std::string& what) {
    if (group == 0 || group < static_cast<uint32_t>(plan_.training().groups_size())) return {};
    return wrong(what, cat("it is of parameter group ", group, " of ", plan_.training().groups_size()));
  }

  Status origin() {
    if (!plan_.has_origin()) return {};
    const int64_t leaves = plan_.origin().leaves(), pieces = plan_.ranks() * microBatches(plan_);
    if (leaves >= 1 && leaves % pieces == 0 && std::has_single_bit(static_cast<uint64_t>(leaves / pieces))) return {};
    return wrong("origin", cat(leaves, " leaves are not the ", pieces,
                               " pieces of the batch (ranks times micro-batches) times a power of two"));
  }

  const Plan& plan_;
  const uint64_t ranks_;
  std::set<uint32_t> storage_;  // buffers that hold parameters or states
};

}  // namespace

std::string named(const char* kind, int index, const std::string& name) {
  return cat(kind, " ", index, " '", shortName(name), "'");
}

Status verifyPlan(const Plan& plan) {
  SHEAF_RETURN_IF_ERROR(TableVerifier(plan).run());
  SHEAF_RETURN_IF_ERROR(verifyInstructions(plan));
  if (uint64_t needed = libraryBytes(plan); plan.memory().library_bytes() < needed)
    return wrong("memory.library_bytes",
                 cat("declared are ", plan.memory().library_bytes(), " bytes, the library calls may take ", needed));
  if (Status sound = checkFloor(plan); !sound.ok()) return wrong("floor", sound.message());
  return {};
}

Expected<std::unique_ptr<Plan>> readVerifiedPlan(const std::string& path) {
  Expected<std::unique_ptr<Plan>> plan = readPlan(path);
  if (!plan.ok()) return plan;
  if (Status sound = verifyPlan(**plan); !sound.ok()) return Status::error(cat(path, ": ", sound.message()));
  return plan;
}

}  // namespace sheaf::plan
