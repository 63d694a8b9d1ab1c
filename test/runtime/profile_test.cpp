// What instructions ask of a machine, and what a profile answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <regex>

#include "runtime/profile/Profile.h"
#include "runtime/profile/Work.h"
#include "test/runtime/TrainingPlan.h"

namespace sheaf::profile {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

plan::Operand operandOf(uint64_t bytes, plan::Access access) {
  plan::Operand operand;
  operand.set_bytes(bytes);
  operand.set_access(access);
  return operand;
}

Work workOfCall(plan::LibraryCall call, std::initializer_list<plan::Operand> operands) {
  plan::Instruction instruction;
  *instruction.mutable_call() = std::move(call);
  for (const plan::Operand& operand : operands) *instruction.add_operands() = operand;
  return workOf(instruction, plan::Plan());
}

TEST(Work, OfAProductIsItsFlopsAndOperands) {
  plan::GemmCall product{.m = 4, .n = 8, .k = 16, .batch = 2, .transposeB = true, .lda = 16, .ldb = 16, .ldc = 8};
  product.strideA = 64, product.strideB = 128, product.strideC = 32;
  const Work work = workOfCall(plan::toWire(product),
                               {operandOf(512, plan::READ), operandOf(1024, plan::READ), operandOf(256, plan::WRITE)});
  EXPECT_EQ(work.kind, Work::Kind::kGemm);
  EXPECT_EQ(work.flops, 2.0 * 4 * 8 * 16 * 2);
  EXPECT_EQ(work.bytes, 512 + 1024 + 256);
  EXPECT_TRUE(work.transposeB && !work.transposeA);
  // Without a plan it is the same.
  EXPECT_EQ(gemmWork(product).bytes, work.bytes);
  EXPECT_EQ(gemmWork(plan::F32, 4, 8, 16, 2, false, true).bytes, work.bytes);
}

TEST(Work, OfAGatherIsTheRowsThatItReads) {
  // Ten rows of a table of 1,000 rows of 64 floats.
  plan::GatherCall gather;
  gather.outer = 1, gather.rows = 1000, gather.inner = 64, gather.count = 10, gather.elementBytes = 4,
  gather.indexBytes = 8;
  auto bytes = [&] {
    const auto table = static_cast<uint64_t>(gather.rows) * 256, rows = static_cast<uint64_t>(gather.count) * 256;
    return workOfCall(plan::toWire(gather),
                      {operandOf(table, plan::READ), operandOf(static_cast<uint64_t>(gather.count) * 8, plan::READ),
                       operandOf(rows, plan::WRITE)})
        .bytes;
  };
  EXPECT_EQ(bytes(), 10 * 256 + 10 * 8 + 10 * 256);
  gather.count = 3000;
  EXPECT_EQ(bytes(), 1000 * 256 + 3000 * 8 + 3000 * 256);
}

TEST(Work, OfACallThatIsNoneIsItsBytes) {
  plan::LibraryCall call = plan::toWire(plan::GemmCall{.m = 4, .n = 8, .k = 16, .lda = 16, .ldb = 16, .ldc = 8});
  call.mutable_attributes(0)->set_integer(-4);
  const Work work = workOfCall(call, {operandOf(512, plan::READ)});
  EXPECT_EQ(work.kind, Work::Kind::kOther);
  EXPECT_EQ(work.bytes, 512);
  EXPECT_EQ(work.flops, 0);
}

TEST(Work, IsNoneBetweenRows) {
  // [8, 5] from [8, 3] and [3, 5]: rows of the left operand and the result lie 4 and 8 apart.
  const Work work = workOfCall(
      plan::toWire(plan::GemmCall{.m = 8, .n = 5, .k = 3, .lda = 4, .ldb = 5, .ldc = 8}),
      {operandOf(8 * 4 * 4, plan::READ), operandOf(3 * 5 * 4, plan::READ), operandOf(8 * 8 * 4, plan::WRITE)});
  EXPECT_EQ(work.bytes, gemmWork(plan::F32, 8, 5, 3, 1, false, false).bytes);
  plan::Plan plan;
  plan.add_kernels()->set_padding(8 * 3 * 4);
  plan::Instruction instruction;
  instruction.mutable_kernel();
  *instruction.add_operands() = operandOf(8 * 8 * 4, plan::READ);
  EXPECT_EQ(workOf(instruction, plan).bytes, 8 * 5 * 4);
}

TEST(Work, OfAttentionLeavesOutWhatACausalMaskHidesAndScratch) {
  plan::AttentionCall attention;
  attention.b = 2, attention.h = attention.g = 3, attention.s = attention.t = 64, attention.d = attention.e = 16;
  attention.causal = true, attention.scale = 0.25;
  attention.queryRow = attention.keyRow = attention.valueRow = attention.resultRow = 3 * 16;
  plan::LibraryCall call = plan::toWire(attention);
  call.set_scratch_per_thread(4096);
  const Work work =
      workOfCall(call, {operandOf(100, plan::READ), operandOf(50, plan::WRITE), operandOf(8192, plan::READ_WRITE)});
  // 1 + 2 + ... + 64 scores of a head.
  EXPECT_EQ(work.flops, 2.0 * 2 * 3 * (64 * 65 / 2) * (16 + 16));
  EXPECT_EQ(work.bytes, 150);
  // A window of 16 keys, of which the first 16 queries have 1, 2, ..., 16.
  EXPECT_EQ(attentionWork(plan::F32, 2, 3, 64, 64, 16, 16, true, false, 16).flops,
            2.0 * 2 * 3 * (48 * 16 + 16 * 17 / 2) * (16 + 16));
  EXPECT_EQ(work.batch, 6);
  const Work gradient = attentionWork(plan::BF16, 2, 3, 64, 64, 16, 16, true, true);
  EXPECT_EQ(gradient.flops, 2.5 * work.flops);
}

TEST(Work, OfAKernelIsItsBytesAndOperations) {
  plan::Plan plan;
  plan.add_kernels()->set_operations(500);
  plan::Instruction instruction;
  instruction.mutable_kernel();
  *instruction.add_operands() = operandOf(64, plan::READ_WRITE);
  const Work work = workOf(instruction, plan);
  EXPECT_EQ(work.kind, Work::Kind::kKernel);
  EXPECT_EQ(work.bytes, 128);
  EXPECT_EQ(work.flops, 500);
  instruction.mutable_record();
  EXPECT_EQ(workOf(instruction, plan).kind, Work::Kind::kNone);
}

// A machine with round figures.
std::string profileText(const std::string& collectives, const std::string& more = "") {
  return R"({"sheaf_profile": 1, "name": "test", "ranks": 4, )" + more +
         R"("memory": {"bytes": 1000, "source": "made up"},
  "compute": [{"overhead": {"seconds": 1e-6, "source": ""},
    "kernels": {"bandwidth": [[1000, 1e9], [1000000, 4e9]], "operations": 1e9, "source": ""},
    "moves": {"bandwidth": 1e9, "source": ""},
    "gemm": [{"type": "f32", "layout": "nn", "rate": 1e12, "half": [10, 0, 0], "source": ""},
             {"type": "bf16", "rate": 4e12, "half": [0, 0, 0], "source": ""}],
    "attention": [{"type": "f32", "rate": 1e12, "half_width": 16, "block": 64, "source": ""}],
    "convolution": {"part": 0.5, "source": ""}}],
  "collectives": )" +
         collectives + R"(, "slowdown": {"value": 0.25, "source": ""}})";
}

