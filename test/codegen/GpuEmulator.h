// Runs emitted GPU kernels on the CPU: the gpu.func that PTX is made of, its indices, barriers, exchanges and shared
// memory taken from emulated thread blocks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "codegen/cuda/Mapping.h"
#include "codegen/fusion/DistinctPrograms.h"

namespace sheaf::test {

class MappedImage;

class GpuEmulator {
 public:
  // Emits the kernels of the programs, mapped as at that register pressure. Failures are fatal test failures.
  GpuEmulator(const codegen::DistinctPrograms& programs, int pressure);
  ~GpuEmulator();

  // Launches the kernel of a program; `arguments` are its operands, then its results.
  void launch(size_t program, void** arguments) const;
  const codegen::Mapping& mapping(size_t program) const { return mappings[program]; }

 private:
  std::vector<std::string> symbols;
  std::vector<codegen::Mapping> mappings;
  std::vector<int64_t> sharedBytes;
  std::unique_ptr<MappedImage> image;
};

}  // namespace sheaf::test
