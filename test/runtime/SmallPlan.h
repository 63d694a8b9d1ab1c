// A plan for tests of the proof: instructions are added by hand.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "runtime/plan/Proof.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::testing {

inline void addIntegers(plan::LibraryCall& call, std::initializer_list<std::pair<const char*, int64_t>> attributes) {
  for (auto [name, value] : attributes) {
    call.add_attributes()->set_name(name);
    call.mutable_attributes()->rbegin()->set_integer(value);
  }
}

// The attributes of a copy of 128 bytes to every second element of 8 bytes.
inline void setAlternate(plan::LibraryCall& copy) {
  addIntegers(copy,
              {{"element_bytes", 8}, {"rank", 1}, {"size0", 16}, {"source_stride0", 1}, {"destination_stride0", 2}});
}

// Two ranks, streams "a" and "b", and buffers x, y, z of 256 bytes each, side by side, that calls read and write whole.
struct SmallPlan {
  using Instruction = plan::Instruction;
  using List = google::protobuf::RepeatedPtrField<Instruction>;

  SmallPlan(const SmallPlan& other) : plan(other.plan) {}
  SmallPlan() {
    plan.set_ranks(2);
    plan.add_streams("a");
    plan.add_streams("b");
    plan.set_events(4);
    plan.set_communicators(1);
    for (const char* name : {"x", "y", "z"}) {
      plan::Buffer& buffer = *plan.add_buffers();
      buffer.set_name(name);
      buffer.set_kind(plan::ACTIVATIONS);
      buffer.set_offset(static_cast<uint64_t>(plan.buffers_size() - 1) * 256);
      buffer.set_bytes(256);
    }
  }

  void call(List* list, const char* label, uint32_t stream, std::vector<std::pair<uint32_t, plan::Access>> accesses,
            uint64_t stride = 0) {
    Instruction& instruction = *list->Add();
    instruction.set_label(label);
    instruction.set_stream(stream);
    instruction.mutable_call()->set_function("copy");
    for (auto [buffer, access] : accesses) {
      plan::Operand& operand = *instruction.add_operands();
      operand.set_buffer(buffer);
      operand.set_bytes(stride ? stride : 256);
      operand.set_shard_stride(stride);
      operand.set_access(access);
    }
  }
  void kernel(List* list, const char* label, std::vector<std::pair<uint32_t, plan::Access>> accesses,
              uint64_t stride = 0) {
    call(list, label, 0, std::move(accesses), stride);
    list->rbegin()->mutable_kernel();
  }
  // Copies 128 bytes to every second element of 8 bytes: the even ones, or the odd ones.
  void alternate(List* list, const char* label, uint32_t from, uint32_t to, bool odd) {
    call(list, label, 0, {{from, plan::READ}, {to, plan::WRITE}});
    Instruction& copy = *list->rbegin();
    setAlternate(*copy.mutable_call());
    copy.mutable_operands(0)->set_bytes(128);
    copy.mutable_operands(1)->set_bytes(248);
    copy.mutable_operands(1)->set_offset(odd ? 8 : 0);
  }
  void record(List* list, uint32_t stream, uint32_t event) {
    list->Add()->set_stream(stream);
    list->rbegin()->mutable_record()->set_event(event);
  }
  void wait(List* list, uint32_t stream, uint32_t event) {
    list->Add()->set_stream(stream);
    list->rbegin()->mutable_wait()->set_event(event);
  }
  std::string proof() const { return plan::provePlan(plan).message(); }

  plan::Plan plan;
  List *prologue = plan.mutable_prologue(), *body = plan.mutable_body(), *epilogue = plan.mutable_epilogue(),
       *evaluation = plan.mutable_evaluation();
};

}  // namespace sheaf::testing