const char* const kLinks =
    R"([{"op": "any", "latency": 1e-5, "hop": 1e-6, "bandwidth": 1e9, "source": ""},
        {"op": "any", "latency": 1e-4, "bandwidth": 2e9, "source": ""}])";

Profile made(const std::string& text) {
  Expected<Profile> profile = Profile::parse(text, "test.json");
  EXPECT_TRUE(profile.ok()) << profile.status().message();
  return *profile;
}

TEST(Profile, CostsWork) {
  const Profile p = made(profileText(kLinks));
  // Overhead, then flops at a rate that is halved where m is at its half value.
  EXPECT_NEAR(p.seconds(gemmWork(plan::F32, 10, 1000, 1000, 1, false, false)), 1e-6 + 2 * 2e7 / 1e12, 1e-12);
  EXPECT_NEAR(p.seconds(gemmWork(plan::BF16, 10, 1000, 1000, 1, false, true)), 1e-6 + 2e7 / 4e12, 1e-12);
  // f64 costs as f32.
  EXPECT_EQ(p.seconds(gemmWork(plan::F64, 10, 10, 10, 1, false, false)),
            p.seconds(gemmWork(plan::F32, 10, 10, 10, 1, false, false)));
  // Bandwidth by size, unless there is more to compute.
  EXPECT_NEAR(p.seconds(movingWork(Work::Kind::kKernel, plan::F32, 1e6)), 1e-6 + 1e6 / 4e9, 1e-12);
  EXPECT_NEAR(p.seconds(movingWork(Work::Kind::kKernel, plan::F32, 31622.7766)), 1e-6 + 31622.7766 / 2.5e9, 1e-10);
  EXPECT_NEAR(p.seconds(movingWork(Work::Kind::kKernel, plan::F32, 10, 1e6)), 1e-6 + 1e-3, 1e-12);
  // Tiles on the diagonal of a causal mask are computed whole.
  const Work attention = attentionWork(plan::F32, 1, 1, 64, 64, 16, 16, true, false);
  EXPECT_NEAR(p.seconds(attention), 1e-6 + attention.flops / 1e12 * 2 * 2, 1e-12);
  EXPECT_EQ(p.seconds(Work()), 0);
  EXPECT_EQ(p.slowdown(), 0.25);
}

