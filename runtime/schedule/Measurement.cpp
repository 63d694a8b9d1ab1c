#include "runtime/schedule/Measurement.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "runtime/base/Text.h"
#include "runtime/plan/Library.h"
#include "runtime/plan/Tiles.h"
#include "runtime/plan/Types.h"
#include "runtime/schedule/InstructionTimer.h"
#include "runtime/schedule/LeastSquares.h"

namespace sheaf::schedule {
namespace {

// Of one rank's arena: more than caches hold.
constexpr uint64_t kArenaBytes = uint64_t{160} << 20;
// Operands have been touched a few instructions ago: a group cycles through so many times what an instruction moves.
constexpr uint64_t kFootprints = 4;

plan::LibraryCall libraryCall(const char* function, const std::vector<std::pair<const char*, int64_t>>& integers) {
  plan::LibraryCall call;
  call.set_function(function);
  for (const auto& [name, value] : integers) {
    plan::Attribute* attribute = call.add_attributes();
    attribute->set_name(name);
    attribute->set_integer(value);
  }
  return call;
}

uint64_t floats(std::initializer_list<int64_t> sizes) {
  uint64_t bytes = sizeof(float);
  for (int64_t size : sizes) bytes *= static_cast<uint64_t>(size);
  return bytes;
}

// A call of so many bytes, made `copies` times on operands of their own.
void addCalls(InstructionTimer& timer, const plan::LibraryCall& call,
              const std::vector<std::pair<uint64_t, plan::Access>>& operands, int copies) {
  for (int i = 0; i < copies; ++i) {
    plan::LibraryCall placed = call;
    for (const auto& [bytes, access] : operands) *placed.add_operands() = timer.place(bytes, access);
    timer.call(std::move(placed));
  }
}

struct GemmShape {
  int64_t m, n, k;
};
// Each size small and large beside the others small and large, and some shapes of small transformers.
constexpr GemmShape kGemmShapes[] = {{64, 64, 64},      {128, 128, 128},   {32, 512, 512},    {512, 32, 512},
                                     {512, 512, 32},    {256, 384, 384},   {512, 128, 128},   {512, 344, 128},
                                     {512, 1024, 256},  {256, 128, 512},   {1024, 64, 256},   {64, 1024, 256},
                                     {1024, 384, 384},  {1024, 1536, 384}, {1024, 384, 1536}, {2048, 256, 384},
                                     {2048, 1152, 384}, {384, 384, 2048},  {384, 1536, 512},  {1536, 384, 1024}};

struct AttentionShape {
  int64_t b, h, s, d;
  bool causal;
};
constexpr AttentionShape kAttentionShapes[] = {{4, 4, 64, 32, true},   {2, 4, 128, 32, false},  {2, 6, 256, 64, true},
                                               {1, 8, 512, 64, true},  {1, 12, 1024, 64, true}, {1, 4, 512, 128, true},
                                               {1, 4, 512, 128, false}};

}  // namespace

class Measurement {
 public:
  Measurement(Device& device, const MeasureOptions& options) : device_(device), options_(options) {}

  Expected<Profile> run() {
    profile_.name_ = options_.name;
    profile_.description_ = cat("measured on ", options_.machine);
    profile_.ranks_ = options_.ranks;
    profile_.ranksPerNode_ = plan::kMaxRanks;
    profile_.cores_ = options_.cores;
    profile_.memoryBytes_ = options_.memoryBytes;
    profile_.memorySource_ = "what the operating system grants this process, for all ranks together";
    std::vector<int64_t> threads;
    for (int64_t t = 1; options_.threads == 0 && t < options_.cores; t *= 2) threads.push_back(t);
    threads.push_back(options_.threads > 0 ? options_.threads : options_.cores);
    for (int64_t t : threads) SHEAF_RETURN_IF_ERROR(compute(t));
    std::vector<int64_t> ranks;
    for (int64_t n = 2; n < options_.ranks; n *= 2) ranks.push_back(n);
    ranks.push_back(std::max<int64_t>(options_.ranks, 2));
    for (int64_t n : ranks) SHEAF_RETURN_IF_ERROR(collectives(n));
    SHEAF_RETURN_IF_ERROR(slowdown());
    return profile_;
  }

