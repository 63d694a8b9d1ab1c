// Every difference between processors, among processes and between a state and the run that resumes it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "runtime/exec/MixedHosts.h"
#include "test/runtime/ThreadGroup.h"

namespace sheaf {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

const plan::CpuIdentity kCpu{"A CPU", "oneDNN 2.6.3", "oneDNN", "AVX-512", "AMX", "x86-64-v3", false};

struct Difference {
  const char* name;
  void (*change)(plan::CpuIdentity& cpu);
  bool decidesBits;    // if the plan is in f32
  const char* remedy;  // among processes, in bf16; null: processes of one plan cannot differ in it
  bool decidesBf16 = decidesBits;
};

const Difference kDifferences[] = {
    {"Nothing", [](plan::CpuIdentity&) {}, false, ""},
    {"Processor", [](plan::CpuIdentity& cpu) { cpu.processor = "Another CPU"; }, false, ""},
    {"Library", [](plan::CpuIdentity& cpu) { cpu.library = "oneDNN 3.7.0"; }, true, "install the same version"},
    {"Products", [](plan::CpuIdentity& cpu) { cpu.products = "Sheaf"; }, true, nullptr},
    {"Sse", [](plan::CpuIdentity& cpu) { cpu.instructions = "SSE4.1"; }, true, "ONEDNN_MAX_CPU_ISA=SSE41 "},
    {"Avx", [](plan::CpuIdentity& cpu) { cpu.instructions = "AVX"; }, true, "ONEDNN_MAX_CPU_ISA=AVX "},
    {"Avx2", [](plan::CpuIdentity& cpu) { cpu.instructions = "AVX2"; }, true, "ONEDNN_MAX_CPU_ISA=AVX2 "},
    {"NoBf16", [](plan::CpuIdentity& cpu) { cpu.bf16 = "none"; }, false, "ONEDNN_MAX_CPU_ISA=AVX512_CORE ", true},
    {"NoAmx", [](plan::CpuIdentity& cpu) { cpu.bf16 = "bf16"; }, false, "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 ", true},
    {"Kernels", [](plan::CpuIdentity& cpu) { cpu.kernels = "x86-64-v4"; }, true, nullptr},
    {"Mixed", [](plan::CpuIdentity& cpu) { cpu.mixed = true; }, true, nullptr},
};

class MixedHosts : public ::testing::TestWithParam<Difference> {
 protected:
  static plan::CpuIdentity other() {
    plan::CpuIdentity cpu = kCpu;
    GetParam().change(cpu);
    return cpu;
  }
};

TEST_P(MixedHosts, AResumeWarnsOfWhatDecidesBits) {
  for (bool bf16 : {false, true}) {
    const std::string warning = exec::warnOfOtherCpu(other(), kCpu, bf16);
    EXPECT_EQ(!warning.empty(), bf16 ? GetParam().decidesBf16 : GetParam().decidesBits) << warning;
    EXPECT_EQ(exec::warnOfOtherCpu(kCpu, other(), bf16).empty(), warning.empty());
    EXPECT_THAT(exec::warnOfOtherCpu(std::nullopt, other(), bf16), IsEmpty());
    EXPECT_THAT(exec::warnOfOtherCpu(other(), std::nullopt, bf16), IsEmpty());
  }
}

// There are three processes; the last differs.
TEST_P(MixedHosts, ProcessesAreRefusedOrWarned) {
  if (!GetParam().remedy) return;
  for (int options = 0; options < 4; ++options) {
    const bool allow = options % 2 == 1, bf16 = options / 2 == 1;
    const bool differs = bf16 ? GetParam().decidesBf16 : GetParam().decidesBits;
    testing::ThreadGroup group(3);
    std::vector<Expected<std::string>> results(3, std::string());
    std::vector<plan::CpuIdentity> cpus{kCpu, kCpu, other()};
    std::vector<std::thread> processes;
    for (size_t i = 0; i < 3; ++i)
      processes.emplace_back([&, i] {
        auto member = group.member(static_cast<int64_t>(i));
        results[i] = exec::checkMixedHosts(member.get(), cpus[i], bf16, allow);
      });
    for (std::thread& process : processes) process.join();
    for (size_t i = 0; i < 3; ++i) {
      const auto& result = results[i];
      ASSERT_EQ(result.ok(), allow || !differs);
      if (!result.ok()) {
        EXPECT_THAT(result.status().message(), HasSubstr(plan::text(kCpu)));
        EXPECT_THAT(result.status().message(), HasSubstr(plan::text(other())));
        EXPECT_THAT(result.status().message(), HasSubstr(GetParam().remedy));
        EXPECT_THAT(result.status().message(), HasSubstr("--allow-mixed-hosts"));
      } else {
        EXPECT_EQ(!result->empty(), differs);
        EXPECT_EQ(cpus[i].mixed, differs);
      }
    }
  }
}

TEST_P(MixedHosts, JsonReadsBackTheSame) {
  EXPECT_EQ(plan::cpuIdentityOf(plan::jsonOf(other())), other());
}

INSTANTIATE_TEST_SUITE_P(Table, MixedHosts, ::testing::ValuesIn(kDifferences),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(CpuIdentity, LacksNoMember) {
  for (const char* name : {"processor", "library", "products", "instructions", "bf16", "kernels", "mixed"}) {
    const json::Value whole = plan::jsonOf(kCpu);
    json::Object lacking, wrong;
    for (const auto& [member, value] : whole.object()->members()) {
      if (member != name) lacking.set(member, value);
      wrong.set(member, member == name ? json::Value(5) : value);
    }
    EXPECT_FALSE(plan::cpuIdentityOf(lacking)) << name;
    EXPECT_FALSE(plan::cpuIdentityOf(wrong)) << name;
  }
  EXPECT_FALSE(plan::cpuIdentityOf(json::Value("AVX2")));
}

TEST(CpuIdentity, OneProcessIsNotMixed) {
  plan::CpuIdentity cpu = kCpu;
  auto result = exec::checkMixedHosts(nullptr, cpu, true, false);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(*result, "");
  EXPECT_EQ(cpu, kCpu);
}

}  // namespace
}  // namespace sheaf
