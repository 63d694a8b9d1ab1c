// Matrix products by cuBLASLt. What computes a product is chosen once, when a plan is opened: by cuBLASLt's heuristic,
// or from a table of what was fastest on such a device. Only algorithms whose bits do not change from run to run are
// taken.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "runtime/base/Status.h"
#include "runtime/device/cuda/kernels/Half.h"

namespace sheaf::cuda {

// c = op(a) op(b), or c += op(a) op(b); row-major, sizes and strides in elements. op(a) is [m, k], op(b) [k, n].
struct ProductShape {
  int64_t m = 1, n = 1, k = 1, batch = 1;
  bool transposeA = false, transposeB = false;
  int64_t lda = 1, ldb = 1, ldc = 1;
  int64_t strideA = 0, strideB = 0, strideC = 0;  // from one batch to the next; 0 where all read the same matrix
  FloatType type = FloatType::kF32;               // of operands; sums are f32
  bool tf32 = false;                              // operands in f32 may be rounded to TF32
  bool add = false;
  // What is done besides (see EpilogueOperands), with cuBLASLt's a and b exchanged for ours.
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  std::array<int, 3> alignments = {16, 16,
                                   16};  // a, b, and c with the epilogue's operands begin at multiples of these bytes
  int64_t workspace = 0;                 // bytes

  // Whether the epilogue has a vector, and a second matrix: see EpilogueOperands.
  bool hasVector() const;
  bool hasMatrix() const;
  // All of it as one word, the name of the shape in a table.
  std::string name() const;
};

// What an epilogue reads or writes besides c: a bias or a sum, and a dense [m, n] that GELU is applied to.
struct EpilogueOperands {
  void *vector = nullptr, *matrix = nullptr;
};

// A product whose algorithm is chosen.
class Product {
 public:
  Product(cublasLtHandle_t handle, const ProductShape& shape);
  ~Product();
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;

  Status enqueue(cudaStream_t stream, const void* a, const void* b, void* c, std::byte* workspace,
                 const EpilogueOperands& others = {}) const;

 private:
  friend class Blas;
  cublasStatus_t describe();
  cublasStatus_t point(const EpilogueOperands& others) const;
  cublasStatus_t run(const cublasLtMatmulAlgo_t& algorithm, cudaStream_t stream, const void* a, const void* b, void* c,
                     std::byte* workspace, const EpilogueOperands& others) const;

  cublasLtHandle_t handle_;
  ProductShape shape_;
  cublasLtMatmulDesc_t operation_ = nullptr;
  // cuBLASLt's matrices have their columns in a row: seen so, c is the product of b and a, in this order.
  cublasLtMatrixLayout_t left_ = nullptr, right_ = nullptr, result_ = nullptr;
  cublasLtMatmulAlgo_t algorithm_ = {};
};

struct BlasOptions {
  std::string table, tableName;  // the text of a table to choose from, or empty; its name in messages
  bool measure = false;          // measure the candidates of each shape that the table lacks, and choose the fastest
  // Device memory that measurements may overwrite, at a multiple of plan::kDeviceAlignment bytes.
  std::span<std::byte> bench;
  std::function<void(const std::string&)> warn = [](const std::string&) {};
};

// A rank's cuBLASLt, on the device that is current when it is opened.
class Blas {
 public:
  static Expected<std::unique_ptr<Blas>> open(const BlasOptions& options);
  ~Blas();
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;

  // Chooses an algorithm; null if there is none with the epilogue. With BlasOptions.measure this runs the product, in
  // BlasOptions.bench.
  Expected<std::unique_ptr<const Product>> product(const ProductShape& shape);

  // What was chosen so far, as the text of a table: "sheaf-products 1", a line each "library", "device" and
  // "processors", then for each shape "NAME MICROSECONDS ALGORITHM" (0 where nothing was measured; 128 hexadecimal
  // digits).
  std::string table() const;
  // Of the shapes and algorithms chosen so far: ranks that compute the same have the same.
  uint64_t hash() const;

 private:
  struct Choice {
    cublasLtMatmulAlgo_t algorithm = {};
    float microseconds = 0;
  };
  explicit Blas(const BlasOptions& options) : options_(options) {}
  Status readTable(std::istream& in);
  Expected<std::optional<Choice>> choose(const Product& product);
  Expected<Choice> fastest(const Product& product, std::span<const cublasLtMatmulHeuristicResult_t> candidates);
  bool usable(const Product& product, const cublasLtMatmulAlgo_t& algorithm) const;
  std::string machine() const;

  BlasOptions options_;
  cublasLtHandle_t handle_ = nullptr;
  std::string device_;
  int processors_ = 0;
  std::map<std::string, Choice> table_, chosen_;
};

}  // namespace sheaf::cuda
