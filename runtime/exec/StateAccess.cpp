#include "runtime/exec/StateAccess.h"

#include <algorithm>

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

// Calls visit(rank, offset in that rank's shard, bytes) for the parts of [begin, end), in bytes of a sharded array.
template <typename Visit>
Status forEachShard(uint64_t shardBytes, uint64_t begin, uint64_t end, Visit visit) {
  while (begin < end) {
    uint64_t rank = begin / shardBytes, within = begin % shardBytes;
    uint64_t bytes = std::min(shardBytes - within, end - begin);
    SHEAF_RETURN_IF_ERROR(visit(static_cast<size_t>(rank), within, bytes));
    begin += bytes;
  }
  return {};
}

}  // namespace

Status StateAccess::read(int bucket, int slot, uint64_t begin, std::span<std::byte> host, int64_t reader) const {
  Place at = place(bucket, slot);
  uint64_t size = elementBytes(bucket, slot), offset = plan_.buffers(static_cast<int>(at.buffer)).offset();
  if (!at.sharded) return ranks_[static_cast<size_t>(reader)]->read(offset + begin * size, host);
  uint64_t shardBytes = plan_.buckets(bucket).elements() / ranks_.size() * size;
  std::byte* to = host.data();
  return forEachShard(shardBytes, begin * size, begin * size + host.size(),
                      [&](size_t rank, uint64_t within, uint64_t bytes) {
                        Status status = ranks_[rank]->read(offset + within, {to, bytes});
                        to += bytes;
                        return status;
                      });
}

Status StateAccess::write(int bucket, int slot, uint64_t begin, std::span<const std::byte> host) const {
  Place at = place(bucket, slot);
  uint64_t size = elementBytes(bucket, slot), offset = plan_.buffers(static_cast<int>(at.buffer)).offset();
  if (!at.sharded) {
    for (const auto& rank : ranks_) SHEAF_RETURN_IF_ERROR(rank->write(offset + begin * size, host));
    return {};
  }
  uint64_t shardBytes = plan_.buckets(bucket).elements() / ranks_.size() * size;
  const std::byte* from = host.data();
  return forEachShard(shardBytes, begin * size, begin * size + host.size(),
                      [&](size_t rank, uint64_t within, uint64_t bytes) {
                        Status status = ranks_[rank]->write(offset + within, {from, bytes});
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

}  // namespace sheaf::exec
