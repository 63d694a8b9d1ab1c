// The table of measured products: how it is made, written and read.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <sstream>

#include "runtime/base/Text.h"
#include "runtime/device/cuda/Blas.h"
#include "runtime/plan/Types.h"

namespace sheaf::cuda {
namespace {

constexpr char kTitle[] = "sheaf-products 1";

std::string hexadecimal(const cublasLtMatmulAlgo_t& algorithm) {
  std::string text;
  const auto* bytes = reinterpret_cast<const unsigned char*>(&algorithm);
  for (size_t i = 0; i < sizeof algorithm; ++i) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", bytes[i]);
    text += digits;
  }
  return text;
}

bool parse(const std::string& text, cublasLtMatmulAlgo_t& algorithm) {
  constexpr char kDigits[] = "0123456789abcdef";
  if (text.size() != 2 * sizeof algorithm) return false;
  auto* bytes = reinterpret_cast<unsigned char*>(&algorithm);
  for (size_t i = 0; i < text.size(); ++i) {
    const char* digit = std::strchr(kDigits, text[i]);
    if (!digit || !*digit) return false;
    const auto value = static_cast<unsigned char>(digit - kDigits);
    bytes[i / 2] = static_cast<unsigned char>(i % 2 ? bytes[i / 2] | value : value << 4);
  }
  return true;
}

// A stream and two events for measurements, and memory that they may overwrite.
class Bench {
 public:
  explicit Bench(std::span<std::byte> memory) : memory_(memory) {}
  ~Bench() {
    for (cudaEvent_t event : events_)
      if (event) cudaEventDestroy(event);
    if (stream_) cudaStreamDestroy(stream_);
  }
  bool open() {
    return cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking) == cudaSuccess &&
           cudaEventCreateWithFlags(&events_[0], cudaEventDefault) == cudaSuccess &&
           cudaEventCreateWithFlags(&events_[1], cudaEventDefault) == cudaSuccess;
  }
  // The next bytes, filled with small numbers, in f32 and in bf16; null if there are not enough. The first ones are as
  // aligned as the memory, the others as buffers of a plan.
  std::byte* buffer(int64_t bytes) {
    constexpr int kSmall = 0x3c;
    if (bytes < 0 || static_cast<uint64_t>(bytes) > memory_.size() - used_) return nullptr;
    std::byte* const begin = memory_.data() + used_;
    used_ = std::min<uint64_t>(plan::aligned(used_ + static_cast<uint64_t>(bytes)), memory_.size());
    if (bytes > 0 && cudaMemsetAsync(begin, kSmall, static_cast<size_t>(bytes), stream_) != cudaSuccess) return nullptr;
    return begin;
  }
  // The same for what is only read. Operands may overlap in a plan's arena, so that there is not room for each: then
  // one lies on the largest of the others.
  std::byte* input(int64_t bytes) {
    std::byte* const own = buffer(bytes);
    if (!own) return bytes <= largestBytes_ ? largest_ : nullptr;
    if (bytes > largestBytes_) largest_ = own, largestBytes_ = bytes;
    return own;
  }
  // The least of some runs; negative if one fails.
  template <typename Run>
  float microseconds(Run run) {
    constexpr int kRuns = 6;
    float best = -1;
    for (int i = 0; i < kRuns; ++i) {
      float milliseconds = 0;
      if (cudaEventRecord(events_[0], stream_) != cudaSuccess || !run(stream_) ||
          cudaEventRecord(events_[1], stream_) != cudaSuccess || cudaEventSynchronize(events_[1]) != cudaSuccess ||
          cudaEventElapsedTime(&milliseconds, events_[0], events_[1]) != cudaSuccess)
        return -1;
      if (i == 0) continue;  // the first loads code
      const float time = milliseconds * 1000;
      if (best < 0 || time < best) best = time;
    }
    return best;
  }

 private:
  const std::span<std::byte> memory_;
  uint64_t used_ = 0;
  std::byte* largest_ = nullptr;  // of what is read
  int64_t largestBytes_ = 0;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t events_[2] = {};
};

}  // namespace