TEST(Profile, HasBestRatesThatNoWorkExceeds) {
  const Profile p = made(profileText(kLinks));
  EXPECT_EQ(p.bestProductRate(plan::F32, false), 1e12);
  EXPECT_EQ(p.bestProductRate(plan::BF16, false), 4e12);
  EXPECT_EQ(p.bestProductRate(plan::F64, false), 1e12);
  EXPECT_EQ(p.bestMemoryBandwidth(), 4e9);
  EXPECT_EQ(p.bestLinkBandwidth(4), 2e9);
  // Attention may be faster than other products, and a measured shape faster than the rate.
  const std::string fast = std::regex_replace(profileText(kLinks), std::regex(R"("rate": 1e12, "half_width")"),
                                              R"("rate": 3e12, "half_width")");
  EXPECT_EQ(made(fast).bestProductRate(plan::F32, false), 3e12);
  const std::string shaped = std::regex_replace(profileText(kLinks), std::regex(R"("half": \[0, 0, 0\])"),
                                                R"("half": [0, 0, 0], "shapes": [[64, 64, 64, 0.5], [8, 8, 8, 2]])");
  const Profile s = made(shaped);
  EXPECT_EQ(s.bestProductRate(plan::BF16, false), 8e12);
  const Work product = gemmWork(plan::BF16, 64, 64, 64, 1, false, false);
  EXPECT_GT(s.seconds(product), product.flops / 8e12);
  EXPECT_LT(s.seconds(product) - 1e-6, product.flops / 7.9e12);
}

TEST(Profile, SharesTheBestRatesOfAMachine) {
  // Four ranks of a thread each on two cores compute at half the rate.
  const Profile p = *made(profileText(kLinks, R"("cores": 2, )")).withRanks(4);
  EXPECT_EQ(p.bestProductRate(plan::F32, false), 0.5e12);
  EXPECT_EQ(p.bestMemoryBandwidth(), 2e9);
}

TEST(Profile, TakesTheQuickestWayOfACollective) {
  const Profile p = made(profileText(kLinks));
  EXPECT_NEAR(p.seconds(Transfer{plan::ALL_GATHER, 4000, 4}), 1e-5 + 3e-6 + 3000 / 1e9, 1e-12);
  EXPECT_NEAR(p.seconds(Transfer{plan::ALL_GATHER, 4000000, 4}), 1e-4 + 3e6 / 2e9, 1e-9);
  EXPECT_NEAR(p.seconds(Transfer{plan::ALL_REDUCE, 4000, 4}), 1e-5 + 6e-6 + 6000 / 1e9, 1e-12);
  EXPECT_EQ(p.seconds(Transfer{plan::ALL_GATHER, 4000, 1}), 1e-6);
}

