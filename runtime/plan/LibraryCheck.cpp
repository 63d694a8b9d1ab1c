// Whether a library call of an untrusted plan is one that a device may run.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "runtime/plan/Library.h"
#include "runtime/plan/Saturating.h"

namespace sheaf::plan {
namespace {

// No size, count or stride of a sane plan is larger; products of two of them still fit.
constexpr int64_t kMaxSize = int64_t(1) << 31;
constexpr int64_t kMaxStride = int64_t(1) << 40;
constexpr int64_t kMaxRank = 16;
constexpr int kMaxAttributes = 128;

// Collects the first fault; what is asked afterwards still gets values that are safe to compute with.
class Checker {
 public:
  Checker(const LibraryCall& call, uint32_t maxThreads, Devices devices)
      : call_(call), maxThreads_(maxThreads), devices_(devices) {}

  void fail(const std::string& why) {
    if (status_.ok()) status_ = Status::error(call_.function().substr(0, 64) + ": " + why);
  }
  bool ok() const { return status_.ok(); }

  int64_t integerIn(const std::string& name, int64_t low, int64_t high) {
    const Attribute* found = nullptr;
    for (const Attribute& attribute : call_.attributes())
      if (attribute.name() == name && !found) found = &attribute;
    int64_t value = found ? found->integer() : 0;
    if (found && found->value_case() == Attribute::kReal) fail("attribute '" + name + "' must be an integer");
    if (value >= low && value <= high) return value;
    fail("attribute '" + name + "' is " + (found ? std::to_string(value) : "missing") + ", but must lie in [" +
         std::to_string(low) + ", " + std::to_string(high) + "]");
    return low;
  }
  int64_t size(const std::string& name) { return integerIn(name, 1, kMaxSize); }
  // Bytes of an element of the operands whose type is the call's.
  int64_t floatWidth() {
    const int64_t type = integerIn("type", 0, 15);
    if (type == BF16) return 2;
    if (type != ELEMENT_TYPE_UNSPECIFIED && type != F32)
      fail("it computes in F32 and BF16, not in type " + std::to_string(type));
    return 4;
  }
  int64_t stride(const std::string& name) { return integerIn(name, 0, kMaxStride); }
  bool flag(const std::string& name) { return integerIn(name, 0, 1) != 0; }

  void realIn(const std::string& name, double low, double high) {
    double value = real(call_, name);
    if (!(value >= low && value <= high))
      fail("attribute '" + name + "' is " + std::to_string(value) + ", but must lie in [" + std::to_string(low) + ", " +
           std::to_string(high) + "]");
  }

  // The next operand: the call accesses its first `elements` elements of `width` bytes.
  void operand(const char* name, int64_t elements, int64_t width, Access access) {
    if (next_ >= call_.operands_size()) {
      fail(std::string("operand ") + std::to_string(next_) + " (" + name + ") is missing");
      return;
    }
    const Operand& operand = call_.operands(next_++);
    const std::string place = "operand " + std::to_string(next_ - 1) + " (" + name + ")";
    const int64_t needed = saturatingMultiply(elements, width);
    if (needed == INT64_MAX || operand.bytes() < static_cast<uint64_t>(needed))
      fail(place + " has " + std::to_string(operand.bytes()) + " bytes, but " +
           (needed == INT64_MAX ? "far more" : std::to_string(needed)) + " are accessed");
    if (operand.offset() % width != 0 || operand.shard_stride() % width != 0)
      fail(place + " does not start at a multiple of its elements' " + std::to_string(width) + " bytes");
    const bool reads = operand.access() == READ || operand.access() == READ_WRITE;
    const bool writes = operand.access() == WRITE || operand.access() == READ_WRITE;
    if (access != WRITE && !reads) fail(place + " is read, but not declared so");
    if (access != READ && !writes) fail(place + " is written, but not declared so");
  }
  void read(const char* name, int64_t elements, int64_t width = sizeof(float)) { operand(name, elements, width, READ); }
  void write(const char* name, int64_t elements, int64_t width = sizeof(float)) {
    operand(name, elements, width, WRITE);
  }

  Status finish() {
    if (call_.attributes_size() > kMaxAttributes)
      fail("it has more than " + std::to_string(kMaxAttributes) + " attributes");
    if (!status_.ok()) return status_;
    const uint64_t scratch = call_.scratch_per_thread(), needed = scratchPerThread(call_);
    if (!enough(scratch, needed, devices_.cpu))
      fail("it has " + std::to_string(scratch) + " bytes of scratch for each thread, but needs " +
           std::to_string(needed));
    if (scratch > INT64_MAX / std::max<uint64_t>(maxThreads_, 1)) fail("its scratch is out of range");
    const uint64_t device = call_.device_scratch(), neededThere = deviceScratch(call_);
    if (!enough(device, neededThere, devices_.gpu))
      fail("it has " + std::to_string(device) + " bytes of scratch on a GPU, but needs " + std::to_string(neededThere));
    if (device > INT64_MAX) fail("its scratch on a GPU is out of range");
    const uint64_t bytes = std::max(scratch * std::max<uint64_t>(maxThreads_, 1), device);
    if (bytes > 0 && status_.ok()) operand("scratch", bytes, 1, READ_WRITE);
    if (next_ != call_.operands_size())
      fail("it takes " + std::to_string(next_) + " operands, not " + std::to_string(call_.operands_size()));
    return status_;
  }

