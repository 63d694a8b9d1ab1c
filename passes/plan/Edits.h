// Changes to lists and tables of a plan that keep valid what refers to them.
#pragma once

#include <list>
#include <memory>
#include <string>
#include <vector>

#include "runtime/plan/Types.h"

namespace sheaf::plan_ir {

// The lists of a plan, in the order of plan::sectionsOf().
std::vector<plan::InstructionList*> listsOf(plan::Plan& plan);
// Those that a step or a batch of the evaluation runs: the parts, the body, the evaluation.
std::vector<plan::InstructionList*> roundsOf(plan::Plan& plan);

// Removes the buffers that no instruction and no table of the plan refers to.
void dropUnusedBuffers(plan::Plan& plan);

// A list of instructions that is open for insertions until the object is destroyed. Pointers to instructions stay
// valid.
class OpenList {
 public:
  using Instructions = std::list<std::unique_ptr<plan::Instruction>>;
  using Place = Instructions::iterator;

  explicit OpenList(plan::InstructionList& list);
  ~OpenList();
  OpenList(const OpenList&) = delete;
  OpenList& operator=(const OpenList&) = delete;

  Place begin() { return instructions_.begin(); }
  Place end() { return instructions_.end(); }
  // Inserts before `place`.
  Place insert(Place place, plan::Instruction instruction) {
    return instructions_.insert(place, std::make_unique<plan::Instruction>(std::move(instruction)));
  }
  Place erase(Place place) { return instructions_.erase(place); }
  // Moves the instruction at `place` before another one.
  void move(Place place, Place before) { instructions_.splice(before, instructions_, place); }

 private:
  plan::InstructionList& list_;
  Instructions instructions_;
};

// Buffers that a pass adds to a plan. Until settle() they stand after all others, so that no number changes.
class NewBuffers {
 public:
  explicit NewBuffers(plan::Plan& plan) : plan_(plan), before_(static_cast<uint32_t>(plan.buffers_size())) {}

  uint32_t add(plan::Buffer buffer, uint32_t after);
  // An image or a home of a buffer: of the same kind and size, in a space, without a place there yet.
  uint32_t addLike(uint32_t of, const std::string& name, plan::Buffer::Space space);
  // Moves each new buffer directly after the one that it was added for, the latest first, and renumbers all.
  void settle();

 private:
  plan::Plan& plan_;
  uint32_t before_;                     // buffers that there were
  std::vector<uint32_t> predecessors_;  // the buffer that each new one was added for
};

}  // namespace sheaf::plan_ir
