// Matrix products of the CPU device, and how they are cut into tiles.
//
// gemm_bench [bf16] [THREADS]...
//   Prints GFLOP/s on the shapes of steps of a GPT, a ResNet and an LSTM: the share of what a large product reaches,
//   and of f32 the share of what the whole product reaches, which oneDNN computes on one thread in the same run, in
//   turn with ours.
// gemm_bench --check [THREADS]...
//   The same; fails if a shape is below 80 % of the whole product.
// gemm_bench --packing PLAN...
//   Prints what oneDNN packs for the f32 products of plans; nothing is run.
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>

#include <cstring>
#include <map>
#include <string>
#include <tuple>

#include "runtime/plan/PlanFile.h"
#include "runtime/plan/RowPitch.h"
#include "runtime/plan/Tiles.h"
#include "test/bench/CallBench.h"

namespace plan = sheaf::plan;
using sheaf::bench::CallBench;

namespace {

// Below it a shape fails --check.
constexpr double kLeastShare = 0.8;

struct Shape {
  const char* what;
  int64_t m, n, k;
  bool transposeA, transposeB;
  int64_t batch = 1;

  double flops() const { return 2.0 * batch * m * n * k; }
  const char* transposed() const { return transposeA ? transposeB ? "TT" : "TN" : transposeB ? "NT" : "NN"; }
};

plan::GemmCall callOf(const Shape& s, bool half) {
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
  return call;
}

// The product by one call of oneDNN for each batch, on this thread.
class WholeProduct {
 public:
  explicit WholeProduct(const plan::GemmCall& call)
      : call_(call), a_(call.batch * call.strideA), b_(call.batch * call.strideB), c_(call.batch * call.strideC) {
    sheaf::testing::Numbers numbers(1);
    a_ = numbers.reals(a_.size()), b_ = numbers.reals(b_.size());
  }

  double once() {
    omp_set_num_threads(1);
    const auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < call_.batch; ++i)
      if (dnnl_sgemm(call_.transposeA ? 'T' : 'N', call_.transposeB ? 'T' : 'N', call_.m, call_.n, call_.k, 1,
                     a_.data() + i * call_.strideA, call_.lda, b_.data() + i * call_.strideB, call_.ldb, 0,
                     c_.data() + i * call_.strideC, call_.ldc) != dnnl_success)
        std::exit(1);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

