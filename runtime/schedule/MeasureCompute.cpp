#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "runtime/base/Text.h"
#include "runtime/plan/Library.h"
#include "runtime/plan/Tiles.h"
#include "runtime/schedule/LeastSquares.h"
#include "runtime/schedule/MeasureParts.h"
#include "runtime/schedule/MeasuredCalls.h"

namespace sheaf::schedule {
namespace {

constexpr plan::ElementType kTypes[] = {plan::F32, plan::BF16};

struct GemmShape {
  int64_t m, n, k;
};
// Each size small and large beside the others small and large, and some shapes of small transformers.
constexpr GemmShape kGemmShapes[] = {{64, 64, 64},     {128, 128, 128},  {32, 512, 512},   {512, 32, 512},
                                     {512, 512, 32},   {256, 384, 384},  {512, 128, 128},  {512, 344, 128},
                                     {512, 1024, 256}, {256, 128, 512},  {1024, 64, 256},  {64, 1024, 256},
                                     {1024, 384, 384}, {512, 1536, 384}, {512, 384, 1536}, {2048, 256, 384},
                                     {512, 1152, 384}, {384, 384, 2048}, {384, 1536, 512}, {768, 384, 1024}};

struct AttentionShape {
  int64_t b, h, s, d;
  bool causal;
};
// Causal but for one.
constexpr AttentionShape kAttentionShapes[] = {{4, 4, 64, 32, true},   {2, 4, 128, 32, true}, {2, 6, 256, 64, true},
                                               {2, 6, 256, 64, false}, {1, 8, 512, 64, true}, {1, 4, 512, 128, true},
                                               {1, 3, 1024, 64, true}};

class ComputeMeasurement {
 public:
  ComputeMeasurement(Device& device, const MeasureOptions& options, int64_t threads)
      : options_(options),
        ranks_(std::max<int64_t>(options.cores / threads, 1)),
        how_(cat("measured with ", ranks_, ranks_ == 1 ? " rank of " : " ranks of ", threads,
                 threads == 1 ? " thread" : " threads", " at once")),
        timer_(device, ranks_, static_cast<int>(threads), kArenaBytes, options.kernels) {
    cost_.threads = threads;
  }

  Expected<ComputeCost> run() {
    // Groups first: the device opens a plan once.
    const size_t overhead = overheadGroup();
    const auto kernels = kernelGroups();
    const auto moves = moveGroups();
    const auto gemms = gemmGroups();
    const auto attentions = attentionGroups();
    const auto convolution = convolutionGroup();
    SHEAF_RETURN_IF_ERROR(timer_.open());
    Expected<double> seconds = timer_.seconds(overhead);
    if (!seconds.ok()) return seconds.status();
    cost_.overhead = *seconds;
    cost_.overheadSource = how_ + ": copies of 64 bytes, one after the other";
    SHEAF_RETURN_IF_ERROR(fitKernels(kernels));
    SHEAF_RETURN_IF_ERROR(fitMoves(moves));
    SHEAF_RETURN_IF_ERROR(fitGemm(gemms));
    SHEAF_RETURN_IF_ERROR(fitAttention(attentions));
    SHEAF_RETURN_IF_ERROR(fitConvolution(convolution));
    return cost_;
  }

 private:
  // What an instruction of a group takes beyond the overhead.
  Expected<double> secondsOf(size_t group) {
    Expected<double> seconds = timer_.seconds(group);
    if (seconds.ok()) *seconds = std::max(*seconds - cost_.overhead, *seconds * 0.1);
    return seconds;
  }

  size_t overheadGroup() {
    const size_t group = timer_.group(64 << 10);
    const plan::LibraryCall call = plan::libraryCall(
        "copy", {{"element_bytes", 4}, {"rank", 1}, {"size0", 16}, {"source_stride0", 1}, {"destination_stride0", 1}});
    addCalls(timer_, {call, {{64, plan::READ}, {64, plan::WRITE}}}, 64);
    return group;
  }

  void addOperand(plan::KernelLaunch& launch, uint64_t bytes, const SampleKernel& sample, size_t i) {
    const int place = sample.placeOf[i];
    plan::Operand operand = place < 0 ? timer_.place(bytes, sample.access[i]) : launch.operands(place);
    operand.set_access(sample.access[i]);
    *launch.add_operands() = operand;
  }

  struct KernelGroup {
    size_t group;
    int size;
    double bytes, operations;
  };
  std::vector<KernelGroup> kernelGroups() {
    std::vector<KernelGroup> groups;
    for (const SampleKernel& sample : options_.samples) {
      const plan::Kernel& kernel = options_.kernels.kernels(sample.kernel);
      double bytes = 0;
      uint64_t span = 0;
      for (int i = 0; i < kernel.operand_bytes_size(); ++i) {
        bytes += static_cast<double>(kernel.operand_bytes(i));
        if (sample.placeOf[static_cast<size_t>(i)] < 0) span += kernel.operand_bytes(i) + 128;
      }
      groups.push_back(
          {timer_.group(kFootprints * span), sample.size, bytes, static_cast<double>(kernel.operations())});
      for (int copy = 0; copy < kFootprints; ++copy) {
        plan::Instruction instruction;
        plan::KernelLaunch* launch = instruction.mutable_kernel();
        launch->set_kernel(static_cast<uint32_t>(sample.kernel));
        launch->set_rows(kernel.rows());
        launch->set_block(kernel.block());
        for (int i = 0; i < kernel.operand_bytes_size(); ++i)
          addOperand(*launch, kernel.operand_bytes(i), sample, static_cast<size_t>(i));
        timer_.add(std::move(instruction));
      }
    }
    return groups;
  }

