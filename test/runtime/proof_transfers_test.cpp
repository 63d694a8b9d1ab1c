// What the verifier and the proof say of buffers in other spaces and of transfers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/plan/Digests.h"
#include "runtime/plan/Summary.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/Verify.h"
#include "runtime/plan/Words.h"
#include "test/runtime/SmallPlan.h"
#include "test/runtime/TrainingPlan.h"

namespace sheaf {
namespace {

using plan::Buffer, plan::READ, plan::READ_WRITE, plan::Transfer, plan::WRITE;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::SmallPlan;
using testing::TrainingPlan;

plan::Instruction transfer(Transfer::Kind kind, uint32_t from, uint32_t to, uint64_t bytes, uint32_t stream = 0,
                           uint64_t stride = 0) {
  plan::Instruction instruction;
  instruction.set_stream(stream);
  instruction.set_label(plan::word(kind));
  instruction.mutable_transfer()->set_kind(kind);
  for (uint32_t buffer : {from, to}) {
    plan::Operand& operand = *instruction.add_operands();
    operand.set_buffer(buffer);
    operand.set_access(instruction.operands_size() == 1 ? READ : WRITE);
    operand.set_bytes(bytes);
    operand.set_shard_stride(stride);
  }
  return instruction;
}

// Buffer 3 in host memory, the parameters of a bucket; a kernel changes them.
struct HostPlan : SmallPlan {
  HostPlan() {
    Buffer& host = *plan.add_buffers();
    host.set_name("home");
    host.set_space(Buffer::HOST);
    host.set_bytes(256);
    host.set_kind(plan::PARAMETERS);
    host.set_persistent(true);
    plan.add_buckets()->set_parameter_buffer(3);
  }
  void move(Transfer::Kind kind, uint32_t from, uint32_t to, uint32_t stream = 0, uint64_t bytes = 256,
            uint64_t stride = 0) {
    *body->Add() = transfer(kind, from, to, bytes, stream, stride);
  }
};

std::vector<uint64_t> dataflow(plan::Plan plan) {
  plan::redigest(plan);
  return {plan.digests().dataflow().begin(), plan.digests().dataflow().end()};
}

TEST(ProofOfTransfers, APlanComputesTheSameWhereverItsBuffersLie) {
  for (const uint64_t part : {0, 128}) {
    SmallPlan plain;
    plain.plan.add_buckets()->set_parameter_buffer(2);
    plain.kernel(plain.body, "update", {{2, READ_WRITE}}, part);
    HostPlan moved;
    moved.move(Transfer::TO_DEVICE, 3, 2);
    moved.kernel(moved.body, "update", {{2, READ_WRITE}}, part);
    moved.move(Transfer::TO_HOST, 2, 3);
    EXPECT_EQ(moved.proof(), "");
    EXPECT_EQ(dataflow(moved.plan), dataflow(plain.plan)) << part;
    // Through another image, in two pieces.
    HostPlan twice;
    twice.move(Transfer::TO_DEVICE, 3, 1, 0, 128);
    twice.move(Transfer::TO_DEVICE, 3, 1, 0, 128);
    for (plan::Operand& operand : *twice.body->Mutable(1)->mutable_operands()) operand.set_offset(128);
    twice.kernel(twice.body, "update", {{1, READ_WRITE}}, part);
    twice.move(Transfer::TO_HOST, 1, 3);
    EXPECT_EQ(dataflow(twice.plan), dataflow(plain.plan)) << part;
    // A store that is missing, or comes before the update, leaves the old values.
    HostPlan early(moved), without(moved);
    early.body->SwapElements(1, 2);
    without.body->RemoveLast();
    EXPECT_NE(dataflow(early.plan), dataflow(plain.plan));
    EXPECT_NE(dataflow(without.plan), dataflow(plain.plan));
    plan::redigest(moved.plan);
    *early.plan.mutable_digests() = moved.plan.digests();
    EXPECT_THAT(early.proof(), HasSubstr("(table dataflow, entry 3) is computed by other operations"));
  }
}

TEST(ProofOfTransfers, WhatIsNotFetchedIsNotThere) {
  HostPlan p;
  p.kernel(p.body, "update", {{2, READ_WRITE}});
  p.move(Transfer::TO_HOST, 2, 3);
  EXPECT_THAT(p.proof(), AllOf(HasSubstr("'update'"), HasSubstr("reads bytes [0, 256) of buffer 'z'"),
                               HasSubstr("which nothing has written")));
}

// An image that stays from step to step would be stale after the host has loaded a state.
TEST(ProofOfTransfers, AnImageThatIsKeptDiffersAfterTheHost) {
  HostPlan p;
  *p.prologue->Add() = transfer(Transfer::TO_DEVICE, 3, 2, 256);
  p.kernel(p.body, "update", {{2, READ_WRITE}});
  p.move(Transfer::TO_HOST, 2, 3);
  // It holds what the home holds: fetching it again would change nothing.
  EXPECT_EQ(p.proof(), "");
  p.kernel(p.body, "something else", {{2, READ_WRITE}});
  EXPECT_THAT(p.proof(), AllOf(HasSubstr("a later step computes something else than the first"), HasSubstr("'z'")));
}

TEST(ProofOfTransfers, AStoreAndAFetchOfOneHomeAreOrdered) {
  HostPlan p;
  p.move(Transfer::TO_DEVICE, 3, 2, 0);
  p.kernel(p.body, "update", {{2, READ_WRITE}});
  p.record(p.body, 0, 0);
  p.wait(p.body, 1, 0);
  p.move(Transfer::TO_HOST, 2, 3, 1);
  EXPECT_THAT(p.proof(),
              AllOf(HasSubstr("the plan may race"), HasSubstr("of the arena in space host as buffer 'home'")));
  p.record(p.epilogue, 1, 1);
  p.wait(p.epilogue, 0, 1);
  EXPECT_THAT(p.proof(), HasSubstr("the plan may race"));  // the next step fetches
  p.record(p.body, 1, 1);
  p.wait(p.body, 0, 1);
  EXPECT_EQ(p.proof(), "");
}

// `sheaf assemble --redigest` follows what is not verified: a rank's part that goes to the place of all.
TEST(ProofOfTransfers, PartsThatDoNotFitEachOtherAreFollowed) {
  HostPlan p;
  p.move(Transfer::TO_DEVICE, 3, 2, 0, 128, 128);
  p.body->Mutable(0)->mutable_operands(0)->set_shard_stride(0);
  p.kernel(p.body, "update", {{2, READ_WRITE}});
  EXPECT_FALSE(dataflow(p.plan).empty());
  p.body->Mutable(0)->mutable_operands()->SwapElements(0, 1);
  EXPECT_FALSE(dataflow(p.plan).empty());
}

// Bytes of one number in two spaces are two bytes.
TEST(ProofOfTransfers, SpacesDoNotShareBytes) {
  HostPlan p;
  p.move(Transfer::TO_DEVICE, 3, 2);
  p.call(p.body, "other", 0, {{0, WRITE}});  // the same offsets as those of `home`
  p.kernel(p.body, "update", {{2, READ_WRITE}});
  p.move(Transfer::TO_HOST, 2, 3);
  EXPECT_EQ(p.plan.buffers(0).offset(), p.plan.buffers(3).offset());
  EXPECT_EQ(p.proof(), "");
}

// The error of the verifier, or else of the proof; empty: there is none.
std::string verifiedAndProved(const plan::Plan& plan) {
  Status status = plan::verifyPlan(plan);
  if (status.ok()) status = plan::provePlan(plan);
  return status.message();
}

// The hand-made training plan with its momentum in another space.
struct Moved : TrainingPlan {
  explicit Moved(Buffer::Space space, int stage = 1) : TrainingPlan(2, stage, 8) {
    using namespace plan;
    sheaf::plan::Plan& p = TrainingPlan::plan;
    home = p.buckets(0).states(0).buffer();
    Buffer& buffer = *p.mutable_buffers(static_cast<int>(home));
    image = static_cast<uint32_t>(p.buffers_size());
    Buffer copy = buffer;
    copy.set_name("image");
    copy.set_persistent(false);
    copy.set_offset((p.memory().peak_bytes() + 4095) / 4096 * 4096);
    *p.add_buffers() = copy;
    p.mutable_buffers(static_cast<int>(home))->set_space(space);
    p.mutable_buffers(static_cast<int>(home))->set_offset(0);
    SpaceMemory& memory = *p.mutable_memory()->add_spaces();
    memory.set_space(space);
    memory.set_peak_bytes(copy.bytes());
    p.mutable_memory()->set_peak_bytes(copy.offset() + copy.bytes());
    google::protobuf::RepeatedPtrField<Instruction> body;
    for (Instruction& instruction : *p.mutable_body()) {
      const bool update = instruction.updates_bucket() > 0;
      if (update)
        for (Operand& operand : *instruction.mutable_operands())
          if (operand.buffer() == home) operand.set_buffer(image);
      const bool file = space == Buffer::FILE;
      if (update) fetch = body.size();
      if (update) *body.Add() = transfer(file ? Transfer::READ_FILE : Transfer::TO_DEVICE, home, image, copy.bytes());
      *body.Add() = instruction;
      if (update) *body.Add() = transfer(file ? Transfer::WRITE_FILE : Transfer::TO_HOST, image, home, copy.bytes());
    }
    *p.mutable_body() = body;
    declareMemoryByKind(p);
    redigest(p);
  }
  std::string verified() const { return verifiedAndProved(plan); }
  plan::Instruction& fetched() { return *plan.mutable_body(fetch); }