 private:
  plan::GemmCall call_;
  std::vector<float> a_, b_, c_;
};

struct Rate {
  double gflops = 0;
  double share = 0;  // compared with as many threads that each compute the whole product
};

// Medians of at least so many rounds, in each of which both are measured.
Rate measure(const Shape& s, int threads, size_t rounds) {
  const plan::GemmCall call = callOf(s, false);
  CallBench ours(call, threads);
  WholeProduct whole(call);
  std::vector<double> times, shares;
  ours.once(), whole.once();
  for (double sum = 0; times.size() < rounds || (sum < 0.1 && times.size() < 1000);) {
    times.push_back(ours.once());
    const double other = whole.once();
    shares.push_back(other / times.back() / threads);
    sum += times.back() + other;
  }
  return {1e-9 * s.flops() / CallBench::median(times), CallBench::median(shares)};
}

double gflops(const Shape& s, bool half, int threads, int runs) {
  CallBench bench(callOf(s, half), threads);
  return 1e-9 * s.flops() / bench.seconds(runs);
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

// Products that a call computes one by one: of attention's tiles of scores, of unrolled convolutions.
void pieces(std::vector<Shape>& shapes) {
  constexpr int64_t kMany = 64;
  shapes.push_back({"attention", 64, 256, 64, false, true, kMany});
  shapes.push_back({"attention", 64, 64, 256, false, false, kMany});
  shapes.push_back({"attention", 256, 64, 64, true, false, kMany});
  shapes.push_back({"resnet", 112, 64, 576, false, true, kMany});
  shapes.push_back({"resnet", 112, 576, 64, false, false, kMany});
  shapes.push_back({"resnet", 64, 63, 112, true, false, kMany});
  shapes.push_back({"resnet", 16, 512, 4608, false, true, kMany});
}

// A step of an LSTM with a batch of 64, its gradient, and the weight's gradient over 35 steps.
void recurrent(std::vector<Shape>& shapes, int64_t width) {
  constexpr int64_t kBatch = 64, kSteps = 35;
  shapes.push_back({"lstm", kBatch, 4 * width, width, false, true});
  shapes.push_back({"lstm", kBatch, width, 4 * width, false, false});
  shapes.push_back({"lstm", 4 * width, width, kBatch * kSteps, true, false});
}

// Returns the tile that the device takes: where it has AVX2 and no AVX-512, that of Sheaf's own products.
plan::GemmTile tileOf(const Shape& s, bool half, int threads) {
  const unsigned isa = dnnl_get_effective_cpu_isa();
  const bool own = (isa & dnnl_cpu_isa_avx2) == dnnl_cpu_isa_avx2 &&
                   (isa & dnnl_cpu_isa_avx512_core) != dnnl_cpu_isa_avx512_core && !half;
  return own ? plan::threadTile(s.m, s.n, s.k, s.batch, s.transposeA, s.transposeB, threads)
             : plan::gemmTile(s.m, s.n, s.k, s.batch, s.transposeA, s.transposeB, half);
}

// Prints the table. Returns how many f32 shapes are too slow.
int run(bool half, const std::vector<int>& threads) {
  constexpr size_t kRounds = 9;
  std::vector<Shape> shapes;
  layer(shapes, 512, 128);
  layer(shapes, 2048, 384);
  head(shapes, 2048, 384, 256);
  layer(shapes, 1024, 768);
  head(shapes, 1024, 768, 50257);
  pieces(shapes);
  recurrent(shapes, 512);
  shapes.push_back({"classifier", 32, 1000, 512, false, true});
  std::vector<double> peaks;
  std::printf("%-12s %2s %6s %6s %6s", "", "", "m", "n", "k");
  for (int count : threads) {
    peaks.push_back(gflops({"peak", 2048, 2048, 2048, false, false}, half, count, 5));
    std::printf("         tile  %d threads (%.0f)%s", count, peaks.back(), half ? "" : "  of whole");
  }
  std::printf("\n");
  int slow = 0;
  for (const Shape& s : shapes) {
    std::printf("%-12s %s %6ld %6ld %6ld", s.what, s.transposed(), long(s.m), long(s.n), long(s.k));
    for (size_t i = 0; i < threads.size(); ++i) {
      Rate rate;
      if (half) {
        rate.gflops = gflops(s, half, threads[i], 5);
      } else {
        rate = measure(s, threads[i], kRounds);
        // Other load may have disturbed it.
        if (rate.share < kLeastShare) rate = measure(s, threads[i], 4 * kRounds);
      }
      const plan::GemmTile tile = tileOf(s, half, threads[i]);
      std::printf("  %5ldx%-5ld  %7.0f  %5.1f %%", long(tile.rows), long(tile.columns), rate.gflops,
                  100 * rate.gflops / peaks[i]);
      if (!half) std::printf("  %5.1f %%%s", 100 * rate.share, rate.share < kLeastShare ? " slow" : "");
      slow += !half && rate.share < kLeastShare;
      std::fflush(stdout);
    }
    std::printf("\n");
  }
  return slow;
}

// For each f32 product of a plan: oneDNN's tile, and the bytes of a and of b that are packed for a flop. lda and ldb,
// in bytes, are the strides of packing.
bool printPacking(const std::string& path) {
  auto read = plan::readPlan(path);
  if (!read.ok()) {
    std::fprintf(stderr, "%s: %s\n", path.c_str(), read.status().message().c_str());
    return false;
  }
  using Key = std::tuple<int64_t, int64_t, int64_t, int64_t, bool, bool, int64_t, int64_t>;
  std::map<Key, int> products;
  plan::forEachInstruction(**read, [&](const plan::Instruction& instruction) {
    if (!instruction.has_call()) return;
    const auto any = plan::parseCall(instruction.call());
    const auto* call = any.ok() ? std::get_if<plan::GemmCall>(&*any) : nullptr;
    if (call && call->type == plan::F32)
      ++products[{call->m, call->n, call->k, call->batch, call->transposeA, call->transposeB, call->lda, call->ldb}];
  });
  const std::string& model = (**read).model();
  std::printf("%s, ranks: %ld\n%5s %2s %6s %6s %6s %5s %7s %7s", model.substr(model.rfind('/') + 1).c_str(),
              long((**read).ranks()), "calls", "", "m", "n", "k", "batch", "lda", "ldb");
  std::printf(" | %12s  tiles  a B/flop  b B/flop", "tile");
  std::printf("\n");
  for (const auto& [key, count] : products) {
    const auto [m, n, k, batch, transposeA, transposeB, lda, ldb] = key;
    const Shape shape{"", m, n, k, transposeA, transposeB, batch};
    std::printf("%5d %s %6ld %6ld %6ld %5ld %7ld %7ld", count, shape.transposed(), long(m), long(n), long(k),
                long(batch), long(4 * lda), long(4 * ldb));
    const plan::GemmTile tile = plan::gemmTile(m, n, k, batch, transposeA, transposeB, false);
    const int64_t down = (m + tile.rows - 1) / tile.rows, across = (n + tile.columns - 1) / tile.columns;
    std::printf(" | %5ldx%-6ld %6ld  %8.5f  %8.5f", long(tile.rows), long(tile.columns), long(batch * down * across),
                2.0 * double(across) / double(n), 2.0 * double(down) / double(m));
    std::printf("\n");
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string first = argc > 1 ? argv[1] : "";
  if (first == "--packing") {
    for (int i = 2; i < argc; ++i)
      if (!printPacking(argv[i])) return 1;
    return 0;
  }
  const bool half = first == "bf16", checks = first == "--check";
  std::vector<int> threads;
  for (int i = half || checks ? 2 : 1; i < argc; ++i) threads.push_back(std::max(std::atoi(argv[i]), 1));
  if (threads.empty()) threads = checks ? std::vector{1} : std::vector{1, 2};
  const int slow = run(half, threads);
  if (checks && slow > 0) {
    std::fprintf(stderr, "%d of the rates above are below %.0f %% of the whole product's\n", slow, 100 * kLeastShare);
    return 1;
  }
  return 0;
}
