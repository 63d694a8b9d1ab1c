#include "passes/schedule/BaselineStep.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <string>

#include "runtime/plan/Images.h"
#include "runtime/plan/Types.h"

namespace sheaf::schedule {
namespace {

// A parameter's bytes within a buffer that holds its bucket, or the bucket's gradient.
struct Slot {
  uint64_t begin = 0, end = 0;
  size_t parameter = 0;
};

// A parameter's name up to the first component that is a number, which names its transformer block; empty if there is
// none.
std::string blockName(const std::string& name) {
  for (size_t begin = 0; begin < name.size();) {
    size_t end = name.find_first_of("./", begin);
    if (end == std::string::npos) end = name.size();
    const bool number = end > begin && std::all_of(name.begin() + begin, name.begin() + end,
                                                   [](unsigned char c) { return std::isdigit(c) != 0; });
    if (number) return name.substr(0, end);
    begin = end + 1;
  }
  return "";
}

std::string moduleName(const std::string& name) {
  const size_t end = name.find_last_of("./");
  return end == std::string::npos ? name : name.substr(0, end);
}

constexpr plan::Transfer::Kind kMoves[] = {plan::Transfer::TO_DEVICE, plan::Transfer::TO_HOST,
                                           plan::Transfer::READ_FILE, plan::Transfer::WRITE_FILE};

class Reader {
 public:
  Reader(const plan::Plan& plan, const profile::Profile& machine, const StepModel& model)
      : plan_(plan),
        machine_(machine),
        model_(model),
        images_(plan::imageGroups(plan)),
        instructions_(plan::stepInstructions(plan)) {}

  BaselineStep read() {
    step_.ranks = machine_.ranks();
    step_.ranksPerNode = machine_.ranksPerNode();
    step_.slowdown = model_.slowdown;
    step_.networkSlowdown = model_.networkSlowdown;
    step_.clips = plan_.training().clip_norm() > 0;
    step_.transferSeconds = [&machine = machine_](const profile::Transfer& t) { return machine.seconds(t); };
    const bool known = machine_.hostUpdates() > 0 && std::all_of(std::begin(kMoves), std::end(kMoves),
                                                                 [&](auto kind) { return machine_.knows(kind); });
    if (known) {
      step_.move = [&machine = machine_](plan::Transfer::Kind kind, uint64_t bytes) {
        return BaselineMove{machine.seconds(kind, bytes), machine.hostLoad(kind, bytes)};
      };
      const double sharing = static_cast<double>(std::min(machine_.ranks(), machine_.ranksPerNode()));
      step_.hostUpdates = machine_.hostUpdates() / sharing;
      step_.hostUpdateLoad = machine_.hostUpdateLoad();
    }
    findParameters();
    findBuffers();
    findOrder();
    readComputation();
    countState();
    return std::move(step_);
  }

 private:
  void findParameters() {
    std::map<std::string, uint32_t> blocks, modules;
    slots_.resize(plan_.buckets_size());
    for (const plan::Parameter& parameter : plan_.parameters()) {
      const plan::Bucket& bucket = plan_.buckets(parameter.bucket());
      const uint64_t width = plan::elementBytes(bucket.type());
      BaselineParameter& p = step_.parameters.emplace_back();
      p.elements = 1;
      for (int64_t d : parameter.shape()) p.elements *= d;
      p.bytes = p.elements * width;
      if (parameter.trainable()) p.gradientBytes = p.elements * plan::elementBytes(plan::gradientType(bucket));
      if (std::string block = blockName(parameter.name()); !block.empty())
        p.block = blocks.try_emplace(block, blocks.size()).first->second;
      p.module = modules.try_emplace(moduleName(parameter.name()), modules.size()).first->second;
      slots_[parameter.bucket()].push_back(
          {parameter.offset(), parameter.offset() + p.elements, step_.parameters.size() - 1});
    }
    // A model whose layers have no numbers: each module counts as a block.
    if (blocks.size() < 2)
      for (BaselineParameter& p : step_.parameters) p.block = p.module;
  }

