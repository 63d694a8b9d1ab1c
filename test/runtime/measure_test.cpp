// Measurements of GPUs that are formulas: what a profile says must be what the formulas say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>
#include <cmath>
#include <thread>

#include "runtime/comm/process/SubGroup.h"
#include "runtime/measure/LeastSquares.h"
#include "runtime/measure/Measurement.h"
#include "runtime/plan/Proof.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/Verify.h"

namespace sheaf::measure {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr double kOverhead = 2e-6, kKernels = 2e12, kMoves = 1e12, kOperations = 1e13, kProducts = 4e14,
                 kEpilogues = 3e12;
constexpr double kWithinBandwidth = 3e11, kNetworkBandwidth = 4e10, kWithinLatency = 2e-5, kNetworkLatency = 8e-5;
constexpr double kSlowdown = 0.25;

// Between the GPU and the host's memory; small copies run at a part of the rate.
constexpr double kCopyLatency = 5e-6, kToDevice = 5e10, kToHost = 4e10, kHalfCopy = 1e5;

double copySeconds(plan::Transfer::Kind kind, uint64_t size) {
  const double bytes = static_cast<double>(size);
  return kCopyLatency +
         (bytes + std::min(bytes, kHalfCopy)) / (kind == plan::Transfer::TO_DEVICE ? kToDevice : kToHost);
}

// A GPU computes tiles of 128 x 128 in waves of 132; f32 is slower by eight.
double productSeconds(double m, double n, double k, bool half) {
  const double tiles = std::ceil(m / 128) * std::ceil(n / 128), waves = std::ceil(tiles / 132);
  return waves * 132 * 2 * 128 * 128 * (k + 200) / kProducts * (half ? 1 : 8);
}

double computeSeconds(const profile::Work& work) {
  const double width = static_cast<double>(work.k), keys = static_cast<double>(work.n);
  switch (work.kind) {
    case profile::Work::Kind::kKernel:
      return kOverhead + std::max(work.bytes / kKernels, work.flops / kOperations);
    case profile::Work::Kind::kGemm:
      return kOverhead + work.epilogueBytes / kEpilogues +
             productSeconds(static_cast<double>(work.m * work.batch), keys, width, work.type == plan::BF16);
    case profile::Work::Kind::kAttention:
      return kOverhead + work.flops / 3e14 * (1 + 100 / keys) * (work.causal ? 1 + std::min(64 / keys, 1.0) : 1) *
                             (work.type == plan::BF16 ? 1 : 8);
    case profile::Work::Kind::kConvolution:
      return kOverhead + work.flops / 2e13;
    case profile::Work::Kind::kOther:
      return kOverhead + work.bytes / kMoves;
    case profile::Work::Kind::kNone:
      break;
  }
  return 0;
}

struct Machine {
  int64_t ranksPerNode = 1;
};

class FormulaContext : public RankContext {
 public:
  FormulaContext(const Machine& machine, const plan::Plan& plan, const DeviceOptions& options)
      : machine_(machine), plan_(plan), options_(options) {}
  Status issue(const plan::Instruction&, std::shared_ptr<const StepValues>) override {
    return Status::error("a GPU of formulas runs graphs only");
  }
  Status synchronize() override { return {}; }
  Status read(uint64_t, std::span<std::byte>) override { return {}; }
  Status write(uint64_t offset, std::span<const std::byte> host) override {
    return offset + host.size() <= plan_.buffers(0).bytes() ? Status() : Status::error("outside of the arena");
  }
  uint64_t highestTouchedByte() override { return 0; }
  void abort(const std::string&) override {}
  Expected<std::unique_ptr<Burst>> prepare(std::span<const plan::Instruction* const> instructions) override {
    double seconds[4] = {}, all = 0;
    bool ordered = false;
    for (const plan::Instruction* instruction : instructions) {
      bool inside = true;
      plan::forEachOperand(*instruction, [&](const plan::Operand& operand) {
        inside &= operand.offset() + operand.bytes() <= plan_.buffers(static_cast<int>(operand.buffer())).bytes();
      });
      if (!inside) return Status::error("an operand outside of the arena");
      const double taken = instruction->has_collective() ? transferSeconds(instruction->collective())
                           : instruction->has_transfer()
                               ? copySeconds(instruction->transfer().kind(), plan::sourceOf(*instruction).bytes())
                               : computeSeconds(profile::workOf(*instruction, plan_));
      seconds[instruction->stream()] += taken;
      all += taken;
      ordered |= instruction->has_wait();
    }
    if (!ordered && seconds[0] > 0 && seconds[1] > 0)
      all = std::max(seconds[0], seconds[1]) + kSlowdown / (1 + kSlowdown) * std::min(seconds[0], seconds[1]);
    // Copies in both directions do not disturb each other.
    if (seconds[2] > 0 && seconds[3] > 0) all = std::max(seconds[2], seconds[3]);
    return std::unique_ptr<Burst>(std::make_unique<Formula>(all));
  }

