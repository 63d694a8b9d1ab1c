#include "runtime/exec/StateAccess.h"

#include <algorithm>

#include "runtime/base/Text.h"
#include "runtime/io/DataType.h"
#include "runtime/plan/Types.h"

namespace sheaf::exec {

StateAccess::Place StateAccess::place(int bucket, int slot) const {
  const plan::Bucket& info = plan_.buckets(bucket);
  if (slot == kParameters) return {info.parameter_buffer(), info.parameters_sharded()};
  return {info.states(slot).buffer(), info.states_sharded()};
}

plan::ElementType StateAccess::elementType(int bucket, int slot) const {
  return slot == kParameters ? plan_.buckets(bucket).type() : plan::F32;
}

uint64_t StateAccess::elementBytes(int bucket, int slot) const {
  return plan::elementBytes(elementType(bucket, slot));
}

namespace {

// Bytes per message between processes.
constexpr uint64_t kMessageBytes = 4 << 20;

uint64_t ranksOf(const plan::Plan& plan) {
  return static_cast<uint64_t>(plan.ranks());
}

// Calls visit(rank, offset in that rank's shard, bytes) for the parts of [begin, end), in bytes of a sharded array.
template <typename Visit>
Status forEachShard(uint64_t shardBytes, uint64_t begin, uint64_t end, Visit visit) {
  while (begin < end) {
    uint64_t rank = begin / shardBytes, within = begin % shardBytes;
    uint64_t bytes = std::min(shardBytes - within, end - begin);
    SHEAF_RETURN_IF_ERROR(visit(rank, within, bytes));
    begin += bytes;
  }
  return {};
}

}  // namespace

Status StateAccess::readOf(int64_t rank, int bucket, int slot, uint64_t begin, std::span<std::byte> host) const {
  Place at = place(bucket, slot);
  uint64_t size = elementBytes(bucket, slot), shard = plan_.buckets(bucket).elements() / ranksOf(plan_);
  uint64_t first = at.sharded ? static_cast<uint64_t>(rank) * shard : 0;
  uint64_t offset = plan_.buffers(static_cast<int>(at.buffer)).offset();
  return ranks_[static_cast<uint64_t>(rank) - firstRank_]->read(offset + (begin - first) * size, host);
}

Status StateAccess::readLocal(const Place& at, uint64_t shardBytes, uint64_t begin, uint64_t end, std::byte* to) const {
  uint64_t offset = plan_.buffers(static_cast<int>(at.buffer)).offset();
  begin = std::max(begin, firstRank_ * shardBytes);
  end = std::min(end, (firstRank_ + ranks_.size()) * shardBytes);
  return forEachShard(shardBytes, begin, end, [&](uint64_t rank, uint64_t within, uint64_t bytes) {
    Status status = ranks_[rank - firstRank_]->read(offset + within, {to, bytes});
    to += bytes;
    return status;
  });
}

// A piece whose parts are on several processes, in the order of the processes.
Status StateAccess::gatherPiece(const Place& at, uint64_t shardBytes, uint64_t begin, uint64_t end,
                                std::byte* to) const {
  const uint64_t perProcess = ranks_.size() * shardBytes;
  auto bytesOf = [&](uint64_t process) {
    uint64_t from = std::max(begin, process * perProcess), to = std::min(end, (process + 1) * perProcess);
    return to > from ? to - from : 0;
  };
  std::string mine(bytesOf(static_cast<uint64_t>(processes_->rank())), '\0');
  SHEAF_RETURN_IF_ERROR(readLocal(at, shardBytes, begin, end, reinterpret_cast<std::byte*>(mine.data())));
  Expected<std::vector<std::string>> all = processes_->gather(mine, "whole weights");
  if (!all.ok()) return all.status();
  for (size_t process = 0; process < all->size(); ++process) {
    const std::string& part = (*all)[process];
    if (part.size() != bytesOf(process))
      return Status::error(cat("whole weights: ", processes_->describe(static_cast<int64_t>(process)), " sends ",
                               part.size(), " bytes for ", bytesOf(process)));
    to = std::copy_n(reinterpret_cast<const std::byte*>(part.data()), part.size(), to);
  }
  return {};
}

Status StateAccess::collect(int bucket, int slot, uint64_t begin, uint64_t count, std::span<std::byte> host) const {
  Place at = place(bucket, slot);
  uint64_t size = elementBytes(bucket, slot), from = begin * size, end = from + count * size;
  if (!at.sharded)
    return first() ? ranks_[0]->read(plan_.buffers(static_cast<int>(at.buffer)).offset() + from, host) : Status();
  uint64_t shardBytes = plan_.buckets(bucket).elements() / ranksOf(plan_) * size;
  if (!processes_ || end <= ranks_.size() * shardBytes)
    return first() ? readLocal(at, shardBytes, from, end, host.data()) : Status();
  for (uint64_t piece = from; piece < end; piece += kMessageBytes)
    SHEAF_RETURN_IF_ERROR(gatherPiece(at, shardBytes, piece, std::min(end, piece + kMessageBytes),
                                      first() ? host.data() + (piece - from) : nullptr));
  return {};
}

Status StateAccess::write(int bucket, int slot, uint64_t begin, std::span<const std::byte> host) const {
  Place at = place(bucket, slot);
  uint64_t size = elementBytes(bucket, slot), offset = plan_.buffers(static_cast<int>(at.buffer)).offset();
  if (!at.sharded) {
    for (const auto& rank : ranks_) SHEAF_RETURN_IF_ERROR(rank->write(offset + begin * size, host));
    return {};
  }
  uint64_t shardBytes = plan_.buckets(bucket).elements() / ranksOf(plan_) * size;
  const std::byte* from = host.data();
  return forEachShard(
      shardBytes, begin * size, begin * size + host.size(), [&](uint64_t rank, uint64_t within, uint64_t bytes) {
        bool here = rank >= firstRank_ && rank - firstRank_ < ranks_.size();
        Status status = here ? ranks_[rank - firstRank_]->write(offset + within, {from, bytes}) : Status();
        from += bytes;
        return status;
      });
}

Status StateAccess::writeValues(int bucket, uint64_t begin, plan::ElementType type,
                                std::span<const std::byte> values) const {
  constexpr uint64_t kChunk = 1 << 20;
  uint64_t size = plan::elementBytes(type), count = values.size() / size;
  std::vector<std::byte> converted;
  auto into = [&](int slot) -> Status {
    plan::ElementType target = elementType(bucket, slot);
    if (target == type) return write(bucket, slot, begin, values);
    for (uint64_t at = 0; at < count; at += kChunk) {
      uint64_t piece = std::min(kChunk, count - at);
      converted.resize(piece * plan::elementBytes(target));
      SHEAF_RETURN_IF_ERROR(io::convert(io::dataTypeOf(type), values.data() + at * size, io::dataTypeOf(target),
                                        converted.data(), piece));
      SHEAF_RETURN_IF_ERROR(write(bucket, slot, begin + at, converted));
    }
    return {};
  };
  SHEAF_RETURN_IF_ERROR(into(kParameters));
  int exact = exactSlot(plan_.buckets(bucket));
  return exact == kParameters ? Status() : into(exact);
}

bool StateAccess::holds(int bucket, uint64_t begin, uint64_t end) const {
  if (!place(bucket, kParameters).sharded) return true;
  const uint64_t shard = plan_.buckets(bucket).elements() / ranksOf(plan_);
  return begin < (firstRank_ + ranks_.size()) * shard && end > firstRank_ * shard;
}

Status StateAccess::writeZeros(int bucket, int slot, uint64_t begin, uint64_t end) const {
  uint64_t size = elementBytes(bucket, slot);
  std::vector<std::byte> zeros(std::min<uint64_t>((end - begin) * size, 1 << 20));
  while (begin < end) {
    uint64_t count = std::min<uint64_t>(end - begin, zeros.size() / size);
    SHEAF_RETURN_IF_ERROR(write(bucket, slot, begin, std::span(zeros).first(count * size)));
    begin += count;
  }
  return {};
}

Status StateAccess::writeBuffer(uint32_t buffer, std::span<const std::byte> host) const {
  for (const auto& rank : ranks_)
    SHEAF_RETURN_IF_ERROR(rank->write(plan_.buffers(static_cast<int>(buffer)).offset(), host));
  return {};
}

Status StateAccess::readBuffer(uint32_t buffer, std::span<std::byte> host) const {
  return ranks_[0]->read(plan_.buffers(static_cast<int>(buffer)).offset(), host);
}

}  // namespace sheaf::exec