  uint32_t home = 0, image = 0;
  int fetch = 0;
};

TEST(VerifyTransfers, MovedStateIsAccepted) {
  for (int stage = 0; stage < 4; ++stage)
    for (Buffer::Space space : {Buffer::HOST, Buffer::FILE}) {
      Moved moved(space, stage);
      EXPECT_EQ(moved.verified(), "") << stage;
      TrainingPlan plain(2, stage, 8);
      plan::redigest(plain.plan);
      EXPECT_EQ(moved.plan.digests().SerializeAsString(), plain.plan.digests().SerializeAsString()) << stage;
      const plan::Summary summary = plan::summarize(moved.plan), before = plan::summarize(plain.plan);
      EXPECT_EQ(summary.spaces.at(space).byKind.at(plan::OPTIMIZER), before.byKind.at(plan::OPTIMIZER));
      EXPECT_EQ(summary.byKind.at(plan::OPTIMIZER), before.byKind.at(plan::OPTIMIZER)) << "its image";
      EXPECT_EQ(summary.transfers.size(), 2u);
    }
}

struct Wrong {
  const char* name;
  void (*change)(Moved&);
  const char* error;
  Buffer::Space space = Buffer::HOST;
};

class WrongTransfers : public ::testing::TestWithParam<Wrong> {};

TEST_P(WrongTransfers, AreRefused) {
  Moved moved(GetParam().space);
  GetParam().change(moved);
  EXPECT_THAT(moved.verified(), HasSubstr(GetParam().error));
}

INSTANTIATE_TEST_SUITE_P(
    VerifyTransfers, WrongTransfers,
    ::testing::Values(
        Wrong{"Kind", [](Moved& m) { m.fetched().mutable_transfer()->set_kind(Transfer::TO_HOST); },
              "it moves bytes from space host to device, which is not what to_host does"},
        Wrong{"NoKind", [](Moved& m) { m.fetched().mutable_transfer()->set_kind(Transfer::KIND_UNSPECIFIED); },
              "its kind is not known"},
        Wrong{"SameSpace", [](Moved& m) { m.fetched().mutable_operands(0)->set_buffer(m.image); },
              "it moves bytes from space device to device"},
        Wrong{"OtherPlace", [](Moved& m) { m.fetched().mutable_operands(0)->set_bytes(128); },
              "is not at the same place as its destination"},
        Wrong{"OtherSize",
              [](Moved& m) {
                m.plan.mutable_buffers(static_cast<int>(m.image))
                    ->set_bytes(m.plan.buffers(static_cast<int>(m.image)).bytes() + 128);
                m.plan.mutable_memory()->set_peak_bytes(plan::arenaTop(m.plan, Buffer::DEVICE));
              },
              "is not at the same place as its destination"},
        Wrong{"Access", [](Moved& m) { m.fetched().mutable_operands(0)->set_access(READ_WRITE); },
              "it must read its source and write its destination"},
        Wrong{"Outside", [](Moved& m) { m.fetched().mutable_operands(0)->set_offset(128); },
              "lies outside buffer 'momentum'"},
        Wrong{"Nothing",
              [](Moved& m) {
                for (plan::Operand& o : *m.fetched().mutable_operands()) o.set_bytes(0);
              },
              "it moves nothing"},
        Wrong{"Computation",
              [](Moved& m) { m.plan.mutable_body(m.fetch + 1)->mutable_operands(2)->set_buffer(m.home); },
              "operand 2 is buffer 'momentum' in space host, which only transfers and launches on the host reach"},
        Wrong{"Blocks",
              [](Moved& m) {
                for (plan::Operand& o : *m.fetched().mutable_operands()) o.set_bytes(128);
              },
              "is not one of whole blocks of 4096 bytes", Buffer::FILE},
        Wrong{"FileOffset",
              [](Moved& m) {
                m.plan.mutable_buffers(static_cast<int>(m.home))->set_offset(128);
                m.plan.mutable_memory()->mutable_spaces(0)->set_peak_bytes(plan::arenaTop(m.plan, Buffer::FILE));
              },
              "offset 128 is not a multiple of 4096", Buffer::FILE},
        Wrong{"Space", [](Moved& m) { m.plan.mutable_buffers(0)->set_space(static_cast<Buffer::Space>(7)); },
              "its space 7 is not one of its values, which are device, host, file"},
        Wrong{"Peak", [](Moved& m) { m.plan.mutable_memory()->mutable_spaces(0)->set_peak_bytes(1); },
              "memory in space host.peak_bytes: declared are 1 bytes"},
        Wrong{"Undeclared", [](Moved& m) { m.plan.mutable_memory()->clear_spaces(); },
              "memory.spaces: nothing is declared of space host, and buffer 'momentum' lies there"},
        Wrong{"Kinds", [](Moved& m) { m.plan.mutable_memory()->mutable_spaces(0)->clear_by_kind(); },
              "memory in space host.by_kind: no bytes of optimizer are declared"},
        Wrong{"KindBytes",
              [](Moved& m) { m.plan.mutable_memory()->mutable_spaces(0)->mutable_by_kind(0)->set_bytes(1); },
              "the plan declares 1 bytes of optimizer in space host"},
        Wrong{"Order", [](Moved& m) { m.plan.mutable_memory()->mutable_spaces(0)->set_space(Buffer::DEVICE); },
              "memory.spaces: its spaces are not known, not in order, or the device's is among them"},
        Wrong{"TwoBuckets",
              [](Moved& m) {
                *m.plan.add_buckets() = m.plan.buckets(0);
                m.plan.mutable_buckets(1)->set_name("another");
                plan::Buffer parameters = m.plan.buffers(static_cast<int>(m.plan.buckets(0).parameter_buffer()));
                m.plan.mutable_buckets(1)->clear_states();
                parameters.set_name("theirs"), parameters.set_space(Buffer::HOST), parameters.set_offset(4096);
                *m.plan.add_buffers() = parameters;
                const uint32_t theirs = static_cast<uint32_t>(m.plan.buffers_size() - 1);
                m.plan.mutable_buckets(1)->set_parameter_buffer(theirs);
                m.plan.mutable_memory()->mutable_spaces(0)->set_peak_bytes(plan::arenaTop(m.plan, Buffer::HOST));
                plan::declareMemoryByKind(m.plan);
                *m.plan.add_body() =
                    transfer(Transfer::TO_HOST, m.plan.buckets(0).parameter_buffer(), theirs, parameters.bytes());
              },
              "transfers join the parameters of buckets 'all' and 'another'"}),
    [](const auto& info) { return info.param.name; });

// The hand-made training plan, whose momentum lies in the host's memory, where it is updated, too.
struct OnHost : TrainingPlan {
  explicit OnHost(int stage = 1) : TrainingPlan(2, stage, 8) {
    sheaf::plan::Plan& p = TrainingPlan::plan;
    home = p.buckets(0).states(0).buffer();
    uint64_t top = 0;
    auto place = [&](Buffer& buffer) {
      buffer.set_space(Buffer::HOST);
      buffer.set_offset(top);
      top = (top + buffer.bytes() + 127) / 128 * 128;
    };
    place(*p.mutable_buffers(static_cast<int>(home)));
    google::protobuf::RepeatedPtrField<plan::Instruction> body;
    for (plan::Instruction& instruction : *p.mutable_body()) {
      if (instruction.updates_bucket() == 0) {
        *body.Add() = instruction;
        continue;
      }
      std::vector<plan::Instruction> after;
      for (plan::Operand& operand : *instruction.mutable_operands()) {
        if (operand.buffer() == home) continue;
        Buffer copy = p.buffers(static_cast<int>(operand.buffer()));
        copy.set_name(copy.name() + ".host");
        copy.set_persistent(false);
        place(copy);
        const uint32_t device = operand.buffer(), host = static_cast<uint32_t>(p.buffers_size());
        *p.add_buffers() = copy;
        *body.Add() = transfer(Transfer::TO_HOST, device, host, operand.bytes(), 0, operand.shard_stride());
        if (operand.access() != READ)
          after.push_back(transfer(Transfer::TO_DEVICE, host, device, operand.bytes(), 0, operand.shard_stride()));
        operand.set_buffer(host);
      }
      update = body.size();
      instruction.mutable_kernel()->set_on_host(true);
      *body.Add() = instruction;
      for (const plan::Instruction& store : after) *body.Add() = store;
    }
    *p.mutable_body() = body;
    plan::SpaceMemory& memory = *p.mutable_memory()->add_spaces();
    memory.set_space(Buffer::HOST);
    memory.set_peak_bytes(plan::arenaTop(p, Buffer::HOST));
    declareMemoryByKind(p);
    redigest(p);
  }
  std::string verified() const { return verifiedAndProved(plan); }
  plan::Instruction& launch() { return *plan.mutable_body(update); }