 private:
  struct Formula : Burst {
    explicit Formula(double seconds) : seconds(seconds) {}
    Expected<double> run() override { return seconds; }
    double seconds;
  };

  double transferSeconds(const plan::Collective& collective) const {
    const bool network = options_.ranks > machine_.ranksPerNode;
    const double n = static_cast<double>(options_.ranks), whole = collective.op() == plan::ALL_REDUCE ? 2 : n;
    const double bytes = static_cast<double>(collective.count()) * 4 * whole * (n - 1) / n;
    return (network ? kNetworkLatency : kWithinLatency) + bytes / (network ? kNetworkBandwidth : kWithinBandwidth);
  }

  const Machine& machine_;
  const plan::Plan& plan_;
  const DeviceOptions options_;
};

class FormulaDevice : public Device {
 public:
  explicit FormulaDevice(Machine machine) : machine_(machine) {}
  Expected<std::vector<std::unique_ptr<RankContext>>> open(const plan::Plan& plan,
                                                           const DeviceOptions& options) override {
    std::vector<std::unique_ptr<RankContext>> contexts;
    contexts.push_back(std::make_unique<FormulaContext>(machine_, plan, options));
    return contexts;
  }

 private:
  const Machine machine_;
};

// The processes of a job as threads.
class SharedState {
 public:
  explicit SharedState(int64_t size) : messages(static_cast<size_t>(size)), barrier(size) {}
  std::vector<std::string> messages;
  std::barrier<> barrier;
};

class ThreadProcess : public comm::ProcessGroup {
 public:
  ThreadProcess(SharedState& shared, int64_t rank) : shared_(shared), rank_(rank) {}
  int64_t rank() const override { return rank_; }
  int64_t size() const override { return static_cast<int64_t>(shared_.messages.size()); }
  Expected<int64_t> localRank() const override { return rank_; }
  Expected<std::vector<std::string>> allGather(const std::string& message, const std::string&) override {
    shared_.messages[static_cast<size_t>(rank_)] = message;
    shared_.barrier.arrive_and_wait();
    std::vector<std::string> all = shared_.messages;
    shared_.barrier.arrive_and_wait();
    return all;
  }
  void watch(std::function<void(const Status&)>) override {}
  void fail(const std::string&) override {}
  Status leave() override { return {}; }