  const LibraryCall& call() const { return call_; }

 private:
  // A plan reserves nothing for a device that it is not for; what it reserves must suffice.
  static bool enough(uint64_t scratch, uint64_t needed, bool wanted) {
    if (scratch == 0) return needed == 0 || !wanted;
    return needed > 0 && scratch >= needed && scratch % sizeof(double) == 0;
  }

  const LibraryCall& call_;
  const uint32_t maxThreads_;
  const Devices devices_;
  int next_ = 0;
  Status status_;
};

int64_t times(std::initializer_list<int64_t> factors) {
  int64_t product = 1;
  for (int64_t factor : factors) product = saturatingMultiply(product, factor);
  return product;
}

// Elements from the first to the last of `count` rows of `width`, `row` elements apart.
int64_t strided(int64_t count, int64_t row, int64_t width) {
  return saturatingAdd(times({count - 1, row}), width);
}

void checkGemm(Checker& c) {
  const int64_t m = c.size("m"), n = c.size("n"), k = c.size("k"), batch = c.size("batch");
  const bool transposeA = c.flag("transpose_a"), transposeB = c.flag("transpose_b");
  auto matrix = [&](const char* leading, const char* between, int64_t rows, int64_t columns) {
    const int64_t row = c.integerIn(leading, columns, kMaxSize), stride = c.stride(between);
    return strided(batch, stride, strided(rows, row, columns));
  };
  const int64_t a = transposeA ? matrix("lda", "stride_a", k, m) : matrix("lda", "stride_a", m, k);
  const int64_t b = transposeB ? matrix("ldb", "stride_b", n, k) : matrix("ldb", "stride_b", k, n);
  const int64_t result = matrix("ldc", "stride_c", m, n);
  if (batch > 1) c.integerIn("stride_c", strided(m, integer(c.call(), "ldc"), n), kMaxStride);
  const int64_t width = c.floatWidth();
  if (c.flag("tf32") && width != sizeof(float)) c.fail("only products of f32 are made in TF32");
  const auto epilogue = static_cast<Epilogue>(c.integerIn("epilogue", 0, static_cast<int64_t>(Epilogue::kSumB)));
  if (epilogue != Epilogue::kNone && batch > 1) c.fail("a product with an epilogue has one batch");
  if (epilogue == Epilogue::kSumA && !transposeA) c.fail("its epilogue sums a, which is not transposed");
  if (epilogue == Epilogue::kSumB && transposeB) c.fail("its epilogue sums b, which is transposed");
  c.read("a", a, width);
  c.read("b", b, width);
  if (epilogue == Epilogue::kBias || epilogue == Epilogue::kBiasGelu) c.read("bias", n, width);
  if (epilogue == Epilogue::kGeluGrad) c.read("what GELU was applied to", times({m, n}), width);
  c.write("c", result, width);
  if (epilogue == Epilogue::kGelu || epilogue == Epilogue::kBiasGelu)
    c.write("what GELU is applied to", times({m, n}), width);
  if (epilogue == Epilogue::kSumA) c.write("sum of a", m, width);
  if (epilogue == Epilogue::kSumB) c.write("sum of b", n, width);
}

void checkAttentionCall(Checker& c, bool gradient) {
  const int64_t b = c.size("b"), s = c.size("s"), t = c.size("t"), h = c.size("h"), g = c.size("g"), d = c.size("d"),
                e = c.size("e");
  const int64_t width = c.floatWidth();
  const bool causal = c.flag("causal");
  if (c.integerIn("window", 0, kMaxSize) && !causal) c.fail("only causal attention has a window");
  const bool mask = c.flag("mask");
  if (h % g != 0)
    c.fail("its " + std::to_string(h) + " heads are no multiple of its " + std::to_string(g) + " key heads");
  c.realIn("scale", -1e30, 1e30);
  int64_t maskElements = 0;
  if (mask) {
    const int64_t maskB = c.size("mask_b"), maskH = c.size("mask_h");
    if ((maskB != 1 && maskB != b) || (maskH != 1 && maskH != h)) c.fail("its mask is neither shared nor per head");
    maskElements = times({maskB, maskH, s, t});
  }
  auto tokens = [&](const char* row, int64_t perEntry, int64_t elements) {
    return strided(times({b, perEntry}), c.integerIn(row, elements, kMaxSize), elements);
  };
  const int64_t query = tokens("query_row", s, times({h, d})), key = tokens("key_row", t, times({g, d})),
                value = tokens("value_row", t, times({g, e})), result = tokens("result_row", s, times({h, e}));
  c.read("query", query, width);
  c.read("key", key, width);
  c.read("value", value, width);
  if (!gradient) {
    if (mask) c.read("mask", maskElements);
    c.write("result", result, width);
    c.write("log_sum_exp", times({b, h, s}));
    return;
  }
  const int64_t given = tokens("gradient_row", s, times({h, e}));
  c.read("result", result, width);
  c.read("log_sum_exp", times({b, h, s}));
  c.read("gradient", given, width);
  if (mask) c.read("mask", maskElements);
  c.write("query_gradient", tokens("query_gradient_row", s, times({h, d})), width);
  c.write("key_gradient", tokens("key_gradient_row", t, times({g, d})), width);
  c.write("value_gradient", tokens("value_gradient_row", t, times({g, e})), width);
}

void checkAttention(Checker& c) {
  checkAttentionCall(c, false);
}
void checkAttentionGrad(Checker& c) {
  checkAttentionCall(c, true);
}

int64_t indexBytes(Checker& c) {
  const int64_t width = c.integerIn("index_bytes", 4, 8);
  if (width != 4 && width != 8) c.fail("its indices have " + std::to_string(width) + " bytes, but must have 4 or 8");
  return width == 8 ? 8 : 4;
}

int64_t elementWidth(Checker& c) {
  const int64_t width = c.integerIn("element_bytes", 1, 8);
  if ((width & (width - 1)) == 0) return width;
  c.fail("its elements have " + std::to_string(width) + " bytes, but must have 1, 2, 4 or 8");
  return 1;
}

void checkGather(Checker& c) {
  const int64_t outer = c.size("outer"), rows = c.size("rows"), inner = c.size("inner"), count = c.size("count");
  const int64_t width = elementWidth(c), indices = indexBytes(c);
  c.read("data", times({outer, rows, inner}), width);
  c.read("indices", count, indices);
  c.write("result", times({outer, count, inner}), width);
}

void checkScatterAdd(Checker& c) {
  const int64_t outer = c.size("outer"), rows = c.size("rows"), inner = c.size("inner"), count = c.size("count");
  const int64_t indices = indexBytes(c), width = c.floatWidth();
  c.read("update", times({outer, count, inner}), width);
  c.read("indices", count, indices);
  c.write("result", times({outer, rows, inner}), width);
}

void checkCopy(Checker& c) {
  struct Step {
    int64_t size, stride;
  };
  const int64_t width = elementWidth(c), rank = c.integerIn("rank", 0, kMaxRank);
  const int64_t sourceOffset = c.integerIn("source_offset", 0, kMaxStride);
  c.flag("zero");
  int64_t lowest = sourceOffset, highest = sourceOffset, last = 0;
  std::vector<Step> steps;
  for (int64_t i = 0; i < rank; ++i) {
    const std::string suffix = std::to_string(i);
    const int64_t size = c.size("size" + suffix);
    const int64_t from = c.integerIn("source_stride" + suffix, -kMaxStride, kMaxStride);
    const int64_t to = c.integerIn("destination_stride" + suffix, size == 1 ? -kMaxStride : 1, kMaxStride);
    if (size == 1) continue;
    const int64_t reach = times({size - 1, std::abs(from)});
    (from < 0 ? lowest : highest) = from < 0 ? lowest - std::min(reach, kMaxStride + 1) : saturatingAdd(highest, reach);
    last = saturatingAdd(last, times({size - 1, to}));
    steps.push_back({size, to});
  }
  if (lowest < 0) c.fail("its source begins " + std::to_string(-lowest) + " elements before its operand");
  // Threads write disjoint elements only if no two index tuples meet in the destination.
  std::sort(steps.begin(), steps.end(), [](const Step& a, const Step& b) { return a.stride < b.stride; });
  int64_t covered = 0;
  for (const Step& step : steps) {
    if (step.stride <= covered) c.fail("two of its elements have one place in the destination");
    covered = saturatingAdd(covered, times({step.size - 1, step.stride}));
  }
  c.read("source", saturatingAdd(highest, 1), width);
  c.write("destination", saturatingAdd(last, 1), width);
}

void checkSumPartials(Checker& c) {
  const int64_t p = c.size("p"), columns = c.size("c");
  c.read("source", times({p, columns}));
  c.write("destination", columns, c.floatWidth());
}

void checkCumSum(Checker& c) {
  const int64_t elements = times({c.size("outer"), c.size("n"), c.size("inner")});
  c.flag("exclusive");
  c.flag("reverse");
  const int64_t type = c.integerIn("type", 0, 15);
  int64_t width = 4;
  if (type == F64 || type == I64)
    width = 8;
  else if (type != F32 && type != I32)
    c.fail("running sums are taken of f32, f64, i32 and i64 only");
  c.read("source", elements, width);
  c.write("destination", elements, width);
}

void checkDropout(Checker& c) {
  const int64_t count = c.size("count");
  c.integerIn("node", 0, UINT32_MAX);
  c.realIn("ratio", 0, 1);
  c.read("source", count);
  c.write("destination", count);
}

struct WindowSizes {
  int64_t input, result;  // elements
};

WindowSizes checkWindow(Checker& c, int64_t resultChannels) {
  constexpr int64_t kMaxWindow = 1 << 20;
  const int64_t n = c.size("n"), channels = c.size("c"), h = c.size("h"), w = c.size("w");
  const int64_t oh = c.size("oh"), ow = c.size("ow");
  for (const char* name : {"kh", "kw", "stride_h", "stride_w", "dilation_h", "dilation_w"})
    c.integerIn(name, 1, kMaxWindow);
  for (const char* name : {"pad_top", "pad_left", "pad_bottom", "pad_right"}) c.integerIn(name, 0, kMaxWindow);
  return {times({n, channels, h, w}), times({n, resultChannels > 0 ? resultChannels : channels, oh, ow})};
}

void checkConvCall(Checker& c, int order) {
  c.flag("tf32");
  const int64_t o = c.size("o"), groups = c.size("groups"), channels = c.size("c");
  const WindowSizes sizes = checkWindow(c, o);
  if (channels % groups != 0 || o % groups != 0) c.fail("its channels are no multiple of its groups");
  const int64_t filter = times({o, channels / groups, integer(c.call(), "kh"), integer(c.call(), "kw")});
  if (order == 0) {
    c.read("input", sizes.input);
    c.read("filter", filter);
    c.write("result", sizes.result);
  } else if (order == 1) {
    c.read("gradient", sizes.result);
    c.read("filter", filter);
    c.write("result", sizes.input);
  } else {
    c.read("input", sizes.input);
    c.read("gradient", sizes.result);
    c.write("result", filter);
  }
}

void checkConv(Checker& c) {
  checkConvCall(c, 0);
}
void checkConvGradInput(Checker& c) {
  checkConvCall(c, 1);
}
void checkConvGradFilter(Checker& c) {
  checkConvCall(c, 2);
}

void checkMaxPool(Checker& c) {
  const WindowSizes sizes = checkWindow(c, 0);
  c.read("input", sizes.input);
  c.write("result", sizes.result);
}

void checkMaxPoolGrad(Checker& c) {
  const WindowSizes sizes = checkWindow(c, 0);
  c.read("input", sizes.input);
  c.read("gradient", sizes.result);
  c.write("result", sizes.input);
}

void checkSquareSum(Checker& c) {
  c.read("source", c.integerIn("n", 1, kMaxStride), c.floatWidth());
  c.write("destination", 1, sizeof(double));
}

void checkGradientNorm(Checker& c) {
  const int64_t ranks = c.size("ranks"), buckets = c.size("buckets");
  const bool clip = c.flag("clip");
  c.read("partials", times({ranks, buckets}), sizeof(double));
  c.write("norm", 1, sizeof(double));
  c.write("scalars", 2);
  if (clip) c.read("max_norm", 1);
}

void checkZero(Checker& c) {
  c.write("destination", 0, 1);
}

}  // namespace

Status checkLibraryCall(const LibraryCall& call, int64_t ranks, uint32_t maxThreads, Devices devices) {
  struct Entry {
    std::string_view name;
    void (*check)(Checker&);
  };
  static constexpr Entry kFunctions[] = {
      {"gemm", checkGemm},
      {"attention", checkAttention},
      {"attention_grad", checkAttentionGrad},
      {"gather", checkGather},
      {"scatter_add", checkScatterAdd},
      {"copy", checkCopy},
      {"sum_partials", checkSumPartials},
      {"cumsum", checkCumSum},
      {"dropout", checkDropout},
      {"conv", checkConv},
      {"conv_grad_input", checkConvGradInput},
      {"conv_grad_filter", checkConvGradFilter},
      {"max_pool", checkMaxPool},
      {"max_pool_grad", checkMaxPoolGrad},
      {"square_sum", checkSquareSum},
      {"gradient_norm", checkGradientNorm},
      {"zero", checkZero},
  };
  for (const Entry& entry : kFunctions) {
    if (entry.name != call.function()) continue;
    Checker checker(call, maxThreads, devices);
    entry.check(checker);
    return checker.finish();
  }
  return Status::error("unknown library function '" + call.function().substr(0, 64) + "'");
}

}  // namespace sheaf::plan
