// What a plan's digests refuse, what they leave free, and what they say.
#include "runtime/plan/Digests.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "runtime/plan/PlanFile.h"
#include "runtime/plan/Proof.h"
#include "runtime/plan/Verify.h"
#include "test/runtime/TrainingPlan.h"

namespace sheaf {
namespace {

using plan::Plan;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::TrainingPlan;

// At stage 2, with a second input, state, constant and kernel besides the hand-made plan's, so that there is something
// to exchange.
Plan digested() {
  TrainingPlan made(2, 2, 8);
  Plan plan = made.plan;
  *plan.mutable_floor() = made.floor();
  *plan.add_inputs() = plan.inputs(0);
  plan.mutable_inputs(1)->set_name("labels");
  *plan.add_files() = plan.files(0);
  plan.mutable_files(1)->set_path("more.bin");
  plan.mutable_scalars(0)->set_kind(plan::StepScalar::LR_TIMES);
  plan.mutable_scalars(0)->set_value(0.01);
  plan.mutable_training()->set_optimizer("adamw:lr=0.125,beta1=0.5");
  for (const char* name : {"default", "head"}) plan.mutable_training()->add_groups()->set_name(name);
  auto place = [&](const char* name, plan::BufferKind kind, bool persistent) {
    plan::Buffer& buffer = *plan.add_buffers();
    buffer.set_name(name);
    buffer.set_kind(kind);
    buffer.set_offset(plan::aligned(plan.memory().peak_bytes()));
    buffer.set_bytes(256);
    buffer.set_persistent(persistent);
    plan.mutable_memory()->set_peak_bytes(buffer.offset() + buffer.bytes());
    return static_cast<uint32_t>(plan.buffers_size() - 1);
  };
  for (const char* name : {"mask", "table"}) {
    plan::Constant& constant = *plan.add_constants();
    constant.set_buffer(place(name, plan::CONSTANTS, true));
    constant.mutable_source()->set_offset(plan.constants_size() * 64);
    constant.mutable_source()->set_length(64);
  }
  for (const char* name : {"variance", "average"}) {
    plan::State& state = *plan.mutable_buckets(0)->add_states();
    state.set_name(name);
    state.set_buffer(place(name, plan::OPTIMIZER, true));
  }
  // Another kernel, of which the plan launches both.
  *plan.add_kernels() = plan.kernels(0);
  plan.mutable_kernels(0)->set_program(11);
  plan.mutable_kernels(1)->set_program(22);
  plan.mutable_kernels(1)->set_symbol("decay");
  plan::KernelImage& image = *plan.mutable_images(0);
  image.add_entries()->set_offset(image.code().size());
  image.set_code(image.code() + image.code());
  for (int i = 0; i < plan.body_size(); ++i)
    if (plan.body(i).updates_bucket() > 0) {
      plan::Instruction second = plan.body(i);
      second.clear_updates_bucket();
      second.mutable_kernel()->set_kernel(1);
      for (int operand : {0, 2}) {
        plan::Operand& changed = *second.mutable_operands(operand);
        changed.set_buffer(plan.buckets(0).states(1 + operand / 2).buffer());
        changed.clear_shard_stride();
      }
      *plan.add_body() = second;
      // Before the record that lets the next step have the inputs.
      plan.mutable_body()->SwapElements(plan.body_size() - 1, plan.body_size() - 2);
      break;
    }
  // An evaluation that hands over the first parameters.
  plan::Output& tensor = *plan.add_outputs();
  tensor.set_name("first");
  tensor.set_type(plan::F32);
  tensor.add_shape(2);
  plan::Instruction& write = *plan.add_evaluation();
  write.mutable_output()->set_output(plan::TENSOR);
  plan::Operand& source = *write.add_operands();
  source.set_buffer(plan.buckets(0).parameter_buffer()), source.set_bytes(8), source.set_access(plan::READ);
  plan::declareMemoryByKind(plan);
  plan::redigest(plan);
  plan.mutable_origin()->set_leaves(4);
  plan::Origin::Part& part = *plan.mutable_origin()->add_step();
  part.set_name("fc1");
  part.set_hash(33);
  plan::digestTables(plan);
  return plan;
}

std::string refusal(const Plan& plan) {
  if (Status same = plan::checkTables(plan); !same.ok()) return same.message();
  if (Status sound = plan::verifyPlan(plan); !sound.ok()) return sound.message();
  if (Status proved = plan::provePlan(plan); !proved.ok()) return proved.message();
  return plan::requireDigests(plan).message();
}

struct Change {
  const char* name;
  std::function<void(Plan&)> apply;
  const char* table;  // and entry, as the error names it
};

void PrintTo(const Change& change, std::ostream* out) {
  *out << change.name;
}

class Attacks : public ::testing::TestWithParam<Change> {};
TEST_P(Attacks, AreRefusedByTableAndEntry) {
  Plan plan = digested();
  ASSERT_EQ(refusal(plan), "");
  GetParam().apply(plan);
  EXPECT_THAT(refusal(plan), AllOf(HasSubstr(GetParam().table), HasSubstr("`sheaf assemble --redigest` restates")));
  plan::redigest(plan);
  EXPECT_EQ(refusal(plan), "");
}

plan::Instruction& call(Plan& plan, const char* function) {
  for (plan::Instruction& instruction : *plan.mutable_body())
    if (instruction.call().function() == function) return instruction;
  return *plan.mutable_body(0);
}

const Change kAttacks[] = {
    {"WeightDecay", [](Plan& p) { p.mutable_scalars(0)->set_value(1); },
     "step scalar 0 (lr_times) (table scalars, entry 0) is not what was compiled"},
    {"ScalarKind", [](Plan& p) { p.mutable_scalars(0)->set_kind(plan::StepScalar::BIAS_CORRECTION); },
     "(table scalars, entry 0)"},
    {"ScalarsGroup", [](Plan& p) { p.mutable_scalars(0)->set_group(1); }, "(table scalars, entry 0)"},
    {"BucketsGroup", [](Plan& p) { p.mutable_buckets(0)->set_group(1); }, "bucket 'all' (table buckets, entry 0)"},
    {"GroupsSettings", [](Plan& p) { p.mutable_training()->mutable_groups(1)->set_settings("weight_decay=1"); },
     "the training's settings (table training, entry 0)"},
    {"Optimizer", [](Plan& p) { p.mutable_training()->set_optimizer("adamw:lr=0.125,beta1=0.9"); },
     "the training's settings (table training, entry 0)"},
    {"ClipNorm", [](Plan& p) { p.mutable_training()->set_clip_norm(2); }, "(table training, entry 0)"},
    {"OnNan", [](Plan& p) { p.mutable_training()->set_on_nan(plan::Training::SKIP); }, "(table training, entry 0)"},
    {"Seed", [](Plan& p) { p.mutable_training()->set_seed(1); }, "(table training, entry 0)"},
    {"ReduceOrder", [](Plan& p) { p.mutable_training()->set_reduce_order(plan::Training::RING); },
     "(table training, entry 0)"},
    {"InputsExchanged", [](Plan& p) { p.mutable_inputs()->SwapElements(0, 1); },
     "input 'labels' (table inputs, entry 0)"},
    {"InputRenamed", [](Plan& p) { p.mutable_inputs(1)->set_name("y"); }, "input 'y' (table inputs, entry 1)"},
    {"InputAdded", [](Plan& p) { (*p.add_inputs() = p.inputs(0)).set_name("z"); },
     "table inputs is not what was compiled: it has 3 entries, the plan states digests of 2"},
    {"OutputRenamed", [](Plan& p) { p.mutable_outputs(0)->set_name("y"); }, "output 'y' (table outputs, entry 0)"},
    {"FileExchanged", [](Plan& p) { p.mutable_files()->SwapElements(0, 1); }, "file 'more.bin' (table files, entry 0)"},
    {"FileHash", [](Plan& p) { p.mutable_files(1)->set_hash(7); }, "file 'more.bin' (table files, entry 1)"},
    {"BucketRenamed",
     [](Plan& p) {
       p.mutable_buckets(0)->set_name("other");
       for (plan::Instruction& instruction : *p.mutable_body())
         if (instruction.collective().bucket() == "all") instruction.mutable_collective()->set_bucket("other");
     },
     "bucket 'other' (table buckets, entry 0)"},
    {"StateNamesExchanged", [](Plan& p) { p.mutable_buckets(0)->mutable_states()->SwapElements(0, 1); },
     "(table buckets, entry 0)"},
    {"StateBuffersExchanged",
     [](Plan& p) {
       plan::Bucket& bucket = *p.mutable_buckets(0);
       uint32_t first = bucket.states(0).buffer();
       bucket.mutable_states(0)->set_buffer(bucket.states(1).buffer());
       bucket.mutable_states(1)->set_buffer(first);
     },
     "(table dataflow, entry 3)"},
    {"InitialBytes", [](Plan& p) { p.mutable_parameters(0)->mutable_source()->set_offset(4); },
     "parameter 'w' (table parameters, entry 0)"},
    {"BucketPlace", [](Plan& p) { p.mutable_parameters(1)->set_offset(96); },
     "parameter 'b' (table parameters, entry 1)"},
    {"Permutation", [](Plan& p) { p.mutable_parameters(0)->clear_permutation(); }, "(table parameters, entry 0)"},
    {"ConstantBytesExchanged",
     [](Plan& p) { p.mutable_constants(0)->mutable_source()->Swap(p.mutable_constants(1)->mutable_source()); },
     "constant 0 (table constants, entry 0)"},
    {"KernelsExchanged", [](Plan& p) { p.mutable_kernels()->SwapElements(0, 1); },
     "kernel 'decay' (table kernels, entry 0)"},
    {"LaunchOfAnotherKernel", [](Plan& p) { p.mutable_body(p.body_size() - 2)->mutable_kernel()->set_kernel(0); },
     "the updated state 'variance' of bucket 'all' (table dataflow, entry 5)"},
    {"KernelInPlace",
     [](Plan& p) {
       for (int i = 0; i < 4; ++i) p.mutable_kernels(1)->add_in_place(1);
     },
     "kernel 'decay' (table kernels, entry 1)"},
    {"InitialBytesHash", [](Plan& p) { p.mutable_parameters(1)->mutable_source()->add_hashes(7); },
     "parameter 'b' (table parameters, entry 1)"},
    {"KernelEntryElsewhere", [](Plan& p) { p.mutable_images(0)->mutable_entries(1)->set_offset(0); },
     "kernel 'update' in image 'cpu' (table kernel_entries, entry 0)"},
    {"KernelEntriesExchanged", [](Plan& p) { p.mutable_images(0)->mutable_entries()->SwapElements(0, 1); },
     "kernel 'update' in image 'cpu' (table kernel_entries, entry 0)"},
    {"LaunchGeometry", [](Plan& p) { p.mutable_images(0)->mutable_entries(1)->set_threads(64); },
     "kernel 'decay' in image 'cpu' (table kernel_entries, entry 1)"},
    {"CodeByte", [](Plan& p) { (*p.mutable_images(0)->mutable_code())[70] ^= 1; },
     "kernel 'decay' in image 'cpu' (table kernel_entries, entry 1)"},
    {"ImageFeatures", [](Plan& p) { p.mutable_images(0)->add_features("avx512f"); },
     "image 'cpu' (table images, entry 0)"},
    {"FloorLowered", [](Plan& p) { p.mutable_floor()->mutable_products(0)->set_flops(1); },
     "the floor of a step's work (table floor, entry 0) is not what was compiled"},
    {"FloorRemoved", [](Plan& p) { p.clear_floor(); },
     "table floor is not what was compiled: it has 0 entries, the plan states digests of 1"},
    {"Leaves", [](Plan& p) { p.mutable_origin()->set_leaves(8); },
     "what the plan was compiled from (table origin, entry 0)"},
    {"OriginsProgram", [](Plan& p) { p.mutable_origin()->mutable_step(0)->set_hash(34); },
     "what the plan was compiled from (table origin, entry 0)"},
    {"OriginRemoved", [](Plan& p) { p.clear_origin(); }, "table origin is not what was compiled"},
    {"Attribute", [](Plan& p) { call(p, "square_sum").mutable_call()->mutable_attributes(0)->set_integer(32); },
     "(table dataflow, entry 2)"},
};
INSTANTIATE_TEST_SUITE_P(Digests, Attacks, ::testing::ValuesIn(kAttacks),
                         [](const auto& info) { return std::string(info.param.name); });

class Freedoms : public ::testing::TestWithParam<Change> {};
TEST_P(Freedoms, StayFree) {
  Plan plan = digested();
  GetParam().apply(plan);
  EXPECT_EQ(refusal(plan), "");
}

const Change kFreedoms[] = {
    {"LearningRate",
     [](Plan& p) {
       p.mutable_training()->set_learning_rate(0.25);
       p.mutable_training()->set_optimizer("adamw:lr=0.25,beta1=0.5");
     },
     ""},
    {"GroupsLearningRate", [](Plan& p) { p.mutable_training()->mutable_groups(1)->set_learning_rate(3); }, ""},
    {"Schedule",
     [](Plan& p) {
       p.mutable_training()->mutable_schedule()->set_kind(plan::Schedule::COSINE);
       p.mutable_training()->mutable_schedule()->set_steps(10);
     },
     ""},
    {"Label", [](Plan& p) { p.mutable_body(0)->set_label("renamed"); }, ""},
    {"BufferElsewhere",
     [](Plan& p) {
       plan::Buffer& last = *p.mutable_buffers(p.buffers_size() - 1);
       last.set_offset(last.offset() + 1024);
       p.mutable_memory()->set_peak_bytes(last.offset() + last.bytes());
     },
     ""},
    {"Words", [](Plan& p) { p.add_decisions("by hand"); }, ""},
    {"DefaultWritten",
     [](Plan& p) {
       plan::Attribute& attribute = *call(p, "gemm").mutable_call()->add_attributes();
       attribute.set_name("transpose_a");
       attribute.set_integer(0);
     },
     ""},
};
INSTANTIATE_TEST_SUITE_P(Digests, Freedoms, ::testing::ValuesIn(kFreedoms),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Digests, IndependentInstructionsMayChangePlaces) {
  Plan plan = digested();
  int norm = 0;
  while (plan.body(norm).call().function() != "gradient_norm") ++norm;
  // The loss is written to the host before the norm is.
  for (int i = plan.body_size() - 1; i > norm; --i)
    if (plan.body(i).has_output()) plan.mutable_body()->SwapElements(i, i - 1);
  EXPECT_EQ(refusal(plan), "");
}

// Random numbers are those of a step and a seed, whichever call draws them.
TEST(Digests, RandomCallsHoldStepAndSeed) {
  constexpr int64_t kCount = static_cast<int64_t>(testing::kElements);
  // In place of the first row of an input, in each step; or of all rows, before the first step only.
  auto drawing = [&](const plan::AnyCall& call, int64_t seed, bool once) {
    Plan plan = TrainingPlan(1, 0, once ? 1 : 8).plan;
    plan.mutable_training()->set_seed(seed);
    int read = 0;
    while (!plan.body(read).has_input()) ++read;
    plan::Operand numbers = plan.body(read).operands(0), source = numbers;
    numbers.set_bytes(kCount * sizeof(float));
    source.set_buffer(plan.buckets(0).parameter_buffer());
    source.set_bytes(numbers.bytes());
    source.set_access(plan::READ);
    plan::Instruction draw;
    draw.set_stream(plan.body(read).stream());
    *draw.mutable_call() = plan::toWire(call);
    if (draw.call().function() == "dropout") *draw.add_operands() = source;
    *draw.add_operands() = numbers;
    if (once) {
      plan.mutable_body()->DeleteSubrange(read, 1);
      *plan.add_prologue() = draw;
      // The body awaits what the prologue has computed.
      plan.add_prologue()->mutable_record();
      plan.mutable_prologue(1)->set_stream(draw.stream());
    } else {
      *plan.add_body() = draw;
      for (int i = plan.body_size() - 1; i > read + 1; --i) plan.mutable_body()->SwapElements(i, i - 1);
    }
    plan::redigest(plan);
    return plan;
  };
  const plan::AnyCall calls[] = {plan::DropoutCall{{kCount, 3}, 0.5}, plan::RandomUniformCall{{kCount, 3}}};
  for (const plan::AnyCall& call : calls) {
    const Plan one = drawing(call, 1, false), other = drawing(call, 2, false);
    EXPECT_EQ(plan::provePlan(one).message(), "") << plan::nameOf(call);
    EXPECT_NE(one.digests().dataflow(plan::LOSS), other.digests().dataflow(plan::LOSS)) << plan::nameOf(call);
    EXPECT_TRUE(plan::isRandom(plan::toWire(call)));
    EXPECT_THAT(plan::provePlan(drawing(call, 1, true)).message(),
                HasSubstr("a later step computes something else than the first"))
        << plan::nameOf(call);
  }
  EXPECT_FALSE(plan::isRandom(plan::toWire(plan::ZeroCall())));
}

// A plan that was changed on purpose is no longer what it was compiled from.
TEST(Digests, RestatedPlansHaveNoOrigin) {
  Plan plan = digested();
  plan::redigest(plan);
  EXPECT_EQ(plan.origin().leaves(), 4);
  EXPECT_EQ(refusal(plan), "");
  plan.mutable_scalars(0)->set_value(7);
  plan::redigest(plan);
  EXPECT_FALSE(plan.has_origin());
  EXPECT_EQ(refusal(plan), "");
}

TEST(Digests, NoneMayBeMissing) {
  for (const plan::DigestTable& table : plan::kDigestTables) {
    Plan plan = digested();
    (plan.mutable_digests()->*table.edit)()->Clear();
    EXPECT_THAT(refusal(plan), AllOf(HasSubstr(std::string("no digests of its table ") + table.name + ","),
                                     HasSubstr("sheaf assemble --redigest")));
    // What is left still counts.
    EXPECT_EQ(plan::provePlan(plan).message(), "");
    plan.mutable_training()->set_seed(1);
    plan.mutable_scalars(0)->set_value(7);
    EXPECT_THAT(plan::provePlan(plan).message(), HasSubstr("entry 0)"));
  }
}

TEST(Digests, APlanWithoutThemIsReadOnlyIfThatIsAccepted) {
  testing::TemporaryFolder folder;
  Plan plan = digested();
  plan.clear_digests();
  ASSERT_TRUE(plan::writePlan(folder / "a.plan", plan).ok());
  EXPECT_THAT(
      plan::readProvedPlan(folder / "a.plan").status().message(),
      AllOf(HasSubstr("a.plan: "),
            HasSubstr("no digests of its tables training, scalars, inputs, files, buckets, parameters, constants, "
                      "kernels, kernel_entries, images, floor, outputs, origin, dataflow, so it "
                      "cannot")));
  EXPECT_TRUE(plan::readProvedPlan(folder / "a.plan", plan::Undigested::kAccepted).ok());
}

}  // namespace
}  // namespace sheaf
