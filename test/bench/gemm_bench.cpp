// gemm on the shapes of a GPT's step: GFLOP/s, and the share of what a large product reaches on as many threads.
// usage: gemm_bench [bf16] [THREADS]...
#include <cstring>

#include "runtime/plan/RowPitch.h"
#include "runtime/plan/Tiles.h"
#include "test/bench/CallBench.h"

namespace plan = sheaf::plan;

namespace {

struct Shape {
  const char* what;
  int64_t m, n, k;
  bool transposeA, transposeB;
  int64_t batch = 1;
};

double gflops(const Shape& s, bool half, int threads, int runs) {
  // Activations and their gradients, the left operand and the result, lie as in a step.
  const int64_t width = half ? 2 : 4;
  plan::GemmCall call{.m = s.m,
                      .n = s.n,
                      .k = s.k,
                      .batch = s.batch,
                      .transposeA = s.transposeA,
                      .transposeB = s.transposeB,
                      .lda = plan::rowPitch(s.transposeA ? s.m : s.k, width),
                      .ldb = s.transposeB ? s.k : s.n,
                      .ldc = plan::rowPitch(s.n, width),
                      .type = half ? plan::BF16 : plan::F32};
  call.strideA = call.rowsA() * call.lda, call.strideB = s.k * s.n, call.strideC = s.m * call.ldc;
  sheaf::bench::CallBench bench(call, threads);
  return 2e-9 * s.batch * s.m * s.n * s.k / bench.seconds(runs);
}

// A layer's products of a GPT of this width on so many tokens, forward, then the input's and the weight's gradient.
void layer(std::vector<Shape>& shapes, int64_t tokens, int64_t width) {
  struct Weight {
    const char* what;
    int64_t in, out;
  };
  for (Weight w : {Weight{"qkv", width, 3 * width},
                   {"projection", width, width},
                   {"up", width, 4 * width},
                   {"down", 4 * width, width}}) {
    shapes.push_back({w.what, tokens, w.out, w.in, false, false});
    shapes.push_back({w.what, tokens, w.in, w.out, false, true});
    shapes.push_back({w.what, w.in, w.out, tokens, true, false});
  }
}

void head(std::vector<Shape>& shapes, int64_t tokens, int64_t width, int64_t vocabulary) {
  shapes.push_back({"head", tokens, vocabulary, width, false, true});
  shapes.push_back({"head", tokens, width, vocabulary, false, false});
  shapes.push_back({"head", vocabulary, width, tokens, true, false});
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<int> threads;
  const bool half = argc > 1 && std::strcmp(argv[1], "bf16") == 0;
  for (int i = half ? 2 : 1; i < argc; ++i) threads.push_back(std::max(std::atoi(argv[i]), 1));
  if (threads.empty()) threads = {1, 2};
  std::vector<Shape> shapes;
  layer(shapes, 512, 128);
  layer(shapes, 2048, 384);
  head(shapes, 2048, 384, 256);
  layer(shapes, 1024, 768);
  head(shapes, 1024, 768, 50257);
  std::vector<double> peaks;
  std::printf("%-12s %2s %6s %6s %6s %6s", "", "", "m", "n", "k", "tile");
  for (int count : threads) {
    peaks.push_back(gflops({"peak", 2048, 2048, 2048, false, false}, half, count, 5));
    std::printf("   %d threads (%.0f)", count, peaks.back());
  }
  std::printf("\n");
  for (const Shape& s : shapes) {
    plan::GemmTile tile = plan::gemmTile(s.m, s.n, s.k, s.batch, s.transposeA, s.transposeB, half);
    std::printf("%-12s %c%c %6ld %6ld %6ld %5ldx%-5ld", s.what, s.transposeA ? 'T' : 'N', s.transposeB ? 'T' : 'N',
                long(s.m), long(s.n), long(s.k), long(tile.rows), long(tile.columns));
    for (size_t i = 0; i < threads.size(); ++i) {
      double rate = gflops(s, half, threads[i], 5);
      std::printf("  %7.0f  %5.1f %%", rate, 100 * rate / peaks[i]);
      std::fflush(stdout);
    }
    std::printf("\n");
  }
}