 private:
  void tell(const std::string& what) {
    if (options_.progress) options_.progress(what);
  }

  // All costs of ranks with so many threads, on all cores at once.
  Status compute(int64_t threads) {
    const int64_t ranks = std::max<int64_t>(options_.cores / threads, 1);
    tell(cat("computation: ", ranks, " ranks of ", threads, " threads"));
    const std::string how = cat("measured with ", ranks, ranks == 1 ? " rank of " : " ranks of ", threads,
                                threads == 1 ? " thread" : " threads", " at once");
    InstructionTimer timer(device_, ranks, static_cast<int>(threads), kArenaBytes, options_.kernels);
    // Groups first: the device opens a plan once.
    const size_t overhead = overheadGroup(timer);
    const auto kernels = kernelGroups(timer);
    const auto moves = moveGroups(timer);
    const auto gemms = gemmGroups(timer);
    const auto attentions = attentionGroups(timer);
    const auto [convolution, convolutionWork] = convolutionGroup(timer);
    SHEAF_RETURN_IF_ERROR(timer.open());

    ComputeCost cost;
    cost.threads = threads;
    Expected<double> seconds = timer.seconds(overhead);
    if (!seconds.ok()) return seconds.status();
    cost.overhead = *seconds;
    cost.overheadSource = how + ": copies of 64 bytes, one after the other";
    SHEAF_RETURN_IF_ERROR(fitKernels(timer, kernels, how, cost));
    SHEAF_RETURN_IF_ERROR(fitMoves(timer, moves, how, cost));
    SHEAF_RETURN_IF_ERROR(fitGemm(timer, gemms, how, cost));
    SHEAF_RETURN_IF_ERROR(fitAttention(timer, attentions, how, cost));
    seconds = timer.seconds(convolution);
    if (!seconds.ok()) return seconds.status();
    profile_.compute_.push_back(cost);
    Profile alone = profile_;
    alone.compute_ = {cost};
    alone.ranks_ = 1;
    alone.cores_ = threads;
    Work product = convolutionWork;
    product.kind = Work::Kind::kGemm;
    profile_.compute_.back().convolution =
        std::max(alone.seconds(product) - cost.overhead, 1e-9) / std::max(*seconds - cost.overhead, 1e-9);
    profile_.compute_.back().convolutionSource = how + ": 3 x 3 filters on 28 x 28 pixels";
    return {};
  }

  static size_t overheadGroup(InstructionTimer& timer) {
    const size_t group = timer.group(64 << 10);
    const plan::LibraryCall call = libraryCall(
        "copy", {{"element_bytes", 4}, {"rank", 1}, {"size0", 16}, {"source_stride0", 1}, {"destination_stride0", 1}});
    addCalls(timer, call, {{64, plan::READ}, {64, plan::WRITE}}, 64);
    return group;
  }

  static void addOperand(InstructionTimer& timer, plan::KernelLaunch& launch, uint64_t bytes,
                         const SampleKernel& sample, size_t i) {
    const int place = sample.placeOf[i];
    plan::Operand operand = place < 0 ? timer.place(bytes, sample.access[i]) : launch.operands(place);
    operand.set_access(sample.access[i]);
    *launch.add_operands() = operand;
  }

