// Gives state in files a second place, so that a step leaves the state before it as it was until the next one is
// durable.
#include "runtime/plan/Generations.h"

#include <algorithm>
#include <map>

#include "passes/plan/Edits.h"
#include "passes/plan/Finish.h"
#include "runtime/base/Decisions.h"
#include "runtime/base/Text.h"

namespace sheaf::plan_ir {
namespace {

class GenerationAdder {
 public:
  explicit GenerationAdder(plan::Plan& plan) : plan_(plan) {}

  void run(int64_t generations) {
    const auto& buffers = plan_.buffers();
    if (std::none_of(buffers.begin(), buffers.end(), isState)) return;
    const std::vector<uint32_t> stored = storedBy(plan_.body());
    if (stored.empty()) return;  // an evaluation alone
    if (const std::string why = whyNot(generations); !why.empty())
      return decide(cat("a run cannot go on from them after a crash: ", why));
    uint64_t bytes = 0;
    NewBuffers added(plan_);
    for (uint32_t current : stored) {
      plan::Buffer next = bufferAt(current);
      bytes += next.bytes();
      next.set_name(next.name() + ".next");
      next.set_offset(0);
      next_[current] = added.add(std::move(next), current);
    }
    relabel();
    persist(stored, added);
    added.settle();
    decide(cat("every step can be resumed; two generations of ", bytesText(bytes), " a rank"));
  }

 private:
  static bool isState(const plan::Buffer& buffer) {
    return buffer.persistent() && buffer.space() == plan::Buffer::FILE;
  }
  const plan::Buffer& bufferAt(uint32_t buffer) const { return plan_.buffers(static_cast<int>(buffer)); }

  // Returns the state in files that the list writes, in order.
  std::vector<uint32_t> storedBy(const plan::InstructionList& list) const {
    std::vector<uint32_t> stored;
    for (const plan::Instruction& instruction : list) {
      if (!instruction.has_transfer()) continue;
      const uint32_t to = plan::destinationOf(instruction).buffer();
      if (isState(bufferAt(to)) && std::find(stored.begin(), stored.end(), to) == stored.end()) stored.push_back(to);
    }
    return stored;
  }

  // Empty: state in files outlives a crash.
  std::string whyNot(int64_t generations) const {
    if (const std::vector<std::string> outside = plan::stateOutsideFiles(plan_); !outside.empty())
      return cat("they lack ", listText(outside, 3));
    for (const plan::StepPart& part : plan_.parts())
      if (const std::vector<uint32_t> early = storedBy(part.instructions()); !early.empty())
        return cat("every micro-batch writes '", bufferAt(early.front()).name(), "'");
    return generations == 1 ? "--file-generations 1" : "";
  }

  // From its first write on a step has the next generation. What the schedule has carried here from the step after this
  // one reads after that write, too.
  void relabel() {
    std::vector<bool> written(static_cast<size_t>(plan_.buffers_size()));
    for (plan::Instruction& instruction : *plan_.mutable_body()) {
      if (!instruction.has_transfer()) continue;
      for (int i : {0, 1}) {
        plan::Operand& operand = *instruction.mutable_operands(i);
        auto known = next_.find(operand.buffer());
        if (known == next_.end()) continue;
        if (i == 1) written[operand.buffer()] = true;
        if (written[operand.buffer()]) operand.set_buffer(known->second);
      }
    }
  }

  // At the end of the step, after its writes on their stream.
  void persist(const std::vector<uint32_t>& stored, NewBuffers& added) {
    plan::Instruction instruction;
    instruction.set_label("persist");
    instruction.mutable_persist();
    for (const plan::Instruction& other : plan_.body())
      if (other.transfer().kind() == plan::Transfer::WRITE_FILE) instruction.set_stream(other.stream());
    auto add = [&](uint32_t buffer, plan::Access access) {
      plan::Operand& operand = *instruction.add_operands();
      operand.set_buffer(buffer);
      operand.set_bytes(bufferAt(buffer).bytes());
      operand.set_access(access);
    };
    if (plan_.ranks() > 1) {
      add(addVotes(added), plan::WRITE);
      instruction.mutable_persist()->set_communicator(plan_.communicators());
      plan_.set_communicators(plan_.communicators() + 1);
      if (plan_.ranks_per_node() > 0) plan_.add_communicator_axes(plan::WORLD);
    }
    if (plan_.has_loss_scale_buffer()) add(plan_.loss_scale_buffer(), plan::READ);
    for (uint32_t current : stored) {
      plan::Generation& generation = *plan_.add_generations();
      generation.set_current(current);
      generation.set_next(next_.at(current));
      add(current, plan::READ), add(next_.at(current), plan::READ);
    }
    *plan_.add_body() = std::move(instruction);
  }

  // After the state of all buckets.
  uint32_t addVotes(NewBuffers& added) const {
    uint32_t last = plan_.has_loss_scale_buffer() ? plan_.loss_scale_buffer() : 0;
    for (const plan::Bucket& bucket : plan_.buckets()) {
      last = std::max(last, bucket.parameter_buffer());
      for (const plan::State& state : bucket.states()) last = std::max(last, state.buffer());
    }
    plan::Buffer votes;
    votes.set_name("votes");
    votes.set_kind(plan::WORKSPACE);
    votes.set_bytes(sizeof(float));
    votes.set_persistent(true);
    return added.add(std::move(votes), last);
  }

  void decide(const std::string& text) { plan_.add_decisions(cat(kFilesDecision, text)); }

  plan::Plan& plan_;
  std::map<uint32_t, uint32_t> next_;  // the next generation of each buffer that is stored
};

}  // namespace

Status addGenerations(Draft& draft, int64_t generations) {
  GenerationAdder(draft.plan).run(generations);
  return {};
}

}  // namespace sheaf::plan_ir
