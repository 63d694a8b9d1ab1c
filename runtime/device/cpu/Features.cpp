#include "runtime/device/cpu/Features.h"

#include <cpuid.h>

#include <array>
#include <cstdint>
#include <string_view>

namespace sheaf::cpu {
namespace {

enum Register { kEax, kEbx, kEcx, kEdx };

// State that the operating system must save on a context switch, as bits of XCR0.
enum SavedState : uint32_t { kNone = 0, kAvx = 0x6, kAvx512 = 0xe6, kAmx = 0x60000 };

struct Feature {
  std::string_view name;
  uint32_t leaf, subleaf;
  Register reg;
  int bit;
  SavedState state;
};

// Intel's Software Developer's Manual, CPUID; AMD's Architecture Programmer's Manual, volume 3, appendix E.
constexpr Feature kFeatures[] = {
    {"cx8", 1, 0, kEdx, 8, kNone},
    {"cmov", 1, 0, kEdx, 15, kNone},
    {"mmx", 1, 0, kEdx, 23, kNone},
    {"fxsr", 1, 0, kEdx, 24, kNone},
    {"sse", 1, 0, kEdx, 25, kNone},
    {"sse2", 1, 0, kEdx, 26, kNone},
    {"sse3", 1, 0, kEcx, 0, kNone},
    {"pclmul", 1, 0, kEcx, 1, kNone},
    {"ssse3", 1, 0, kEcx, 9, kNone},
    {"fma", 1, 0, kEcx, 12, kAvx},
    {"cx16", 1, 0, kEcx, 13, kNone},
    {"sse4.1", 1, 0, kEcx, 19, kNone},
    {"sse4.2", 1, 0, kEcx, 20, kNone},
    {"crc32", 1, 0, kEcx, 20, kNone},
    {"movbe", 1, 0, kEcx, 22, kNone},
    {"popcnt", 1, 0, kEcx, 23, kNone},
    {"aes", 1, 0, kEcx, 25, kNone},
    {"xsave", 1, 0, kEcx, 26, kNone},
    {"avx", 1, 0, kEcx, 28, kAvx},
    {"f16c", 1, 0, kEcx, 29, kAvx},
    {"rdrnd", 1, 0, kEcx, 30, kNone},
    {"fsgsbase", 7, 0, kEbx, 0, kNone},
    {"bmi", 7, 0, kEbx, 3, kNone},
    {"avx2", 7, 0, kEbx, 5, kAvx},
    {"bmi2", 7, 0, kEbx, 8, kNone},
    {"avx512f", 7, 0, kEbx, 16, kAvx512},
    {"avx512dq", 7, 0, kEbx, 17, kAvx512},
    {"rdseed", 7, 0, kEbx, 18, kNone},
    {"adx", 7, 0, kEbx, 19, kNone},
    {"avx512ifma", 7, 0, kEbx, 21, kAvx512},
    {"clflushopt", 7, 0, kEbx, 23, kNone},
    {"clwb", 7, 0, kEbx, 24, kNone},
    {"avx512cd", 7, 0, kEbx, 28, kAvx512},
    {"sha", 7, 0, kEbx, 29, kNone},
    {"avx512bw", 7, 0, kEbx, 30, kAvx512},
    {"avx512vl", 7, 0, kEbx, 31, kAvx512},
    {"avx512vbmi", 7, 0, kEcx, 1, kAvx512},
    {"avx512vbmi2", 7, 0, kEcx, 6, kAvx512},
    {"gfni", 7, 0, kEcx, 8, kNone},
    {"vaes", 7, 0, kEcx, 9, kAvx},
    {"vpclmulqdq", 7, 0, kEcx, 10, kAvx},
    {"avx512vnni", 7, 0, kEcx, 11, kAvx512},
    {"avx512bitalg", 7, 0, kEcx, 12, kAvx512},
    {"avx512vpopcntdq", 7, 0, kEcx, 14, kAvx512},
    {"movdiri", 7, 0, kEcx, 27, kNone},
    {"movdir64b", 7, 0, kEcx, 28, kNone},
    {"avx512vp2intersect", 7, 0, kEdx, 8, kAvx512},
    {"amx-bf16", 7, 0, kEdx, 22, kAmx},
    {"avx512fp16", 7, 0, kEdx, 23, kAvx512},
    {"amx-tile", 7, 0, kEdx, 24, kAmx},
    {"amx-int8", 7, 0, kEdx, 25, kAmx},
    {"avxvnni", 7, 1, kEax, 4, kAvx},
    {"avx512bf16", 7, 1, kEax, 5, kAvx512},
    {"avxifma", 7, 1, kEax, 23, kAvx},
    {"xsaveopt", 13, 1, kEax, 0, kNone},
    {"xsavec", 13, 1, kEax, 1, kNone},
    {"xsaves", 13, 1, kEax, 3, kNone},
    {"sahf", 0x80000001, 0, kEcx, 0, kNone},
    {"lzcnt", 0x80000001, 0, kEcx, 5, kNone},
    {"sse4a", 0x80000001, 0, kEcx, 6, kNone},
    {"prfchw", 0x80000001, 0, kEcx, 8, kNone},
    {"xop", 0x80000001, 0, kEcx, 11, kAvx},
    {"fma4", 0x80000001, 0, kEcx, 16, kAvx},
    {"tbm", 0x80000001, 0, kEcx, 21, kNone},
    {"mwaitx", 0x80000001, 0, kEcx, 29, kNone},
    {"64bit", 0x80000001, 0, kEdx, 29, kNone},
    {"clzero", 0x80000008, 0, kEbx, 0, kNone},
};

uint32_t savedState() {
  uint32_t eax, ebx, ecx, edx;
  constexpr uint32_t kOsXsave = 1u << 27;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !(ecx & kOsXsave)) return 0;
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

bool has(const Feature& feature) {
  std::array<uint32_t, 4> registers{};
  if (!__get_cpuid_count(feature.leaf, feature.subleaf, &registers[0], &registers[1], &registers[2], &registers[3]))
    return false;
  if (!(registers[feature.reg] >> feature.bit & 1)) return false;
  return (savedState() & feature.state) == feature.state;
}

bool hasAll(std::initializer_list<std::string_view> names) {
  for (std::string_view name : names)
    if (!requireFeature(std::string(name)).ok()) return false;
  return true;
}

}  // namespace

Status requireFeature(const std::string& feature) {
  for (const Feature& known : kFeatures) {
    if (known.name != feature) continue;
    if (has(known)) return Status();
    return Status::error("the plan's kernels need the processor feature '" + feature +
                         "', which this machine lacks; compile the plan again on a machine like this one");
  }
  return Status::error("the plan's kernels need the processor feature '" + feature +
                       "', which this runtime does not know; compile the plan again with this version");
}

int abiLevel() {
  if (!hasAll({"avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe"})) return 2;
  return hasAll({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}) ? 4 : 3;
}

}  // namespace sheaf::cpu
