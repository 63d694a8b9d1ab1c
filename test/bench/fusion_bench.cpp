// Speed of the kernels that training steps are made of, one thread, against a copy of as many bytes.
//
//   fusion_bench [cpu]     (an LLVM CPU name; default host)
//
// GB/s counts every operand and result once.
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "test/codegen/KernelRunner.h"
#include "test/codegen/Programs.h"

using namespace sheaf;
using namespace sheaf::test;

namespace {

double seconds() {
  using namespace std::chrono;
  return duration<double>(steady_clock::now().time_since_epoch()).count();
}

// The fastest of as many runs as fit into some time: other load can only slow a run down.
template <typename F>
double fastest(F run) {
  double best = 1e9, until = seconds() + 0.4;
  do {
    double start = seconds();
    run();
    best = std::min(best, seconds() - start);
  } while (seconds() < until);
  return best;
}

struct Memory {
  explicit Memory(size_t size) : size(size), data(std::aligned_alloc(4096, (size + 4095) / 4096 * 4096)) {}
  Memory(Memory&& other) noexcept : size(other.size), data(std::exchange(other.data, nullptr)) {}
  ~Memory() { std::free(data); }
  size_t size;
  void* data;
};

double copySeconds(size_t bytes) {
  Memory from(bytes / 2), to(bytes / 2);
  std::memset(from.data, 1, from.size);
  return fastest([&] { std::memcpy(to.data, from.data, to.size); });
}

void measure(const char* name, const char* text, int64_t rows, int64_t columns, const std::string& cpu) {
  double start = seconds();
  Program program(withShape(text, rows, columns), kPipeline, cpu);
  double compile = seconds() - start;
  auto arguments = program.randomArguments(1, 1.0, columns);
  MappedImage image(program.image.code, program.image.entries);
  for (train::FusionOp fusion : program.fusions) {
    std::vector<Memory> buffers;
    std::vector<void*> args;
    size_t bytes = 0;
    auto add = [&](mlir::Type type) {
      auto tensor = mlir::cast<mlir::RankedTensorType>(type);
      int64_t width = std::max(1u, tensor.getElementType().getIntOrFloatBitWidth() / 8);
      buffers.emplace_back(tensor.getNumElements() * width);
      bytes += buffers.back().size;
      args.push_back(buffers.back().data);
      // Positive normal numbers; as labels, their bits are some index outside of the row.
      auto* words = static_cast<float*>(buffers.back().data);
      for (size_t i = 0; i < buffers.back().size / 4; ++i) words[i] = 0.5f + 0.001f * static_cast<float>(i % 997);
    };
    for (mlir::Type type : fusion.getOperandTypes()) add(type);
    for (mlir::Type type : fusion.getResultTypes()) add(type);
    Kernel kernel = reinterpret_cast<Kernel>(image.find("fusion_0"));
    double time = fastest([&] { kernel(args.data(), 0, fusion.getRows()); });
    std::printf("%-22s %6ld x %-6ld %8.1f us  %6.1f GB/s  copy %6.1f GB/s  compile %5.1f ms\n", name, rows, columns,
                time * 1e6, static_cast<double>(bytes) / time * 1e-9,
                static_cast<double>(bytes) / copySeconds(bytes) * 1e-9, compile * 1e3);
    break;  // what follows sums partials
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::string cpu = argc > 1 ? argv[1] : "host";
  struct Case {
    const char *name, *text;
    int64_t rows, columns;
  };
  const Case cases[] = {{"layer norm forward", kLayerNormForward, 1024, 768},
                        {"layer norm backward", kLayerNormBackward, 1024, 768},
                        {"bias gelu (tanh)", kBiasGelu, 1024, 3072},
                        {"bias gelu (erf)", kBiasGeluErf, 1024, 3072},
                        {"gelu backward", kGeluBackward, 1024, 3072},
                        {"cross entropy", kCrossEntropyForward, 256, 50257},
                        {"cross entropy backward", kCrossEntropyBackward, 256, 50257},
                        {"softmax", kSoftmax, 4096, 1024},
                        {"adamw", kAdamW, 1024, 4096},
                        {"swiglu", kSwiglu, 1024, 4096}};
  for (const Case& c : cases) measure(c.name, c.text, c.rows, c.columns, cpu);
  return 0;
}
