// What a run on CPUs computes with: besides the plan, this decides its bits (docs/zero.md, "The same bits at every
// stage").
#pragma once

#include <optional>
#include <string>

#include "runtime/base/Json.h"

namespace sheaf::plan {

struct CpuIdentity {
  std::string processor;  // its name, for people: it does not decide bits
  std::string library;    // of matrix products and convolutions, with its version: "oneDNN 3.6.2"
  std::string products;   // the instructions that the library uses for them: "AVX2"
  std::string kernels;    // the processor that the plan's kernels were compiled for: "x86-64-v3"; empty: it has none
  bool mixed = false;     // processes of the run computed with others (`sheaf-run --allow-mixed-hosts`)
  bool operator==(const CpuIdentity&) const = default;
};

// Whether a run goes on with the same bits on the other one.
bool haveSameBits(const CpuIdentity& a, const CpuIdentity& b);

// "oneDNN 3.6.2 with AVX2 instructions, kernels for x86-64-v3 (AMD Ryzen 9 5950X)".
std::string text(const CpuIdentity& cpu);

json::Value jsonOf(const CpuIdentity& cpu);
// Returns nothing if a member is missing or has another type.
std::optional<CpuIdentity> cpuIdentityOf(const json::Value& value);

}  // namespace sheaf::plan
