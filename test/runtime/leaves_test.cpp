// What values of leaves are known by: runtime/plan/leaves.
#include <gtest/gtest.h>

#include "runtime/plan/Same.h"
#include "runtime/plan/leaves/Contents.h"
#include "runtime/plan/leaves/KernelProgram.h"
#include "runtime/plan/leaves/LeafDataflow.h"
#include "test/runtime/TrainingPlan.h"

namespace sheaf::plan {
namespace {

Run run(uint64_t length, uint64_t value, uint64_t index, bool splat = false) {
  return {length, value, index, splat};
}

uint64_t hashOfRuns(std::initializer_list<Run> runs) {
  Sequence sequence;
  for (const Run& r : runs) sequence.add(r);
  return sequence.hash();
}

TEST(Contents, CutsDoNotMatter) {
  EXPECT_EQ(hashOfRuns({run(8, 1, 0)}), hashOfRuns({run(3, 1, 0), run(5, 1, 3)}));
  EXPECT_EQ(hashOfRuns({run(8, 1, 2, true)}), hashOfRuns({run(3, 1, 2, true), run(5, 1, 2, true)}));
  EXPECT_NE(hashOfRuns({run(8, 1, 0)}), hashOfRuns({run(3, 1, 0), run(5, 1, 4)}));
  EXPECT_NE(hashOfRuns({run(8, 1, 0)}), hashOfRuns({run(8, 1, 0, true)}));
  EXPECT_NE(hashOfRuns({run(8, 1, 0)}), hashOfRuns({run(8, 2, 0)}));
  EXPECT_NE(hashOfRuns({run(8, 1, 0)}), hashOfRuns({run(8, 1, 1)}));
  // A transposed matrix, and one that is transposed only in part.
  EXPECT_NE(hashOfRuns({run(1, 1, 0), run(1, 1, 2), run(1, 1, 1), run(1, 1, 3)}),
            hashOfRuns({run(1, 1, 0), run(1, 1, 2), run(1, 1, 3), run(1, 1, 1)}));
  EXPECT_NE(hashOfRuns({run(1, 1, 0), run(1, 1, 2), run(1, 1, 4)}), hashOfRuns({run(1, 1, 0), run(1, 1, 2)}));
}

TEST(Bytes, RememberWhatWasWrittenLast) {
  Bytes bytes;
  bytes.write(0, run(16, 1, 0));
  bytes.write(4, run(4, 2, 0));
  bytes.write(12, run(8, 3, 100));
  Contents found;
  bytes.read(2, 20, [&](const plan::Run& r) { found.add(r); });
  ASSERT_EQ(found.runs.size(), 5u);
  const plan::Run expected[] = {run(2, 1, 2), run(4, 2, 0), run(4, 1, 8), run(8, 3, 100), run(2, 0, 0, true)};
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(found.runs[i].length, expected[i].length) << i;
    EXPECT_EQ(found.runs[i].value, expected[i].value) << i;
    EXPECT_EQ(found.runs[i].index, expected[i].index) << i;
  }
  EXPECT_EQ(bytes.uniform(13, 7).index, 101u);
  EXPECT_EQ(bytes.uniform(13, 8).length, 0u);
  EXPECT_EQ(bytes.uniform(40, 1).length, 0u);
}

// A kernel that adds a bias to the rows of two leaves.
Kernel addsBias(std::initializer_list<const char*> lines) {
  Kernel kernel;
  for (uint64_t bytes : {16, 64, 64}) kernel.add_operand_bytes(bytes);
  for (Access access : {READ, READ, WRITE}) kernel.add_operand_access(access);
  for (const char* line : lines) kernel.add_ops(line);
  return kernel;
}

TEST(KernelProgram, IsReadAndWritten) {
  const Kernel kernel =
      addsBias({"operand f32 1x4", "operand f32 2x4 leaves 2 outer 1", "spread broadcast f32 2x4 of 0",
                "map add f32 2x4 with 00000000000000ff of 1 2", "result f32 2x4 leaves 2 outer 1 of 3"});
  Expected<KernelProgram> program = programOf(kernel);
  ASSERT_TRUE(program.ok()) << program.status().message();
  EXPECT_EQ(program->leaves, 2);
  ASSERT_EQ(program->lines.size(), 5u);
  EXPECT_EQ(program->lines[3].attributes, 0xffu);
  for (int i = 0; i < kernel.ops_size(); ++i) EXPECT_EQ(program->lines[static_cast<size_t>(i)].text(), kernel.ops(i));
  EXPECT_TRUE(programOf(Kernel())->lines.empty());
}

TEST(KernelProgram, WhatDoesNotFitIsNamed) {
  const char *bias = "operand f32 1x4", *rows = "operand f32 2x4 leaves 2 outer 1",
             *spread = "spread broadcast f32 2x4 of 0", *add = "map add f32 2x4 of 1 2",
             *result = "result f32 2x4 leaves 2 outer 1 of 3";
  auto error = [](std::initializer_list<const char*> lines) {
    Expected<KernelProgram> program = programOf(addsBias(lines));
    return program.ok() ? std::string("none") : program.status().message();
  };
  auto expect = [&](std::initializer_list<const char*> lines, const char* message) {
    EXPECT_NE(error(lines).find(message), std::string::npos) << error(lines) << " instead of " << message;
  };
  EXPECT_EQ(error({bias, rows, spread, add, result}), "none");
  expect({bias, rows, spread, add}, "has 2 of its 3 operands");
  expect({bias, rows, spread, add, result, result}, "an operand that the kernel has not");
  expect({bias, "operand f32 2x4 leaves 3 outer 1"}, "has 96 bytes, operand 1 has 64");
  expect({bias, "operand f32 2x4 leaves 2 outer 3"}, "do not divide its elements");
  expect({bias, "operand f32 2x4 leaves 0 outer 1"}, "no number of leaves");
  expect({bias, "operand f32 2x4 pitch 3"}, "a pitch that is shorter than a row");
  expect({bias, rows, spread, add, "result f32 4x4 of 3"}, "has 16 elements for the 8 of line 3");
  expect({bias, rows, spread, "map add f32 2x4 of 1 3"}, "depends on line 3");
  expect({bias, rows, spread, "map add f32 2x4 of 0 1"}, "has 8 elements for the 4 of line 0");
  expect({bias, rows, spread, "map add f32 2x4"}, "too many or too few lines");
  expect({bias, rows, "spread broadcast f32 2x4 of 0 1"}, "depends on other than one line");
  expect({bias, rows, spread, add, result, bias}, "is out of order");
  expect({bias, spread, rows}, "is out of order");
  expect({"operand f99 1x4"}, "no element type but 'f99'");
  expect({"operand f32 1xx4y"}, "no shape");
  expect({"operand f32 1x0"}, "no shape");
  expect({"operand f32 4294967296x4294967296x4294967296"}, "no shape");
  expect({"sum f32 1x4"}, "begins with no kind of line");
  expect({"operand f32 1x4 twice"}, "an unexpected 'twice'");
  expect({bias, rows, spread, "map add f32 2x4 with xyz of 1 2"}, "no hash");
  expect({"result f32 1x4 of 0"}, "depends on line 0");
  expect({bias, "whole reduce f32 2x4 of 0", "result f32 2x4 leaves 2 outer 1 of 1"},
         "is not what the kernel does with operand 1");
}

// A plan by hand whose update states what it computes.
Plan statedPlan(int64_t ranks, int stage) {
  Plan plan = testing::TrainingPlan(ranks, stage, 8).plan;
  Kernel& kernel = *plan.mutable_kernels(0);
  const uint64_t bytes = kernel.operand_bytes(0);
  kernel.clear_operand_bytes(), kernel.clear_operand_access();
  for (int i = 0; i < 6; ++i) {
    kernel.add_operand_bytes(i == 3 ? sizeof(float) : bytes);
    kernel.add_operand_access(i < 4 ? READ : WRITE);
  }
  const std::string shape = std::to_string(bytes / sizeof(float));
  for (int i = 0; i < 3; ++i) kernel.add_ops("operand f32 " + shape);
  kernel.add_ops("operand f32 1");
  kernel.add_ops("map add f32 " + shape + " of 2 1");
  kernel.add_ops("spread broadcast f32 " + shape + " of 3");
  kernel.add_ops("map fma f32 " + shape + " of 5 4 0");
  kernel.add_ops("result f32 " + shape + " of 6");
  kernel.add_ops("result f32 " + shape + " of 4");
  for (Instruction& instruction : *plan.mutable_body()) {
    if (!instruction.has_kernel()) continue;
    for (int i : {0, 2}) {
      Operand& result = *instruction.add_operands() = instruction.operands(i);
      result.set_access(WRITE);
      instruction.mutable_operands(i)->set_access(READ);
    }
  }
  return plan;
}

std::optional<LeafDifference> difference(const Plan& first, const Plan& second) {
  Expected<LeafDataflow> a = followLeaves(first, true), b = followLeaves(second, true);
  EXPECT_TRUE(a.ok()) << a.status().message();
  EXPECT_TRUE(b.ok()) << b.status().message();
  if (!a.ok() || !b.ok()) return std::nullopt;
  return firstDifference({first, *a}, {second, *b}, true);
}

TEST(LeafDataflow, IsTheSameAtEveryStage) {
  for (int64_t ranks : {1, 2, 4})
    for (int stage = 1; stage <= 3; ++stage) {
      auto found = difference(statedPlan(ranks, 0), statedPlan(ranks, stage));
      EXPECT_FALSE(found) << ranks << " ranks at stage " << stage << ": " << found->value << ": " << found->first
                          << ", " << found->second;
    }
}

TEST(LeafDataflow, NamesWhatDiffers) {
  // Two ranks sum other rows than four do.
  auto found = difference(statedPlan(2, 1), statedPlan(4, 3));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->value, "the loss, at element 0");
  EXPECT_NE(found->first.find("(sum_partials 'sum_partials' on stream compute)"), std::string::npos) << found->first;

