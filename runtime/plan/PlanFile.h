// Plans on disk: "SHEAFPLN", version (u32), 0 (u32), the payload's size (u64) and its XXH64 (u64), then the payload, a
// serialized plan.proto Plan; all little-endian. Serialization is deterministic: equal plans are
// equal files. The graph that the plan was made from may follow, for `sheaf report`: "SHEAFGRF", its size (u64) and
// XXH64 (u64), then its bytes. It does not belong to the plan: nothing that runs reads it, and the plan's hash does not
// cover it; but a file whose graph is damaged is refused.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "runtime/base/Status.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::plan {

inline constexpr size_t kPlanHeaderBytes = 32;
inline constexpr uint64_t kMaxPlanBytes = 0x7fff0000;  // protobuf's own limit is 2^31

// Reads a plan. The result is parsed, not verified: see Verify.h. It is of version kPlanVersion: see Upgrade.h.
Expected<std::unique_ptr<Plan>> readPlan(const std::string& path);
Expected<std::unique_ptr<Plan>> parsePlan(std::span<const std::byte> file);
// The bytes of the graph that follows a plan in its file; empty: there is none.
Expected<std::string> readGraph(const std::string& path);

// The bytes of a plan's file.
Expected<std::string> serializePlan(const Plan& plan);
// A plan's file around a payload that need not be a plan's.
std::string planFile(std::string_view payload);
// True if a file begins as a plan's does.
bool isPlanFile(const std::string& path);
// The payload's hash, as in the header of a plan's file. It stays the same when a later version of sheaf reads the
// file.
Expected<uint64_t> planHash(const std::string& path);
// Writes to a temporary file, syncs and renames, so that `path` is either what it was or the whole plan. `graph`: the
// bytes of its graph; empty: none.
Status writePlan(const std::string& path, const Plan& plan, std::string_view graph = {});

}  // namespace sheaf::plan
