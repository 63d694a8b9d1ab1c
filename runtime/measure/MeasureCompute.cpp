#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "runtime/base/Text.h"
#include "runtime/measure/LeastSquares.h"
#include "runtime/measure/MeasureParts.h"
#include "runtime/measure/MeasuredCalls.h"
#include "runtime/plan/Tiles.h"
#include "runtime/plan/Types.h"

namespace sheaf::measure {
namespace {

constexpr plan::ElementType kTypes[] = {plan::F32, plan::BF16};

// Bytes that a group of instructions on a GPU cycles through: more than its caches hold.
constexpr uint64_t kGpuFootprint = uint64_t{128} << 20;

class ComputeMeasurement {
 public:
  ComputeMeasurement(Device& device, const MeasureOptions& options, const RankSet& set)
      : options_(options),
        shapes_(measuredShapes(options.gpu)),
        how_(options.gpu ? cat("measured with ", options.ranks, options.ranks == 1 ? " rank" : " ranks", " at once")
                         : cat("measured with ", set.ranks, set.ranks == 1 ? " rank of " : " ranks of ", set.threads,
                               set.threads == 1 ? " thread" : " threads", " at once")),
        timer_(device, options, set, set.arenaBytes, options.kernels) {
    cost_.threads = set.threads;
  }

