// An optimizer's update as a kernel made by hand, for the processor.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/plan/plan.pb.h"

namespace sheaf::testing {

// Adds kernel "update", whose rows are elements. Operands, of f32: parameters, gradient and momentum, of so many bytes
// each, and the learning rate.
inline void addUpdateKernel(plan::Plan& to, uint64_t bytes) {
  plan::Kernel* kernel = to.add_kernels();
  kernel->set_symbol("update");
  kernel->set_rows(static_cast<int64_t>(bytes / sizeof(float)));
  kernel->set_block(8);
  for (int i = 0; i < 4; ++i) kernel->add_operand_bytes(i == 3 ? sizeof(float) : bytes);
  for (int i = 0; i < 4; ++i) kernel->add_operand_access(i % 2 ? plan::READ : plan::READ_WRITE);
}

// Adds an image with that kernel alone.
inline plan::KernelImage& addUpdateImage(plan::Plan& to, const std::string& target) {
  plan::KernelImage* image = to.add_images();
  image->set_target(target);
  image->add_entries();
  // void update(float** a, int64_t begin, int64_t end):
  //   for (i in [begin, end)) { a[2][i] += a[1][i]; a[0][i] -= a[3][0] * a[2][i]; }      (x86-64)
  static constexpr unsigned char kCode[] = {0x48, 0x8b, 0x07, 0x4c, 0x8b, 0x47, 0x08, 0x48, 0x8b, 0x4f, 0x10, 0x48,
                                            0x8b, 0x7f, 0x18, 0x48, 0x39, 0xd6, 0x7d, 0x27, 0xf3, 0x0f, 0x10, 0x04,
                                            0xb1, 0xf3, 0x41, 0x0f, 0x58, 0x04, 0xb0, 0xf3, 0x0f, 0x11, 0x04, 0xb1,
                                            0xf3, 0x0f, 0x59, 0x07, 0xf3, 0x0f, 0x10, 0x0c, 0xb0, 0xf3, 0x0f, 0x5c,
                                            0xc8, 0xf3, 0x0f, 0x11, 0x0c, 0xb0, 0x48, 0xff, 0xc6, 0xeb, 0xd4, 0xc3};
  image->set_code(std::string(reinterpret_cast<const char*>(kCode), sizeof kCode));
  return *image;
}

}  // namespace sheaf::testing