  Plan changed = statedPlan(4, 2);
  *changed.mutable_kernels(0)->mutable_ops(6) = "map fma f32 32 of 5 0 4";
  found = difference(statedPlan(4, 2), changed);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->value, "the parameters of bucket 'all', at element 0 of parameter 'w'");
  EXPECT_EQ(found->second.find("the parameters of bucket 'all', read by body instruction"), 0u) << found->second;
  EXPECT_NE(found->second.find("(kernel 'update all' on stream compute)"), std::string::npos) << found->second;

  // The rows of a rank, by another dealing.
  Plan byMicroBatch = statedPlan(4, 2), byRank = byMicroBatch;
  byMicroBatch.set_micro_batches(2), byRank.set_micro_batches(2);
  byRank.set_dealing(BY_RANK);
  EXPECT_TRUE(difference(byMicroBatch, byRank));
}

TEST(LeafDataflow, TellsSumsApart) {
  const Plan plan = statedPlan(4, 2);
  for (int i = 0; i < plan.body_size(); ++i) {
    const CollectiveOp op = plan.body(i).collective().op();
    if (op != ALL_REDUCE && op != REDUCE_SCATTER) continue;
    Plan changed = plan;
    changed.mutable_body(i)->mutable_collective()->set_type(BF16);
    changed.mutable_body(i)->mutable_collective()->set_count(2 * plan.body(i).collective().count());
    EXPECT_TRUE(difference(plan, changed)) << "instruction " << i << " rounds";
  }
  // A sum over ranks that goes on from what was there.
  for (int i = 0; i < plan.body_size(); ++i) {
    if (plan.body(i).collective().op() != REDUCE_SCATTER) continue;
    Plan changed = plan;
    changed.mutable_body(i)->mutable_operands(1)->set_access(READ_WRITE);
    EXPECT_TRUE(difference(plan, changed)) << "instruction " << i << " goes on";
  }
  Plan ring = plan;
  ring.mutable_training()->set_reduce_order(Training::RING);
  EXPECT_TRUE(difference(plan, ring));
}

