// attention and attention_grad, causal, on packed projections of GPTs: milliseconds and GFLOP/s of causal work.
// usage: attention_bench [THREADS]...
#include <cmath>

#include "test/bench/CallBench.h"

namespace plan = sheaf::plan;

namespace {

struct Shape {
  int64_t batch, tokens, heads, width;
};

plan::LibraryCall attention(const char* function, const Shape& s) {
  const int64_t row = s.heads * s.width;
  return sheaf::testing::libraryCall(function,
                                     {{"b", s.batch},
                                      {"s", s.tokens},
                                      {"t", s.tokens},
                                      {"h", s.heads},
                                      {"g", s.heads},
                                      {"d", s.width},
                                      {"e", s.width},
                                      {"causal", 1},
                                      {"query_row", 3 * row},
                                      {"key_row", 3 * row},
                                      {"value_row", 3 * row},
                                      {"result_row", row},
                                      {"gradient_row", row},
                                      {"query_gradient_row", 3 * row},
                                      {"key_gradient_row", 3 * row},
                                      {"value_gradient_row", 3 * row}},
                                     {{"scale", 1 / std::sqrt(double(s.width))}});
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<int> threads;
  for (int i = 1; i < argc; ++i) threads.push_back(std::max(std::atoi(argv[i]), 1));
  if (threads.empty()) threads = {1, 2};
  for (Shape s : {Shape{8, 64, 4, 32}, Shape{8, 256, 6, 64}, Shape{1, 1024, 12, 64}, Shape{1, 2048, 12, 128}}) {
    const uint64_t packed = s.batch * s.tokens * 3 * s.heads * s.width * 4, plain = packed / 3,
                   rows = s.batch * s.heads * s.tokens * 4;
    // One causal product of queries and keys.
    const double work = double(s.batch * s.heads) * s.tokens * (s.tokens + 1) * s.width;
    for (int count : threads) {
      sheaf::bench::CallBench forward(
          attention("attention", s),
          {{packed, plan::READ}, {packed, plan::READ}, {packed, plan::READ}, {plain, plan::WRITE}, {rows, plan::WRITE}},
          count);
      sheaf::bench::CallBench backward(attention("attention_grad", s),
                                       {{packed, plan::READ},
                                        {packed, plan::READ},
                                        {packed, plan::READ},
                                        {plain, plan::READ},
                                        {rows, plan::READ},
                                        {plain, plan::READ},
                                        {packed, plan::WRITE},
                                        {packed, plan::WRITE},
                                        {packed, plan::WRITE}},
                                       count);
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
