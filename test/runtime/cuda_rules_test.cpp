// Tests of the device under CUDA's rules about threads, contexts and drivers, which the double enforces
// (docs/cuda-emulation.md).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <utility>

#include "test/runtime/CudaProcesses.h"
#include "test/runtime/Deadline.h"
#include "test/runtime/TrainingPlan.h"
#include "test/runtime/Transfers.h"

namespace sheaf::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A plan with memory in all spaces, a collective and a copy.
struct RulesPlan {
  RulesPlan() {
    builder.plan.set_ranks(2);
    sum = builder.buffer(256), copied = builder.buffer(256);
    host = bufferIn(builder, plan::Buffer::HOST, 256), file = bufferIn(builder, plan::Buffer::FILE, 4096);
    builder.collective(plan::ALL_REDUCE, plan::F32, 64, builder.operand(sum, plan::READ_WRITE),
                       builder.operand(sum, plan::READ_WRITE), 0, 0);
    builder.call(plan::CopyCall{.elementBytes = 1, .dimensions = {{256, 1, 1}}},
                 {builder.operand(sum, plan::READ), builder.operand(copied, plan::WRITE)}, "copy");
  }

  PlanBuilder builder;
  uint32_t sum, copied, host, file;
};

// Every function of a rank is called by a thread that has chosen no device, as CUDA gives it: one that made a CUDA call
// before it chose the rank's GPU would open a context on the first one.
TEST(CudaRules, EveryThreadUsesTheGpuOfItsRank) {
  expectEnds(std::chrono::seconds(120), [] {
    const RulesPlan plan;
    const plan::Plan& made = plan.builder.plan;
    TemporaryFolder folder;
    DeviceOptions options;
    options.offloadFolders = {folder.path()};
    options.poison = true;
    auto processes = std::make_unique<Processes>(made, 2, options);
    if (::testing::Test::HasFailure()) return;
    std::vector<std::byte> bytes(64);
    std::vector<std::unique_ptr<Burst>> bursts(2);
    const plan::Instruction* const copy[] = {&made.body(1)};
    using Call = std::function<Status(RankContext&, size_t rank)>;
    const std::pair<const char*, Call> calls[] = {
        {"poll", [](RankContext& r, size_t) { return r.poll(); }},
        {"issue", [&](RankContext& r, size_t) { return r.issue(made.body(1), std::make_shared<StepValues>()); }},
        {"poll", [](RankContext& r, size_t) { return r.poll(); }},
        {"synchronize", [](RankContext& r, size_t) { return r.synchronize(); }},
        {"read", [&](RankContext& r, size_t) { return r.read(0, bytes); }},
        {"write", [&](RankContext& r, size_t) { return r.write(0, bytes); }},
        {"readSpace", [&](RankContext& r, size_t) { return r.readSpace(plan::Buffer::HOST, 0, bytes); }},
        {"writeSpace", [&](RankContext& r, size_t) { return r.writeSpace(plan::Buffer::FILE, 0, bytes); }},
        {"writeChecksum", [](RankContext& r, size_t) { return r.writeChecksum(); }},
        {"verifyChecksum", [](RankContext& r, size_t) { return r.verifyChecksum(); }},
        {"oddGeneration", [](RankContext& r, size_t) { return r.oddGeneration() ? Status::error("odd") : Status(); }},
        {"highestTouchedByte", [](RankContext& r, size_t) { return (void)r.highestTouchedByte(), Status(); }},
        {"prepare",
         [&](RankContext& r, size_t rank) {
           auto burst = r.prepare(copy);
           if (burst.ok()) bursts[rank] = std::move(*burst);
           return burst.status();
         }},
        {"run a burst", [&](RankContext&, size_t rank) { return bursts[rank]->run().status(); }},
        {"destroy a burst", [&](RankContext&, size_t rank) { return bursts[rank].reset(), Status(); }},
    };
    for (const auto& [name, call] : calls)
      for (size_t rank : {1, 0}) {
        SCOPED_TRACE(std::string(name) + " of rank " + std::to_string(rank));
        Status status;
        std::thread([&, &call = call] { status = call(processes->rank(rank), rank); }).join();
        EXPECT_TRUE(status.ok()) << status.message();
      }
    std::thread([&] { processes->rank(1).abort("the host gave up"); }).join();
    std::thread([&] { EXPECT_THAT(processes->rank(1).poll().message(), HasSubstr("the host gave up")); }).join();
    processes.reset();  // by threads of their own
  });
}

// A call that a capture prohibits spoils it, even if its own error is ignored: the step is not run from a graph that
// lacks something.
TEST(CudaRules, ASpoiledCaptureIsAnError) {
  const PlanBuilder builder = inputAndCopy();
  Contexts contexts = openCuda(builder.plan);
  ASSERT_EQ(contexts.size(), 1u);
  auto results = runBodies(builder.plan, contexts, 6, [&](int round) {
    auto values = std::make_shared<StepValues>();
    values->readInput = [&, round](int64_t, uint32_t, std::span<std::byte> destination) {
      std::vector<std::byte> some(8);
      if (round == 3) (void)contexts[0]->read(0, some);  // a copy that waits, in the second capture
      std::fill(destination.begin(), destination.end(), std::byte{1});
      return Status();
    };
    return values;
  });
  EXPECT_THAT(results[0].message(), HasSubstr("rank 0: body instruction 0 (read_input 'tokens' on stream compute): "));
  EXPECT_THAT(results[0].message(), HasSubstr("operation failed due to a previous error during capture"));
}

// The error with which a plan with machine code of this toolkit opens on a machine whose driver is for this CUDA.
std::string errorWith(const char* toolkit, const char* driver) {
  Variable emulated("SHEAF_EMULATED_DRIVER", driver);
  PlanBuilder builder;
  builder.buffer(64);
  for (const char* target : {"cuda:sm_90", "cpu"}) {
    plan::KernelImage* image = builder.plan.add_images();
    image->set_target(target);
    image->add_entries();
    image->set_code(std::string(1, '\xc3'));
    if (image->target() != "cpu") image->set_toolkit(toolkit);
  }
  builder.plan.add_kernels()->set_symbol("nothing");
  return cudaOpenError(builder.plan);
}

// A driver runs machine code of its own major version and of older ones.
TEST(CudaRules, MachineCodeThatIsNewerThanTheDriverIsNamed) {
  for (const auto& [toolkit, driver] :
       {std::pair("", "13000"), {"12.8", "13000"}, {"13.0", "13000"}, {"13.2", "13000"}, {"14.0", "14010"}})
    EXPECT_EQ(errorWith(toolkit, driver), "") << toolkit << " on " << driver;
  EXPECT_THAT(errorWith("14.1", "13000"),
              AllOf(HasSubstr("cannot load the plan's kernels for cuda:sm_90: "),
                    HasSubstr("their machine code was made by ptxas of CUDA 14.1, and the driver is for CUDA 13.0: "
                              "install a driver for CUDA 14, or compile the plan with a toolkit of CUDA 13 (CUDA_HOME "
                              "names its folder)")));
  EXPECT_THAT(
      errorWith("12.8", "11080"),
      AllOf(HasSubstr("there is no GPU to run on: the driver is for CUDA 11.8, and the device library for CUDA 1"),
            HasSubstr(": install a newer driver, or a library built with an older toolkit")));
}

}  // namespace
}  // namespace sheaf::testing