TEST(Profile, KnowsNodesAndNetworks) {
  const std::string links =
      R"([{"op": "any", "latency": 0, "hop": 1e-6, "bandwidth": 1e9, "source": ""},
          {"op": "any", "network": true, "latency": 0, "hop": 1e-6, "network_hop": 1e-5, "bandwidth": 1e8, "source": ""}])";
  const Profile p = made(profileText(links, R"("ranks_per_node": 2, )"));
  EXPECT_NEAR(p.seconds(Transfer{plan::ALL_GATHER, 2000, 2}), 1e-6 + 1000 / 1e9, 1e-12);
  EXPECT_NEAR(p.seconds(Transfer{plan::ALL_GATHER, 8000, 8}), 4e-6 + 3e-5 + 7000 / 1e8, 1e-12);
  EXPECT_TRUE(p.withRanks(64).ok());
  EXPECT_THAT(made(profileText(kLinks)).withRanks(5).status().message(),
              AllOf(HasSubstr("one node of 4 ranks"), HasSubstr("such as h100")));
}

// Eight ranks, four a node, that send 6e8 bytes a second together over the network.
TEST(Profile, SharesTheNetworkAmongGroupsOfOneRankANode) {
  const std::string links =
      R"([{"op": "any", "latency": 0, "hop": 1e-6, "bandwidth": 1e9, "source": ""},
          {"op": "any", "network": true, "latency": 0, "hop": 1e-6, "network_hop": 1e-5, "bandwidth": 4e8,
           "network_share": 1.5e8, "source": ""}])";
  const Profile p = *made(profileText(links, R"("ranks_per_node": 4, )")).withRanks(32);
  // One rank of each of eight nodes.
  EXPECT_NEAR(p.seconds(Transfer{plan::ALL_GATHER, 8000, 8, 4}), 7e-5 + 7000 / 1.5e8, 1e-12);
  EXPECT_NEAR(p.seconds(Transfer{plan::ALL_REDUCE, 8000, 8, 4}), 14e-5 + 14000 / 1.5e8, 1e-12);
  // The ranks of a node by themselves.
  EXPECT_NEAR(p.seconds(Transfer{plan::ALL_GATHER, 4000, 4, 1}), 3e-6 + 3000 / 1e9, 1e-12);
  // Every second rank of two nodes: two of each, with two shares.
  EXPECT_NEAR(p.seconds(Transfer{plan::ALL_GATHER, 4000, 4, 2}), 2e-6 + 1e-5 + 3000 / 3e8, 1e-12);
  // Two of a node; every second node.
  EXPECT_NEAR(p.seconds(Transfer{plan::ALL_GATHER, 2000, 2, 2}), 1e-6 + 1000 / 1e9, 1e-12);
  EXPECT_NEAR(p.seconds(Transfer{plan::ALL_GATHER, 4000, 4, 8}), 3e-5 + 3000 / 1.5e8, 1e-12);
  // All ranks have the bandwidth that was measured for them, not four shares.
  EXPECT_NEAR(p.seconds(Transfer{plan::ALL_GATHER, 32000, 32, 1}), 24e-6 + 7e-5 + 31000 / 4e8, 1e-12);
  EXPECT_EQ(p.bestNetworkBandwidth(), 6e8);
  // Without a share, an equal part of the bandwidth.
  const std::string without = std::regex_replace(links, std::regex(R"("network_share": 1.5e8,)"), "");
  const Profile equal = *made(profileText(without, R"("ranks_per_node": 4, )")).withRanks(32);
  EXPECT_NEAR(equal.seconds(Transfer{plan::ALL_GATHER, 8000, 8, 4}), 7e-5 + 7000 / 1e8, 1e-12);
  EXPECT_EQ(equal.bestNetworkBandwidth(), 4e8);
  // Computation may be slowed down less while only the network is in use.
  EXPECT_EQ(p.networkSlowdown(), 0.25);
  const std::string network = R"("slowdown": {"network": 0.1, )";
  const Profile less = made(
      std::regex_replace(profileText(without, R"("ranks_per_node": 4, )"), std::regex(R"("slowdown": \{)"), network));
  EXPECT_EQ(less.networkSlowdown(), 0.1);
  EXPECT_EQ(less.slowdown(), 0.25);
  EXPECT_EQ(json::write(made(json::write(less.toJson())).toJson()), json::write(less.toJson()));
  // What is written is read again.
  EXPECT_EQ(json::write(made(json::write(p.toJson())).toJson()), json::write(p.toJson()));
  auto refused = [&](const char* from, const char* to) {
    const std::string changed = std::regex_replace(links, std::regex(from), to);
    return Profile::parse(profileText(changed, R"("ranks_per_node": 4, )"), "p").status().message();
  };
  EXPECT_THAT(refused("1.5e8", "5e7"), HasSubstr("collectives[1].network_share: the 4 ranks of a node would send"));
  EXPECT_THAT(refused("1.5e8", "0"), HasSubstr("collectives[1].network_share: expected a number"));
  EXPECT_THAT(refused(R"("bandwidth": 1e9,)", R"("bandwidth": 1e9, "network_share": 1e9,)"),
              HasSubstr("collectives[0].network_share: is of collectives between nodes"));
}

