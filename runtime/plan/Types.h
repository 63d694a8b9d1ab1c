// Sizes and descriptions of the plan's parts, and where a bucket's elements lie.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/plan/ElementTypes.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::plan {

inline constexpr uint32_t kPlanVersion = 4;  // the version of the format, in the file's header and in Plan.version
inline constexpr uint32_t kOldestPlanVersion = 3;  // files from this version on are read (Upgrade.h)
// Why a plan of another version is refused, and the remedy.
std::string otherVersion(uint32_t version);
inline constexpr uint64_t kAlignment = 128;  // of buffers in the arena, parameters and shards
inline constexpr uint64_t kFileAlignment =
    4096;  // of buffers in files, and of what is read from files or written to them
// The next multiple of it.
constexpr uint64_t aligned(uint64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}
// More ranks than any machine has; what keeps products of sizes far from overflow.
inline constexpr int64_t kMaxRanks = 65536;
inline constexpr uint64_t kMaxBytes = uint64_t{1} << 50;

// One address for a byte of any of a rank's arenas, so that analyses tell bytes of different spaces apart.
constexpr uint64_t kSpaceShift = 56;
inline uint64_t addressOf(const Buffer& buffer) {
  return (static_cast<uint64_t>(buffer.space()) << kSpaceShift) + buffer.offset();
}
// The byte's offset in its arena.
constexpr uint64_t offsetInArena(uint64_t address) {
  return address & ((uint64_t{1} << kSpaceShift) - 1);
}
// "bytes [0, 128) of the arena", "bytes [0, 128) of the arena in space host"
std::string arenaText(uint64_t begin, uint64_t end);

// The largest offset after a buffer of the space.
uint64_t arenaTop(const Plan& plan, Buffer::Space space);
// What the plan declares of it.
uint64_t peakBytes(const Plan& plan, Buffer::Space space);
// What the kind of a transfer says of its operands' spaces.
bool joins(Transfer::Kind kind, Buffer::Space source, Buffer::Space destination);

// True if the user gives the input; the runtime itself fills in masks and numbers of rows.
inline bool isData(const Input& input) {
  return !input.row_mask() && !input.row_index();
}

// The product of the dimensions; nothing if one is negative or the product exceeds 2^50.
std::optional<uint64_t> elementCount(std::span<const int64_t> shape);

inline std::span<const int64_t> shapeOf(const Parameter& parameter) {
  return {parameter.shape().data(), static_cast<size_t>(parameter.shape_size())};
}
inline std::span<const int64_t> shapeOf(const Input& input) {
  return {input.shape().data(), static_cast<size_t>(input.shape_size())};
}
inline std::span<const int64_t> shapeOf(const Output& output) {
  return {output.shape().data(), static_cast<size_t>(output.shape_size())};
}

// Of a bucket's gradient.
inline ElementType gradientType(const Bucket& bucket) {
  return bucket.gradient_type() == ELEMENT_TYPE_UNSPECIFIED ? bucket.type() : bucket.gradient_type();
}
// Of a parameter's initial bytes.
inline ElementType sourceType(const Parameter& parameter) {
  return parameter.source_type() == ELEMENT_TYPE_UNSPECIFIED ? parameter.type() : parameter.source_type();
}

// The device of an image's target: "cpu" of "cpu", "cuda" of "cuda:sm_90", "host" of "host"; empty for any
// other.
std::string deviceOf(const KernelImage& image);
// The first image for a device; null if there is none.
const KernelImage* imageFor(const Plan& plan, std::string_view device);
// The image for launches on the host; null if there is none.
const KernelImage* hostImage(const Plan& plan);
// Whether an image has a kernel of the plan: that for the host lacks those that are not launched there.
bool hasKernel(const KernelImage& image, uint32_t kernel);
// Whether a transfer moves bytes towards where they are used: to the device, or from a file. The others store them.
inline bool fetches(Transfer::Kind kind) {
  return kind == Transfer::TO_DEVICE || kind == Transfer::READ_FILE;
}
// Whether an instruction runs on the host, on operands in the host's memory.
inline bool isOnHost(const Instruction& instruction) {
  return instruction.has_kernel() && instruction.kernel().on_host();
}
bool updatesOnHost(const Plan& plan);  // any of its instructions
// The images of the targets that the plan is for: all but that for launches on the host of GPUs.
std::vector<const KernelImage*> targetImages(const Plan& plan);
// "cpu, cuda:sm_90"
std::string targetsText(const Plan& plan);