 private:
  SharedState& shared_;
  const int64_t rank_;
};

// Kernels of a probe: some that move bytes, and one that computes for ten times as long as it moves.
plan::Plan probe() {
  plan::Plan plan;
  std::vector<plan::SampleKernel> samples;
  for (int64_t elements = 1 << 16; elements <= 1 << 26; elements *= 8)
    for (int kind = 0; kind < 3; ++kind) {
      const uint64_t bytes = static_cast<uint64_t>(elements) * 4;
      plan::Kernel* kernel = plan.add_kernels();
      kernel->set_symbol("fusion_" + std::to_string(plan.kernels_size() - 1));
      kernel->set_rows(elements);
      kernel->set_block(1);
      kernel->set_operations(kind == 2 ? elements * 500 : elements);
      for (plan::Access access : {plan::READ, plan::WRITE}) {
        kernel->add_operand_bytes(bytes);
        kernel->add_operand_access(access);
        kernel->add_in_place(1);
      }
      samples.push_back({plan.kernels_size() - 1, {-1, kind == 1 ? 0 : -1}});
    }
  plan::KernelImage* image = plan.add_images();
  image->set_target("cuda:sm_90");
  image->set_code("code");
  for (int i = 0; i < plan.kernels_size(); ++i) {
    image->add_entries()->set_grid(1);
    image->mutable_entries(i)->set_threads(32);
  }
  plan::makeProbe(plan, 1, samples);
  return plan;
}

MeasureOptions gpuOptions() {
  MeasureOptions options;
  options.name = "formula";
  options.gpu = true;
  options.memoryBytes = uint64_t{64} << 30;
  options.memorySource = "made up";
  options.kernels = probe();
  options.samples = plan::samplesOf(options.kernels);
  return options;
}

profile::Profile measured(const MeasureOptions& options, Machine machine) {
  FormulaDevice device(machine);
  Expected<profile::Profile> profile = measureMachine(device, options);
  EXPECT_TRUE(profile.ok()) << profile.status().message();
  // What is written is what is read.
  Expected<profile::Profile> read = profile::Profile::parse(json::write(profile->toJson()), "card.json");
  EXPECT_TRUE(read.ok()) << read.status().message();
  return *read;
}

TEST(Probe, IsAPlanThatIsVerifiedAndProved) {
  const plan::Plan plan = probe();
  EXPECT_EQ(plan::verifyPlan(plan).message(), "");
  EXPECT_EQ(plan::provePlan(plan).message(), "");
  EXPECT_TRUE(plan::isProbe(plan));
  const std::vector<plan::SampleKernel> samples = plan::samplesOf(plan);
  ASSERT_EQ(samples.size(), static_cast<size_t>(plan.kernels_size()));
  EXPECT_EQ(samples[1].kernel, 1);
  EXPECT_EQ(samples[1].sharesWith, (std::vector<int>{-1, 0}));
  EXPECT_EQ(samples[2].sharesWith, (std::vector<int>{-1, -1}));
}

TEST(Probe, IsNothingThatTrains) {
  plan::Plan plan = probe();
  plan.add_inputs();
  EXPECT_FALSE(plan::isProbe(plan));
  plan = probe();
  plan.add_body()->mutable_output()->set_output(plan::LOSS);
  EXPECT_FALSE(plan::isProbe(plan));
  EXPECT_FALSE(plan::isProbe(plan::Plan()));
}

TEST(Measure, FindsTheFiguresOfAGpu) {
  const profile::Profile p = measured(gpuOptions(), {});
  EXPECT_EQ(p.ranks(), 1);
  EXPECT_EQ(p.memoryBytes(), uint64_t{64} << 30);
  auto expectNear = [&](const profile::Work& work, double part) {
    EXPECT_NEAR(p.seconds(work) / computeSeconds(work), 1, part) << work.m << " " << work.n << " " << work.k;
  };
  expectNear(profile::movingWork(profile::Work::Kind::kKernel, plan::F32, 1e8), 0.01);
  expectNear(profile::movingWork(profile::Work::Kind::kKernel, plan::F32, 1e6, 1e9), 0.02);
  // What a strided copy skips is not moved, though it is a part of its operand.
  EXPECT_NEAR(p.seconds(profile::movingWork(profile::Work::Kind::kOther, plan::F32, 3e7)),
              kOverhead + 1.5 * 3e7 / kMoves, 1e-6);
  // Waves make steps of the time that the formula alone cannot follow; the measured shapes do.
  expectNear(profile::gemmWork(plan::BF16, 2048, 768, 768, 1, false, false), 0.02);
  expectNear(profile::gemmWork(plan::BF16, 8192, 2304, 768, 1, false, true), 0.02);
  expectNear(profile::gemmWork(plan::BF16, 768, 3072, 16384, 1, true, false), 0.02);
  profile::Work gelu = profile::gemmWork(plan::BF16, 16384, 3072, 768, 1, false, false);
  gelu.epilogueBytes = 2.0 * 16384 * 3072;
  expectNear(gelu, 0.02);
  // Others lie between them.
  expectNear(profile::gemmWork(plan::BF16, 8192, 8192, 4096, 1, false, false), 0.1);
  expectNear(profile::gemmWork(plan::F32, 4096, 4096, 2048, 1, false, false), 0.15);
  expectNear(profile::attentionWork(plan::BF16, 8, 12, 2048, 2048, 64, 64, true, true), 0.05);
  expectNear(profile::attentionWork(plan::BF16, 8, 12, 512, 512, 64, 64, true, false), 0.05);
}

// So that plans with --offload can be scheduled for it.
TEST(Measure, FindsWhatTransfersTake) {
  const profile::Profile p = measured(gpuOptions(), {});
  for (const plan::Transfer::Kind kind : {plan::Transfer::TO_DEVICE, plan::Transfer::TO_HOST}) {
    ASSERT_TRUE(p.knows(kind));
    // Small, between the measured sizes, and larger than all of them.
    for (const auto& [bytes, part] :
         {std::pair{uint64_t{1} << 12, 0.04}, {1 << 17, 0.1}, {1 << 20, 0.03}, {1 << 28, 0.02}})
      EXPECT_NEAR(p.seconds(kind, bytes) / copySeconds(kind, bytes), 1, part) << kind << " " << bytes;
  }
  EXPECT_FALSE(p.knows(plan::Transfer::READ_FILE));
  // The host's memory carries what is copied in both directions, and what this machine's processors update.
  EXPECT_GT(p.hostBandwidth(), 0.95 * 2 * kToHost);
  EXPECT_GE(p.hostBandwidth(), 28 * p.hostUpdates() * (1 - 1e-9));
  EXPECT_TRUE(p.knowsHostUpdates());
  EXPECT_GT(p.hostUpdates(), 1e6);
  EXPECT_LT(p.hostUpdates(), 1e12);
}

TEST(Measure, OneRankHasNoCollectives) {
  const profile::Profile p = measured(gpuOptions(), {});
  EXPECT_EQ(p.slowdown(), 0);
  EXPECT_THAT(p.withRanks(2).status().message(), HasSubstr("no \"collectives\""));
}

TEST(Measure, TellsLinksWithinNodesFromThoseBetweenThem) {
  constexpr int64_t kProcesses = 4;
  const Machine machine{2};
  SharedState shared(kProcesses);
  std::vector<std::string> texts(kProcesses);
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < kProcesses; ++rank)
    threads.emplace_back([&, rank] {
      ThreadProcess process(shared, rank);
      MeasureOptions options = gpuOptions();
      options.ranks = kProcesses;
      options.ranksPerNode = machine.ranksPerNode;
      options.processes = &process;
      texts[static_cast<size_t>(rank)] = json::write(measured(options, machine).toJson());
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& text : texts) EXPECT_EQ(text, texts[0]);
  Expected<profile::Profile> p = profile::Profile::parse(texts[0], "card.json");
  ASSERT_TRUE(p.ok()) << p.status().message();
  EXPECT_NEAR(p->slowdown(), kSlowdown, 0.02);
  for (int64_t ranks : {2, 4}) {
    const bool network = ranks > 2;
    const double n = static_cast<double>(ranks), bytes = 1e8;
    const double latency = network ? kNetworkLatency : kWithinLatency;
    const double sent = bytes * (n - 1) / n / (network ? kNetworkBandwidth : kWithinBandwidth);
    EXPECT_NEAR(p->seconds({plan::ALL_GATHER, 100'000'000, ranks}) / (latency + sent), 1, 0.02) << ranks;
    EXPECT_NEAR(p->seconds({plan::ALL_REDUCE, 100'000'000, ranks}) / (latency + 2 * sent), 1, 0.02) << ranks;
  }
}

TEST(Measure, EndsWhenItIsAskedTo) {
  MeasureOptions options = gpuOptions();
  options.checkInterrupt = [] { return Status::error("enough"); };
  FormulaDevice device({});
  EXPECT_EQ(measureMachine(device, options).status().message(), "enough");
}

TEST(SubGroup, IsTheNeighboursOfAProcess) {
  SharedState shared(4);
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < 4; ++rank)
    threads.emplace_back([&, rank] {
      ThreadProcess process(shared, rank);
      comm::SubGroup group(process, 2);
      EXPECT_EQ(group.rank(), rank % 2);
      EXPECT_EQ(group.size(), 2);
      EXPECT_EQ(*group.localRank(), rank);
      Expected<std::vector<std::string>> all = group.allGather(std::to_string(rank), "numbers");
      ASSERT_TRUE(all.ok());
      EXPECT_EQ(*all, rank < 2 ? (std::vector<std::string>{"0", "1"}) : (std::vector<std::string>{"2", "3"}));
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(LeastSquares, FindsNonNegativeCoefficients) {
  std::vector<Sample> samples;
  for (double x : {1.0, 2.0, 5.0, 9.0})
    for (double y : {1.0, 3.0, 4.0}) samples.push_back({{x, y, x * y}, 3 * x + 0.5 * x * y});
  const std::vector<double> fitted = fitNonNegative(samples);
  EXPECT_NEAR(fitted[0], 3, 1e-6);
  EXPECT_NEAR(fitted[1], 0, 1e-6);
  EXPECT_NEAR(fitted[2], 0.5, 1e-6);
  // What would be negative is left out.
  for (Sample& sample : samples) sample.seconds = std::max(2 * sample.terms[0] - 0.1 * sample.terms[1], 0.1);
  EXPECT_THAT(fitNonNegative(samples), Each(::testing::Ge(0)));
  // A sample that other load has spoilt counts little.
  for (Sample& sample : samples) sample.seconds = 2 * sample.terms[0] + sample.terms[1];
  samples[3].seconds *= 5;
  EXPECT_NEAR(fitNonNegative(samples)[0], 2, 0.05);
  // The first coefficient is a rate, and never 0.
  for (Sample& sample : samples) sample.seconds = sample.terms[1];
  EXPECT_GT(fitNonNegative(samples)[0], 0);
}

}  // namespace
}  // namespace sheaf::measure