  struct KernelGroup {
    size_t group;
    double bytes, operations;
  };
  std::vector<KernelGroup> kernelGroups(InstructionTimer& timer) const {
    std::vector<KernelGroup> groups;
    for (const SampleKernel& sample : options_.samples) {
      const plan::Kernel& kernel = options_.kernels.kernels(sample.kernel);
      double bytes = 0;
      uint64_t span = 0;
      for (int i = 0; i < kernel.operand_bytes_size(); ++i) {
        bytes += static_cast<double>(kernel.operand_bytes(i));
        if (sample.placeOf[static_cast<size_t>(i)] < 0) span += kernel.operand_bytes(i) + 128;
      }
      groups.push_back({timer.group(kFootprints * span), bytes, static_cast<double>(kernel.operations())});
      for (uint64_t copy = 0; copy < kFootprints; ++copy) {
        plan::Instruction instruction;
        plan::KernelLaunch* launch = instruction.mutable_kernel();
        launch->set_kernel(static_cast<uint32_t>(sample.kernel));
        launch->set_rows(kernel.rows());
        launch->set_block(kernel.block());
        for (int i = 0; i < kernel.operand_bytes_size(); ++i)
          addOperand(timer, *launch, kernel.operand_bytes(i), sample, static_cast<size_t>(i));
        timer.add(std::move(instruction));
      }
    }
    return groups;
  }

  // Bandwidth by size: of the samples of about a size, the quickest, since the others compute more. What these take
  // beyond that gives the rate of operations.
  Status fitKernels(InstructionTimer& timer, const std::vector<KernelGroup>& groups, const std::string& how,
                    ComputeCost& cost) {
    std::map<int, std::pair<double, double>> best;  // by the size's logarithm: size, rate
    std::vector<double> taken;
    for (const KernelGroup& g : groups) {
      Expected<double> seconds = timer.seconds(g.group);
      if (!seconds.ok()) return seconds.status();
      taken.push_back(std::max(*seconds - cost.overhead, *seconds * 0.1));
      auto& [size, rate] = best[static_cast<int>(std::lround(std::log2(g.bytes) / 2))];
      if (g.bytes / taken.back() > rate) size = g.bytes, rate = g.bytes / taken.back();
    }
    cost.kernels.points.clear();
    for (const auto& [key, point] : best) cost.kernels.points.push_back(point);
    std::sort(cost.kernels.points.begin(), cost.kernels.points.end());
    std::vector<double> rates;
    for (size_t i = 0; i < groups.size(); ++i)
      if (taken[i] > 1.5 * groups[i].bytes / cost.kernels.at(groups[i].bytes))
        rates.push_back(groups[i].operations / taken[i]);
    // All are bound by memory: then operations cost nothing.
    cost.operations = 1e15;
    if (!rates.empty()) {
      std::nth_element(rates.begin(), rates.begin() + static_cast<ptrdiff_t>(rates.size() / 2), rates.end());
      cost.operations = rates[rates.size() / 2];
    }
    cost.kernelsSource = cat(how, ": ", groups.size(), " fusions of training steps in their sizes");
    return {};
  }

  struct MoveGroup {
    size_t group;
    double bytes;
  };
  static std::vector<MoveGroup> moveGroups(InstructionTimer& timer) {
    std::vector<MoveGroup> groups;
    constexpr int64_t kColumns = 256, kRow = 2 * kColumns;
    for (int64_t rows : {16, 128, 1024, 8192}) {
      const uint64_t bytes = floats({rows, kColumns}), span = floats({rows, kRow});
      groups.push_back({timer.group(kFootprints * (bytes + span)), 2.0 * static_cast<double>(bytes)});
      const plan::LibraryCall call = libraryCall("copy", {{"element_bytes", 4},
                                                          {"rank", 2},
                                                          {"size0", rows},
                                                          {"source_stride0", kRow},
                                                          {"destination_stride0", kColumns},
                                                          {"size1", kColumns},
                                                          {"source_stride1", 1},
                                                          {"destination_stride1", 1}});
      addCalls(timer, call, {{span, plan::READ}, {bytes, plan::WRITE}}, kFootprints);
    }
    return groups;
  }

  static Status fitMoves(InstructionTimer& timer, const std::vector<MoveGroup>& groups, const std::string& how,
                         ComputeCost& cost) {
    cost.moves.points.clear();
    for (const MoveGroup& g : groups) {
      Expected<double> seconds = timer.seconds(g.group);
      if (!seconds.ok()) return seconds.status();
      cost.moves.points.emplace_back(g.bytes, g.bytes / std::max(*seconds - cost.overhead, *seconds * 0.1));
    }
    cost.movesSource = how + ": copies of every second kilobyte";
    return {};
  }

