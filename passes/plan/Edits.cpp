#include "passes/plan/Edits.h"

#include <numeric>

namespace sheaf::plan_ir {
namespace {

// Puts the elements of a field into another order: `order` has the index of each.
template <typename Message>
void reorder(google::protobuf::RepeatedPtrField<Message>& field, const std::vector<uint32_t>& order) {
  std::vector<Message*> elements(order.size());
  field.ExtractSubrange(0, field.size(), elements.data());
  for (uint32_t index : order) field.AddAllocated(elements[index]);
}

// Replaces every number of a buffer.
template <typename Replace>
void renumber(plan::Plan& plan, Replace replace) {
  for (plan::InstructionList* list : listsOf(plan))
    for (plan::Instruction& instruction : *list)
      for (plan::Operand& operand : *instruction.mutable_operands()) operand.set_buffer(replace(operand.buffer()));
  for (plan::Bucket& bucket : *plan.mutable_buckets()) {
    bucket.set_parameter_buffer(replace(bucket.parameter_buffer()));
    for (plan::State& state : *bucket.mutable_states()) state.set_buffer(replace(state.buffer()));
  }
  for (plan::Constant& constant : *plan.mutable_constants()) constant.set_buffer(replace(constant.buffer()));
  if (plan.has_loss_scale_buffer()) plan.set_loss_scale_buffer(replace(plan.loss_scale_buffer()));
  for (plan::Generation& generation : *plan.mutable_generations()) {
    generation.set_current(replace(generation.current()));
    generation.set_next(replace(generation.next()));
  }
}

}  // namespace

std::vector<plan::InstructionList*> roundsOf(plan::Plan& plan) {
  std::vector<plan::InstructionList*> lists;
  for (plan::StepPart& part : *plan.mutable_parts()) lists.push_back(part.mutable_instructions());
  lists.push_back(plan.mutable_body());
  lists.push_back(plan.mutable_evaluation());
  return lists;
}

std::vector<plan::InstructionList*> listsOf(plan::Plan& plan) {
  std::vector<plan::InstructionList*> lists = roundsOf(plan);
  lists.insert(lists.begin(), plan.mutable_prologue());
  lists.insert(lists.end() - 1, plan.mutable_epilogue());
  return lists;
}

void dropUnusedBuffers(plan::Plan& plan) {
  std::vector<bool> used(static_cast<size_t>(plan.buffers_size()));
  renumber(plan, [&](uint32_t buffer) { return used[buffer] = true, buffer; });
  std::vector<uint32_t> number(used.size());
  int kept = 0;
  for (int i = 0; i < plan.buffers_size(); ++i) {
    if (!used[static_cast<size_t>(i)]) continue;
    number[static_cast<size_t>(i)] = static_cast<uint32_t>(kept);
    plan.mutable_buffers()->SwapElements(i, kept++);
  }
  plan.mutable_buffers()->DeleteSubrange(kept, plan.buffers_size() - kept);
  renumber(plan, [&](uint32_t buffer) { return number[buffer]; });
}

OpenList::OpenList(plan::InstructionList& list) : list_(list) {
  std::vector<plan::Instruction*> elements(static_cast<size_t>(list.size()));
  list.ExtractSubrange(0, list.size(), elements.data());
  for (plan::Instruction* instruction : elements) instructions_.emplace_back(instruction);
}

OpenList::~OpenList() {
  for (auto& instruction : instructions_) list_.AddAllocated(instruction.release());
}

uint32_t NewBuffers::add(plan::Buffer buffer, uint32_t after) {
  *plan_.add_buffers() = std::move(buffer);
  predecessors_.push_back(after);
  return static_cast<uint32_t>(plan_.buffers_size() - 1);
}

uint32_t NewBuffers::addLike(uint32_t of, const std::string& name, plan::Buffer::Space space) {
  const plan::Buffer& known = plan_.buffers(static_cast<int>(of));
  plan::Buffer buffer;
  buffer.set_name(name);
  buffer.set_kind(known.kind());
  buffer.set_bytes(known.bytes());
  buffer.set_space(space);
  return add(std::move(buffer), of);
}

void NewBuffers::settle() {
  if (predecessors_.empty()) return;
  const auto count = static_cast<uint32_t>(plan_.buffers_size());
  std::vector<std::vector<uint32_t>> followers(count);
  for (size_t i = 0; i < predecessors_.size(); ++i)
    followers[predecessors_[i]].push_back(before_ + static_cast<uint32_t>(i));
  // Depth first; the latest follower of a buffer is at the end of its list, and so the next one.
  std::vector<uint32_t> order, number(count), pending(before_);
  std::iota(pending.rbegin(), pending.rend(), 0);
  while (!pending.empty()) {
    const uint32_t buffer = pending.back();
    pending.pop_back();
    number[buffer] = static_cast<uint32_t>(order.size());
    order.push_back(buffer);
    pending.insert(pending.end(), followers[buffer].begin(), followers[buffer].end());
  }
  reorder(*plan_.mutable_buffers(), order);
  renumber(plan_, [&](uint32_t buffer) { return number[buffer]; });
  before_ = count;
  predecessors_.clear();
}

}  // namespace sheaf::plan_ir