  // Which buffers hold a bucket's parameters whole, and which its gradient.
  void findBuffers() {
    for (const plan::Bucket& bucket : plan_.buckets())
      for (const plan::State& state : bucket.states()) states_.insert(images_[state.buffer()]);
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
      // Sums in hops may end with a gather of the gradient.
      const uint32_t destination = plan::destinationOf(instruction).buffer();
      if (collective.op() == plan::ALL_GATHER && !gradients_.contains(destination))
        whole_[destination] = bucket->second;
      else if (collective.op() != plan::ALL_GATHER)
        gradients_[plan::sourceOf(instruction).buffer()] = bucket->second;
    }
    // With one rank what updates read is not the destination of a reduction.
    for (const plan::Instruction* instruction : instructions_)
      if (machine_.ranks() == 1 && instruction->updates_bucket() > 0)
        plan::forEachOperand(*instruction, [&](const plan::Operand& operand) {
          const plan::Buffer& buffer = plan_.buffers(static_cast<int>(operand.buffer()));
          if (!buffer.persistent() && buffer.kind() == plan::GRADIENTS)
            gradients_[operand.buffer()] = static_cast<int>(instruction->updates_bucket()) - 1;
        });
    // What other spaces hold counts as what it is an image of.
    std::map<uint32_t, std::vector<uint32_t>> images;
    for (uint32_t b = 0; b < images_.size(); ++b) images[images_[b]].push_back(b);
    for (std::map<uint32_t, int>* known : {&whole_, &gradients_})
      for (const auto& [buffer, bucket] : std::map<uint32_t, int>(*known))
        for (uint32_t image : images[images_[buffer]]) known->emplace(image, bucket);
  }

  bool isComputation(const Node& node) const {
    return node.kind == Node::Kind::kCompute && node.stream == 0 && !updates(node);
  }
  // With one rank no reduction precedes it.
  bool updates(const Node& node) const { return machine_.ranks() == 1 && instructionOf(node).updates_bucket() > 0; }
  const plan::Instruction& instructionOf(const Node& node) const { return *instructions_[node.instruction]; }

  // Autograd computes a layer's weight gradients when it computes the gradient of the layer's input. The plan may have
  // put them off, which would delay the baselines' reductions: here they run as soon as their operands exist.
  void findOrder() {
    const size_t count = model_.nodes.size();
    // Weight gradients run first. What computes their operands keeps its place: recomputation belongs where the plan
    // has it.
    const std::vector<std::vector<uint32_t>> readers = readersOf();
    std::vector<bool> needed(count);
    for (size_t i = 0; i < count; ++i) needed[i] = !readers[i].empty() || !writesGradient(i);
    std::vector<uint32_t> missing(count);
    std::vector<std::vector<uint32_t>> followers(count);
    for (const Dependence& d : model_.dependences)
      if (d.distance == 0 && isComputation(model_.nodes[d.from]) && isComputation(model_.nodes[d.to]))
        followers[d.from].push_back(d.to), ++missing[d.to];
    std::set<std::pair<bool, uint32_t>> ready;  // gradients first, then in the order of the plan
    auto add = [&](uint32_t node) { ready.emplace(needed[node], node); };
    for (uint32_t i = 0; i < count; ++i)
      if (isComputation(model_.nodes[i]) && missing[i] == 0) add(i);
    while (!ready.empty()) {
      const uint32_t node = ready.begin()->second;
      ready.erase(ready.begin());
      order_.push_back(node);
      for (uint32_t next : followers[node])
        if (--missing[next] == 0) add(next);
    }
  }

  // By node: computation that reads what it wrote.
  std::vector<std::vector<uint32_t>> readersOf() const {
    std::vector<std::vector<uint32_t>> readers(model_.nodes.size());
    std::vector<uint32_t> writer(model_.buffers.size(), kNone);
    for (uint32_t i = 0; i < model_.nodes.size(); ++i) {
      if (!isComputation(model_.nodes[i])) continue;
      for (const Access& access : model_.nodes[i].accesses) {
        const uint32_t from = writer[access.buffer];
        if (from != kNone && from != i) readers[from].push_back(i);
      }
      for (const Access& access : model_.nodes[i].accesses)
        if (access.write) writer[access.buffer] = i;
    }
    return readers;
  }

  bool writesGradient(uint32_t node) const {
    const std::vector<Access>& accesses = model_.nodes[node].accesses;
    return std::any_of(accesses.begin(), accesses.end(),
                       [&](const Access& a) { return a.write && gradients_.contains(a.buffer); });
  }
  template <typename Visit>
  void forEachParameter(int bucket, uint64_t width, const Access& access, Visit visit) {
    for (const Slot& slot : slots_[bucket])
      if (slot.begin * width < access.end && access.begin < slot.end * width) visit(step_.parameters[slot.parameter]);
  }