TEST(Profile, OfATypeOfMachineIsGoodForAnyNumberOfNodes) {
  const std::string links =
      R"([{"op": "any", "latency": 0, "hop": 1e-6, "bandwidth": 1e9, "source": ""},
          {"op": "any", "network": true, "latency": 0, "network_hop": 1e-5, "bandwidth": 1e8, "source": ""}])";
  std::string text = profileText(links, R"("ranks_per_node": 2, )");
  text.replace(text.find(R"("ranks": 4, )"), 12, "");
  const Profile p = made(text);
  EXPECT_EQ(p.ranks(), 2);
  EXPECT_EQ(p.withRanks(64)->ranks(), 64);
  // A node needs no network, and several do.
  const std::string node = R"([{"op": "any", "latency": 0, "bandwidth": 1e9, "source": ""}])";
  text = profileText(node, R"("ranks_per_node": 2, )");
  text.replace(text.find(R"("ranks": 4, )"), 12, "");
  EXPECT_FALSE(made(text).withRanks(64).ok());
}

TEST(Profile, SharesTheCoresOfOneMachine) {
  const Profile two = *made(profileText(kLinks, R"("cores": 4, )")).withRanks(2);
  const Profile eight = *two.withRanks(8);
  const Work work = movingWork(Work::Kind::kOther, plan::F32, 1e6);
  EXPECT_NEAR(eight.seconds(work), 2 * two.seconds(work), 1e-12);
  // Two ranks of one thread leave two cores for collectives' threads; eight leave none.
  EXPECT_EQ(two.slowdown(), 0.25);
  EXPECT_GT(eight.slowdown(), 100);
  EXPECT_NEAR(made(profileText(kLinks, R"("cores": 4, )")).withRanks(3)->slowdown(), 1.25 * 3 - 1, 1e-12);
}

// Four ranks move twice as much as one at the same time, and two less than that.
TEST(Profile, SharesADisk) {
  std::string text = profileText(kLinks, R"("cores": 4, )");
  const std::string slowdown = R"("slowdown": {)", convolution = R"("convolution")";
  auto put = [&](const std::string& before, const std::string& more) { text.insert(text.find(before), more); };
  put(slowdown,
      R"("transfers": [{"kind": "read_file", "latency": 1e-4, "bandwidth": 1e9, "at_once": {"ranks": 4, "times": 2}, "source": "s"},
                  {"kind": "write_file", "latency": 0, "bandwidth": 1e9, "source": "s"}], )");
  put(convolution, R"("files": {"slowdown": [[65536, 1], [1048576, 0.5]], "source": "s"}, )");
  const Profile p = made(text);
  EXPECT_EQ(json::write(made(json::write(p.toJson())).toJson()), json::write(p.toJson()));
  auto seconds = [&](int64_t ranks, plan::Transfer::Kind kind) { return p.withRanks(ranks)->seconds(kind, 1000000); };
  EXPECT_NEAR(seconds(1, plan::Transfer::READ_FILE), 1e-4 + 1e-3, 1e-9);
  EXPECT_NEAR(seconds(2, plan::Transfer::READ_FILE), 1e-4 + 1e-3 * 2 / std::sqrt(2), 1e-9);
  EXPECT_NEAR(seconds(4, plan::Transfer::READ_FILE), 1e-4 + 1e-3 * 4 / 2, 1e-9);
  EXPECT_NEAR(seconds(8, plan::Transfer::READ_FILE), 1e-4 + 1e-3 * 8 / 2, 1e-9);
  EXPECT_NEAR(seconds(4, plan::Transfer::WRITE_FILE), 4e-3, 1e-9);
  // A disk that serves four ranks as fast as one serves two as fast.
  text.replace(text.find(R"("times": 2)"), 10, R"("times": 4)");
  for (const int64_t ranks : {1, 2, 3, 4})
    EXPECT_NEAR(made(text).withRanks(ranks)->seconds(plan::Transfer::READ_FILE, 1000000), 1e-4 + 1e-3, 1e-9);
  // Where ranks leave cores, those serve the files.
  EXPECT_EQ(p.withRanks(2)->fileSlowdown(65536), 0);
  EXPECT_EQ(p.withRanks(4)->fileSlowdown(65536), 1);
  EXPECT_EQ(p.withRanks(8)->fileSlowdown(8 << 20), 0.5);
  EXPECT_EQ(made(profileText(kLinks, R"("cores": 4, )")).fileSlowdown(65536), 0);
}

