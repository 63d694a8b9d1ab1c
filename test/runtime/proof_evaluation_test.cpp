// What the proof says of an evaluation: before a run and after it, batch after batch, from state alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/plan/Dataflow.h"
#include "runtime/plan/Digests.h"
#include "runtime/plan/MemoryByKind.h"
#include "runtime/plan/Proof.h"
#include "runtime/plan/Verify.h"
#include "test/runtime/SmallPlan.h"
#include "test/runtime/TrainingPlan.h"

namespace sheaf {
namespace {

using plan::READ, plan::WRITE;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::SmallPlan, testing::TrainingPlan;

// x is state; the evaluation copies it on stream b to y, which stream a reads into z.
SmallPlan evaluating() {
  SmallPlan p;
  p.plan.mutable_buffers(0)->set_persistent(true);
  p.plan.add_buckets()->set_parameter_buffer(0);
  p.wait(p.evaluation, 1, 0);  // the batch before has read y
  p.call(p.evaluation, "gather", 1, {{0, READ}, {1, WRITE}});
  p.record(p.evaluation, 1, 1);
  p.wait(p.evaluation, 0, 1);
  p.call(p.evaluation, "use", 0, {{1, READ}, {2, WRITE}});
  p.record(p.evaluation, 0, 0);
  return p;
}

TEST(ProofOfEvaluation, BatchesFollowEachOther) {
  SmallPlan p = evaluating();
  EXPECT_EQ(p.proof(), "");
  SmallPlan forward(p), backward(p);
  forward.plan.mutable_evaluation()->DeleteSubrange(3, 1);
  EXPECT_THAT(forward.proof(), AllOf(HasSubstr("may race"), HasSubstr("evaluation instruction 1 (copy 'gather'"),
                                     HasSubstr("evaluation instruction 3 (copy 'use'")));
  backward.plan.mutable_evaluation()->DeleteSubrange(0, 1);
  EXPECT_THAT(backward.proof(), AllOf(HasSubstr("'use' on stream a) of the batch before"), HasSubstr("'gather'")));
}

TEST(ProofOfEvaluation, TheHostComesAfterIt) {
  SmallPlan p = evaluating();
  p.call(p.evaluation, "late", 1, {{0, READ}});
  EXPECT_THAT(p.proof(), AllOf(HasSubstr("'late' on stream b"), HasSubstr("the host after the evaluation")));
}

TEST(ProofOfEvaluation, NothingButStateIsThereBeforeIt) {
  SmallPlan p;
  p.call(p.body, "step", 0, {{1, WRITE}});
  p.call(p.evaluation, "use", 0, {{1, READ}, {2, WRITE}});
  EXPECT_THAT(p.proof(), AllOf(HasSubstr("evaluation instruction 0 (copy 'use'"), HasSubstr("nothing has written")));
  // What a batch leaves is not there for the next one: the first would miss it.
  SmallPlan q;
  q.call(q.evaluation, "use", 0, {{1, READ}, {2, WRITE}});
  q.call(q.evaluation, "leave", 0, {{1, WRITE}});
  EXPECT_THAT(q.proof(), HasSubstr("nothing has written"));
}

TEST(ProofOfEvaluation, TheStepFindsNothingOfIt) {
  SmallPlan p = evaluating();
  p.call(p.body, "step", 0, {{2, READ}});
  EXPECT_THAT(p.proof(), AllOf(HasSubstr("body instruction 0 (copy 'step'"), HasSubstr("nothing has written")));
}

TEST(ProofOfEvaluation, SharesTheBytesOfTheStep) {
  SmallPlan p = evaluating();
  plan::Buffer& own = *p.plan.add_buffers();
  own = p.plan.buffers(1);
  own.set_name("of the step");
  p.call(p.body, "step", 0, {{3, WRITE}});
  p.call(p.body, "reader", 0, {{3, READ}});
  EXPECT_EQ(p.proof(), "");
  // Its memory counts, as that of the step does: the larger of both.
  EXPECT_EQ(plan::memoryByKind(p.plan)[plan::ACTIVATIONS], 256u + 512u);
}

TEST(ProofOfEvaluation, RanksMeetInOneOrder) {
  SmallPlan p;
  auto collective = [&](const char* label, uint32_t stream, uint32_t buffer) {
    p.call(p.evaluation, label, stream, {{buffer, WRITE}, {buffer, WRITE}});
    p.evaluation->rbegin()->mutable_collective();
  };
  collective("one", 0, 1);
  collective("other", 1, 2);
  EXPECT_THAT(p.proof(), AllOf(HasSubstr("may deadlock"), HasSubstr("'one'"), HasSubstr("'other'")));
}

TEST(ProofOfEvaluation, DigestsNameWhatChanged) {
  SmallPlan p = evaluating();
  p.call(p.body, "update", 0, {{0, WRITE}});
  p.plan.add_outputs()->set_name("logits");
  p.evaluation->Add()->mutable_output()->set_output(plan::TENSOR);
  plan::Operand& source = *p.evaluation->rbegin()->add_operands();
  source.set_buffer(2), source.set_bytes(256), source.set_access(READ);
  SmallPlan training(p);
  training.plan.clear_evaluation();
  training.plan.clear_outputs();
  const auto with = plan::followDataflow(plan::Places(p.plan)).digests;
  const auto without = plan::followDataflow(plan::Places(training.plan)).digests;
  // The step's digests do not know of it, nor its own of the step.
  ASSERT_EQ(with.size(), without.size() + 5);
  EXPECT_TRUE(std::equal(without.begin(), without.end(), with.begin()));
  SmallPlan alone(p);
  alone.plan.clear_body();
  const auto evaluated = plan::followDataflow(plan::Places(alone.plan)).digests;
  EXPECT_TRUE(std::equal(with.end() - 5, with.end(), evaluated.end() - 5));
  plan::redigest(p.plan);
  EXPECT_EQ(p.proof(), "");
  SmallPlan other(p);
  other.plan.mutable_evaluation(4)->mutable_call()->set_function("add");
  EXPECT_THAT(other.proof(), HasSubstr("the evaluation's output 'logits' (table dataflow"));
}

// A plan that trains, with an evaluation that hands over the parameters' first bytes as its loss.
plan::Plan trained() {
  plan::Plan plan = TrainingPlan(2, 1, 8).plan;
  plan::Buffer& copy = *plan.add_buffers();
  copy.set_name("copy");
  copy.set_kind(plan::ACTIVATIONS);
  copy.set_bytes(128);
  copy.set_offset(plan::aligned(plan.memory().peak_bytes()));
  plan.mutable_memory()->set_peak_bytes(copy.offset() + copy.bytes());
  plan::declareMemoryByKind(plan);
  plan::Instruction& loss = *plan.add_evaluation();
  loss.mutable_output()->set_output(plan::LOSS);
  plan::Operand& source = *loss.add_operands();
  source.set_buffer(plan.buckets(0).parameter_buffer()), source.set_bytes(4), source.set_access(READ);
  return plan;
}

TEST(VerifyEvaluation, ItWritesNoState) {
  plan::Plan plan = trained();
  EXPECT_EQ(plan::verifyPlan(plan).message(), "");
  plan::Instruction& zero = *plan.add_evaluation();
  zero.mutable_call()->set_function("zero");
  plan::Operand& operand = *zero.add_operands();
  operand.set_buffer(static_cast<uint32_t>(plan.buffers_size() - 1)), operand.set_bytes(128), operand.set_access(WRITE);
  EXPECT_EQ(plan::verifyPlan(plan).message(), "");
  operand.set_buffer(plan.buckets(0).parameter_buffer());
  EXPECT_THAT(plan::verifyPlan(plan).message(), HasSubstr("lives from step to step: the evaluation may not change it"));
}

TEST(VerifyEvaluation, Outputs) {
  auto message = [](auto change) {
    plan::Plan plan = trained();
    change(plan);
    return plan::verifyPlan(plan).message();
  };
  auto tensor = [](plan::Plan& p, int64_t rows) -> plan::Output& {
    plan::Output& output = *p.add_outputs();
    output.set_name("logits");
    output.set_type(plan::F32);
    output.add_shape(rows);
    output.set_blocks(1);
    plan::Instruction& write = *p.add_evaluation();
    write = p.evaluation(0);
    write.mutable_output()->set_output(plan::TENSOR);
    write.mutable_operands(0)->set_bytes(static_cast<uint64_t>(rows) * 4);
    return output;
  };
  EXPECT_EQ(message([&](auto& p) { tensor(p, 4); }), "");
  EXPECT_THAT(message([&](auto& p) { tensor(p, 4), p.mutable_evaluation()->RemoveLast(); }),
              HasSubstr("output 0 'logits': the evaluation does not write it"));
  EXPECT_THAT(message([&](auto& p) { tensor(p, 3); }), HasSubstr("does not hold 1 times the 4 rows of a rank"));
  EXPECT_THAT(message([&](auto& p) { tensor(p, 4).set_axis(1); }), HasSubstr("dimension 1 of its shape [4]"));
  EXPECT_THAT(message([&](auto& p) { tensor(p, 4).add_shape(2); }), HasSubstr("has 16 bytes, it needs 32"));
  EXPECT_THAT(message([](auto& p) { p.mutable_evaluation(0)->mutable_output()->set_output(plan::TENSOR); }),
              HasSubstr("its tensor index 0 is out of range: the plan has 0"));
  EXPECT_THAT(message([](auto& p) { p.mutable_evaluation(0)->mutable_output()->set_output(plan::GRADIENT_NORM); }),
              HasSubstr("the evaluation does not write the output gradient_norm"));
  EXPECT_THAT(message([](auto& p) { *p.add_evaluation() = p.evaluation(0); }),
              HasSubstr("the output is written twice"));
  EXPECT_THAT(message([](auto& p) { p.mutable_evaluation(0)->mutable_output()->set_tensor(1); }),
              HasSubstr("the output loss is not a tensor"));
  EXPECT_THAT(message([](auto& p) {
                for (plan::Instruction& instruction : *p.mutable_body())
                  if (instruction.has_output()) instruction.mutable_output()->set_output(plan::CORRECT);
              }),
              HasSubstr("the body does not write the output correct"));
}

TEST(VerifyEvaluation, AMaskIsOneNumberARow) {
  plan::Plan plan = trained();
  plan::Input& mask = *plan.add_inputs();
  mask.set_name("mask");
  mask.set_type(plan::F32);
  mask.add_shape(4);
  mask.set_row_mask(true);
  EXPECT_EQ(plan::verifyPlan(plan).message(), "");
  mask.set_type(plan::I32);
  EXPECT_THAT(plan::verifyPlan(plan).message(), HasSubstr("is not one f32 for each row"));
}

TEST(VerifyInputs, ARangeOfLabelsIsOneOfIntegers) {
  plan::Plan plan = trained();
  plan::Input& labels = *plan.add_inputs();
  labels.set_name("labels");
  labels.set_type(plan::I64);
  labels.add_shape(4);
  labels.set_classes(10);
  labels.set_ignored_label(-100);
  EXPECT_EQ(plan::verifyPlan(plan).message(), "");
  const char* wrong = "what it says of class labels is not of integers in a range";
  labels.set_type(plan::F32);
  EXPECT_THAT(plan::verifyPlan(plan).message(), HasSubstr(wrong));
  labels.set_type(plan::I64);
  labels.set_classes(-1);
  EXPECT_THAT(plan::verifyPlan(plan).message(), HasSubstr(wrong));
  labels.clear_classes();
  EXPECT_THAT(plan::verifyPlan(plan).message(), HasSubstr(wrong));
}

}  // namespace
}  // namespace sheaf
