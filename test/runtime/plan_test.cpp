// Plan files, their verification and their summary.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "runtime/base/Hash.h"
#include "runtime/base/Text.h"
#include "runtime/plan/PlanFile.h"
#include "runtime/plan/RankMemory.h"
#include "runtime/plan/Summary.h"
#include "runtime/plan/Verify.h"
#include "runtime/plan/Words.h"
#include "test/runtime/TrainingPlan.h"

namespace sheaf {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TemporaryFolder;
using testing::TrainingPlan;

std::span<const std::byte> bytesOf(const std::string& text) {
  return std::as_bytes(std::span(text));
}

TEST(PlanFile, ReadsBackWhatWasWritten) {
  TemporaryFolder folder;
  TrainingPlan made(2, 3, 8);
  ASSERT_TRUE(plan::writePlan(folder / "a.plan", made.plan).ok());
  auto read = plan::readPlan(folder / "a.plan");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ((*read)->SerializeAsString(), made.plan.SerializeAsString());
  EXPECT_EQ(testing::readFile(folder / "a.plan"), *plan::serializePlan(**read));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(PlanFile, RefusesDamage) {
  std::string file = *plan::serializePlan(TrainingPlan(2, 3, 8).plan);
  auto refused = [](const std::string& bytes) { return plan::parsePlan(bytesOf(bytes)).status().message(); };
  EXPECT_EQ(refused(file), "");
  for (size_t size : {size_t{0}, size_t{7}, size_t{31}, size_t{32}, file.size() - 1})
    EXPECT_NE(refused(file.substr(0, size)), "") << size;
  EXPECT_THAT(refused(file + "x"), HasSubstr("followed by"));
  for (size_t at = 0; at < file.size(); at += 13) {
    std::string damaged = file;
    damaged[at] ^= 0x20;
    EXPECT_NE(refused(damaged), "") << at;
  }
}

TEST(PlanFile, RefusesOtherVersions) {
  std::string file = *plan::serializePlan(TrainingPlan(2, 3, 8).plan);
  auto refused = [&](char version) {
    file[8] = version;
    return plan::parsePlan(bytesOf(file)).status().message();
  };
  EXPECT_EQ(refused(2),
            "plan version 2 (made by an older sheaf); this program reads versions 3 and 4: compile the model again");
  EXPECT_EQ(refused(5),
            "plan version 5 (made by a newer sheaf); this program reads versions 3 and 4: compile the model again");
}

TEST(PlanFile, MissingFolderIsAnError) {
  EXPECT_THAT(plan::writePlan("/nonexistent/a.plan", TrainingPlan(1, 0, 2).plan).message(), HasSubstr("/nonexistent"));
}

TEST(Words, AreThoseOfTheProto) {
  EXPECT_THAT(plan::words<plan::Training::OnNan>(), ElementsAre("stop", "skip"));
  EXPECT_THAT(plan::words<plan::Collective::Phase>(), ElementsAre("forward", "backward", "update"));
  EXPECT_EQ(plan::word(plan::StepScalar::LR_OVER_BIAS_CORRECTION), "lr_over_bias_correction");
  EXPECT_EQ(plan::word(plan::BUFFER_KIND_UNSPECIFIED), "unspecified");
  EXPECT_EQ(plan::word(plan::BufferKind(99)), "unspecified");
  EXPECT_EQ(plan::word(plan::BufferKind(-1)), "unspecified");
  EXPECT_EQ(plan::valueOf<plan::ElementType>("bf16"), plan::BF16);
  for (const char* none : {"", "unspecified", "element_type_unspecified", "BF16", "bf"})
    EXPECT_EQ(plan::valueOf<plan::ElementType>(none), std::nullopt) << none;
}

TEST(Verify, TakesEveryStage) {
  for (int64_t ranks : {1, 2, 4})
    for (int stage = 0; stage <= 3; ++stage)
      EXPECT_EQ(plan::verifyPlan(TrainingPlan(ranks, stage, 8).plan).message(), "")
          << ranks << " ranks, stage " << stage;
}

// What a plan of two ranks at stage 3 may be changed into, and what the verifier must say about it.
struct Mutant {
  const char* name;
  std::function<void(plan::Plan&)> change;
  const char* message;
};

plan::Instruction& first(plan::Plan& plan, plan::Instruction::KindCase kind) {
  for (plan::Instruction& instruction : *plan.mutable_body())
    if (instruction.kind_case() == kind) return instruction;
  return *plan.mutable_body(0);
}

plan::Instruction& collective(plan::Plan& plan) {
  return first(plan, plan::Instruction::kCollective);
}
plan::Instruction& kernel(plan::Plan& plan) {
  return first(plan, plan::Instruction::kKernel);
}

// A copied tensor with the bytes of a parameter.
plan::Parameter& copied(plan::Plan& plan) {
  plan::Parameter& tensor = *plan.add_copied();
  tensor = plan.parameters(0);
  tensor.set_name("unread");
  return tensor;
}

TEST(Verify, CopiedTensorsMayHaveNoElementsAndNoBytes) {
  TrainingPlan made(2, 3, 8);
  copied(made.plan);
  plan::Parameter& empty = *made.plan.add_copied();
  empty.set_name("empty");
  empty.set_type(plan::I64);
  empty.add_shape(0);
  EXPECT_EQ(plan::verifyPlan(made.plan).message(), "");
}

class Mutants : public ::testing::TestWithParam<Mutant> {};

TEST_P(Mutants, AreRefused) {
  TrainingPlan made(2, 3, 8);
  GetParam().change(made.plan);
  EXPECT_THAT(plan::verifyPlan(made.plan).message(), HasSubstr(GetParam().message));
}

const Mutant kMutants[] = {
    {"Version", [](auto& p) { p.set_version(7); }, "plan version 7 (made by a newer sheaf)"},
    {"NoRanks", [](auto& p) { p.set_ranks(0); }, "ranks"},
    {"ManyRanks", [](auto& p) { p.set_ranks(int64_t{1} << 40); }, "ranks"},
    {"Stage", [](auto& p) { p.set_zero_stage(4); }, "zero_stage"},
    {"StageThatDoesNotShard", [](auto& p) { p.set_zero_stage(2); }, "does not shard parameters"},
    {"StageWithoutShardedState", [](auto& p) { p.set_zero_stage(0); }, "optimizer state"},
    {"Batch", [](auto& p) { p.set_batch(7); }, "batch"},
    {"Threads", [](auto& p) { p.set_max_threads(0); }, "max_threads"},
    {"NoStreams", [](auto& p) { p.clear_streams(); }, "streams"},
    {"BufferKind", [](auto& p) { p.mutable_buffers(0)->set_kind(plan::BufferKind(17)); }, "kind"},
    {"BufferAlignment", [](auto& p) { p.mutable_buffers(2)->set_offset(p.buffers(2).offset() + 64); },
     "multiple of 128"},
    {"BufferOverflow", [](auto& p) { p.mutable_buffers(2)->set_offset(~uint64_t{127}); }, "out of range"},
    {"Peak", [](auto& p) { p.mutable_memory()->set_peak_bytes(p.memory().peak_bytes() + 128); }, "peak_bytes"},
    {"SharedPersistent", [](auto& p) { p.mutable_buffers(3)->set_offset(0); }, "persistent"},
    {"AbsolutePath", [](auto& p) { p.mutable_files(0)->set_path("/etc/passwd"); }, "absolute"},
    {"EmptyPath", [](auto& p) { p.mutable_files(0)->set_path(""); }, "path"},
    {"SourceFile", [](auto& p) { p.mutable_parameters(0)->mutable_source()->set_file(3); },
     "source file index 3 is out of range: the plan has 1"},
    {"SourceLength", [](auto& p) { p.mutable_parameters(0)->mutable_source()->set_length(190); },
     "its shape needs 192"},
    {"SourceOutside", [](auto& p) { p.mutable_files(0)->set_size(100); }, "outside file"},
    {"ParameterBucket", [](auto& p) { p.mutable_parameters(0)->set_bucket(1); }, "bucket"},
    {"ParameterOutside", [](auto& p) { p.mutable_parameters(1)->set_offset(128); }, "outside bucket"},
    {"ParameterOverlap", [](auto& p) { p.mutable_parameters(1)->set_offset(32); }, "overlaps"},
    {"ParameterAlignment", [](auto& p) { p.mutable_parameters(1)->set_offset(65); }, "start at"},
    {"ParameterShape", [](auto& p) { p.mutable_parameters(0)->set_shape(0, int64_t{1} << 60); }, "shape"},
    {"ParameterTwice", [](auto& p) { p.mutable_parameters(1)->set_name("w"); }, "taken"},
    {"Permutation", [](auto& p) { p.mutable_parameters(0)->set_permutation(0, 0); }, "permutation"},
    {"BucketElements", [](auto& p) { p.mutable_buckets(0)->set_elements(127); },
     "127 elements are not a positive multiple of the 2 ranks"},
    {"SourceType", [](auto& p) { p.mutable_parameters(0)->set_source_type(plan::BF16); }, "its shape needs 96"},
    {"SourceInteger", [](auto& p) { p.mutable_parameters(0)->set_source_type(plan::I32); },
     "its source is of type i32"},
    {"CopiedName", [](auto& p) { copied(p).set_name(p.parameters(1).name()); }, "its name is empty or taken"},
    {"CopiedTwice", [](auto& p) { copied(p), copied(p); }, "copied tensor 1 'unread'"},
    {"CopiedType", [](auto& p) { copied(p).clear_type(); }, "its type is not known"},
    {"CopiedShape", [](auto& p) { copied(p).set_shape(0, -1); }, "its shape is"},
    {"CopiedPermutation", [](auto& p) { copied(p).set_permutation(0, 0); }, "permutation"},
    {"CopiedFile", [](auto& p) { copied(p).mutable_source()->set_file(3); }, "its source file"},
    {"CopiedLength", [](auto& p) { copied(p).mutable_source()->set_length(4); }, "its source has 4 bytes"},
    {"MasterMissing", [](auto& p) { p.mutable_buckets(0)->set_type(plan::BF16); }, "without master weights"},
    {"MasterTwice", [](auto& p) { p.mutable_buckets(0)->set_master(true); }, "keeps the same again"},
    {"MasterWithoutState",
     [](auto& p) {
       p.mutable_buckets(0)->set_type(plan::BF16);
       p.mutable_buckets(0)->set_master(true);
       p.mutable_buckets(0)->clear_states();
     },
     "no state that could hold"},
    {"GradientType", [](auto& p) { p.mutable_buckets(0)->set_gradient_type(plan::I64); }, "gradients are of type i64"},
    {"GradientBytes", [](auto& p) { p.mutable_buckets(0)->set_gradient_type(plan::F64); }, "its gradient has"},
    {"SourceHashes",
     [](auto& p) {
       for (int i = 0; i < 2; ++i) p.mutable_parameters(1)->mutable_source()->add_hashes(7);
     },
     "parameter 1 'b': its source has hashes of 2 pieces, it consists of 1"},
    {"MemoryByKindMissing", [](auto& p) { p.mutable_memory()->clear_by_kind(); },
     "memory.by_kind: no bytes of parameters are declared, and buffer 'parameters' has some"},
    {"MemoryKindMissing",
     [](auto& p) {
       auto& kinds = *p.mutable_memory()->mutable_by_kind();
       for (int i = 0; i < kinds.size(); ++i)
         if (kinds[i].kind() == plan::ACTIVATIONS) kinds.DeleteSubrange(i, 1);
     },
     "memory.by_kind: no bytes of activations are declared"},
    {"MemoryKindTwice", [](auto& p) { *p.mutable_memory()->add_by_kind() = p.memory().by_kind(0); },
     "the bytes of parameters are declared twice"},
    {"BucketBuffer", [](auto& p) { p.mutable_buckets(0)->set_parameter_buffer(99); }, "99"},
    {"BucketTooLarge", [](auto& p) { p.mutable_buckets(0)->set_elements(256); }, "it needs 512"},
    {"StateSharesBuffer", [](auto& p) { p.mutable_buckets(0)->mutable_states(0)->set_buffer(0); }, "kind optimizer"},
    {"ScalarKind", [](auto& p) { p.mutable_scalars(0)->set_kind(plan::StepScalar::UNSPECIFIED); }, "kind is not known"},
    {"OnNan", [](auto& p) { p.mutable_training()->set_on_nan(plan::Training::OnNan(2)); },
     "training.on_nan: 2 is not one of its values, which are stop, skip"},
    {"ReduceOrder", [](auto& p) { p.mutable_training()->set_reduce_order(plan::Training::ReduceOrder(-1)); },
     "reduce_order"},
    {"Schedule", [](auto& p) { p.mutable_training()->mutable_schedule()->set_kind(plan::Schedule::STEP); },
     "training.schedule: step needs step_size=STEPS"},
    {"ScheduleKind",
     [](auto& p) { p.mutable_training()->mutable_schedule()->set_kind(static_cast<plan::Schedule::Kind>(50)); },
     "training.schedule: its kind is not known"},
    {"ScalarOfAnotherGroup", [](auto& p) { p.mutable_scalars(0)->set_group(1); }, "it is of parameter group 1 of 0"},
    {"BucketOfAnotherGroup",
     [](auto& p) {
       p.mutable_training()->add_groups();
       p.mutable_training()->add_groups();
       p.mutable_buckets(0)->set_group(2);
     },
     "it is of parameter group 2 of 2"},
    {"GroupsLearningRate",
     [](auto& p) {
       p.mutable_training()->add_groups()->set_name("head");
       p.mutable_training()->mutable_groups(0)->set_learning_rate(-1);
     },
     "parameter group 0 'head': its learning rate is -1"},
    {"InputRows", [](auto& p) { p.mutable_inputs(0)->set_shape(0, 5); }, "rows"},
    {"KernelImage", [](auto& p) { p.mutable_images(0)->set_target("tpu"); }, "is not cpu, cuda"},
    {"KernelEntry", [](auto& p) { p.mutable_images(0)->mutable_entries(0)->set_offset(60); }, "outside its image"},
    {"KernelWithoutEntry", [](auto& p) { p.mutable_images(0)->clear_entries(); }, "0 entries for 1 kernels"},
    {"KernelWithoutImage", [](auto& p) { p.clear_images(); }, "none for the plan's 1 kernels"},
    {"KernelImageWithoutCode",
     [](auto& p) {
       p.mutable_images(0)->set_target("cuda:sm_90");
       p.mutable_images(0)->clear_code();
     },
     "image 0 'cuda:sm_90': it has no code"},
    {"KernelThreads", [](auto& p) { p.mutable_images(0)->set_target("cuda:sm_90"); }, "threads a block"},
    // A GPU's vectors: for a plan of the CPU alone the same offset is right.
    {"KernelAlignmentOnAGpu",
     [](auto& p) {
       plan::KernelImage* image = p.add_images();
       image->set_target("cuda:sm_90");
       image->set_code("code");
       image->add_entries()->set_threads(128);
       image->mutable_entries(0)->set_grid(1);
       p.mutable_kernels(0)->set_operand_bytes(2, 128);
       kernel(p).mutable_operands(2)->set_bytes(128);
       kernel(p).mutable_operands(2)->set_offset(4);
     },
     "body instruction 15 (kernel 'update all' on stream compute): operand 2 does not start at a multiple of the 16 "
     "bytes "
     "that a GPU loads and stores at a time"},
    {"Stream", [](auto& p) { p.mutable_body(0)->set_stream(2); }, "its stream index 2 is out of range: the plan has 2"},
    {"Nothing", [](auto& p) { p.mutable_body(0)->clear_kind(); }, "has no kind"},
    {"Event", [](auto& p) { first(p, plan::Instruction::kWait).mutable_wait()->set_event(2); },
     "event index 2 is out of range: the plan has 2"},
    {"InputBytes", [](auto& p) { first(p, plan::Instruction::kInput).mutable_operands(0)->set_bytes(8); }, "needs"},
    {"OperandBuffer", [](auto& p) { kernel(p).mutable_operands(0)->set_buffer(1000); },
     "operand 0's buffer index 1000 is out of range: the plan has"},
    {"OperandOutside", [](auto& p) { kernel(p).mutable_operands(0)->set_offset(8); }, "outside buffer 'parameters'"},
    {"OperandOverflow", [](auto& p) { kernel(p).mutable_operands(0)->set_offset(~uint64_t{0}); }, "outside buffer"},
    {"OperandOfLastRank", [](auto& p) { kernel(p).mutable_operands(0)->set_shard_stride(256); }, "rank * 256"},
    {"OperandAccess", [](auto& p) { kernel(p).mutable_operands(0)->clear_access(); }, "no access"},
    {"KernelOperands", [](auto& p) { kernel(p).mutable_operands()->RemoveLast(); }, "takes 4 operands, not 3"},
    {"KernelBytes", [](auto& p) { kernel(p).mutable_operands(2)->set_bytes(128); }, "uses 256"},
    {"KernelAccessLess", [](auto& p) { kernel(p).mutable_operands(2)->set_access(plan::READ); },
     "(kernel 'update all' on stream compute): operand 2 is declared as read, kernel 'update' has it read and written"},
    {"KernelAccessMore", [](auto& p) { kernel(p).mutable_operands(1)->set_access(plan::READ_WRITE); },
     "operand 1 is declared as read and written, kernel 'update' has it read"},
    {"KernelAccessUnread", [](auto& p) { kernel(p).mutable_operands(0)->set_access(plan::WRITE); },
     "operand 0 is declared as written, kernel 'update' has it read and written"},
    {"KernelWithoutAccess", [](auto& p) { p.mutable_kernels(0)->clear_operand_access(); },
     "kernel 0 'update': it states what it does with 0 of its 4 operands; compile the model again"},
    {"KernelAccessUnknown", [](auto& p) { p.mutable_kernels(0)->set_operand_access(3, plan::Access(4)); },
     "an operand has no access"},
    {"KernelInPlaceCount", [](auto& p) { p.mutable_kernels(0)->add_in_place(1); }, "of 1 of its 4 operands"},
    {"KernelInPlace", [](auto& p) { kernel(p).mutable_operands(1)->set_buffer(kernel(p).operands(2).buffer()); },
     "operand 2 is written where operand 1 lies, and kernel 'update' does not allow that"},
    {"KernelInPlaceOfOthers",
     [](auto& p) {
       for (uint32_t number : {1u, 2u, 1u, 0u}) p.mutable_kernels(0)->add_in_place(number);
       kernel(p).mutable_operands(1)->set_buffer(kernel(p).operands(2).buffer());
     },
     "operand 2 is written where operand 1 lies"},
    {"KernelWritesTwice", [](auto& p) { kernel(p).mutable_operands(0)->set_buffer(kernel(p).operands(2).buffer()); },
     "operand 0 is written where operand 2 lies"},
    {"KernelIndex", [](auto& p) { kernel(p).mutable_kernel()->set_kernel(1); },
     "kernel index 1 is out of range: the plan has 1"},
    {"KernelRows", [](auto& p) { kernel(p).mutable_kernel()->set_rows(-1); }, "rows"},
    {"KernelMoreRows", [](auto& p) { kernel(p).mutable_kernel()->set_rows(kernel(p).kernel().rows() + 1); }, "rows"},
    {"KernelBlock", [](auto& p) { kernel(p).mutable_kernel()->set_block(4); }, "blocks of 4"},
    {"CallFunction", [](auto& p) { first(p, plan::Instruction::kCall).mutable_call()->set_function("exec"); }, "exec"},
    // cuBLASLt's workspace: see kDeviceAlignment.
    {"ScratchAlignmentOnAGpu",
     [](auto& p) {
       for (plan::Instruction& instruction : *p.mutable_body()) {
         if (!instruction.has_call() || instruction.call().device_scratch() == 0) continue;
         plan::Operand& scratch = *instruction.mutable_operands()->rbegin();
         plan::Buffer* buffer = p.add_buffers();
         *buffer = p.buffers(static_cast<int>(scratch.buffer()));
         buffer->set_offset(plan::aligned(p.memory().peak_bytes()) / 256 * 256 + 384);
         scratch.set_buffer(static_cast<uint32_t>(p.buffers_size() - 1));
         p.mutable_memory()->set_peak_bytes(buffer->offset() + buffer->bytes());
         return;
       }
     },
     "body instruction 6 (gemm 'gemm' on stream compute): its scratch on a GPU starts at byte 1054592 of the arena, "
     "but "
     "must start at a multiple of 256: compile the model again"},
    {"CollectiveOp", [](auto& p) { collective(p).mutable_collective()->set_op(plan::CollectiveOp(9)); },
     "its collective is unknown"},
    {"CollectivePhase", [](auto& p) { collective(p).mutable_collective()->clear_phase(); }, "its phase is not known"},
    {"CollectiveCount", [](auto& p) { collective(p).mutable_collective()->set_count(63); }, "it needs 252"},
    {"CollectiveOverflow", [](auto& p) { collective(p).mutable_collective()->set_count(uint64_t{1} << 62); },
     "out of range"},
    {"CollectiveType", [](auto& p) { collective(p).mutable_collective()->set_type(plan::F16); }, "it needs 128"},
    {"CollectiveBucket", [](auto& p) { collective(p).mutable_collective()->set_bucket("none"); }, "bucket 'none'"},
    {"CollectiveCommunicator", [](auto& p) { collective(p).mutable_collective()->set_communicator(1); },
     "communicator index 1 is out of range: the plan has 1"},
    {"CollectiveOverlap",
     [](auto& p) {
       plan::Operand& source = *collective(p).mutable_operands(0) = collective(p).operands(1);
       source.set_bytes(256);
       source.set_offset(128);
       source.set_access(plan::READ);
     },
     "overlap"},
    {"UpdateBucket", [](auto& p) { first(p, plan::Instruction::kKernel).set_updates_bucket(2); },
     "updated bucket index 1 is out of range: the plan has 1"},
    {"UpdateNotDeclared", [](auto& p) { first(p, plan::Instruction::kKernel).clear_updates_bucket(); },
     "it writes the parameters of bucket 'all' and is not declared as its update"},
    {"UpdateTwiceUndeclared",
     [](auto& p) {
       *p.add_body() = first(p, plan::Instruction::kKernel);
       p.mutable_body(p.body_size() - 1)->clear_updates_bucket();
     },
     "and is not declared as its update"},
    {"UpdateTwice", [](auto& p) { *p.add_body() = first(p, plan::Instruction::kKernel); }, "twice"},
    {"LossTwice", [](auto& p) { *p.add_body() = first(p, plan::Instruction::kOutput); }, "twice"},
    {"LossInEpilogue", [](auto& p) { *p.add_epilogue() = first(p, plan::Instruction::kOutput); },
     "outputs are written in the body and in the evaluation only"},
};
INSTANTIATE_TEST_SUITE_P(Verify, Mutants, ::testing::ValuesIn(kMutants),
                         [](const auto& info) { return std::string(info.param.name); });

// The kernel's code then reads an element of operand 1 before it writes that of operand 2.
TEST(Verify, AKernelMayWriteInPlaceWhatItAllows) {
  TrainingPlan made(2, 3, 8);
  for (uint32_t number : {0u, 1u, 1u, 0u}) made.plan.mutable_kernels(0)->add_in_place(number);
  kernel(made.plan).mutable_operands(1)->set_buffer(kernel(made.plan).operands(2).buffer());
  EXPECT_EQ(plan::verifyPlan(made.plan).message(), "");
}

TEST(Verify, NamesTheInstruction) {
  TrainingPlan made(2, 3, 8);
  kernel(made.plan).mutable_operands(1)->set_offset(4096);
  EXPECT_THAT(plan::verifyPlan(made.plan).message(),
              AllOf(HasSubstr("body instruction"), HasSubstr("(kernel 'update all' on stream compute)"),
                    HasSubstr("operand 1"), HasSubstr("buffer 'gradient'")));
}

TEST(Summary, CountsParametersWithoutPadding) {
  plan::Summary summary = plan::summarize(TrainingPlan(2, 3, 8).plan);
  EXPECT_EQ(summary.parameters, 58u);
  EXPECT_EQ(summary.frozenParameters, 0u);
}

TEST(Summary, KindsByStage) {
  for (int stage = 0; stage <= 3; ++stage) {
    auto kinds = plan::memoryByKind(TrainingPlan(4, stage, 8).plan);
    EXPECT_EQ(kinds[plan::PARAMETERS], stage >= 3 ? 128u : 512u) << stage;
    EXPECT_EQ(kinds[plan::GRADIENTS], stage >= 2 ? 128u : 512u) << stage;
    EXPECT_EQ(kinds[plan::OPTIMIZER], stage >= 1 ? 128u : 512u) << stage;
    // The gathered parameters are no longer needed when the gradients are there.
    EXPECT_EQ(kinds[plan::GATHERED], stage >= 2 ? 512u : 0u) << stage;
    EXPECT_EQ(kinds[plan::CONSTANTS], 0u);
  }
}

// A plan of buffers of 100, 10 and 1 bytes whose body touches them as given, and whose prologue writes buffer 0.
plan::Plan touching(const std::vector<std::pair<uint32_t, plan::Access>>& accesses) {
  plan::Plan plan;
  plan.set_ranks(1);
  for (uint64_t bytes : {100, 10, 1}) {
    plan::Buffer* buffer = plan.add_buffers();
    buffer->set_kind(plan::ACTIVATIONS);
    buffer->set_bytes(bytes);
  }
  auto add = [](plan::Instruction* instruction, uint32_t buffer, plan::Access access) {
    instruction->mutable_call();
    plan::Operand* operand = instruction->add_operands();
    operand->set_buffer(buffer);
    operand->set_bytes(1);
    operand->set_access(access);
  };
  add(plan.add_prologue(), 0, plan::WRITE);
  for (auto [buffer, access] : accesses) add(plan.add_body(), buffer, access);
  return plan;
}

TEST(Summary, ABufferLivesFromItsWriteToItsLastRead) {
  using plan::READ, plan::WRITE;
  auto activations = [](const plan::Plan& plan) { return plan::memoryByKind(plan)[plan::ACTIVATIONS]; };
  EXPECT_EQ(activations(touching({{0, WRITE}, {0, READ}, {1, WRITE}, {2, WRITE}, {1, READ}, {2, READ}})), 100u);
  EXPECT_EQ(activations(touching({{0, WRITE}, {1, WRITE}, {2, WRITE}, {1, READ}, {2, READ}, {0, READ}})), 111u);
  // Across the step's boundary: the next step reads what this one wrote.
  EXPECT_EQ(activations(touching({{0, READ}, {1, WRITE}, {1, READ}, {0, WRITE}})), 100u);
  EXPECT_EQ(activations(touching({{0, READ}, {0, WRITE}, {1, WRITE}, {1, READ}})), 110u);
}

TEST(Summary, CommunicationOfTheBody) {
  auto list = plan::summarize(TrainingPlan(4, 3, 8).plan).communication;
  ASSERT_EQ(list.size(), 4u);
  EXPECT_EQ(list[0].op, plan::ALL_GATHER);
  EXPECT_EQ(list[0].bucket, "all");
  EXPECT_EQ(list[0].phase, plan::Collective::FORWARD);
  EXPECT_EQ(list[0].bytes, 512u);
  EXPECT_EQ(list[1].op, plan::ALL_REDUCE);
  EXPECT_EQ(list[1].bytes, 4u);
  EXPECT_EQ(list[2].op, plan::REDUCE_SCATTER);
  EXPECT_EQ(list[2].bytes, 512u);
}

TEST(RankMemory, NcclTakesMemoryForEveryGpuItSendsTo) {
  plan::Plan plan = TrainingPlan(8, 2, 8).plan;  // one communicator that gathers and sums
  auto mebibytes = [&](bool processes, bool inTreeOrder, bool severalNodes) {
    return plan::gpuRankMemory(plan, processes, inTreeOrder, severalNodes).libraries >> 20;
  };
  constexpr uint64_t kCuda = 256, kCommunicator = 256, kRing = 32 * 12;
  EXPECT_EQ(mebibytes(false, true, false), kCuda);
  EXPECT_EQ(mebibytes(true, true, false), kCuda + kCommunicator + kRing + 7 * 32 * 12);
  EXPECT_EQ(mebibytes(true, true, true), kCuda + kCommunicator + kRing + 7 * 2 * 12);
  EXPECT_EQ(mebibytes(true, false, false), kCuda + kCommunicator + kRing);
  plan.set_ranks(512);
  EXPECT_EQ(mebibytes(true, true, true), kCuda + kCommunicator + kRing + 511 * 12);
  plan.set_ranks(8);
  // Ranks vote on what is durable through one channel, in whatever order sums are.
  plan.mutable_body()->Add()->mutable_persist()->set_communicator(1);
  EXPECT_EQ(mebibytes(true, true, false), kCuda + kCommunicator + kRing + 7 * 32 * 12 + kCommunicator + 12);
  EXPECT_EQ(mebibytes(false, true, false), kCuda);
}

TEST(Summary, StagesFollowTheZeroArithmetic) {
  auto stages = plan::summarize(TrainingPlan(4, 1, 8).plan).stages;
  EXPECT_EQ(stages[0].total(), 3 * 512u);
  EXPECT_EQ(stages[1].total(), 2 * 512u + 128);
  EXPECT_EQ(stages[2].total(), 512u + 2 * 128);
  EXPECT_EQ(stages[3].total(), 3 * 128u);
}

TEST(Summary, JsonAndTextSayTheSame) {
  TrainingPlan made(4, 3, 8);
  json::Value value = plan::summaryJson(made.plan);
  auto parsed = json::parse(json::write(value, 2));
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(*parsed->object()->find("parameters")->integer(), 58);
  const json::Object& memory = *parsed->object()->find("memory")->object();
  EXPECT_EQ(*memory.find("by_kind")->object()->find("gathered")->integer(), 512);
  EXPECT_EQ(parsed->object()->find("communication")->array()->size(), 4u);
  EXPECT_THAT(plan::summaryText(made.plan), AllOf(HasSubstr("58 trainable"), HasSubstr("ZeRO stage 3"),
                                                  HasSubstr("<- this plan"), HasSubstr("all_gather")));
}

TEST(Summary, DecisionsThatAreAlikeAreOneLine) {
  TrainingPlan made(4, 3, 8);
  for (const char* name : {"a", "b", "c", "d"}) made.plan.add_decisions(cat(name, ": trainable"));
  made.plan.add_decisions("e: frozen");
  for (int i = 0; i < 30; ++i) made.plan.add_decisions(cat("lifted number ", i));
  made.plan.add_decisions("schedule: ZeRO-3");
  EXPECT_THAT(plan::summaryText(made.plan),
              AllOf(HasSubstr("  a and 3 more: trainable\n  e: frozen\n  lifted number 0\n"),
                    HasSubstr("  lifted number 21\n  schedule: ZeRO-3\n  and 8 more lines\n")));
}

}  // namespace
}  // namespace sheaf
