#include "runtime/plan/CpuIdentity.h"

#include "runtime/base/Text.h"

namespace sheaf::plan {

bool haveSameBits(const CpuIdentity& a, const CpuIdentity& b, bool bf16) {
  return !a.mixed && !b.mixed && a.library == b.library && a.instructions == b.instructions && a.kernels == b.kernels &&
         a.products == b.products && (!bf16 || a.bf16 == b.bf16);
}

std::string text(const CpuIdentity& cpu) {
  return cat(cpu.library, " with ", cpu.instructions, " instructions (f32 products: ", cpu.products,
             ", bf16: ", cpu.bf16, ")", cpu.kernels.empty() ? std::string() : cat(", kernels for ", cpu.kernels),
             ", on ", cpu.processor, cpu.mixed ? " and others" : "");
}

json::Value jsonOf(const CpuIdentity& cpu) {
  return json::Object{{"processor", cpu.processor}, {"library", cpu.library},
                      {"products", cpu.products},   {"instructions", cpu.instructions},
                      {"bf16", cpu.bf16},           {"kernels", cpu.kernels},
                      {"mixed", cpu.mixed}};
}

std::optional<CpuIdentity> cpuIdentityOf(const json::Value& value) {
  const json::Object* object = value.object();
  if (!object) return std::nullopt;
  CpuIdentity cpu;
  for (auto [name, member] : {std::pair{"processor", &cpu.processor}, std::pair{"library", &cpu.library},
                              std::pair{"products", &cpu.products}, std::pair{"instructions", &cpu.instructions},
                              std::pair{"bf16", &cpu.bf16}, std::pair{"kernels", &cpu.kernels}}) {
    const json::Value* found = object->find(name);
    if (!found || !found->string()) return std::nullopt;
    *member = *found->string();
  }
  const json::Value* mixed = object->find("mixed");
  if (!mixed || !mixed->boolean()) return std::nullopt;
  cpu.mixed = *mixed->boolean();
  return cpu;
}

}  // namespace sheaf::plan