  struct GemmGroup {
    size_t group;
    Work work;
  };
  static std::vector<GemmGroup> gemmGroups(InstructionTimer& timer) {
    std::vector<GemmGroup> groups;
    for (int layout = 0; layout < 3; ++layout)
      for (const GemmShape& s : kGemmShapes) {
        const bool transposeA = layout == 2, transposeB = layout == 1;
        const Work work = gemmWork(plan::F32, s.m, s.n, s.k, 1, transposeA, transposeB);
        groups.push_back({timer.group(kFootprints * (static_cast<uint64_t>(work.bytes) + 512)), work});
        const plan::LibraryCall call = libraryCall("gemm", {{"m", s.m},
                                                            {"n", s.n},
                                                            {"k", s.k},
                                                            {"batch", 1},
                                                            {"transpose_a", transposeA},
                                                            {"transpose_b", transposeB},
                                                            {"lda", transposeA ? s.m : s.k},
                                                            {"ldb", transposeB ? s.k : s.n},
                                                            {"ldc", s.n}});
        addCalls(
            timer, call,
            {{floats({s.m, s.k}), plan::READ}, {floats({s.k, s.n}), plan::READ}, {floats({s.m, s.n}), plan::WRITE}},
            kFootprints);
      }
    return groups;
  }

  static Status fitGemm(InstructionTimer& timer, const std::vector<GemmGroup>& groups, const std::string& how,
                        ComputeCost& cost) {
    std::map<int, std::vector<Sample>> samples;  // by layout
    for (const GemmGroup& g : groups) {
      Expected<double> seconds = timer.seconds(g.group);
      if (!seconds.ok()) return seconds.status();
      const double m = static_cast<double>(g.work.m), n = static_cast<double>(g.work.n),
                   k = static_cast<double>(g.work.k);
      samples[2 * g.work.transposeA + g.work.transposeB].push_back(
          {{m * n * k, n * k, m * k, m * n}, std::max(*seconds - cost.overhead, *seconds * 0.1)});
    }
    for (const auto& [layout, measured] : samples) {
      const std::vector<double> fitted = fitNonNegative(measured);
      if (fitted[0] <= 0) return Status::error("the measured products make no sense; is the machine busy?");
      GemmCost gemm;
      gemm.transposeA = layout >= 2, gemm.transposeB = layout % 2 == 1;
      gemm.rate = 2 / fitted[0];
      gemm.halfM = fitted[1] / fitted[0], gemm.halfN = fitted[2] / fitted[0], gemm.halfK = fitted[3] / fitted[0];
      gemm.source = cat(how, ": a fit to ", measured.size(), " shapes");
      cost.gemm.push_back(gemm);
    }
    return {};
  }

  static std::vector<GemmGroup> attentionGroups(InstructionTimer& timer) {
    std::vector<GemmGroup> groups;
    for (bool gradient : {false, true})
      for (const AttentionShape& s : kAttentionShapes) {
        const int64_t row = s.h * s.d;
        plan::LibraryCall call = libraryCall(
            gradient ? "attention_grad" : "attention",
            {{"b", s.b}, {"s", s.s}, {"t", s.s}, {"h", s.h}, {"g", s.h}, {"d", s.d}, {"e", s.d}, {"causal", s.causal}});
        for (const char* name : {"query_row", "key_row", "value_row", "result_row", "gradient_row",
                                 "query_gradient_row", "key_gradient_row", "value_gradient_row"}) {
          plan::Attribute* attribute = call.add_attributes();
          attribute->set_name(name);
          attribute->set_integer(row);
        }
        plan::Attribute* scale = call.add_attributes();
        scale->set_name("scale");
        scale->set_real(0.01);
        const uint64_t tokens = floats({s.b, s.s, row}), sums = floats({s.b, s.h, s.s});
        std::vector<std::pair<uint64_t, plan::Access>> operands(3, {tokens, plan::READ});
        operands.push_back({tokens, gradient ? plan::READ : plan::WRITE});
        operands.push_back({sums, gradient ? plan::READ : plan::WRITE});
        if (gradient) operands.push_back({tokens, plan::READ});
        if (gradient) operands.insert(operands.end(), 3, {tokens, plan::WRITE});
        groups.push_back({timer.group(kFootprints * (operands.size() * (tokens + 128) + (8 << 20))),
                          attentionWork(plan::F32, s.b, s.h, s.s, s.s, s.d, s.d, s.causal, gradient)});
        addCalls(timer, call, operands, 2);
      }
    return groups;
  }

