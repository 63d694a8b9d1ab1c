// Lowers collectives of buckets. Where ranks have nodes they are made of hops: a sum first over the ranks of a node,
// then over the ranks with one local number; a gather the other way round. The shards of the ranks with one local
// number, a piece, lie side by side, so that every hop's result is in its place.
#include "passes/plan/Lowering.h"

using namespace mlir;

namespace sheaf::plan_ir {

Operand Lowering::partOf(Value buffer, int64_t bytes, int64_t held, int64_t parts, int64_t access) const {
  const int64_t part = bytes / parts;
  if (held == parts) return {buffer, 0, part, 0, access};
  const plan::Axis axis = held > 1 ? plan::NETWORK : parts == ranks ? plan::WORLD : plan::NODE;
  return {buffer, 0, part, part, access, axis};
}

Operand Lowering::shardOf(const Location& at, int64_t bytes, int64_t has) const {
  const int64_t shard = bytes / ranks;
  if (has == ranks) return {at.buffer, at.offset, shard, at.shardStride, kRead, at.axis};
  // The rank's piece alone, or the whole.
  const bool piece = has > 1 && at.shardStride == 0;
  return {at.buffer, at.offset, shard, shard, kRead, piece ? plan::NETWORK : plan::WORLD};
}

int64_t Lowering::communicator(plan::Axis axis, int64_t kind) {
  if (!sharding.hasNodes) return kind;
  const std::pair<plan::Axis, int64_t> wanted(axis, kind);
  const auto* known = llvm::find(communicators, wanted);
  if (known == communicators.end()) communicators.push_back(wanted), known = &communicators.back();
  return known - communicators.begin();
}

void Lowering::hop(plan::Axis axis, plan::CollectiveOp op, mlir::Location loc, StringRef label, StringRef bucket,
                   plan::ElementType type, plan::Collective::Phase phase, const Operand& source,
                   const Operand& destination) {
  const Operand& part = op == plan::REDUCE_SCATTER ? destination : source;
  const int64_t count = part.bytes / static_cast<int64_t>(plan::elementBytes(type));
  auto append = [&]<typename OpTy>(int64_t kind) {
    instruction<OpTy>(loc, axis == plan::NETWORK ? kNetworkStream : kCommunicationStream, label, {source, destination},
                      communicator(axis, kind), type, count, bucket, phase);
  };
  if (op == plan::ALL_GATHER)
    append.operator()<AllGatherOp>(kGathers);
  else if (op == plan::REDUCE_SCATTER)
    append.operator()<ReduceScatterOp>(kReductions);
  else
    append.operator()<AllReduceOp>(kReductions);
}

void Lowering::gather(mlir::Location loc, StringRef label, StringRef bucket, plan::ElementType type,
                      plan::Collective::Phase phase, const Operand& own, int64_t parts, int64_t bytes,
                      Value destination, Value first) {
  const Operand whole{destination, 0, bytes, 0, kWrite};
  if (!sharding.hasNodes) return hop(plan::WORLD, plan::ALL_GATHER, loc, label, bucket, type, phase, own, whole);
  const int64_t piece = bytes / sharding.perNode;
  Operand gathered = own;
  if (parts > sharding.perNode) {
    gathered = first                   ? Operand{first, 0, piece, 0, kWrite}
               : sharding.perNode == 1 ? whole
                                       : Operand{destination, 0, piece, piece, kWrite, plan::NODE};
    hop(plan::NETWORK, plan::ALL_GATHER, loc, label, bucket, type, phase, own, gathered);
  }
  gathered.access = kRead;
  if (sharding.perNode > 1) hop(plan::NODE, plan::ALL_GATHER, loc, label, bucket, type, phase, gathered, whole);
}

LogicalResult Lowering::lowerReduction(Operation* op, BucketStorage& storage) {
  const plan::ElementType type = elementTypeOf(storage.gradientType);
  const StringRef name = zero::BucketOp(storage.op).getSymName();
  const int64_t bytes = storage.elements * widthOf(storage.gradientType);
  // A sum over micro-batches is whole already.
  if (!op->getOperand(0).getDefiningOp<zero::AccumulateOp>()) fillGradient(op->getLoc(), storage, op->getOperands());
  locations[op->getResult(0)] = {storage.gradient};
  if (ranks == 1) return success();
  if (const std::optional<Operand> chain = chainOf(op->getResult(0))) {
    lowerChainedReduction(op, storage, *chain);
    return success();
  }
  const Operand whole{storage.gradient, 0, bytes, 0, kRead};
  auto write = [](Operand operand) {
    operand.access = kWrite;
    return operand;
  };
  auto read = [](Operand operand) {
    operand.access = kRead;
    return operand;
  };
  auto reduce = [&](plan::Axis axis, plan::CollectiveOp kind, const Operand& source, const Operand& destination) {
    hop(axis, kind, op->getLoc(), name, name, type, plan::Collective::BACKWARD, read(source), write(destination));
  };
  const int64_t parts = sharding.parts(1), perNode = sharding.perNode, nodes = sharding.nodes();
  const bool twoHops = sharding.hasNodes && perNode > 1 && nodes > 1;
  const plan::Axis only = !sharding.hasNodes ? plan::WORLD : perNode > 1 ? plan::NODE : plan::NETWORK;
  if (stage == 0) {
    if (!twoHops) {
      reduce(only, plan::ALL_REDUCE, whole, whole);
      return success();
    }
    const Operand piece{storage.gradient, 0, bytes / perNode, bytes / perNode, kRead, plan::NODE};
    reduce(plan::NODE, plan::REDUCE_SCATTER, whole, piece);
    reduce(plan::NETWORK, plan::ALL_REDUCE, piece, piece);
    reduce(plan::NODE, plan::ALL_GATHER, piece, whole);
    return success();
  }
  // What the update reads: in the whole gradient, in the node's piece of it, or on its own.
  Operand result = partOf(storage.gradient, bytes, 1, parts, kRead);
  auto sum = op->hasOneUse() ? dyn_cast<zero::AccumulateOp>(*op->user_begin()) : zero::AccumulateOp();
  const bool level = sum && sum.storesValue();
  auto levelOfSum = [&] { return levelOf(sum.getSum(), sum.getLevel(), plan::GRADIENTS, bytes / parts); };
  const bool ownPiece = twoHops && stage >= 2 && sharding.networkStage < 2;
  Operand piece{storage.gradient, 0, bytes / perNode, bytes / perNode, kRead, plan::NODE};
  auto reduced = [&](int64_t size) { return buffer((name + ".reduced").str(), plan::GRADIENTS, size); };
  if (ownPiece) {
    const bool last = parts == perNode;
    piece = {last && level ? levelOfSum() : reduced(bytes / perNode), 0, bytes / perNode};
    result = partOf(piece.buffer, bytes, perNode, parts, kRead);
    if (level && !last) result = {levelOfSum(), 0, bytes / parts};
  } else if (level) {
    result = {levelOfSum(), 0, bytes / parts};
    if (twoHops && parts == perNode) piece = result;
  } else if (stage >= 2) {
    result = {reduced(bytes / parts), 0, bytes / parts};
  }
  locations[op->getResult(0)] = {
      .buffer = result.buffer, .offset = 0, .shardStride = result.stride, .axis = result.axis};
  if (!twoHops) {
    reduce(only, plan::REDUCE_SCATTER, whole, result);
  } else {
    reduce(plan::NODE, plan::REDUCE_SCATTER, whole, piece);
    if (parts == perNode)
      reduce(plan::NETWORK, plan::ALL_REDUCE, piece, piece);
    else
      reduce(plan::NETWORK, plan::REDUCE_SCATTER, piece, result);
  }
  return success();
}

// The last hop adds its terms to the chain, in a buffer of its own.
void Lowering::lowerChainedReduction(Operation* op, BucketStorage& storage, const Operand& chain) {
  const plan::ElementType type = elementTypeOf(storage.gradientType);
  const StringRef name = zero::BucketOp(storage.op).getSymName();
  const int64_t width = widthOf(storage.gradientType), bytes = storage.elements * width;
  const int64_t parts = sharding.parts(1), perNode = sharding.perNode;
  auto reduce = [&](plan::Axis axis, plan::CollectiveOp kind, const Operand& source, const Operand& destination) {
    hop(axis, kind, op->getLoc(), name, name, type, plan::Collective::BACKWARD, source, destination);
  };
  const Operand whole{storage.gradient, 0, bytes, 0, kRead};
  // The number of nodes has the odd factor. The first hop's result: in its place, or where the node keeps its piece.
  const bool twoHops = sharding.hasNodes && perNode > 1;
  const bool ownPiece = twoHops && stage >= 2 && sharding.networkStage < 2 && parts > perNode;
  Operand piece{storage.gradient, 0, bytes / perNode, bytes / perNode, kWrite, plan::NODE};
  if (ownPiece)
    piece = {buffer((name + ".reduced").str(), plan::GRADIENTS, bytes / perNode), 0, bytes / perNode, 0, kWrite};
  if (twoHops) reduce(plan::NODE, plan::REDUCE_SCATTER, whole, piece);
  piece.access = kRead;
  const bool all = stage == 0 || (twoHops && parts == perNode);
  Operand sum = chain;
  if (twoHops && stage == 0) sum = {chain.buffer, 0, piece.bytes, piece.bytes, kReadWrite, plan::NODE};
  reduce(sharding.hasNodes ? plan::NETWORK : plan::WORLD, all ? plan::ALL_REDUCE : plan::REDUCE_SCATTER,
         twoHops ? piece : whole, sum);
  sum.access = kRead;
  if (twoHops && stage == 0) reduce(plan::NODE, plan::ALL_GATHER, sum, {chain.buffer, 0, bytes, 0, kWrite});
  locations[op->getResult(0)] = {chain.buffer};
  // The update reads its part in the larger part of the gradient that the rank keeps, if it does.
  const bool last = !cast<zero::AccumulateOp>(*op->user_begin()).getKeep();
  if (!last || (stage != 1 && !ownPiece)) return;
  Operand part = partOf(piece.buffer, bytes, ownPiece ? perNode : 1, parts, kWrite);
  copy(op->getLoc(), sum, part, width, {part.bytes / width}, {1}, {1});
  locations[op->getResult(0)] = {.buffer = part.buffer, .offset = 0, .shardStride = part.stride, .axis = part.axis};
}

void Lowering::sumOverRanks(mlir::Location loc, StringRef label, plan::ElementType type, int64_t count,
                            const Operand& source, const Operand& destination) {
  instruction<AllReduceOp>(loc, kCommunicationStream, label, {source, destination},
                           communicator(plan::WORLD, kReductions), type, count, "", plan::Collective::FORWARD);
}

}  // namespace sheaf::plan_ir