using InstructionList = google::protobuf::RepeatedPtrField<Instruction>;

// The lists of a plan, by their names: prologue, the parts before the body, body, epilogue, evaluation.
struct Section {
  std::string_view name;
  const InstructionList* list;
};
std::vector<Section> sectionsOf(const Plan& plan);

// Calls visit(instruction) for every instruction, once each.
template <typename Visit>
void forEachInstruction(const Plan& plan, Visit visit) {
  for (const Section& section : sectionsOf(plan))
    for (const Instruction& instruction : *section.list) visit(instruction);
}

// Of a step: at least 1.
inline int64_t microBatches(const Plan& plan) {
  return plan.micro_batches() > 1 ? plan.micro_batches() : 1;
}
// Rows of the global batch that all ranks together compute at once: of a micro-batch, or a batch of the evaluation.
inline int64_t rowsAtOnce(const Plan& plan) {
  return plan.batch() / microBatches(plan);
}

// Nodes and indices of ranks. A plan without nodes is one node of all ranks.
inline int64_t ranksPerNode(const Plan& plan) {
  return plan.ranks_per_node() > 0 ? plan.ranks_per_node() : std::max<int64_t>(plan.ranks(), 1);
}
inline int64_t nodesOf(const Plan& plan) {
  return plan.ranks() / ranksPerNode(plan);
}
inline int64_t localOf(const Plan& plan, int64_t rank) {
  return rank % ranksPerNode(plan);
}
inline int64_t nodeOf(const Plan& plan, int64_t rank) {
  return rank / ranksPerNode(plan);
}
// The index of a rank's shards, and the rank that has those of an index.
inline int64_t shardIndex(const Plan& plan, int64_t rank) {
  if (plan.ranks_per_node() == 0) return rank;
  return localOf(plan, rank) * nodesOf(plan) + nodeOf(plan, rank);
}
inline int64_t rankOfShard(const Plan& plan, int64_t shard) {
  if (plan.ranks_per_node() == 0) return shard;
  return shard % nodesOf(plan) * ranksPerNode(plan) + shard / nodesOf(plan);
}
inline int64_t ranksOn(const Plan& plan, Axis axis) {
  return axis == NODE ? ranksPerNode(plan) : axis == NETWORK ? nodesOf(plan) : plan.ranks();
}
inline Axis axisOf(const Plan& plan, int communicator) {
  return communicator < plan.communicator_axes_size() ? plan.communicator_axes(communicator) : WORLD;
}
inline Axis axisOf(const Plan& plan, const Collective& collective) {
  const int communicator = static_cast<int>(collective.communicator());
  return axisOf(plan, communicator);
}
// The ranks that meet in a collective.
inline int64_t ranksOf(const Plan& plan, const Collective& collective) {
  return ranksOn(plan, axisOf(plan, collective));
}

// The ranks that meet on an axis form a group: which one a rank is in, and its place there. All ranks are one, in their
// own order.
inline int64_t groupOn(const Plan& plan, Axis axis, int64_t rank) {
  return axis == NODE ? nodeOf(plan, rank) : axis == NETWORK ? localOf(plan, rank) : 0;
}
inline int64_t placeOn(const Plan& plan, Axis axis, int64_t rank) {
  return axis == NODE ? localOf(plan, rank) : axis == NETWORK ? nodeOf(plan, rank) : rank;
}

// What an operand's address grows by from one local number to the next, and from node to node.
struct RankStrides {
  uint64_t local = 0, node = 0;
  bool operator==(const RankStrides&) const = default;
};
inline RankStrides stridesOf(const Plan& plan, const Operand& operand) {
  const uint64_t stride = operand.shard_stride();
  if (operand.axis() == NODE) return {stride, 0};
  if (operand.axis() == NETWORK) return {0, stride};
  return {stride * static_cast<uint64_t>(nodesOf(plan)), stride};
}
// What a rank's index adds to an operand's address, and the most that any rank's adds.
inline uint64_t rankOffset(const Plan& plan, const Operand& operand, int64_t rank) {
  const int64_t index = operand.axis() == NODE      ? localOf(plan, rank)
                        : operand.axis() == NETWORK ? nodeOf(plan, rank)
                                                    : shardIndex(plan, rank);
  return static_cast<uint64_t>(index) * operand.shard_stride();
}
inline uint64_t mostRankOffset(const Plan& plan, const Operand& operand) {
  return static_cast<uint64_t>(ranksOn(plan, operand.axis()) - 1) * operand.shard_stride();
}