// What plans state that they were compiled from may be the same where their instructions are not.
TEST(Same, ComparesInstructionsWhereThatIsQuick) {
  Plan plan = statedPlan(4, 2);
  plan.mutable_origin()->set_leaves(4);
  plan.mutable_origin()->add_step()->set_hash(7);
  Plan changed = plan;
  *changed.mutable_kernels(0)->mutable_ops(6) = "map fma f32 32 of 5 0 4";
  EXPECT_FALSE(compareOrigins(plan, "a", changed, "b")->difference);
  Expected<Comparison> found = comparePlans(plan, "a", changed, "b");
  ASSERT_TRUE(found.ok()) << found.status().message();
  ASSERT_TRUE(found->difference);
  EXPECT_TRUE(found->proved && !found->difference->certain);
  EXPECT_NE(found->difference->text().find("the parameters of bucket 'all'"), std::string::npos);
  found = comparePlans(plan, "a", plan, "b");
  EXPECT_TRUE(found.ok() && found->proved && !found->difference);
  // More pieces than are allowed: nothing is said of the instructions.
  found = compareInstructions(plan, "a", changed, "b", 1);
  EXPECT_TRUE(found.ok() && !found->proved && !found->difference);
}

TEST(Same, NamesOtherModelsFirst) {
  Plan plan = statedPlan(4, 2);
  plan.set_model("a.onnx");
  plan.mutable_origin()->set_leaves(4);
  plan.mutable_origin()->add_step()->set_hash(7);
  plan.add_inputs()->set_name("x");
  Plan other = plan;
  other.set_model("b.onnx");
  other.mutable_origin()->set_leaves(2);
  auto text = [&] { return compareOrigins(plan, "a", other, "b")->difference->text(); };
  EXPECT_NE(text().find("the number of leaves is 4 and 2"), std::string::npos) << text();
  for (Input& input : *other.mutable_inputs()) input.set_name("other " + input.name());
  EXPECT_EQ(text().find("the model is a.onnx with inputs "), 0u) << text();
  EXPECT_NE(text().find("compile both from the same model"), std::string::npos);
}

TEST(LeafDataflow, NeedsWhatKernelsCompute) {
  const Plan plan = testing::TrainingPlan(2, 1, 8).plan;
  Expected<LeafDataflow> found = followLeaves(plan);
  ASSERT_FALSE(found.ok());
  EXPECT_NE(found.status().message().find("its kernel does not state what it computes; compile the model again"),
            std::string::npos)
      << found.status().message();
}

TEST(LeafDataflow, RanksAgree) {
  // One rank's part of the parameters is not gathered by the others.
  Plan plan = statedPlan(2, 1);
  for (int i = plan.body_size(); i-- > 0;)
    if (plan.body(i).has_collective() && plan.body(i).label() == "all") {
      plan.mutable_body()->DeleteSubrange(i, 1);
      break;
    }
  Expected<LeafDataflow> found = followLeaves(plan);
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.status().message(), "ranks 0 and 1 compute different values of the parameters of bucket 'all'");
}

}  // namespace
}  // namespace sheaf::plan
