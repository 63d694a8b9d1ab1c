// A plan's step as the baselines would see it.
#include <algorithm>
#include <cctype>
#include <map>
#include <set>

#include "passes/schedule/BaselineStep.h"
#include "runtime/plan/Types.h"

namespace sheaf::schedule {
namespace {

// A parameter within the bytes of a buffer that holds its bucket, or its bucket's gradient.
struct Slot {
  uint64_t begin = 0, end = 0;
  size_t group = 0;
};

// The transformer block that a parameter belongs to: its name up to the first component that is a number. What is in no
// block (embeddings, the last normalisation) forms one group, as FSDP2's root module does.
std::string blockOf(const std::string& name) {
  for (size_t begin = 0; begin < name.size();) {
    size_t end = name.find_first_of("./", begin);
    if (end == std::string::npos) end = name.size();
    bool number = end > begin && std::all_of(name.begin() + begin, name.begin() + end,
                                             [](unsigned char c) { return std::isdigit(c) != 0; });
    if (number) return name.substr(0, end);
    begin = end + 1;
  }
  return "";
}

uint64_t product(const google::protobuf::RepeatedField<int64_t>& shape) {
  uint64_t elements = 1;
  for (int64_t d : shape) elements *= d;
  return elements;
}

class Reader {
 public:
  Reader(const plan::Plan& plan, const profile::Profile& profile, const StepModel& model)
      : plan_(plan), profile_(profile), ranks_(profile.ranks()), model_(model) {}

  BaselineStep read() {
    findGroups();
    findBuffers();
    readCompute();
    countState();
    return std::move(step_);
  }

 private:
  uint64_t width(int bucket) const { return plan::elementBytes(plan_.buckets(bucket).type()); }

  void findGroups() {
    std::map<std::pair<std::string, std::pair<bool, int>>, size_t> index;
    slots_.resize(plan_.buckets_size());
    double updateSeconds = updateSecondsPerElement();
    for (const plan::Parameter& parameter : plan_.parameters()) {
      int type = plan_.buckets(parameter.bucket()).type();
      auto [at, fresh] = index.try_emplace({blockOf(parameter.name()), {parameter.trainable(), type}}, index.size());
      if (fresh) step_.groups.emplace_back(), elements_.push_back(0);
      uint64_t elements = product(parameter.shape()), bytes = width(parameter.bucket());
      slots_[parameter.bucket()].push_back(
          {parameter.offset() * bytes, (parameter.offset() + elements) * bytes, at->second});
      step_.groups[at->second].gatheredBytes += elements * bytes;
      if (parameter.trainable()) step_.groups[at->second].gradientBytes += elements * bytes;
      elements_[at->second] += elements;
    }
    for (size_t g = 0; g < step_.groups.size(); ++g) {
      BaselineGroup& group = step_.groups[g];
      group.gatherSeconds = profile_.seconds(profile::Transfer{plan::ALL_GATHER, group.gatheredBytes, ranks_});
      if (group.gradientBytes == 0) continue;
      group.reduceSeconds = profile_.seconds(profile::Transfer{plan::REDUCE_SCATTER, group.gradientBytes, ranks_});
      group.updateSeconds = updateSeconds * static_cast<double>(elements_[g]);
    }
  }

  // What computes with reduced gradients, norms included, takes the baselines as long as it takes the plan: on shards.
  double updateSecondsPerElement() const {
    double seconds = 0, elements = 0;
    for (const Node& node : model_.nodes)
      if (node.kind == Node::Kind::kAfterReduction) seconds += node.seconds;
    bool sharded = false;
    for (const plan::Bucket& bucket : plan_.buckets()) {
      if (bucket.trainable()) elements += static_cast<double>(bucket.elements());
      sharded |= bucket.states_sharded();
    }
    return elements > 0 ? seconds / elements / (sharded ? 1 : ranks_) : 0;
  }

  // Which buffers hold a bucket's parameters whole, and which its gradient.
  void findBuffers() {
    std::map<std::string, int> byName;
    for (int b = 0; b < plan_.buckets_size(); ++b) {
      byName[plan_.buckets(b).name()] = b;
      if (!plan_.buckets(b).parameters_sharded()) whole_[plan_.buckets(b).parameter_buffer()] = b;
    }
    for (const plan::Instruction& instruction : plan_.body()) {
      if (!instruction.has_collective()) continue;
      const plan::Collective& collective = instruction.collective();
      auto bucket = byName.find(collective.bucket());
      if (bucket == byName.end()) continue;
      if (collective.op() == plan::ALL_GATHER)
        whole_[collective.destination().buffer()] = bucket->second;
      else
        gradients_[collective.source().buffer()] = bucket->second;
    }
  }