// Into how many parts storage is divided that is sharded from stage `least` on.
inline int64_t partsFrom(const Plan& plan, int32_t least) {
  return plan.ranks_per_node() > 0 && plan.network_stage() < least ? ranksPerNode(plan) : plan.ranks();
}
inline int64_t parameterParts(const Plan& plan, const Bucket& bucket) {
  return bucket.parameters_sharded() ? partsFrom(plan, 3) : 1;
}
inline int64_t stateParts(const Plan& plan, const Bucket& bucket) {
  return bucket.states_sharded() ? partsFrom(plan, 1) : 1;
}
// Which part a rank holds of an array that is divided into so many: among all ranks, by the index of their shards,
// among those of each node, or not at all.
inline uint64_t partOf(const Plan& plan, int64_t rank, uint64_t parts) {
  if (parts == 1) return 0;
  return static_cast<uint64_t>(parts == static_cast<uint64_t>(plan.ranks()) ? shardIndex(plan, rank)
                                                                            : localOf(plan, rank));
}

// The lists of one step in issue order: those of its turns, then the body.
struct StepTurn {
  std::string_view name;
  const InstructionList* list;
  int64_t microBatch;
};
std::vector<StepTurn> stepOf(const Plan& plan);
// The instructions of one step in issue order; one of a part occurs once for each of its turns.
std::vector<const Instruction*> stepInstructions(const Plan& plan);

// Calls visit(operand) for every operand of an instruction, in order.
template <typename Visit>
void forEachOperand(const Instruction& instruction, Visit visit) {
  for (const Operand& operand : instruction.operands()) visit(operand);
}

// The operand that an instruction reads as its source or writes as its destination. Returns an empty operand if the
// instruction is of another kind or, in a plan that has not been verified, lacks the operand.
inline const Operand& sourceOf(const Instruction& instruction) {
  const bool has = instruction.has_collective() || instruction.has_transfer() || instruction.has_output();
  return has && instruction.operands_size() > 0 ? instruction.operands(0) : Operand::default_instance();
}
inline const Operand& destinationOf(const Instruction& instruction) {
  const bool alone = instruction.has_input() || instruction.has_scalars();
  const bool second = instruction.has_collective() || instruction.has_transfer();
  return (alone || second) && instruction.operands_size() > second ? instruction.operands(second)
                                                                   : Operand::default_instance();
}

// The communicator on which ranks meet in an instruction; nothing if they do not.
inline std::optional<uint32_t> communicatorOf(const Plan& plan, const Instruction& instruction) {
  if (instruction.has_collective()) return instruction.collective().communicator();
  if (instruction.has_persist() && plan.ranks() > 1) return instruction.persist().communicator();
  return std::nullopt;
}

// True if the last operand of an instruction is the scratch of its call.
inline bool hasScratch(const Instruction& instruction) {
  const LibraryCall& call = instruction.call();
  return (call.scratch_per_thread() > 0 || call.device_scratch() > 0) && instruction.operands_size() > 0;
}

// "4096 bytes at 0 + rank * 1024"
std::string placeText(const Operand& operand);

// A name for a message: those of untrusted plans may be long.
inline std::string shortName(const std::string& name) {
  return name.substr(0, 120);
}

// "its stream index 3 is out of range: the plan has 2"
std::string indexError(std::string_view what, uint64_t index, int64_t count);

// "kernel", "gemm", "all_gather", "record", ...: what kind of instruction it is, in a word.
std::string instructionKind(const Instruction& instruction);

// "body instruction 12 (gemm 'h.0.mlp' on stream compute)"; the instruction is found by its address within the plan.
std::string describe(const Plan& plan, const Instruction& instruction);
std::string describe(const Plan& plan, std::string_view section, int index, const Instruction& instruction);

}  // namespace sheaf::plan
