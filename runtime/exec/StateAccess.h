// Reads and writes parameters and optimizer state by logical element, wherever the plan stores them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/comm/process/ProcessGroup.h"
#include "runtime/device/Device.h"
#include "runtime/plan/Generations.h"
#include "runtime/plan/SavedParts.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::exec {

using plan::exactSlot;
using plan::kParameters;

class StateAccess {
 public:
  // The arguments must outlive this object. Use it only while the ranks are synchronized. `ranks` are the ranks of this
  // process, the first of them `firstRank`. `processes` is null in a job of one process.
  StateAccess(const plan::Plan& plan, const std::vector<std::unique_ptr<RankContext>>& ranks, int64_t firstRank = 0,
              comm::ProcessGroup* processes = nullptr)
      : plan_(plan),
        generations_(plan),
        ranks_(ranks),
        firstRank_(static_cast<uint64_t>(firstRank)),
        processes_(processes) {}

  // Collects elements [begin, begin + count) of a bucket, from the ranks that own them, into `host` on process 0. Every
  // process calls it with the same range. Messages between processes have bounded size.
  Status collect(int bucket, int slot, uint64_t begin, uint64_t count, std::span<std::byte> host) const;
  // Reads elements from `begin` on that `rank`, a rank of this process, holds.
  Status readOf(int64_t rank, int bucket, int slot, uint64_t begin, std::span<std::byte> host) const;
  // Writes to every rank of this process that holds the elements. Every process calls it with the same values.
  Status write(int bucket, int slot, uint64_t begin, std::span<const std::byte> host) const;
  Status writeZeros(int bucket, int slot, uint64_t begin, uint64_t end) const;
  // Writes the same bytes into a buffer of every rank of this process.
  Status writeBuffer(uint32_t buffer, std::span<const std::byte> host) const;
  // Reads a buffer that all ranks have the same in, from the first rank of this process.
  Status readBuffer(uint32_t buffer, std::span<std::byte> host) const;

  // Writes values of any float type into the parameters (rounded) and into the master weights, if there are any.
  Status writeValues(int bucket, uint64_t begin, plan::ElementType type, std::span<const std::byte> values) const;

  // Whether a rank of this process holds any of the elements [begin, end), as parameters or as master weights.
  bool holds(int bucket, uint64_t begin, uint64_t end) const;

  plan::ElementType elementType(int bucket, int slot) const;
  uint64_t elementBytes(int bucket, int slot) const;
  const plan::Plan& plan() const { return plan_; }
  int64_t firstRank() const { return static_cast<int64_t>(firstRank_); }
  int64_t localRanks() const { return static_cast<int64_t>(ranks_.size()); }
  comm::ProcessGroup* processes() const { return processes_; }
  // Whether this process is the one whose collect() fills `host`.
  bool first() const { return firstRank_ == 0; }

 private:
  struct Place {
    uint32_t buffer;
    uint64_t parts;  // that the array is divided into; 1: every rank holds all of it
  };
  Place place(int bucket, int slot) const;
  // Which part the i-th rank of this process holds, and the rank that a part is read from.
  uint64_t partOf(const Place& at, uint64_t i) const {
    return plan::partOf(plan_, static_cast<int64_t>(firstRank_ + i), at.parts);
  }
  uint64_t readerOf(const Place& at, uint64_t part) const;
  // Bytes of a buffer of the i-th rank of this process, wherever it lies.
  Status readAt(size_t rank, uint32_t buffer, uint64_t at, std::span<std::byte> host) const;
  Status writeAt(size_t rank, uint32_t buffer, uint64_t at, std::span<const std::byte> host) const;
  // The bytes of [begin, end) of a divided array that are read from this process, in order.
  Status readLocal(const Place& at, uint64_t partBytes, uint64_t begin, uint64_t end, std::byte* to) const;
  Status gatherPiece(const Place& at, uint64_t partBytes, uint64_t begin, uint64_t end, std::byte* to) const;
  bool isHere(uint64_t rank) const { return rank >= firstRank_ && rank - firstRank_ < ranks_.size(); }

  // Where it lies: of two generations, the current one.
  const plan::Buffer& bufferOf(size_t rank, uint32_t buffer) const {
    return plan_.buffers(static_cast<int>(generations_.placeOf(buffer, ranks_[rank]->oddGeneration())));
  }

  const plan::Plan& plan_;
  const plan::Generations generations_;
  const std::vector<std::unique_ptr<RankContext>>& ranks_;
  const uint64_t firstRank_;
  comm::ProcessGroup* const processes_;
};

}  // namespace sheaf::exec