  // Bandwidth by size: of the samples of a size the second quickest, since an update in place moves bytes quicker than
  // most and others compute more. What these take beyond that gives the rate of operations.
  Status fitKernels(const std::vector<KernelGroup>& groups) {
    struct Size {
      double bytes = 0;
      std::vector<double> rates;
    };
    std::map<int, Size> sizes;
    std::vector<double> taken;
    for (const KernelGroup& g : groups) {
      Expected<double> seconds = secondsOf(g.group);
      if (!seconds.ok()) return seconds.status();
      taken.push_back(*seconds);
      sizes[g.size].bytes += g.bytes;
      sizes[g.size].rates.push_back(g.bytes / *seconds);
    }
    for (auto& [key, size] : sizes) {
      std::sort(size.rates.rbegin(), size.rates.rend());
      cost_.kernels.points.emplace_back(size.bytes / static_cast<double>(size.rates.size()),
                                        size.rates[std::min<size_t>(1, size.rates.size() - 1)]);
    }
    std::sort(cost_.kernels.points.begin(), cost_.kernels.points.end());
    // Of the samples that take longer than their bytes do, and not just longer than an instruction's overhead.
    std::vector<double> rates;
    for (size_t i = 0; i < groups.size(); ++i)
      if (taken[i] > std::max(1.5 * groups[i].bytes / cost_.kernels.at(groups[i].bytes), 10 * cost_.overhead))
        rates.push_back(groups[i].operations / taken[i]);
    constexpr double kFree = 1e15;
    std::nth_element(rates.begin(), rates.begin() + static_cast<ptrdiff_t>(rates.size() / 2), rates.end());
    cost_.operations = rates.empty() ? kFree : rates[rates.size() / 2];
    cost_.kernelsSource = cat(how_, ": ", groups.size(), " fusions of training steps in their sizes");
    return {};
  }

  struct MoveGroup {
    size_t group;
    double bytes;
  };
  std::vector<MoveGroup> moveGroups() {
    std::vector<MoveGroup> groups;
    // Rows as short as half a head.
    constexpr int64_t kColumns = 32, kRow = 2 * kColumns;
    for (int64_t rows : {128, 1024, 8192, 65536}) {
      const uint64_t bytes = bytesOf(plan::F32, {rows, kColumns}), span = bytesOf(plan::F32, {rows, kRow});
      groups.push_back({timer_.group(kFootprints * (bytes + span)), 2.0 * static_cast<double>(bytes)});
      const plan::LibraryCall call = plan::libraryCall("copy", {{"element_bytes", 4},
                                                                {"rank", 2},
                                                                {"size0", rows},
                                                                {"source_stride0", kRow},
                                                                {"destination_stride0", kColumns},
                                                                {"size1", kColumns},
                                                                {"source_stride1", 1},
                                                                {"destination_stride1", 1}});
      addCalls(timer_, {call, {{span, plan::READ}, {bytes, plan::WRITE}}}, kFootprints);
    }
    return groups;
  }

  Status fitMoves(const std::vector<MoveGroup>& groups) {
    cost_.moves.points.clear();
    for (const MoveGroup& g : groups) {
      Expected<double> seconds = secondsOf(g.group);
      if (!seconds.ok()) return seconds.status();
      cost_.moves.points.emplace_back(g.bytes, g.bytes / *seconds);
    }
    cost_.movesSource = how_ + ": copies of every second 128 bytes";
    return {};
  }

  struct ProductGroup {
    size_t group;
    Work work;
  };
  // Each for all types that the library has.
  ProductGroup productGroup(const MeasuredCall& call, const Work& work, int copies) {
    // Scratch lies between the operands: at most half a mebibyte a thread.
    const uint64_t scratch = static_cast<uint64_t>(cost_.threads) << 19;
    const size_t group = timer_.group(kFootprints * (call.bytes() + scratch));
    addCalls(timer_, call, copies);
    return {group, work};
  }

  std::vector<ProductGroup> gemmGroups() {
    std::vector<ProductGroup> groups;
    for (plan::ElementType type : kTypes)
      for (int layout = 0; layout < 3; ++layout)
        for (const GemmShape& s : kGemmShapes) {
          const bool transposeA = layout == 2, transposeB = layout == 1;
          const MeasuredCall call = gemmCall(type, s.m, s.n, s.k, transposeA, transposeB);
          if (call.supported())
            groups.push_back(productGroup(call, gemmWork(type, s.m, s.n, s.k, 1, transposeA, transposeB), kFootprints));
        }
    return groups;
  }

