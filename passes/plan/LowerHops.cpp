// Lowers collectives of buckets. Where ranks have nodes they are made of hops: a sum first over the ranks of a node,
// then over the ranks with one local number; a gather the other way round. The shards of the ranks with one local
// number, a piece, lie side by side, so that every hop's result is in its place.
#include "passes/plan/ZeroLowering.h"

using namespace mlir;

namespace sheaf::plan_ir {

namespace {

Operand reading(Operand operand) {
  operand.access = kRead;
  return operand;
}

Operand writing(Operand operand) {
  operand.access = kWrite;
  return operand;
}

int64_t gradientBytes(const BucketStorage& storage) {
  return storage.elements * widthOf(storage.gradientType);
}

}  // namespace

Operand ZeroLowering::partOf(int64_t buffer, int64_t bytes, int64_t held, int64_t parts, int64_t access) const {
  const int64_t part = bytes / parts;
  if (held == parts) return {buffer, 0, part, 0, access};
  const plan::Axis axis = held > 1 ? plan::NETWORK : parts == from_.ranks ? plan::WORLD : plan::NODE;
  return {buffer, 0, part, part, access, axis};
}

Operand ZeroLowering::shardOf(const Location& at, int64_t bytes, int64_t has) const {
  const int64_t shard = bytes / from_.ranks;
  if (has == from_.ranks) return {at.buffer, at.offset, shard, at.shardStride, kRead, at.axis};
  // The rank's piece alone, or the whole.
  const bool piece = has > 1 && at.shardStride == 0;
  return {at.buffer, at.offset, shard, shard, kRead, piece ? plan::NETWORK : plan::WORLD};
}

int64_t ZeroLowering::communicator(plan::Axis axis, int64_t kind) {
  if (!from_.sharding.hasNodes) return kind;
  const std::pair<plan::Axis, int64_t> wanted(axis, kind);
  const auto* known = llvm::find(communicators_, wanted);
  if (known == communicators_.end()) communicators_.push_back(wanted), known = &communicators_.back();
  return known - communicators_.begin();
}

void ZeroLowering::declareCommunicators() {
  if (!from_.sharding.hasNodes) return;
  builder_.plan().set_communicators(static_cast<uint32_t>(communicators_.size()));
  for (auto [axis, kind] : communicators_) builder_.plan().add_communicator_axes(axis);
}

void ZeroLowering::hop(plan::Axis axis, plan::CollectiveOp op, const CollectiveSite& site, const Operand& source,
                       const Operand& destination) {
  const Operand& part = op == plan::REDUCE_SCATTER ? destination : source;
  plan::Collective& made =
      *builder_.add(axis == plan::NETWORK ? kNetworkStream : kCommunicationStream, site.label, {source, destination})
           .mutable_collective();
  made.set_op(op);
  made.set_communicator(static_cast<uint32_t>(communicator(axis, op == plan::ALL_GATHER ? kGathers : kReductions)));
  made.set_type(site.type);
  made.set_count(part.bytes / static_cast<int64_t>(plan::elementBytes(site.type)));
  made.set_bucket(site.bucket.str());
  made.set_phase(site.phase);
}

void ZeroLowering::gather(const CollectiveSite& site, const Operand& own, int64_t parts, int64_t bytes,
                          int64_t destination, int64_t first) {
  const Operand whole{destination, 0, bytes, 0, kWrite};
  const int64_t perNode = from_.sharding.perNode;
  if (!from_.sharding.hasNodes) return hop(plan::WORLD, plan::ALL_GATHER, site, own, whole);
  const int64_t piece = bytes / perNode;
  Operand gathered = own;
  if (parts > perNode) {
    gathered = first != kNoBuffer ? Operand{first, 0, piece, 0, kWrite}
               : perNode == 1     ? whole
                                  : Operand{destination, 0, piece, piece, kWrite, plan::NODE};
    hop(plan::NETWORK, plan::ALL_GATHER, site, own, gathered);
  }
  if (perNode > 1) hop(plan::NODE, plan::ALL_GATHER, site, reading(gathered), whole);
}

bool ZeroLowering::hasTwoHops() const {
  return from_.sharding.hasNodes && from_.sharding.perNode > 1 && from_.sharding.nodes() > 1;
}

plan::Axis ZeroLowering::onlyAxis() const {
  if (!from_.sharding.hasNodes) return plan::WORLD;
  return from_.sharding.perNode > 1 ? plan::NODE : plan::NETWORK;
}

void ZeroLowering::reduceToAll(const CollectiveSite& site, const Operand& whole) {
  const int64_t perNode = from_.sharding.perNode;
  if (!hasTwoHops()) return hop(onlyAxis(), plan::ALL_REDUCE, site, whole, writing(whole));
  const int64_t bytes = whole.bytes / perNode;
  const Operand piece{whole.buffer, 0, bytes, bytes, kRead, plan::NODE};
  hop(plan::NODE, plan::REDUCE_SCATTER, site, whole, writing(piece));
  hop(plan::NETWORK, plan::ALL_REDUCE, site, piece, writing(piece));
  hop(plan::NODE, plan::ALL_GATHER, site, piece, writing(whole));
}

// The result is what the update reads: in the whole gradient, in the node's piece of it, or on its own.
ZeroLowering::Reduced ZeroLowering::placeReduced(Operation* op, const BucketStorage& storage) {
  const int64_t bytes = gradientBytes(storage), perNode = from_.sharding.perNode, parts = from_.sharding.parts(1);
  auto sum = op->hasOneUse() ? dyn_cast<zero::AccumulateOp>(*op->user_begin()) : zero::AccumulateOp();
  const bool level = sum && sum.storesValue();
  auto levelOfSum = [&] { return levelOf(sum.getSum(), sum.getLevel(), plan::GRADIENTS, bytes / parts); };
  auto reduced = [&](int64_t size) {
    return builder_.buffer((zero::BucketOp(storage.op).getSymName() + ".reduced").str(), plan::GRADIENTS, size);
  };
  Operand result = partOf(storage.gradient, bytes, 1, parts, kRead);
  Operand piece{storage.gradient, 0, bytes / perNode, bytes / perNode, kRead, plan::NODE};
  if (hasTwoHops() && from_.stage >= 2 && from_.sharding.networkStage < 2) {  // the node's piece is a buffer
    const bool last = parts == perNode;
    piece = {last && level ? levelOfSum() : reduced(bytes / perNode), 0, bytes / perNode};
    result = partOf(piece.buffer, bytes, perNode, parts, kRead);
    if (level && !last) result = {levelOfSum(), 0, bytes / parts};
  } else if (level) {
    result = {levelOfSum(), 0, bytes / parts};
    if (hasTwoHops() && parts == perNode) piece = result;
  } else if (from_.stage >= 2) {
    result = {reduced(bytes / parts), 0, bytes / parts};
  }
  return {piece, result};
}

void ZeroLowering::lowerReduction(Operation* op, BucketStorage& storage) {
  // A sum over micro-batches is whole already.
  if (!op->getOperand(0).getDefiningOp<zero::AccumulateOp>()) fillGradient(labelOf(op), storage, op->getOperands());
  places_[op->getResult(0)] = {storage.gradient};
  if (from_.ranks == 1) return;
  if (const std::optional<Operand> chain = chainOf(op->getResult(0))) return lowerChainedReduction(op, storage, *chain);
  const CollectiveSite site = siteOf(op, plan::Collective::BACKWARD, storage.gradientType);
  const Operand whole{storage.gradient, 0, gradientBytes(storage), 0, kRead};
  if (from_.stage == 0) return reduceToAll(site, whole);
  const int64_t perNode = from_.sharding.perNode;
  const auto [piece, result] = placeReduced(op, storage);
  places_[op->getResult(0)] = {.buffer = result.buffer, .offset = 0, .shardStride = result.stride, .axis = result.axis};
  if (!hasTwoHops()) return hop(onlyAxis(), plan::REDUCE_SCATTER, site, whole, writing(result));
  hop(plan::NODE, plan::REDUCE_SCATTER, site, whole, writing(piece));
  if (from_.sharding.parts(1) == perNode)
    hop(plan::NETWORK, plan::ALL_REDUCE, site, reading(piece), writing(piece));
  else
    hop(plan::NETWORK, plan::REDUCE_SCATTER, site, reading(piece), writing(result));
}

// The last hop adds its terms to the chain, in a buffer of its own.
void ZeroLowering::lowerChainedReduction(Operation* op, BucketStorage& storage, const Operand& chain) {
  const CollectiveSite site = siteOf(op, plan::Collective::BACKWARD, storage.gradientType);
  const int64_t width = widthOf(storage.gradientType), bytes = storage.elements * width;
  const int64_t parts = from_.sharding.parts(1), perNode = from_.sharding.perNode;
  const Operand whole{storage.gradient, 0, bytes, 0, kRead};
  // The number of nodes has the odd factor. The first hop's result: in its place, or where the node keeps its piece.
  const bool twoHops = from_.sharding.hasNodes && perNode > 1;
  const bool ownPiece = twoHops && from_.stage >= 2 && from_.sharding.networkStage < 2 && parts > perNode;
  Operand piece{storage.gradient, 0, bytes / perNode, bytes / perNode, kWrite, plan::NODE};
  if (ownPiece)
    piece = {builder_.buffer((site.bucket + ".reduced").str(), plan::GRADIENTS, bytes / perNode), 0, bytes / perNode, 0,
             kWrite};
  if (twoHops) hop(plan::NODE, plan::REDUCE_SCATTER, site, whole, piece);
  const bool all = from_.stage == 0 || (twoHops && parts == perNode);
  Operand sum = chain;
  if (twoHops && from_.stage == 0) sum = {chain.buffer, 0, piece.bytes, piece.bytes, kReadWrite, plan::NODE};
  hop(from_.sharding.hasNodes ? plan::NETWORK : plan::WORLD, all ? plan::ALL_REDUCE : plan::REDUCE_SCATTER, site,
      twoHops ? reading(piece) : whole, sum);
  sum.access = kRead;
  if (twoHops && from_.stage == 0) hop(plan::NODE, plan::ALL_GATHER, site, sum, {chain.buffer, 0, bytes, 0, kWrite});
  places_[op->getResult(0)] = {chain.buffer};
  // The update reads its part in the larger part of the gradient that the rank keeps, if it does.
  const bool last = !cast<zero::AccumulateOp>(*op->user_begin()).getKeep();
  if (!last || (from_.stage != 1 && !ownPiece)) return;
  Operand part = partOf(piece.buffer, bytes, ownPiece ? perNode : 1, parts, kWrite);
  builder_.copy(labelOf(op), sum, part, {width, {part.bytes / width}, {1}, {1}});
  places_[op->getResult(0)] = {.buffer = part.buffer, .offset = 0, .shardStride = part.stride, .axis = part.axis};
}

void ZeroLowering::sumOverRanks(StringRef label, plan::ElementType type, const Operand& source,
                                const Operand& destination) {
  hop(plan::WORLD, plan::ALL_REDUCE, {label, "", type, plan::Collective::FORWARD}, source, destination);
}

}  // namespace sheaf::plan_ir