  uint32_t home = 0;
  int update = 0;
};

TEST(VerifyUpdatesOnHost, AreAccepted) {
  for (int stage = 0; stage < 4; ++stage) {
    const OnHost moved(stage);
    EXPECT_EQ(moved.verified(), "") << stage;
    TrainingPlan plain(2, stage, 8);
    plan::redigest(plain.plan);
    EXPECT_EQ(moved.plan.digests().SerializeAsString(), plain.plan.digests().SerializeAsString()) << stage;
    const plan::Summary summary = plan::summarize(moved.plan);
    EXPECT_EQ(summary.updates, 1u);
    EXPECT_EQ(summary.updatesOnHost, 1u);
    EXPECT_EQ(plan::summarize(plain.plan).updatesOnHost, 0u);
  }
}

TEST(VerifyUpdatesOnHost, AnImageForTheHostDoes) {
  OnHost p;
  plan::KernelImage& host = *p.plan.mutable_images(0);
  host.set_target("host");
  EXPECT_THAT(p.verified(), HasSubstr("it must be the last image, after at least one other"));
  plan::KernelImage gpu;
  gpu.set_target("cuda:sm_90");
  gpu.set_code("code");
  gpu.add_entries()->set_threads(32), gpu.mutable_entries(0)->set_grid(1);
  *p.plan.add_images() = gpu;
  p.plan.mutable_images()->SwapElements(0, 1);
  plan::redigest(p.plan);
  EXPECT_EQ(p.verified(), "");
  // It has no kernel of the plan: then its entry lies at its end.
  p.plan.mutable_images(1)->mutable_entries(0)->set_offset(p.plan.images(1).code().size());
  plan::redigest(p.plan);
  EXPECT_THAT(p.verified(), HasSubstr("the plan has no image with kernel 'update' for that"));
  p.plan.mutable_images(1)->mutable_entries(0)->set_offset(p.plan.images(1).code().size() + 1);
  EXPECT_THAT(p.verified(), HasSubstr("lies outside its image"));
  p.plan.mutable_images()->RemoveLast();
  plan::redigest(p.plan);
  EXPECT_THAT(p.verified(), HasSubstr("the plan has no image with kernel 'update' for that"));
}

struct WrongOnHost {
  const char* name;
  void (*change)(OnHost&);
  const char* error;
};

class WrongUpdatesOnHost : public ::testing::TestWithParam<WrongOnHost> {};

TEST_P(WrongUpdatesOnHost, AreRefused) {
  OnHost p;
  GetParam().change(p);
  EXPECT_THAT(p.verified(), HasSubstr(GetParam().error));
}

INSTANTIATE_TEST_SUITE_P(
    VerifyUpdatesOnHost, WrongUpdatesOnHost,
    ::testing::Values(
        WrongOnHost{"OnTheDevice", [](OnHost& p) { p.launch().mutable_kernel()->set_on_host(false); },
                    "in space host, which only transfers and launches on the host reach"},
        WrongOnHost{"Operand",
                    [](OnHost& p) { p.launch().mutable_operands(0)->set_buffer(p.plan.buckets(0).parameter_buffer()); },
                    "in space device, and a launch on the host works in the host's memory"},
        WrongOnHost{"NoUpdate", [](OnHost& p) { p.plan.mutable_body(p.update)->clear_updates_bucket(); },
                    "only updates of buckets may be launched on the host"},
        WrongOnHost{"StaleGradient", [](OnHost& p) { p.plan.mutable_body()->SwapElements(p.update - 2, p.update); },
                    "which nothing has written"},
        WrongOnHost{"NotCopiedBack", [](OnHost& p) { p.plan.mutable_body()->DeleteSubrange(p.update + 1, 1); },
                    "is computed by other operations"}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace sheaf
