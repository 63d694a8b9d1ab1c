// The library and the instructions that a run on CPUs computes with. With the plan and the version of Sheaf they decide
// the bits (docs/zero.md, "The same bits at every stage").
#pragma once

#include <optional>
#include <string>

#include "runtime/base/Json.h"

namespace sheaf::plan {

struct CpuIdentity {
  std::string processor;  // its name, for people: it does not decide bits
  std::string library;    // it computes convolutions and most products: "oneDNN 2.6.3"
  std::string products;   // whose kernels compute products in f32, each in another order: "Sheaf" or "oneDNN"
  // The instructions that the library and Sheaf's own loops use: "SSE4.1", "AVX", "AVX2" or "AVX-512".
  std::string instructions;
  std::string bf16;     // the library's for products in bf16: "none", "bf16" or "AMX"
  std::string kernels;  // the processor that the plan's kernels were compiled for: "x86-64-v3"; empty: it has none
  bool mixed = false;   // processes of the run computed with others (`sheaf-run --allow-mixed-hosts`)
  bool operator==(const CpuIdentity&) const = default;
};

// Returns whether both compute the same bits. Instructions for bf16 count if `bf16` is set: the plan computes in it.
bool haveSameBits(const CpuIdentity& a, const CpuIdentity& b, bool bf16);

// "oneDNN 2.6.3 with AVX2 instructions (bf16: none), kernels for x86-64-v3, on AMD Ryzen 9 5950X".
std::string text(const CpuIdentity& cpu);

json::Value jsonOf(const CpuIdentity& cpu);
// Returns nothing if a member is missing or has another type.
std::optional<CpuIdentity> cpuIdentityOf(const json::Value& value);

}  // namespace sheaf::plan
