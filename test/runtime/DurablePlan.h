// The training plan made by hand with all its state in files, in two generations, on streams of their own.
#pragma once

#include "runtime/plan/Digests.h"
#include "runtime/plan/MemoryByKind.h"
#include "runtime/plan/Types.h"
#include "test/runtime/TrainingPlan.h"

namespace sheaf::testing {

struct DurablePlan : TrainingPlan {
  static constexpr uint32_t kFileIn = 2, kFileOut = 3;
  enum Event : uint32_t { kStored = 2, kFetched, kComputed, kPersisted };

  DurablePlan(int64_t ranks, int stage, int64_t batch) : TrainingPlan(ranks, stage, batch) {
    plan.add_streams("file_in");
    plan.add_streams("file_out");
    plan.set_events(6);
    homes = {plan.buckets(0).parameter_buffer(), plan.buckets(0).states(0).buffer()};
    const plan::InstructionList before = plan.body();
    plan.clear_body();
    event(kFileIn, kStored, false);
    for (uint32_t home : homes) {
      images.push_back(image(home));
      next.push_back(static_cast<uint32_t>(plan.buffers_size()));
      toFile(home, home == homes.front() ? 0 : 8192);
      *plan.add_buffers() = plan.buffers(static_cast<int>(home));
      plan::Buffer& second = *plan.mutable_buffers(static_cast<int>(next.back()));
      second.set_name(second.name() + ".next"), second.set_offset(second.offset() + 4096);
      plan::Generation& generation = *plan.add_generations();
      generation.set_current(home), generation.set_next(next.back());
      move(plan::Transfer::READ_FILE, home, images.back(), kFileIn);
    }
    event(kFileIn, kFetched, true);
    event(0, kFetched, false);
    for (plan::Instruction instruction : before) {
      plan::forEachOperand(instruction, [&](const plan::Operand& operand) {
        for (size_t i = 0; i < homes.size(); ++i)
          if (operand.buffer() == homes[i]) const_cast<plan::Operand&>(operand).set_buffer(images[i]);
      });
      *plan.add_body() = instruction;
    }
    event(0, kComputed, true);
    event(kFileOut, kComputed, false);
    for (size_t i = 0; i < homes.size(); ++i) move(plan::Transfer::WRITE_FILE, images[i], next[i], kFileOut);
    event(kFileOut, kStored, true);
    persist();
    event(kFileOut, kPersisted, true);
    plan.mutable_epilogue()->Add()->mutable_wait()->set_event(kPersisted);
    plan::SpaceMemory& memory = *plan.mutable_memory()->add_spaces();
    memory.set_space(plan::Buffer::FILE);
    memory.set_peak_bytes(plan::arenaTop(plan, plan::Buffer::FILE));
    plan.mutable_memory()->set_peak_bytes(plan::arenaTop(plan, plan::Buffer::DEVICE));
    plan::declareMemoryByKind(plan);
    plan::redigest(plan);
  }

  // The first instruction of the body that `is` holds of.
  template <typename Is>
  int find(Is is) const {
    for (int i = 0; i < plan.body_size(); ++i)
      if (is(plan.body(i))) return i;
    return -1;
  }
  int persistAt() const {
    return find([](const plan::Instruction& i) { return i.has_persist(); });
  }
  // The first store to a file, and the first fetch from one.
  int storeAt() const {
    return find([](const plan::Instruction& i) { return i.transfer().kind() == plan::Transfer::WRITE_FILE; });
  }
  int fetchAt() const {
    return find([](const plan::Instruction& i) { return i.transfer().kind() == plan::Transfer::READ_FILE; });
  }

  std::vector<uint32_t> homes, images, next;  // parameters and momentum: current, on the device, next generation

 private:
  uint32_t image(uint32_t home) {
    plan::Buffer copy = plan.buffers(static_cast<int>(home));
    copy.set_name(copy.name() + ".image");
    copy.set_persistent(false);
    copy.set_offset((plan::arenaTop(plan, plan::Buffer::DEVICE) + 4095) / 4096 * 4096);
    *plan.add_buffers() = copy;
    return static_cast<uint32_t>(plan.buffers_size() - 1);
  }
  void toFile(uint32_t home, uint64_t offset) {
    plan::Buffer& buffer = *plan.mutable_buffers(static_cast<int>(home));
    buffer.set_space(plan::Buffer::FILE), buffer.set_offset(offset);
  }
  plan::Instruction& add(const char* label, uint32_t stream) {
    plan::Instruction& instruction = *plan.add_body();
    instruction.set_label(label);
    instruction.set_stream(stream);
    return instruction;
  }
  void event(uint32_t stream, Event event, bool record) {
    plan::Instruction& instruction = add("event", stream);
    record ? instruction.mutable_record()->set_event(event) : instruction.mutable_wait()->set_event(event);
  }
  plan::Operand whole(uint32_t buffer, plan::Access access) const {
    plan::Operand operand;
    operand.set_buffer(buffer);
    operand.set_bytes(plan.buffers(static_cast<int>(buffer)).bytes());
    operand.set_access(access);
    return operand;
  }
  void move(plan::Transfer::Kind kind, uint32_t from, uint32_t to, uint32_t stream) {
    plan::Instruction& transfer = add("move", stream);
    transfer.mutable_transfer()->set_kind(kind);
    *transfer.add_operands() = whole(from, plan::READ);
    *transfer.add_operands() = whole(to, plan::WRITE);
  }
  void persist() {
    plan::Instruction& persist = add("persist", kFileOut);
    persist.mutable_persist();
    if (plan.ranks() > 1) {
      plan::Buffer& votes = *plan.add_buffers();
      votes.set_name("votes");
      votes.set_kind(plan::WORKSPACE);
      votes.set_bytes(sizeof(float));
      votes.set_persistent(true);
      votes.set_offset((plan::arenaTop(plan, plan::Buffer::DEVICE) + 4095) / 4096 * 4096);
      *persist.add_operands() = whole(static_cast<uint32_t>(plan.buffers_size() - 1), plan::WRITE);
      persist.mutable_persist()->set_communicator(plan.communicators());
      plan.set_communicators(plan.communicators() + 1);
    }
    for (size_t i = 0; i < homes.size(); ++i) {
      *persist.add_operands() = whole(homes[i], plan::READ);
      *persist.add_operands() = whole(next[i], plan::READ);
    }
  }
};

}  // namespace sheaf::testing
