#include "runtime/plan/Generations.h"

#include <numeric>

#include "runtime/base/Text.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/Words.h"

namespace sheaf::plan {

Generations::Generations(const Plan& plan)
    : other_(static_cast<size_t>(plan.buffers_size())), next_(static_cast<size_t>(plan.buffers_size())) {
  std::iota(other_.begin(), other_.end(), 0);
  for (const Generation& generation : plan.generations()) {
    if (generation.current() >= other_.size() || generation.next() >= other_.size()) continue;
    other_[generation.current()] = generation.next();
    other_[generation.next()] = generation.current();
    next_[generation.next()] = true;
  }
}

Instruction voteOf(const Instruction& persist) {
  Instruction vote;
  Collective& sum = *vote.mutable_collective();
  sum.set_op(ALL_REDUCE);
  sum.set_communicator(persist.persist().communicator());
  sum.set_type(F32);
  sum.set_count(1);
  *vote.add_operands() = persist.operands(0);
  *vote.add_operands() = persist.operands(0);
  return vote;
}

std::vector<std::string> stateOutsideFiles(const Plan& plan) {
  std::vector<std::string> outside;
  for (const Bucket& bucket : plan.buckets()) {
    auto check = [&](const std::string& what, uint32_t index) {
      const Buffer& buffer = plan.buffers(static_cast<int>(index));
      if (buffer.space() == Buffer::FILE) return;
      outside.push_back(cat(what, " of bucket '", shortName(bucket.name()), "' ",
                            buffer.space() == Buffer::HOST ? "(in host memory)" : "(on the device)"));
    };
    check("the parameters", bucket.parameter_buffer());
    for (const State& state : bucket.states()) check(cat("the state '", shortName(state.name()), "'"), state.buffer());
  }
  return outside;
}

std::string whyNotRestartable(const Plan& plan) {
  if (plan.generations_size() > 0) return "";
  if (peakBytes(plan, Buffer::FILE) == 0) return "it keeps nothing in files";
  if (const std::vector<std::string> outside = stateOutsideFiles(plan); !outside.empty())
    return cat("files lack a part of the state: ", listText(outside, 3),
               "; compile with --offload optimizer=file,parameters=file");
  return "it keeps one generation of its state in files; `sheaf inspect` says why";
}

}  // namespace sheaf::plan