  Status fitGemm(const std::vector<ProductGroup>& groups) {
    std::map<std::tuple<plan::ElementType, bool, bool>, std::vector<Sample>> samples;  // by type and layout
    for (const ProductGroup& g : groups) {
      Expected<double> seconds = secondsOf(g.group);
      if (!seconds.ok()) return seconds.status();
      const double m = static_cast<double>(g.work.m), n = static_cast<double>(g.work.n),
                   k = static_cast<double>(g.work.k);
      samples[{g.work.type, g.work.transposeA, g.work.transposeB}].push_back(
          {{m * n * k, n * k, m * k, m * n}, *seconds});
    }
    for (const auto& [key, measured] : samples) {
      const std::vector<double> fitted = fitNonNegative(measured);
      GemmCost gemm;
      std::tie(gemm.type, gemm.transposeA, gemm.transposeB) = key;
      gemm.rate = 2 / fitted[0];
      gemm.halfM = fitted[1] / fitted[0], gemm.halfN = fitted[2] / fitted[0], gemm.halfK = fitted[3] / fitted[0];
      gemm.source = cat(how_, ": a fit to ", measured.size(), " shapes");
      cost_.gemm.push_back(gemm);
    }
    return {};
  }

  std::vector<ProductGroup> attentionGroups() {
    std::vector<ProductGroup> groups;
    for (plan::ElementType type : kTypes)
      for (bool gradient : {false, true})
        for (const AttentionShape& s : kAttentionShapes) {
          const MeasuredCall call = attentionCall(type, s.b, s.s, s.h, s.d, s.causal, gradient);
          if (call.supported())
            groups.push_back(
                productGroup(call, attentionWork(type, s.b, s.h, s.s, s.s, s.d, s.d, s.causal, gradient), 2));
        }
    return groups;
  }

  Status fitAttention(const std::vector<ProductGroup>& groups) {
    const double block = static_cast<double>(plan::kAttentionQueries);
    std::map<std::pair<plan::ElementType, bool>, std::vector<Sample>> samples;  // by type and direction
    for (const ProductGroup& g : groups) {
      Expected<double> seconds = secondsOf(g.group);
      if (!seconds.ok()) return seconds.status();
      const double keys = static_cast<double>(g.work.n), width = static_cast<double>(g.work.k);
      const double flops = g.work.flops * (g.work.causal ? 1 + std::min(block / keys, 1.0) : 1);
      samples[{g.work.type, g.work.gradient}].push_back({{flops, flops / width, flops / keys}, *seconds});
    }
    for (const auto& [key, measured] : samples) {
      const std::vector<double> fitted = fitNonNegative(measured);
      AttentionCost attention;
      std::tie(attention.type, attention.gradient) = key;
      attention.rate = 1 / fitted[0];
      attention.halfWidth = fitted[1] / fitted[0];
      attention.halfKeys = fitted[2] / fitted[0];
      attention.block = block;
      attention.source = cat(how_, ": a fit to ", measured.size(), " shapes");
      cost_.attention.push_back(attention);
    }
    return {};
  }

  ProductGroup convolutionGroup() {
    constexpr int64_t n = 4, c = 32, o = 64, h = 28, w = 28, kh = 3, kw = 3;
    plan::Instruction instruction;
    *instruction.mutable_call() = plan::libraryCall("conv", {{"n", n},
                                                             {"c", c},
                                                             {"h", h},
                                                             {"w", w},
                                                             {"o", o},
                                                             {"kh", kh},
                                                             {"kw", kw},
                                                             {"oh", h},
                                                             {"ow", w},
                                                             {"stride_h", 1},
                                                             {"stride_w", 1},
                                                             {"pad_top", 1},
                                                             {"pad_left", 1},
                                                             {"pad_bottom", 1},
                                                             {"pad_right", 1},
                                                             {"dilation_h", 1},
                                                             {"dilation_w", 1},
                                                             {"groups", 1}});
    const MeasuredCall call{instruction.call(),
                            {{bytesOf(plan::F32, {n, c, h, w}), plan::READ},
                             {bytesOf(plan::F32, {o, c, kh, kw}), plan::READ},
                             {bytesOf(plan::F32, {n, o, h, w}), plan::WRITE}}};
    return productGroup(call, workOf(instruction, plan::Plan()), kFootprints);
  }

  // The part of the product's rate.
  Status fitConvolution(const ProductGroup& group) {
    Expected<double> seconds = secondsOf(group.group);
    if (!seconds.ok()) return seconds.status();
    Work product = group.work;
    product.kind = Work::Kind::kGemm;
    cost_.convolution = (schedule::seconds(cost_, product) - cost_.overhead) / *seconds;
    cost_.convolutionSource = how_ + ": 3 x 3 filters on 28 x 28 pixels";
    return {};
  }

  const MeasureOptions& options_;
  const int64_t ranks_;
  const std::string how_;
  InstructionTimer timer_;
  ComputeCost cost_;
};

}  // namespace

Expected<ComputeCost> measureCompute(Device& device, const MeasureOptions& options, int64_t threads) {
  return ComputeMeasurement(device, options, threads).run();
}

}  // namespace sheaf::schedule