struct Refusal {
  const char *name, *from, *to, *message;
};
const Refusal kRefusals[] = {
    {"Format", R"("sheaf_profile": 1)", R"("sheaf_profile": 2)", "test.json: sheaf_profile: "},
    {"Missing", R"("name": "test", )", "", "name: is missing"},
    {"Misspelt", R"("convolution")", R"("convolutoin")",
     "compute[0].convolutoin: unknown key; did you mean convolution?"},
    {"Range", R"("rate": 4e12)", R"("rate": -4)", "compute[0].gemm[1].rate: expected a number from"},
    {"Type", R"("type": "bf16")", R"("type": "bf17")", "compute[0].gemm[1].type: 'bf17' is not one of f32"},
    {"Half", "[10, 0, 0]", "[10, 0]", "compute[0].gemm[0].half: expected three numbers"},
    {"Shapes", "[10, 0, 0]", R"([10, 0, 0], "shapes": [[1, 2, 3]])",
     "compute[0].gemm[0].shapes[0]: expected [m, n, k, factor]"},
    {"Factor", "[10, 0, 0]", R"([10, 0, 0], "shapes": [[1, 2, 3, 0]])",
     "compute[0].gemm[0].shapes[0][3]: expected a number"},
    {"Epilogues", R"("convolution")", R"("epilogues": {"source": ""}, "convolution")",
     "compute[0].epilogues.bandwidth: is missing"},
    {"Order", "[1000000, 4e9]", "[10, 4e9]", "sizes must increase"},
    {"Pair", "[1000000, 4e9]", "[1000000]", "compute[0].kernels.bandwidth[1]: expected a pair"},
    {"Ranks", R"("ranks": 4)", R"("ranks": 0)", "ranks: expected an integer from 1"},
    {"Op", R"("op": "any", "latency": 1e-5)", R"("op": "all", "latency": 1e-5)",
     "collectives[0].op: 'all' is not one of any"},
    {"NoList", R"("overhead": {"seconds": 1e-6, "source": ""})", R"("overhead": [])",
     "compute[0].overhead: expected an object"},
    {"Network", R"("ranks": 4, )", R"("ranks": 4, "ranks_per_node": 2, )", "need an entry with \"network\": true"},
    {"Persist", R"("slowdown": {)", R"("persist": {"seconds": -1, "source": ""}, "slowdown": {)",
     "persist.seconds: expected a number from 0"},
    {"AtOnce", R"("slowdown": {)",
     R"("transfers": [{"kind": "read_file", "latency": 0, "bandwidth": 1e9, "at_once": {"ranks": 4, "times": 5}, "source": ""}], "slowdown": {)",
     "transfers[0].at_once.times: expected a number from 1 to 4"},
    {"AtOnceOfADevice", R"("slowdown": {)",
     R"("transfers": [{"kind": "to_host", "latency": 0, "bandwidth": 1e9, "at_once": {"ranks": 4, "times": 2}, "source": ""}], "slowdown": {)",
     "transfers[0].at_once: is of files"},
    {"FilesOfAGpu", R"("convolution")", R"("files": {"slowdown": 1, "source": ""}, "convolution")",
     "compute[0].files: is of ranks that share cores"},
    {"Files", R"("convolution")", R"("files": {"slowdown": -1, "source": ""}, "convolution")",
     "compute[0].files.slowdown: expected a number from 0"},
    {"FilesPair", R"("convolution")", R"("files": {"slowdown": [[1]], "source": ""}, "convolution")",
     "compute[0].files.slowdown[0]: expected a pair [bytes, a slowdown]"},
    {"Json", R"("ranks": 4)", R"("ranks" 4)", "a profile is a JSON object"},
};