  static Status fitAttention(InstructionTimer& timer, const std::vector<GemmGroup>& groups, const std::string& how,
                             ComputeCost& cost) {
    const double block = static_cast<double>(plan::kAttentionQueries);
    std::map<bool, std::vector<Sample>> samples;  // by direction
    for (const GemmGroup& g : groups) {
      Expected<double> seconds = timer.seconds(g.group);
      if (!seconds.ok()) return seconds.status();
      const double keys = static_cast<double>(g.work.n), width = static_cast<double>(g.work.k);
      const double flops = g.work.flops * (g.work.causal ? 1 + std::min(block / keys, 1.0) : 1);
      samples[g.work.gradient].push_back(
          {{flops, flops / width, flops / keys}, std::max(*seconds - cost.overhead, *seconds * 0.1)});
    }
    for (const auto& [gradient, measured] : samples) {
      const std::vector<double> fitted = fitNonNegative(measured);
      if (fitted[0] <= 0) return Status::error("the measured attention makes no sense; is the machine busy?");
      AttentionCost attention;
      attention.gradient = gradient;
      attention.rate = 1 / fitted[0];
      attention.halfWidth = fitted[1] / fitted[0];
      attention.halfKeys = fitted[2] / fitted[0];
      attention.block = block;
      attention.source = cat(how, ": a fit to ", measured.size(), " shapes");
      cost.attention.push_back(attention);
    }
    return {};
  }