  void readComputation() {
    std::map<uint32_t, std::pair<uint32_t, uint32_t>> lives;  // of activations: first and last computation
    for (uint32_t at = 0; at < order_.size(); ++at) {
      const Node& node = model_.nodes[order_[at]];
      step_.compute.push_back(node.seconds);
      for (const Access& access : node.accesses) {
        if (auto bucket = whole_.find(access.buffer); bucket != whole_.end()) {
          const uint64_t width = plan::elementBytes(plan_.buckets(bucket->second).type());
          forEachParameter(bucket->second, width, access, [&](BaselineParameter& p) {
            if (p.uses.empty() || p.uses.back() != at) p.uses.push_back(at);
          });
        } else if (auto gradient = gradients_.find(access.buffer); gradient != gradients_.end()) {
          const uint64_t width = plan::elementBytes(plan::gradientType(plan_.buckets(gradient->second)));
          forEachParameter(gradient->second, width, access, [&](BaselineParameter& p) {
            if (p.firstGradient == kNone) p.firstGradient = at;
            p.gradientComplete = at;
          });
        } else if (!plan_.buffers(images_[access.buffer]).persistent() && !states_.contains(images_[access.buffer])) {
          lives.try_emplace(images_[access.buffer], at, at).first->second.second = at;
        }
      }
    }
    step_.backward = step_.compute.size();
    for (const BaselineParameter& p : step_.parameters)
      if (p.firstGradient != kNone) step_.backward = std::min(step_.backward, p.firstGradient);
    std::vector<int64_t> change(step_.compute.size() + 1, 0);
    for (const auto& [buffer, life] : lives) {
      change[life.first] += plan_.buffers(buffer).bytes();
      change[life.second + 1] -= plan_.buffers(buffer).bytes();
    }
    int64_t live = 0;
    for (size_t c = 0; c < step_.compute.size(); ++c) step_.liveBytes.push_back(live += change[c]);
  }

  void countState() {
    std::set<uint32_t> counted;
    uint64_t trained = 0;
    bool sharded = false;
    for (const plan::Bucket& bucket : plan_.buckets()) {
      counted.insert(images_[bucket.parameter_buffer()]);
      for (const plan::State& state : bucket.states()) counted.insert(images_[state.buffer()]);
      step_.optimizerBytes += bucket.elements() * sizeof(float) * bucket.states_size();
      if (bucket.trainable()) trained += bucket.elements();
      sharded |= bucket.states_sharded();
    }
    for (int b = 0; b < plan_.buffers_size(); ++b)
      if (plan_.buffers(b).persistent() && !counted.contains(images_[b]) && !gradients_.contains(b))
        step_.otherBytes += plan_.buffers(b).bytes();
    // What computes with reduced gradients, norms included, takes the baselines as long as it takes the plan.
    double seconds = 0;
    for (const Node& node : model_.nodes)
      if (node.kind == Node::Kind::kAfterReduction || updates(node)) seconds += node.seconds;
    const double owners = sharded ? static_cast<double>(step_.ranks) : 1;
    if (trained > 0) step_.updateSecondsPerElement = seconds * owners / static_cast<double>(trained);
  }

  const plan::Plan& plan_;
  const profile::Profile& machine_;
  const StepModel& model_;
  const std::vector<uint32_t> images_;
  const std::vector<const plan::Instruction*> instructions_;
  BaselineStep step_;
  std::set<uint32_t> states_;             // by image, what updates alone access
  std::vector<std::vector<Slot>> slots_;  // by bucket, in elements
  std::map<uint32_t, int> whole_, gradients_;
  std::vector<uint32_t> order_;  // of the computations, as nodes
};

}  // namespace

bool hasNodes(const BaselineStep& step) {
  return step.ranksPerNode < step.ranks && step.ranks % step.ranksPerNode == 0;
}

BaselineTransfer transferOf(const BaselineStep& step, const profile::Transfer& transfer) {
  return {step.transferSeconds(transfer), linkOf(transfer, step.ranks, step.ranksPerNode)};
}

BaselineStep baselineStepOf(const plan::Plan& plan, const profile::Profile& machine, const StepModel& model) {
  return Reader(plan, machine, model).read();
}

}  // namespace sheaf::schedule
