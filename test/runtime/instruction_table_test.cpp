// The table of resolved instructions that devices run: places of operands by rank and generation, what each kind of
// instruction needs, lookups in any order, and errors.
#include "runtime/device/InstructionTable.h"

#include <gtest/gtest.h>

#include "test/runtime/Transfers.h"

namespace sheaf::testing {
namespace {

using plan::Buffer, plan::Transfer;
using Table = InstructionTable<ResolvedInstruction>;

// Memory of a rank, which is never accessed.
std::byte* const kDevice = reinterpret_cast<std::byte*>(uintptr_t{1} << 40);
std::byte* const kHost = reinterpret_cast<std::byte*>(uintptr_t{1} << 44);

Status fill(Table& table, const plan::Plan& plan, int64_t rank = 0) {
  return table.fill({plan, rank, kDevice, kHost}, [](ResolvedInstruction&) { return Status(); });
}

Table tableOf(const plan::Plan& plan, int64_t rank = 0) {
  Table table;
  const Status status = fill(table, plan, rank);
  EXPECT_TRUE(status.ok()) << status.message();
  return table;
}

std::string errorOf(const plan::Plan& plan) {
  Table table;
  return fill(table, plan).message();
}

TEST(InstructionTable, OperandsLieWhereTheRankHasThem) {
  PlanBuilder builder;
  builder.plan.set_ranks(6);
  builder.plan.set_ranks_per_node(3);
  builder.buffer(128);
  const uint32_t device = builder.buffer(4096), host = bufferIn(builder, Buffer::HOST, 4096, 256);
  const uint32_t file = bufferIn(builder, Buffer::FILE, 4096);
  std::vector<plan::Operand> operands;
  for (const uint32_t buffer : {device, device, device, host, file}) {
    operands.push_back(builder.operand(buffer, plan::READ));
    operands.back().set_offset(16);
    operands.back().set_bytes(8);
    operands.back().set_shard_stride(operands.size() == 1 ? 0 : 100);
  }
  operands[2].set_axis(plan::NODE);
  operands[3].set_axis(plan::NETWORK);
  builder.instruction("kernel", 1, operands).mutable_kernel();
  for (int64_t rank = 0; rank < 6; ++rank) {
    const Table table = tableOf(builder.plan, rank);
    // Shards are dealt to the first rank of each node, then to the second, and so on.
    const int64_t local = rank % 3, node = rank / 3, shard = local * 2 + node;
    const std::vector<std::byte*> expected = {kDevice + 128 + 16, kDevice + 128 + 16 + shard * 100,
                                              kDevice + 128 + 16 + local * 100, kHost + 256 + 16 + node * 100, nullptr};
    EXPECT_EQ(table[0].operands, expected) << rank;
    EXPECT_EQ(table[0].stream, 1u);
  }
}

TEST(InstructionTable, TransfersKnowBothGenerationsInFiles) {
  PlanBuilder builder;
  builder.plan.set_ranks(2);
  const uint32_t memory = builder.buffer(4096), host = bufferIn(builder, Buffer::HOST, 4096);
  const uint32_t current = bufferIn(builder, Buffer::FILE, 8192, 0), next = bufferIn(builder, Buffer::FILE, 8192, 8192);
  const uint32_t single = bufferIn(builder, Buffer::FILE, 8192, 16384);
  plan::Generation& generation = *builder.plan.add_generations();
  generation.set_current(current), generation.set_next(next);
  transfer(builder, Transfer::READ_FILE, current, memory, 0, 4096);
  transfer(builder, Transfer::WRITE_FILE, memory, next, 0, 4096);
  transfer(builder, Transfer::READ_FILE, single, host, 0, 4096);
  transfer(builder, Transfer::TO_HOST, memory, host, 64, 128);
  transfer(builder, Transfer::TO_DEVICE, host, memory, 64, 128);
  builder.plan.mutable_body(0)->mutable_operands(0)->set_shard_stride(4096);
  const Table table = tableOf(builder.plan, 1);
  struct Expected {
    bool read, onDevice;
    uint64_t even, odd;
    std::byte* memory;
  };
  const Expected expected[] = {
      {true, true, 4096, 12288, kDevice}, {false, true, 8192, 0, kDevice}, {true, false, 16384, 16384, kHost}};
  for (size_t i = 0; i < std::size(expected); ++i) {
    ASSERT_TRUE(table[i].file.has_value()) << i;
    const FileTransfer& file = *table[i].file;
    EXPECT_EQ(file.read, expected[i].read) << i;
    EXPECT_EQ(file.onDevice, expected[i].onDevice) << i;
    EXPECT_EQ(file.offsetAt(false), expected[i].even) << i;
    EXPECT_EQ(file.offsetAt(true), expected[i].odd) << i;
    EXPECT_EQ(file.memory, expected[i].memory) << i;
    EXPECT_EQ(file.bytes, 4096u) << i;
  }
  for (size_t i : {3, 4}) {
    EXPECT_FALSE(table[i].file.has_value());
    EXPECT_EQ(table[i].bytes, 128u);
    EXPECT_EQ(table[i].toDevice, i == 4);
  }
  EXPECT_EQ(table[3].operands, (std::vector<std::byte*>{kDevice + 64, kHost + 64}));
}

TEST(InstructionTable, KernelsAndCalls) {
  PlanBuilder builder;
  const uint32_t small = builder.buffer(1024), large = builder.buffer(128 << 10);
  for (const uint32_t buffer : {small, large}) {
    plan::Instruction& launch =
        builder.instruction("launch", 0, {builder.operand(buffer, plan::WRITE), builder.operand(small, plan::READ)});
    launch.mutable_kernel()->set_kernel(3);
    launch.mutable_kernel()->set_rows(100);
    launch.mutable_kernel()->set_block(buffer == small ? 0 : 32);
  }
  builder.plan.mutable_body(1)->set_updates_bucket(5);
  const plan::CopyCall copy{.elementBytes = 1, .dimensions = {{8, 1, 1}}};
  builder.call(copy, {builder.operand(small, plan::READ), builder.operand(large, plan::WRITE)});
  builder.plan.mutable_body(2)->mutable_call()->set_scratch_per_thread(0);
  builder.call(copy, {builder.operand(small, plan::READ), builder.operand(large, plan::WRITE)});
  builder.plan.mutable_body(3)->mutable_call()->set_scratch_per_thread(128);
  const Table table = tableOf(builder.plan);
  EXPECT_EQ(table[0].kind, plan::Instruction::kKernel);
  EXPECT_EQ(table[0].index, 3u);
  EXPECT_EQ(table[0].launch.blocks, 100);
  EXPECT_FALSE(table[0].launch.shared);
  EXPECT_FALSE(table[0].updates.has_value());
  EXPECT_EQ(table[1].launch.rows, 100);
  EXPECT_EQ(table[1].launch.blocks, 4);
  EXPECT_TRUE(table[1].launch.shared);
  EXPECT_EQ(table[1].updates, 4u);
  EXPECT_EQ(table[1].bytes, 1024u);
  EXPECT_EQ(table[2].scratch, nullptr);
  EXPECT_EQ(table[3].scratch, table[3].operands.back());
}

TEST(InstructionTable, Collectives) {
  PlanBuilder builder;
  const uint32_t from = builder.buffer(256), to = builder.buffer(512);
  for (const bool continues : {false, true})
    builder.collective(plan::REDUCE_SCATTER, plan::BF16, 64, builder.operand(from, plan::READ),
                       builder.operand(to, plan::WRITE), 1, 1, continues);
  const Table table = tableOf(builder.plan);
  for (size_t i : {0, 1}) {
    const comm::CollectiveBuffers& buffers = table[i].collective;
    EXPECT_EQ(table[i].index, 1u);
    EXPECT_EQ(buffers.op, plan::REDUCE_SCATTER);
    EXPECT_EQ(buffers.type, plan::BF16);
    EXPECT_EQ(buffers.count, 64u);
    EXPECT_EQ(buffers.source, kDevice);
    EXPECT_EQ(buffers.destination, kDevice + 256);
    EXPECT_EQ(buffers.continues, i == 1);
  }
}

TEST(InstructionTable, HostValuesAndEvents) {
  PlanBuilder builder;
  const uint32_t small = builder.buffer(12), scale = builder.buffer(24);
  builder.plan.set_loss_scale_buffer(scale);
  builder.plan.set_ranks(2);
  builder.instruction("input", 2, {builder.operand(small, plan::WRITE)}).mutable_input()->set_input(7);
  builder.instruction("scalars", 0, {builder.operand(small, plan::WRITE)}).mutable_scalars();
  for (const plan::OutputKind kind : {plan::LOSS, plan::GRADIENT_NORM, plan::TENSOR}) {
    plan::WriteOutput& output =
        *builder.instruction("output", 0, {builder.operand(small, plan::READ)}).mutable_output();
    output.set_output(kind);
    output.set_tensor(kind == plan::TENSOR ? 9 : 0);
  }
  builder.record(11, 0);
  builder.wait(12, 1);
  builder.instruction("persist", 1, {builder.operand(small, plan::WRITE), builder.operand(scale, plan::READ)})
      .mutable_persist()
      ->set_communicator(1);
  const Table table = tableOf(builder.plan);
  const std::pair<uint32_t, uint64_t> expected[] = {{7, 12}, {0, 12}, {0, 4},  {0, 8},
                                                    {9, 12}, {11, 0}, {12, 0}, {1, 24}};
  ASSERT_EQ(table.size(), std::size(expected));
  for (size_t i = 0; i < table.size(); ++i) {
    EXPECT_EQ(table[i].number, i);
    EXPECT_EQ(table[i].kind, builder.plan.body(static_cast<int>(i)).kind_case());
    EXPECT_EQ(std::pair(table[i].index, table[i].bytes), expected[i]) << i;
  }
  const float loss = 1.5;
  const double norm = 2.5;
  EXPECT_EQ(scalarOutput(table[2], reinterpret_cast<const std::byte*>(&loss)), 1.5);
  EXPECT_EQ(scalarOutput(table[3], reinterpret_cast<const std::byte*>(&norm)), 2.5);
  const ResolvedInstruction& persist = table[7];
  EXPECT_EQ(persist.lossScale, 1);
  EXPECT_EQ(persist.collective.op, plan::ALL_REDUCE);
  EXPECT_EQ(persist.collective.count, 1u);
  EXPECT_EQ(persist.collective.source, kDevice);
  EXPECT_EQ(persist.collective.destination, kDevice);
  EXPECT_FALSE(persist.collective.continues);
}

TEST(InstructionTable, FindsInstructionsInAnyOrder) {
  PlanBuilder builder;
  for (int i = 0; i < 5; ++i) builder.record(static_cast<uint32_t>(i), 0);
  for (auto* list : {builder.plan.mutable_prologue(), builder.plan.mutable_epilogue()})
    list->Add()->mutable_record()->set_event(9);
  const plan::Plan& plan = builder.plan;
  Table table = tableOf(plan);
  ASSERT_EQ(table.size(), 7u);
  auto expectFound = [&](const plan::Instruction& instruction) {
    const ResolvedInstruction* found = table.find(instruction);
    ASSERT_NE(found, nullptr);
    EXPECT_EQ(found->instruction, &instruction);
    EXPECT_EQ(found, &table[found->number]);
    EXPECT_EQ(found->index, instruction.record().event());
  };
  for (int round = 0; round < 2; ++round)
    for (const plan::Instruction& instruction : plan.body()) expectFound(instruction);
  for (const int i : {3, 3, 1, 2, 4, 0, 4}) expectFound(plan.body(i));
  expectFound(plan.epilogue(0));
  expectFound(plan.prologue(0));
  const plan::Instruction other = plan.body(0);  // equals what follows the prologue, and is not of the plan
  EXPECT_EQ(table.find(other), nullptr);
  expectFound(plan.body(0));
}

TEST(InstructionTable, ErrorsNameTheInstruction) {
  PlanBuilder event;
  event.record(0, 0);
  event.wait(16, 1);
  EXPECT_EQ(errorOf(event.plan),
            "body instruction 1 (wait 'wait' on stream communication): event 16 is not in the plan");
  PlanBuilder stream;
  stream.record(0, 3);
  EXPECT_EQ(errorOf(stream.plan), "body instruction 0 (record 'record'): stream 3 is not in the plan");
  PlanBuilder empty;
  empty.instruction("nothing");
  EXPECT_TRUE(errorOf(empty.plan).ends_with(": the instruction is empty")) << errorOf(empty.plan);
  for (const plan::OutputKind kind : {plan::LOSS, plan::GRADIENT_NORM}) {
    PlanBuilder output;
    output.instruction("output", 0, {output.operand(output.buffer(kind == plan::LOSS ? 3 : 7), plan::READ)})
        .mutable_output()
        ->set_output(kind);
    EXPECT_TRUE(errorOf(output.plan)
                    .ends_with(kind == plan::LOSS ? "the loss must be one f32" : "the gradient norm must be one f64"))
        << errorOf(output.plan);
  }
  PlanBuilder spaces;
  transfer(spaces, Transfer::READ_FILE, spaces.buffer(8), spaces.buffer(8));
  EXPECT_TRUE(errorOf(spaces.plan).ends_with("its operands lie in other spaces than its kind says"))
      << errorOf(spaces.plan);
  // One operand less than the kind takes.
  for (const auto& [name, operands] : {std::pair("input", 1), {"scalars", 1}, {"output", 1}, {"transfer", 2}}) {
    PlanBuilder lacking;
    std::vector<plan::Operand> given;
    for (int i = 1; i < operands; ++i) given.push_back(lacking.operand(lacking.buffer(8), plan::READ));
    plan::Instruction& instruction = lacking.instruction(name, 0, given);
    if (name == std::string_view("input")) instruction.mutable_input();
    if (name == std::string_view("scalars")) instruction.mutable_scalars();
    if (name == std::string_view("output")) instruction.mutable_output()->set_output(plan::TENSOR);
    if (name == std::string_view("transfer")) instruction.mutable_transfer()->set_kind(Transfer::TO_DEVICE);
    EXPECT_TRUE(errorOf(lacking.plan).ends_with(cat("it has ", operands - 1, " operands and takes ", operands)))
        << name << ": " << errorOf(lacking.plan);
  }
  PlanBuilder refused;
  refused.record(0, 0);
  Table table;
  const Status status = table.fill({refused.plan}, [](ResolvedInstruction&) { return Status::error("refused"); });
  EXPECT_EQ(status.message(), "body instruction 0 (record 'record' on stream compute): refused");
}

}  // namespace
}  // namespace sheaf::testing