Expected<Blas::Choice> Blas::fastest(const Product& product,
                                     std::span<const cublasLtMatmulHeuristicResult_t> candidates) {
  const ProductShape& p = product.shape_;
  const int64_t width = p.type == FloatType::kF32 ? 4 : 2;
  auto bytes = [&](int64_t rows, int64_t columns, int64_t row, int64_t stride) {
    return ((p.batch - 1) * stride + (rows - 1) * row + columns) * width;
  };
  Bench bench(options_.bench);
  if (!bench.open()) return Status::error("no stream or event to measure matrix products with");
  std::byte* const workspace = bench.buffer(p.workspace);
  std::byte* const c = bench.buffer(bytes(p.m, p.n, p.ldc, p.strideC));
  EpilogueOperands others;
  if (p.hasVector()) others.vector = bench.buffer(std::max(p.m, p.n) * width);
  if (p.hasMatrix()) others.matrix = bench.buffer(p.m * p.n * width);
  const int64_t bytesA = bytes(p.transposeA ? p.k : p.m, p.transposeA ? p.m : p.k, p.lda, p.strideA),
                bytesB = bytes(p.transposeB ? p.n : p.k, p.transposeB ? p.k : p.n, p.ldb, p.strideB);
  // The larger one first: the other one may share its memory.
  std::byte *a = nullptr, *b = nullptr;
  if (bytesA >= bytesB) a = bench.input(bytesA);
  b = bench.input(bytesB);
  if (bytesA < bytesB) a = bench.input(bytesA);
  if (!a || !b || !c || !workspace || (p.hasVector() && !others.vector) || (p.hasMatrix() && !others.matrix)) {
    options_.warn(cat("no memory to measure the product ", p.name(), ": cuBLASLt's own choice is used"));
    return Choice{candidates[0].algo, 0};
  }
  Choice best{candidates[0].algo, 0};
  for (const cublasLtMatmulHeuristicResult_t& candidate : candidates) {
    const float time = bench.microseconds([&](cudaStream_t stream) {
      return product.run(candidate.algo, stream, a, b, c, workspace, others) == CUBLAS_STATUS_SUCCESS;
    });
    if (time >= 0 && (best.microseconds == 0 || time < best.microseconds)) best = {candidate.algo, time};
  }
  return best;
}

std::string Blas::machine() const {
  return cat("library ", cublasLtGetVersion(), "\ndevice ", device_, "\nprocessors ", processors_, "\n");
}

std::string Blas::table() const {
  std::ostringstream out;
  out << kTitle << '\n' << machine();
  for (const auto& [name, choice] : chosen_)
    out << name << ' ' << choice.microseconds << ' ' << hexadecimal(choice.algorithm) << '\n';
  return std::move(out).str();
}

Status Blas::readTable(std::istream& in) {
  const std::string& path = options_.tableName;
  std::string line, head;
  int number = 0;
  auto next = [&] { return ++number, static_cast<bool>(std::getline(in, line)); };
  if (!next() || line != kTitle)
    return Status::error(cat(path, " is not a table of products: its first line is not \"", kTitle, "\""));
  for (const char* word : {"library ", "device ", "processors "}) {
    if (!next() || !line.starts_with(word))
      return Status::error(cat(path, ", line ", number, ": it must begin with \"", word, "\""));
    head += line + "\n";
  }
  std::map<std::string, Choice> entries;
  while (next()) {
    std::istringstream words(line);
    std::string name, algorithm, more;
    Choice choice;
    if (!(words >> name >> choice.microseconds >> algorithm) || words >> more || !parse(algorithm, choice.algorithm))
      return Status::error(cat(path, ", line ", number, ": it must have a product, microseconds and an algorithm of ",
                               2 * sizeof(cublasLtMatmulAlgo_t), " hexadecimal digits"));
    entries[name] = choice;
  }
  if (head != machine()) {
    options_.warn(cat("the table of products ", path, " was made with another device or cuBLASLt: it is not used"));
    return Status();
  }
  for (auto& [name, choice] : entries) table_[name] = choice;
  return Status();
}

}  // namespace sheaf::cuda