  static std::pair<size_t, Work> convolutionGroup(InstructionTimer& timer) {
    constexpr int64_t n = 4, c = 32, o = 64, h = 28, w = 28, kh = 3, kw = 3;
    plan::Instruction instruction;
    plan::LibraryCall& call = *instruction.mutable_call();
    call = libraryCall("conv", {{"n", n},
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
    const size_t group = timer.group(uint64_t{16} << 20);
    addCalls(
        timer, call,
        {{floats({n, c, h, w}), plan::READ}, {floats({o, c, kh, kw}), plan::READ}, {floats({n, o, h, w}), plan::WRITE}},
        kFootprints);
    return {group, workOf(instruction, plan::Plan())};
  }

  // Every collective by size over so many ranks, which compute nothing meanwhile.
  Status collectives(int64_t ranks) {
    tell(cat("collectives: ", ranks, " ranks"));
    const uint64_t n = static_cast<uint64_t>(ranks);
    const uint64_t arena = std::min(kArenaBytes, std::max(uint64_t{1} << 20, options_.memoryBytes / (4 * n)));
    InstructionTimer timer(device_, ranks, 1, arena, plan::Plan());
    struct Case {
      size_t group;
      Transfer transfer;
    };
    std::vector<std::vector<Case>> cases;
    for (plan::CollectiveOp op : {plan::ALL_GATHER, plan::REDUCE_SCATTER, plan::ALL_REDUCE}) {
      cases.emplace_back();
      for (uint64_t bytes = n * 128; bytes <= (uint64_t{64} << 20) && 2 * bytes + (1 << 12) <= arena;
           bytes *= bytes < (64 << 10) ? 16 : 4)
        cases.back().push_back({collectiveGroup(timer, op, bytes, n), {op, bytes, ranks}});
    }
    SHEAF_RETURN_IF_ERROR(timer.open());
    for (const std::vector<Case>& sizes : cases) {
      LinkCost link;
      link.op = sizes.front().transfer.op;
      link.ranks = ranks;
      link.source = cat("measured with ", ranks, " ranks on ", options_.cores, " cores");
      const double sent =
          (link.op == plan::ALL_REDUCE ? 2.0 : 1.0) * static_cast<double>(n - 1) / static_cast<double>(n);
      for (const Case& c : sizes) {
        Expected<double> seconds = timer.seconds(c.group);
        if (!seconds.ok()) return seconds.status();
        if (&c == &sizes.front()) {
          link.latency = *seconds;
          continue;
        }
        const double bytes = static_cast<double>(c.transfer.bytes);
        link.bandwidth.points.emplace_back(bytes / static_cast<double>(n),
                                           sent * bytes / std::max(*seconds - link.latency, *seconds * 0.1));
      }
      profile_.links_.push_back(link);
    }
    return {};
  }

  static size_t collectiveGroup(InstructionTimer& timer, plan::CollectiveOp op, uint64_t bytes, uint64_t ranks) {
    const uint64_t whole = bytes, part = bytes / ranks;
    const uint64_t from = op == plan::ALL_GATHER ? part : whole, to = op == plan::REDUCE_SCATTER ? part : whole;
    const size_t group = timer.group(kFootprints * (from + to + 256));
    for (uint64_t i = 0; i < kFootprints; ++i) {
      plan::Instruction instruction;
      plan::Collective* collective = instruction.mutable_collective();
      collective->set_op(op);
      collective->set_type(plan::F32);
      collective->set_count((op == plan::ALL_REDUCE ? whole : part) / sizeof(float));
      *collective->mutable_source() = timer.place(from, plan::READ);
      *collective->mutable_destination() = timer.place(to, plan::WRITE);
      timer.add(std::move(instruction), InstructionTimer::kCommunication);
    }
    return group;
  }

  // How much longer computation takes beside a collective, where cores are left for the collective's threads.
  Status slowdown() {
    constexpr int64_t kRanks = 2;
    const int64_t threads = options_.cores / kRanks - 1;
    if (threads < 1) {
      profile_.slowdown_ = 0;
      profile_.slowdownSource_ =
          cat("not measurable with ", options_.cores, " cores: collectives' threads have no core");
      return {};
    }
    tell("overlap");
    InstructionTimer timer(device_, kRanks, static_cast<int>(threads), kArenaBytes, plan::Plan());
    const auto gemms = gemmGroups(timer);
    const size_t product = gemms[std::size(kGemmShapes) - 1].group;
    const size_t gather = collectiveGroup(timer, plan::ALL_GATHER, uint64_t{16} << 20, kRanks);
    SHEAF_RETURN_IF_ERROR(timer.open());
    // Both take about as long: some 50 ms.
    constexpr double kSeconds = 0.05;
    std::vector<int> times;
    std::vector<double> alone;
    for (size_t group : {product, gather}) {
      Expected<double> once = timer.seconds(group);
      if (!once.ok()) return once.status();
      times.push_back(std::max(static_cast<int>(kSeconds / (*once * static_cast<double>(kFootprints))), 1));
      Expected<double> seconds = timer.together({group}, {times.back()});
      if (!seconds.ok()) return seconds.status();
      alone.push_back(*seconds);
    }
    Expected<double> both = timer.together({product, gather}, times);
    if (!both.ok()) return both.status();
    // While the collectives run, computation does alone[1] / (1 + slowdown) seconds of its work.
    const double done = std::clamp((alone[0] + alone[1] - *both) / std::min(alone[0], alone[1]), 1e-3, 1.0);
    profile_.slowdown_ = 1 / done - 1;
    profile_.slowdownSource_ = cat("measured: products of 1536 x 384 x 1024 on ", kRanks, " ranks of ", threads,
                                   " threads beside all-gathers of 16 MiB");
    return {};
  }

  Device& device_;
  const MeasureOptions& options_;
  Profile profile_;
};

Expected<Profile> measure(Device& device, const MeasureOptions& options) {
  return Measurement(device, options).run();
}

}  // namespace sheaf::schedule
