#include "runtime/plan/Library.h"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "runtime/plan/Saturating.h"
#include "runtime/plan/StridedCopy.h"
#include "runtime/plan/Tiles.h"

namespace sheaf::plan {
namespace {

const Attribute* find(const LibraryCall& call, std::string_view name) {
  for (const Attribute& attribute : call.attributes())
    if (attribute.name() == name) return &attribute;
  return nullptr;
}

// Scratch of one thread starts at multiples of this.
constexpr int64_t kScratchAlignment = 128;

uint64_t scratchOfFloats(int64_t floats) {
  int64_t bytes = saturatingMultiply(floats, sizeof(float));
  if (bytes > INT64_MAX - kScratchAlignment) return INT64_MAX;
  return (bytes + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
}

// Rows of the unrolled input of a convolution.
int64_t patchOf(const LibraryCall& call) {
  int64_t channels = integer(call, "c") / std::max<int64_t>(integer(call, "groups"), 1);
  return saturatingMultiply(saturatingMultiply(channels, integer(call, "kh")), integer(call, "kw"));
}

int64_t convRangeOf(const LibraryCall& call) {
  return convPixels(patchOf(call), saturatingMultiply(integer(call, "oh"), integer(call, "ow")));
}

// The most that one thread's matrix products in the call make oneDNN allocate.
uint64_t packingBytes(const LibraryCall& call) {
  const std::string& function = call.function();
  auto get = [&](std::string_view name) { return integer(call, name); };
  if (function == "gemm") {
    const bool half = elementType(call) == BF16;
    const GemmTile tile =
        gemmTile(get("m"), get("n"), get("k"), get("batch"), get("transpose_a"), get("transpose_b"), half);
    const uint64_t bytes = sgemmPackingBytes(tile.rows, tile.columns, get("k"));
    // Without bf16 instructions blocks of a bf16 product are packed as f32.
    return half ? std::max(bytes, sgemmPackingBytes(kHalfGemmRows, kHalfGemmColumns, kHalfGemmDepth)) : bytes;
  }
  if (function == "attention" || function == "attention_grad") {
    int64_t width = std::max(get("d"), get("e"));
    uint64_t scores = sgemmPackingBytes(kAttentionQueries, kAttentionKeys, width);
    return std::max({scores, sgemmPackingBytes(kAttentionQueries, width, kAttentionKeys),
                     sgemmPackingBytes(kAttentionKeys, width, kAttentionQueries)});
  }
  if (function == "conv" || function == "conv_grad_input" || function == "conv_grad_filter") {
    int64_t outputs = get("o") / std::max<int64_t>(get("groups"), 1), patch = patchOf(call), pixels = convRangeOf(call);
    return std::max({sgemmPackingBytes(outputs, pixels, patch), sgemmPackingBytes(patch, pixels, outputs),
                     sgemmPackingBytes(outputs, patch, pixels)});
  }
  return 0;
}

}  // namespace

LibraryCall libraryCall(const std::string& function, const std::vector<std::pair<const char*, int64_t>>& integers,
                        const std::vector<std::pair<const char*, double>>& reals) {
  LibraryCall call;
  call.set_function(function);
  for (const auto& [name, value] : integers) {
    Attribute* attribute = call.add_attributes();
    attribute->set_name(name);
    attribute->set_integer(value);
  }
  for (const auto& [name, value] : reals) {
    Attribute* attribute = call.add_attributes();
    attribute->set_name(name);
    attribute->set_real(value);
  }
  return call;
}

int64_t integer(const LibraryCall& call, std::string_view name) {
  const Attribute* attribute = find(call, name);
  return attribute ? attribute->integer() : 0;
}

ElementType elementType(const LibraryCall& call) {
  int64_t type = integer(call, "type");
  return type == 0 || !ElementType_IsValid(static_cast<int>(type)) ? F32 : static_cast<ElementType>(type);
}

Epilogue epilogue(const LibraryCall& gemm) {
  return static_cast<Epilogue>(integer(gemm, "epilogue"));
}

double real(const LibraryCall& call, std::string_view name) {
  const Attribute* attribute = find(call, name);
  return attribute ? attribute->real() : 0;
}

uint64_t scratchPerThread(const LibraryCall& call) {
  constexpr int64_t kTile = kAttentionQueries * kAttentionKeys;
  bool half = elementType(call) == BF16;
  auto get = [&](std::string_view name) { return integer(call, name); };
  if (call.function() == "gemm" && half) return scratchOfFloats(kHalfGemmScratch);
  if (call.function() == "attention") {
    // Of a bf16 call: query and result tile, key and value tile in f32.
    int64_t width = saturatingMultiply(kAttentionQueries + kAttentionKeys, saturatingAdd(get("d"), get("e")));
    return scratchOfFloats(half ? saturatingAdd(kTile, width) : kTile);
  }
  if (call.function() == "attention_grad") {
    int64_t floats = saturatingAdd(2 * kTile, get("s"));
    if (!half) return scratchOfFloats(floats);
    // Query, gradient, key and value tiles in f32, and the three gradients while they grow.
    int64_t width = saturatingAdd(get("d"), get("e"));
    floats = saturatingAdd(floats, saturatingMultiply(kAttentionQueries + kAttentionKeys, width));
    floats = saturatingAdd(floats, saturatingMultiply(get("s"), get("d")));
    return scratchOfFloats(saturatingAdd(floats, saturatingMultiply(get("t"), width)));
  }
  if (call.function() == "scatter_add" && half) return scratchOfFloats(get("count"));
  if (call.function() == "conv" || call.function() == "conv_grad_input" || call.function() == "conv_grad_filter")
    return scratchOfFloats(saturatingMultiply(patchOf(call), convRangeOf(call)));
  return 0;
}

uint64_t deviceScratch(const LibraryCall& call) {
  const std::string& function = call.function();
  auto get = [&](std::string_view name) { return integer(call, name); };
  auto times = [](int64_t a, int64_t b) { return saturatingMultiply(a, b); };
  if (function == "gemm") return gemmWorkspace(get("m"), get("n"), get("batch"));
  if (function == "attention_grad")  // the dot product of result and gradient of each query
    return scratchOfFloats(times(times(get("b"), get("h")), get("s")));
  if (function == "scatter_add") return scatterScratch(get("rows"), get("count")).bytes;
  if (function == "square_sum")
    return times(saturatingAdd(get("n"), kSquareSumBlock - 1) / kSquareSumBlock, sizeof(double));
  if (function == "conv" || function == "conv_grad_input" || function == "conv_grad_filter") {
    const ConvScratch scratch =
        convScratch(get("n"), times(times(get("c"), get("kh")), get("kw")), times(get("oh"), get("ow")));
    return saturatingAdd(scratch.columnBytes, scratch.workspaceBytes);
  }
  return 0;
}

std::vector<CopyDimension> copyDimensions(const LibraryCall& call) {
  std::vector<CopyDimension> dimensions, merged;
  for (int64_t i = 0; i < integer(call, "rank"); ++i) {
    const std::string suffix = std::to_string(i);
    dimensions.push_back({integer(call, "size" + suffix), integer(call, "source_stride" + suffix),
                          integer(call, "destination_stride" + suffix)});
  }
  std::erase_if(dimensions, [](const CopyDimension& d) { return d.size == 1; });
  std::stable_sort(dimensions.begin(), dimensions.end(), [](const CopyDimension& a, const CopyDimension& b) {
    return std::abs(a.destination) > std::abs(b.destination);
  });
  for (const CopyDimension& d : dimensions) {
    if (!merged.empty() && merged.back().source == d.source * d.size &&
        merged.back().destination == d.destination * d.size)
      merged.back() = {merged.back().size * d.size, d.source, d.destination};
    else
      merged.push_back(d);
  }
  return merged;
}

uint64_t libraryBytes(const Plan& plan) {
  // Instructions of a stream run one after the other, each on at most max_threads threads; streams run together.
  std::vector<uint64_t> most(std::max(plan.streams_size(), 1), 0);
  for (const auto* section : {&plan.prologue(), &plan.body(), &plan.epilogue()})
    for (const Instruction& instruction : *section)
      if (instruction.has_call() && instruction.stream() < most.size())
        most[instruction.stream()] = std::max(most[instruction.stream()], packingBytes(instruction.call()));
  uint64_t sum = 0;
  for (uint64_t bytes : most) sum += bytes;
  return sum * std::max<uint32_t>(plan.max_threads(), 1);
}

}  // namespace sheaf::plan