class ProfileRefuses : public ::testing::TestWithParam<Refusal> {};

TEST_P(ProfileRefuses, NamingKeyAndRemedy) {
  std::string text = profileText(kLinks);
  const size_t at = text.find(GetParam().from);
  ASSERT_NE(at, std::string::npos);
  text.replace(at, std::string(GetParam().from).size(), GetParam().to);
  EXPECT_THAT(Profile::parse(text, "test.json").status().message(),
              AllOf(HasSubstr("test.json"), HasSubstr(GetParam().message)));
}

INSTANTIATE_TEST_SUITE_P(, ProfileRefuses, ::testing::ValuesIn(kRefusals),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Profile, KnowsWhatWasMeasuredOfProductsNearby) {
  // Where no factor is near, a GPU's formula: an idle part for few results.
  std::string text = profileText(kLinks);
  const std::string bf16 = R"("rate": 4e12, "half": [0, 0, 0])";
  text.replace(text.find(bf16), bf16.size(),
               bf16 + R"(, "half_results": 1000, "shapes": [[512, 512, 64, 1.5], [512, 512, 128, 0.5]])");
  const Profile p = made(text);
  auto factor = [&](int64_t m, int64_t n, int64_t k) {
    const Work work = gemmWork(plan::BF16, m, n, k, 1, false, false);
    const double alone = work.flops / 4e12 * (1 + 1000.0 / static_cast<double>(m * n));
    return (p.seconds(work) - 1e-6) / alone;
  };
  EXPECT_NEAR(factor(512, 512, 64), 1.5, 1e-4);
  EXPECT_NEAR(factor(512, 512, 128), 0.5, 1e-4);
  EXPECT_NEAR(factor(4096, 512, 64), 1, 1e-9);
  EXPECT_NEAR(factor(10, 10, 10), 1, 1e-9);
  EXPECT_GT(factor(600, 512, 64), 1.1);
  EXPECT_LT(factor(600, 512, 64), 1.5);
  // What is read is what is written.
  const std::string written = json::write(p.toJson());
  EXPECT_EQ(json::write(made(written).toJson()), written);
}

TEST(Profile, OfOneRankNeedsNoCollectives) {
  std::string text = profileText("[]");
  text.replace(text.find(R"("collectives": [], )"), 19, "");
  text.replace(text.find(R"("ranks": 4)"), 10, R"("ranks": 1)");
  const Profile p = made(text);
  EXPECT_EQ(p.seconds(Transfer{plan::ALL_GATHER, 100, 1}), 1e-6);
  EXPECT_THAT(p.withRanks(2).status().message(), AllOf(HasSubstr("no \"collectives\""), HasSubstr("--ranks 2")));
  const std::string written = json::write(p.toJson());
  EXPECT_EQ(json::write(made(written).toJson()), written);
  // Neither does that of a machine whose ranks share its cores, where nothing says how many a node has.
  text.replace(text.find(R"("ranks": 1)"), 10, R"("ranks": 1, "cores": 4)");
  const Profile machine = made(text);
  EXPECT_TRUE(machine.withRanks(1).ok());
  EXPECT_THAT(machine.withRanks(4).status().message(), AllOf(HasSubstr("no \"collectives\""), HasSubstr("--ranks 4")));
  EXPECT_EQ(json::write(made(json::write(machine.toJson())).toJson()), json::write(machine.toJson()));
}

TEST(Profile, NeedsAWayForEveryCollective) {
  EXPECT_THAT(
      Profile::parse(profileText(R"([{"op": "all_gather", "latency": 0, "bandwidth": 1e9, "source": ""}])"), "p")
          .status()
          .message(),
      HasSubstr("no entry for reduce_scatter within a node"));
}

}  // namespace
}  // namespace sheaf::profile