  template <typename Visit>
  void forEachGroup(int bucket, const Access& access, Visit visit) const {
    for (const Slot& slot : slots_[bucket])
      if (slot.begin < access.end && access.begin < slot.end) visit(step_.groups[slot.group], slot.group);
  }

  void readCompute() {
    std::vector<std::set<uint32_t>> uses(step_.groups.size());
    std::map<uint32_t, std::pair<uint32_t, uint32_t>> lives;  // of activations: first and last computation
    for (const Node& node : model_.nodes) {
      if (node.kind != Node::Kind::kCompute || node.stream != 0) continue;
      uint32_t at = step_.compute.size();
      step_.compute.push_back(node.seconds);
      for (const Access& access : node.accesses) {
        if (auto bucket = whole_.find(access.buffer); bucket != whole_.end()) {
          forEachGroup(bucket->second, access, [&](const BaselineGroup&, size_t group) { uses[group].insert(at); });
        } else if (auto gradient = gradients_.find(access.buffer); gradient != gradients_.end()) {
          forEachGroup(gradient->second, access, [&](const BaselineGroup&, size_t group) {
            BaselineGroup& to = step_.groups[group];
            if (to.firstGradient == kNone) to.firstGradient = at;
            to.gradient = at;
          });
        } else if (!plan_.buffers(access.buffer).persistent()) {
          lives.try_emplace(access.buffer, at, at).first->second.second = at;
        }
      }
    }
    step_.slowdown = model_.slowdown;
    for (const Node& node : model_.nodes)
      if (node.kind == Node::Kind::kOther && plan_.body(node.instruction).collective().bucket().empty())
        step_.scalarSeconds += node.seconds;
    step_.backward = step_.compute.size();
    for (const BaselineGroup& group : step_.groups)
      if (group.firstGradient != kNone) step_.backward = std::min(step_.backward, group.firstGradient);
    std::vector<int64_t> change(step_.compute.size() + 1, 0);
    for (const auto& [buffer, life] : lives) {
      change[life.first] += plan_.buffers(buffer).bytes();
      change[life.second + 1] -= plan_.buffers(buffer).bytes();
    }
    int64_t live = 0;
    for (size_t c = 0; c < step_.compute.size(); ++c) step_.liveBytes.push_back(live += change[c]);
    for (size_t g = 0; g < step_.groups.size(); ++g) {
      for (bool backward : {false, true}) {
        auto first = backward ? uses[g].lower_bound(step_.backward) : uses[g].begin();
        auto end = backward ? uses[g].end() : uses[g].lower_bound(step_.backward);
        if (first != end) step_.groups[g].uses.push_back({*first, *std::prev(end)});
      }
    }
  }

  // Everything that is kept between steps, in shards: parameters, gradients until the optimizer runs, its state.
  void countState() {
    std::set<uint32_t> counted;
    for (int b = 0; b < plan_.buckets_size(); ++b) {
      const plan::Bucket& bucket = plan_.buckets(b);
      uint64_t bytes = bucket.elements() * width(b) * (bucket.trainable() ? 2 : 1);
      counted.insert(bucket.parameter_buffer());
      for (const plan::State& state : bucket.states()) {
        bytes += bucket.elements() * 4;
        counted.insert(state.buffer());
      }
      step_.stateBytes += bytes / ranks_;
    }
    for (int b = 0; b < plan_.buffers_size(); ++b)
      if (plan_.buffers(b).persistent() && !counted.contains(b) && !gradients_.contains(b))
        step_.stateBytes += plan_.buffers(b).bytes();
  }

  const plan::Plan& plan_;
  const profile::Profile& profile_;
  const int64_t ranks_;
  const StepModel& model_;
  BaselineStep step_;
  std::vector<std::vector<Slot>> slots_;  // by bucket
  std::vector<uint64_t> elements_;        // by group
  std::map<uint32_t, int> whole_, gradients_;
};

}  // namespace

BaselineStep baselineStepOf(const plan::Plan& plan, const profile::Profile& profile, const StepModel& model) {
  return Reader(plan, profile, model).read();
}

}  // namespace sheaf::schedule
