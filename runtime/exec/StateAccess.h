// Parameters and optimizer state by logical element, wherever the plan keeps them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/device/Device.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::exec {

// What of a bucket is meant: its parameters as the step reads them, or one of its states.
inline constexpr int kParameters = -1;

// Where the parameters' exact values are: themselves, or the master weights that they are rounded from.
inline int exactSlot(const plan::Bucket& bucket) {
  return bucket.master() ? 0 : kParameters;
}

class StateAccess {
 public:
  // Both must outlive this; used only while the ranks are synchronized.
  StateAccess(const plan::Plan& plan, const std::vector<std::unique_ptr<RankContext>>& ranks)
      : plan_(plan), ranks_(ranks) {}

  // Elements [begin, begin + host.size() / elementBytes) of a bucket: reading takes each from its owner, replicated
  // ones from `reader`; writing goes to every rank that holds them.
  Status read(int bucket, int slot, uint64_t begin, std::span<std::byte> host, int64_t reader = 0) const;
  Status write(int bucket, int slot, uint64_t begin, std::span<const std::byte> host) const;
  Status writeZeros(int bucket, int slot, uint64_t begin, uint64_t end) const;
  // The same bytes into a buffer of every rank.
  Status writeBuffer(uint32_t buffer, std::span<const std::byte> host) const;

  // Values of parameters, of any float type: rounded into the parameters and, where there are, into master weights.
  Status writeValues(int bucket, uint64_t begin, plan::ElementType type, std::span<const std::byte> values) const;

  plan::ElementType elementType(int bucket, int slot) const;
  uint64_t elementBytes(int bucket, int slot) const;
  const plan::Plan& plan() const { return plan_; }

 private:
  struct Place {
    uint32_t buffer;
    bool sharded;
  };
  Place place(int bucket, int slot) const;

  const plan::Plan& plan_;
  const std::vector<std::unique_ptr<RankContext>>& ranks_;
};

}  // namespace sheaf::exec
