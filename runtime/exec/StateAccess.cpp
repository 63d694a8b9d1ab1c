#include "runtime/exec/StateAccess.h"

#include <algorithm>

#include "runtime/base/Text.h"
#include "runtime/io/DataType.h"
#include "runtime/plan/Types.h"

namespace sheaf::exec {

StateAccess::Place StateAccess::place(int bucket, int slot) const {
  const plan::Bucket& info = plan_.buckets(bucket);
  if (slot == kParameters) return {info.parameter_buffer(), static_cast<uint64_t>(plan::parameterParts(plan_, info))};
  return {info.states(slot).buffer(), static_cast<uint64_t>(plan::stateParts(plan_, info))};
}

uint64_t StateAccess::readerOf(const Place& at, uint64_t part) const {
  const bool all = at.parts == static_cast<uint64_t>(plan_.ranks());
  return all ? static_cast<uint64_t>(plan::rankOfShard(plan_, static_cast<int64_t>(part))) : part;
}

plan::ElementType StateAccess::elementType(int bucket, int slot) const {
  return plan::slotType(plan_.buckets(bucket), slot);
}

uint64_t StateAccess::elementBytes(int bucket, int slot) const {
  return plan::elementBytes(elementType(bucket, slot));
}

namespace {

// Bytes per message between processes.
constexpr uint64_t kMessageBytes = 4 << 20;

// Calls visit(part, offset in the part, bytes) for the parts of [begin, end), in bytes of a divided array.
template <typename Visit>
Status forEachPart(uint64_t partBytes, uint64_t begin, uint64_t end, Visit visit) {
  while (begin < end) {
    uint64_t part = begin / partBytes, within = begin % partBytes;
    uint64_t bytes = std::min(partBytes - within, end - begin);
    SHEAF_RETURN_IF_ERROR(visit(part, within, bytes));
    begin += bytes;
  }
  return {};
}

}  // namespace

Status StateAccess::readAt(size_t rank, uint32_t buffer, uint64_t at, std::span<std::byte> host) const {
  const plan::Buffer& from = bufferOf(rank, buffer);
  return ranks_[rank]->readSpace(from.space(), from.offset() + at, host);
}

Status StateAccess::writeAt(size_t rank, uint32_t buffer, uint64_t at, std::span<const std::byte> host) const {
  const plan::Buffer& to = bufferOf(rank, buffer);
  return ranks_[rank]->writeSpace(to.space(), to.offset() + at, host);
}

Status StateAccess::readOf(int64_t rank, int bucket, int slot, uint64_t begin, std::span<std::byte> host) const {
  Place at = place(bucket, slot);
  uint64_t size = elementBytes(bucket, slot), part = plan_.buckets(bucket).elements() / at.parts;
  uint64_t first = plan::partOf(plan_, rank, at.parts) * part;
  return readAt(static_cast<uint64_t>(rank) - firstRank_, at.buffer, (begin - first) * size, host);
}

Status StateAccess::readLocal(const Place& at, uint64_t partBytes, uint64_t begin, uint64_t end, std::byte* to) const {
  return forEachPart(partBytes, begin, end, [&](uint64_t part, uint64_t within, uint64_t bytes) {
    const uint64_t rank = readerOf(at, part);
    if (!isHere(rank)) return Status();
    Status status = readAt(rank - firstRank_, at.buffer, within, {to, bytes});
    to += bytes;
    return status;
  });
}

// A piece whose parts are on several processes.
Status StateAccess::gatherPiece(const Place& at, uint64_t partBytes, uint64_t begin, uint64_t end,
                                std::byte* to) const {
  const size_t perProcess = ranks_.size();
  std::vector<uint64_t> bytesOf(static_cast<size_t>(processes_->size()));
  SHEAF_RETURN_IF_ERROR(forEachPart(partBytes, begin, end, [&](uint64_t part, uint64_t, uint64_t bytes) {
    bytesOf[readerOf(at, part) / perProcess] += bytes;
    return Status();
  }));
  std::string mine(bytesOf[static_cast<size_t>(processes_->rank())], '\0');
  SHEAF_RETURN_IF_ERROR(readLocal(at, partBytes, begin, end, reinterpret_cast<std::byte*>(mine.data())));
  Expected<std::vector<std::string>> all = processes_->gather(mine, "whole weights");
  if (!all.ok()) return all.status();
  for (size_t process = 0; process < all->size(); ++process)
    if ((*all)[process].size() != bytesOf[process])
      return Status::error(cat("whole weights: ", processes_->describe(static_cast<int64_t>(process)), " sends ",
                               (*all)[process].size(), " bytes for ", bytesOf[process]));
  if (all->empty()) return {};
  std::vector<size_t> taken(all->size());
  return forEachPart(partBytes, begin, end, [&](uint64_t part, uint64_t, uint64_t bytes) {
    const size_t process = readerOf(at, part) / perProcess;
    to = std::copy_n(reinterpret_cast<const std::byte*>((*all)[process].data()) + taken[process], bytes, to);
    taken[process] += bytes;
    return Status();
  });
}

Status StateAccess::collect(int bucket, int slot, uint64_t begin, uint64_t count, std::span<std::byte> host) const {
  Place at = place(bucket, slot);
  uint64_t size = elementBytes(bucket, slot), from = begin * size, end = from + count * size;
  if (at.parts == 1) return first() ? readAt(0, at.buffer, from, host) : Status();
  uint64_t partBytes = plan_.buckets(bucket).elements() / at.parts * size;
  bool allFirst = true;  // all of it is read from the first process
  SHEAF_RETURN_IF_ERROR(forEachPart(partBytes, from, end, [&](uint64_t part, uint64_t, uint64_t) {
    allFirst &= readerOf(at, part) < ranks_.size();
    return Status();
  }));
  if (!processes_ || allFirst) return first() ? readLocal(at, partBytes, from, end, host.data()) : Status();
  for (uint64_t piece = from; piece < end; piece += kMessageBytes)
    SHEAF_RETURN_IF_ERROR(gatherPiece(at, partBytes, piece, std::min(end, piece + kMessageBytes),
                                      first() ? host.data() + (piece - from) : nullptr));
  return {};
}

Status StateAccess::write(int bucket, int slot, uint64_t begin, std::span<const std::byte> host) const {
  Place at = place(bucket, slot);
  uint64_t size = elementBytes(bucket, slot);
  uint64_t partBytes = plan_.buckets(bucket).elements() / at.parts * size, from = begin * size;
  return forEachPart(partBytes, from, from + host.size(), [&](uint64_t part, uint64_t within, uint64_t bytes) {
    for (size_t i = 0; i < ranks_.size(); ++i)
      if (partOf(at, i) == part) SHEAF_RETURN_IF_ERROR(writeAt(i, at.buffer, within, host.first(bytes)));
    host = host.subspan(bytes);
    return Status();
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
  const Place at = place(bucket, kParameters);
  const uint64_t part = plan_.buckets(bucket).elements() / at.parts;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const uint64_t own = partOf(at, i);
    if (begin < (own + 1) * part && end > own * part) return true;
  }
  return false;
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
  for (size_t rank = 0; rank < ranks_.size(); ++rank) SHEAF_RETURN_IF_ERROR(writeAt(rank, buffer, 0, host));
  return {};
}

Status StateAccess::readBuffer(uint32_t buffer, std::span<std::byte> host) const {
  return readAt(0, buffer, 0, host);
}

}  // namespace sheaf::exec
