// attention and attention_grad, causal, on packed projections of GPTs: milliseconds and GFLOP/s of causal work.
// usage: attention_bench [THREADS]...
#include <cmath>

#include "test/bench/CallBench.h"

namespace plan = sheaf::plan;

namespace {

struct Shape {
  int64_t batch, tokens, heads, width;
};

plan::AttentionGradCall gradientCall(const Shape& s) {
  const int64_t row = s.heads * s.width;
  plan::AttentionGradCall call;
  call.b = s.batch, call.s = call.t = s.tokens, call.h = call.g = s.heads, call.d = call.e = s.width;
  call.causal = true, call.scale = 1 / std::sqrt(double(s.width));
  call.queryRow = call.keyRow = call.valueRow = 3 * row;
  call.queryGradientRow = call.keyGradientRow = call.valueGradientRow = 3 * row;
  call.resultRow = call.gradientRow = row;
  return call;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<int> threads;
  for (int i = 1; i < argc; ++i) threads.push_back(std::max(std::atoi(argv[i]), 1));
  if (threads.empty()) threads = {1, 2};
  for (Shape s : {Shape{8, 64, 4, 32}, Shape{8, 256, 6, 64}, Shape{1, 1024, 12, 64}, Shape{1, 2048, 12, 128}}) {
    // One causal product of queries and keys.
    const double work = double(s.batch * s.heads) * s.tokens * (s.tokens + 1) * s.width;
    for (int count : threads) {
      const plan::AttentionGradCall gradient = gradientCall(s);
      sheaf::bench::CallBench forward(plan::AttentionCall{gradient}, count), backward(gradient, count);
      const double f = forward.seconds(), b = backward.seconds();
      std::printf(
          "batch %ld, %4ld tokens, %2ld heads of %3ld, %d threads: forward %7.2f ms (%3.0f GFLOP/s), backward "
          "%7.2f ms (%3.0f)\n",
          long(s.batch), long(s.tokens), long(s.heads), long(s.width), count, f * 1e3, 2e-9 * work / f, b * 1e3,
          5e-9 * work / b);
      std::fflush(stdout);
    }
  }
}
