// Moves buffers of a plan to other spaces, and updates to the host. What was moved is its *home*; instructions then
// work on *images* of it where they are executed, and transfers fetch and store the images.
#pragma once

#include <deque>
#include <map>

#include "passes/plan/BufferUses.h"
#include "passes/plan/Edits.h"

namespace sheaf::plan_ir {

// An update that can be made on the host, and the state that it alone uses.
struct HostUpdate {
  const Section* section = nullptr;
  size_t launch = 0;
  std::vector<uint32_t> states;
  const plan::Instruction& instruction() const { return section->at(launch); }
};

class Mover {
 public:
  // `uses` are those of the plan before anything is moved; each buffer is moved once. The plan is complete again when
  // the mover has been destroyed.
  Mover(plan::Plan& plan, const BufferUses& uses);
  ~Mover();

  // What persists lies in the space from now on, also between uses that it is `away` between. What lives within a step
  // lies there where it is away, if all of it has been written.
  void move(uint32_t buffer, plan::Buffer::Space space, const Away& away);

  std::vector<HostUpdate> hostUpdates() const;
  // Before its operands are moved.
  void runOnHost(const HostUpdate& update);

 private:
  struct Edited {
    OpenList list;
    std::vector<OpenList::Place> places;  // the instructions from before anything was moved
    explicit Edited(plan::InstructionList& instructions);
  };
  Edited& edited(const Section& section) { return edited_[static_cast<size_t>(&section - uses_.sections().data())]; }
  plan::Instruction& instruction(const Section& section, size_t i) { return **edited(section).places[i]; }

  void moveState(uint32_t home, plan::Buffer::Space space, const Away& away);
  void moveValue(uint32_t value, plan::Buffer::Space space, const Away& away);
  // Uses of one executor each.
  std::vector<Session> sessionsOf(const Section& section, uint32_t buffer, const Away& away);
  void replace(const Section& section, const Session& session, uint32_t from, uint32_t to);
  uint32_t imageOf(uint32_t home, plan::Buffer::Space executor);
  void fetch(const Section& section, const Session& session, uint32_t home, uint32_t image, plan::Buffer::Space space);
  void store(const Section& section, const Session& session, uint32_t image, uint32_t home, plan::Buffer::Space space);

  plan::Plan& plan_;
  const BufferUses& uses_;
  NewBuffers added_;
  std::deque<Edited> edited_;            // the plan's rounds, as in uses_.sections()
  std::map<uint32_t, uint64_t> images_;  // images of each home
};

}  // namespace sheaf::plan_ir