  Expected<profile::ComputeCost> run() {
    // All groups are made first, because the device opens a plan once.
    const size_t overhead = overheadGroup();
    const auto kernels = kernelGroups();
    const auto moves = moveGroups();
    const auto gemms = gemmGroups();
    const auto attentions = attentionGroups();
    const auto convolution = convolutionGroup();
    SHEAF_RETURN_IF_ERROR(timer_.open());
    // Raises the clock of an idle GPU.
    if (options_.gpu && !moves.empty())
      if (Expected<double> warm = timer_.seconds(moves.back().group); !warm.ok()) return warm.status();
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
  // Seconds per instruction of a group, less the overhead.
  Expected<double> secondsOf(size_t group) {
    Expected<double> seconds = timer_.seconds(group);
    if (seconds.ok()) *seconds = std::max(*seconds - cost_.overhead, *seconds * 0.1);
    return seconds;
  }

  // Number of copies of an instruction in a group, each on operands of its own; 0 if not even one fits.
  int copiesOf(uint64_t bytes) const {
    if (!options_.gpu) return kFootprints;
    const uint64_t enough = (kGpuFootprint + bytes - 1) / std::max<uint64_t>(bytes, 1);
    return static_cast<int>(
        std::min<uint64_t>({kFootprints, enough, timer_.arenaBytes() / std::max<uint64_t>(bytes, 1)}));
  }

  size_t overheadGroup() {
    const size_t group = timer_.group(64 << 10);
    timer_.add(copyCall(1, 16, 16), 64);
    return group;
  }

  void addOperand(plan::Instruction& launch, const plan::Kernel& kernel, const plan::SampleKernel& sample, int i) {
    const int place = sample.sharesWith[static_cast<size_t>(i)];
    const plan::Access access = kernel.operand_access(i);
    plan::Operand operand = place < 0 ? timer_.place(kernel.operand_bytes(i), access) : launch.operands(place);
    operand.set_access(access);
    *launch.add_operands() = operand;
  }

  struct KernelGroup {
    size_t group;
    uint64_t largest;  // bytes of the largest operand; samples in which it is equal are compared with each other
    double bytes, operations;
  };
  std::vector<KernelGroup> kernelGroups() {
    std::vector<KernelGroup> groups;
    for (const plan::SampleKernel& sample : options_.samples) {
      const plan::Kernel& kernel = options_.kernels.kernels(sample.kernel);
      double bytes = 0;
      uint64_t span = 0, largest = 0;
      for (int i = 0; i < kernel.operand_bytes_size(); ++i) {
        bytes += static_cast<double>(kernel.operand_bytes(i));
        largest = std::max(largest, kernel.operand_bytes(i));
        if (sample.sharesWith[static_cast<size_t>(i)] < 0) span += kernel.operand_bytes(i) + 128;
      }
      const int copies = copiesOf(span);
      if (copies == 0 || span > timer_.arenaBytes()) continue;
      groups.push_back({timer_.group(static_cast<uint64_t>(copies) * span), largest, bytes,
                        static_cast<double>(kernel.operations())});
      for (int copy = 0; copy < copies; ++copy) {
        plan::Instruction instruction;
        plan::KernelLaunch* launch = instruction.mutable_kernel();
        launch->set_kernel(static_cast<uint32_t>(sample.kernel));
        launch->set_rows(kernel.rows());
        launch->set_block(kernel.block());
        for (int i = 0; i < kernel.operand_bytes_size(); ++i) addOperand(instruction, kernel, sample, i);
        timer_.add(std::move(instruction));
      }
    }
    std::stable_sort(groups.begin(), groups.end(), [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
    return groups;
  }

  // Bandwidth by size is the second highest of the samples of a size: updates in place are faster than typical kernels,
  // and others are bound by computation. On a GPU it is the median. The time that samples take beyond their bytes gives
  // the rate of operations.
  Status fitKernels(const std::vector<KernelGroup>& groups) {
    struct Size {
      double bytes = 0;
      std::vector<double> rates;
    };
    std::map<uint64_t, Size> sizes;
    std::vector<std::pair<const KernelGroup*, double>> taken;
    SizeLimit limit(options_.gpu);
    for (const KernelGroup& g : groups) {
      if (!limit.allows(g.bytes)) break;
      Expected<double> seconds = secondsOf(g.group);
      if (!seconds.ok()) return seconds.status();
      limit.record(g.bytes, *seconds);
      taken.emplace_back(&g, *seconds);
      sizes[g.largest].bytes += g.bytes;
      sizes[g.largest].rates.push_back(g.bytes / *seconds);
    }
    if (sizes.empty()) return Status::error("no kernel of the probe is small enough for this device's memory");
    for (auto& [key, size] : sizes) {
      std::sort(size.rates.rbegin(), size.rates.rend());
      const size_t typical = options_.gpu ? size.rates.size() / 2 : std::min<size_t>(1, size.rates.size() - 1);
      cost_.kernels.points.emplace_back(size.bytes / static_cast<double>(size.rates.size()), size.rates[typical]);
    }
    sortPoints(cost_.kernels);
    // From the samples that take clearly longer than moving their bytes and the overhead.
    std::vector<double> rates;
    for (const auto& [group, seconds] : taken)
      if (seconds > std::max(1.5 * group->bytes / cost_.kernels.at(group->bytes), 10 * cost_.overhead) &&
          group->operations > 0)
        rates.push_back(group->operations / seconds);
    constexpr double kFree = 1e15;
    std::nth_element(rates.begin(), rates.begin() + static_cast<ptrdiff_t>(rates.size() / 2), rates.end());
    cost_.operations = rates.empty() ? kFree : rates[rates.size() / 2];
    cost_.kernelsSource = cat(how_, ": ", taken.size(), " fusions of training steps in their sizes");
    return {};
  }

  // A profile lists points by increasing size.
  static void sortPoints(profile::Curve& curve) {
    std::sort(curve.points.begin(), curve.points.end());
    auto same = [](const auto& a, const auto& b) { return a.first == b.first; };
    curve.points.erase(std::unique(curve.points.begin(), curve.points.end(), same), curve.points.end());
  }

  struct MoveGroup {
    size_t group;
    double bytes;
  };
  std::vector<MoveGroup> moveGroups() {
    std::vector<MoveGroup> groups;
    // Short rows, of half a head.
    constexpr int64_t kColumns = 32, kRow = 2 * kColumns;
    for (int64_t rows : shapes_.movedRows) {
      const plan::CopyCall call = copyCall(rows, kColumns, kRow);
      const uint64_t bytes = operandBytes(call);
      const int copies = copiesOf(bytes);
      if (copies == 0) break;
      groups.push_back({timer_.group(static_cast<uint64_t>(copies) * bytes),
                        2.0 * static_cast<double>(rows * kColumns) * sizeof(float)});
      timer_.add(call, copies);
    }
    return groups;
  }

  Status fitMoves(const std::vector<MoveGroup>& groups) {
    cost_.moves.points.clear();
    SizeLimit limit(options_.gpu);
    for (const MoveGroup& g : groups) {
      if (!limit.allows(g.bytes)) break;
      Expected<double> seconds = secondsOf(g.group);
      if (!seconds.ok()) return seconds.status();
      limit.record(g.bytes, *seconds);
      cost_.moves.points.emplace_back(g.bytes, g.bytes / *seconds);
    }
    cost_.movesSource = how_ + ": copies of every second 128 bytes";
    return {};
  }

  struct ProductGroup {
    size_t group;
    profile::Work work;
  };
  // Matrix products of each supported type, by increasing work.
  using ProductGroups = std::vector<ProductGroup>;
  void addProduct(ProductGroups& groups, const plan::AnyCall& call, int mostCopies) {
    // The arena also holds scratch: on the CPU at most 512 KiB per thread.
    const uint64_t scratch = options_.gpu ? gpuScratch(call) : static_cast<uint64_t>(cost_.threads) << 19;
    const uint64_t bytes = operandBytes(call) + scratch;
    const int copies = std::min(copiesOf(bytes), mostCopies);
    if (copies == 0) return;
    const int footprints = options_.gpu ? copies : kFootprints;
    groups.push_back({timer_.group(static_cast<uint64_t>(footprints) * bytes), profile::workOf(call)});
    timer_.add(call, copies);
  }

  using Timed = std::pair<profile::Work, double>;
  // Times the groups that are not too slow for this device; see Reach.
  Expected<std::vector<Timed>> timeProducts(ProductGroups groups) {
    if (options_.gpu)
      std::stable_sort(groups.begin(), groups.end(),
                       [](const auto& a, const auto& b) { return a.work.flops < b.work.flops; });
    SizeLimit limit(options_.gpu);
    std::vector<Timed> timed;
    for (const ProductGroup& g : groups) {
      if (!limit.allows(g.work.flops)) break;
      Expected<double> seconds = secondsOf(g.group);
      if (!seconds.ok()) return seconds.status();
      limit.record(g.work.flops, *seconds);
      timed.emplace_back(g.work, *seconds);
    }
    // Products so short that a GPU is bound by launching them say nothing about its rate. The last is kept in any case.
    auto brief = [&](const Timed& each) { return each.second < cost_.overhead / 2; };
    if (options_.gpu && !timed.empty())
      timed.erase(std::remove_if(timed.begin(), timed.end() - 1, brief), timed.end() - 1);
    return timed;
  }

  std::vector<ProductGroups> gemmGroups() {
    std::vector<ProductGroups> groups;  // by type and layout
    auto add = [&](plan::ElementType type, bool tf32, int layout) {
      const bool transposeA = layout == 2, transposeB = layout == 1;
      ProductGroups& same = groups.emplace_back();
      for (size_t i = 0; i < shapes_.gemm.size(); ++i) {
        const GemmShape& s = shapes_.gemm[i];
        // On GPUs bf16 matters most; of other types every second shape is measured.
        if (options_.gpu && type != plan::BF16 && i % 2 > 0) continue;
        addProduct(same, gemmCall(type, s.m, s.n, s.k, transposeA, transposeB, tf32), kFootprints);
      }
    };
    for (plan::ElementType type : kTypes)
      for (bool tf32 : {false, true})
        for (int layout = 0; layout < 3; ++layout)
          if (!tf32 || (options_.gpu && type == plan::F32)) add(type, tf32, layout);
    return groups;
  }

  Status fitGemm(const std::vector<ProductGroups>& groups) {
    for (const ProductGroups& same : groups) {
      Expected<std::vector<Timed>> timed = timeProducts(same);
      if (!timed.ok()) return timed.status();
      if (timed->empty()) continue;
      profile::GemmCost gemm;
      gemm.type = same.front().work.type;
      gemm.tf32 = same.front().work.tf32;
      gemm.transposeA = same.front().work.transposeA, gemm.transposeB = same.front().work.transposeB;
      std::vector<Sample> samples;
      for (const auto& [work, seconds] : *timed) {
        const double m = static_cast<double>(work.m), n = static_cast<double>(work.n), k = static_cast<double>(work.k);
        samples.push_back({{m * n * k, n * k, m * k, m * n}, seconds});
        // Few results leave a part of a GPU idle, however large k is.
        if (options_.gpu) samples.back().terms.push_back(k);
      }
      const std::vector<double> fitted = fitNonNegative(samples);
      gemm.rate = 2 / fitted[0];
      gemm.halfM = fitted[1] / fitted[0], gemm.halfN = fitted[2] / fitted[0], gemm.halfK = fitted[3] / fitted[0];
      if (options_.gpu) gemm.halfResults = fitted[4] / fitted[0];
      gemm.source = cat(how_, ": a fit to ", samples.size(), " shapes");
      if (options_.gpu) gemm.shapes = measuredFactors(gemm, *timed);
      cost_.gemm.push_back(std::move(gemm));
    }
    return cost_.gemm.empty() ? Status::error("no product is small enough for this device's memory") : Status();
  }

  // Measured time / formula, by shape: a library chooses tiles by shape, and a GPU computes them in waves.
  std::vector<profile::GemmFactor> measuredFactors(const profile::GemmCost& gemm, const std::vector<Timed>& timed) {
    constexpr double kMostFactor = 100;
    std::vector<profile::GemmFactor> factors;
    profile::ComputeCost alone;
    alone.gemm.push_back(gemm);
    for (const auto& [work, seconds] : timed)
      factors.push_back(
          {work.m, work.n, work.k, std::clamp(seconds / profile::seconds(alone, work), 1 / kMostFactor, kMostFactor)});
    return factors;
  }

  std::vector<ProductGroups> attentionGroups() {
    std::vector<ProductGroups> groups;  // by type and direction
    for (plan::ElementType type : kTypes)
      for (bool gradient : {false, true}) {
        ProductGroups& same = groups.emplace_back();
        for (const AttentionShape& s : shapes_.attention)
          addProduct(same, attentionCall(type, s.b, s.s, s.h, s.d, s.causal, gradient), 2);
      }
    return groups;
  }

  Status fitAttention(const std::vector<ProductGroups>& groups) {
    const double block = static_cast<double>(plan::kAttentionQueries);
    for (const ProductGroups& same : groups) {
      std::vector<Sample> samples;
      Expected<std::vector<Timed>> timed = timeProducts(same);
      if (!timed.ok()) return timed.status();
      for (const auto& [work, seconds] : *timed) {
        const double keys = static_cast<double>(work.n), width = static_cast<double>(work.k);
        const double flops = work.flops * (work.causal ? 1 + std::min(block / keys, 1.0) : 1);
        samples.push_back({{flops, flops / width, flops / keys}, seconds});
        if (options_.gpu) samples.back().terms.push_back(flops / static_cast<double>(work.batch * work.m));
      }
      if (samples.empty()) continue;
      const std::vector<double> fitted = fitNonNegative(samples);
      profile::AttentionCost attention;
      attention.type = same.front().work.type;
      attention.gradient = same.front().work.gradient;
      attention.rate = 1 / fitted[0];
      attention.halfWidth = fitted[1] / fitted[0];
      attention.halfKeys = fitted[2] / fitted[0];
      if (options_.gpu) attention.halfQueries = fitted[3] / fitted[0];
      attention.block = block;
      attention.source = cat(how_, ": a fit to ", samples.size(), " shapes");
      cost_.attention.push_back(attention);
    }
    return cost_.attention.empty() ? Status::error("no attention is small enough for this device's memory") : Status();
  }

  ProductGroups convolutionGroup() {
    plan::ConvCall call;
    call.n = 4, call.c = 32, call.o = 64, call.h = call.w = call.oh = call.ow = 28, call.kh = call.kw = 3;
    call.padTop = call.padLeft = call.padBottom = call.padRight = 1;
    call.channelsLast = !options_.gpu;
    ProductGroups groups;
    addProduct(groups, call, kFootprints);
    return groups;
  }

  // The rate of a convolution / that of the product it unrolls to.
  Status fitConvolution(const ProductGroups& groups) {
    Expected<std::vector<Timed>> timed = timeProducts(groups);
    if (!timed.ok()) return timed.status();
    for (auto [work, seconds] : *timed) {
      work.kind = profile::Work::Kind::kGemm;
      cost_.convolution = (profile::seconds(cost_, work) - cost_.overhead) / seconds;
    }
    cost_.convolutionSource = how_ + ": 3 x 3 filters on 28 x 28 pixels";
    return {};
  }

  const MeasureOptions& options_;
  const MeasuredShapes& shapes_;
  const std::string how_;
  InstructionTimer timer_;
  profile::ComputeCost cost_;
};

}  // namespace

Expected<profile::ComputeCost> measureCompute(Device& device, const MeasureOptions& options, const RankSet& set) {
  return ComputeMeasurement(device, options, set).run();
}

}  // namespace sheaf::measure
