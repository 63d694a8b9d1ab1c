#include "test/mutants/Oracle.h"

#include <algorithm>
#include <bit>
#include <set>
#include <span>
#include <sstream>

#include "test/mutants/OracleInstructions.h"

namespace sheaf::mutants {
namespace {

using plan::Instruction, plan::Operand, plan::Plan;

// What decides results besides instructions, table by table, as the bytes of the messages. Which buffer holds a state
// or constant is left to the runs.
std::map<std::string, std::string> tablesOf(const Plan& plan) {
  std::map<std::string, std::string> tables;
  auto add = [&](const char* name, const auto& list) {
    for (const auto& entry : list)
      tables[name] += std::to_string(entry.ByteSizeLong()) + ":" + entry.SerializeAsString();
  };
  Plan copy = plan;
  copy.mutable_training()->clear_learning_rate();
  copy.mutable_training()->clear_schedule();
  for (plan::Bucket& bucket : *copy.mutable_buckets()) {
    bucket.clear_parameter_buffer();
    for (plan::State& state : *bucket.mutable_states()) state.clear_buffer();
  }
  for (plan::Constant& constant : *copy.mutable_constants()) constant.clear_buffer();
  tables["training"] = copy.training().SerializeAsString();
  tables["digests"] = copy.digests().SerializeAsString();
  add("scalars", copy.scalars());
  add("inputs", copy.inputs());
  add("files", copy.files());
  add("buckets", copy.buckets());
  add("parameters", copy.parameters());
  add("constants", copy.constants());
  add("kernels", copy.kernels());
  add("images", copy.images());
  add("outputs", copy.outputs());
  return tables;
}

class BitMatrix {
 public:
  explicit BitMatrix(size_t n) : words_((n + 63) / 64), bits_(n * words_) {}
  void set(size_t row, size_t column) { bits_[row * words_ + column / 64] |= uint64_t{1} << column % 64; }
  bool get(size_t row, size_t column) const { return bits_[row * words_ + column / 64] >> column % 64 & 1; }
  void join(size_t row, size_t other) {
    for (size_t w = 0; w < words_; ++w) bits_[row * words_ + w] |= bits_[other * words_ + w];
  }
  size_t count() const {
    size_t sum = 0;
    for (uint64_t word : bits_) sum += static_cast<size_t>(std::popcount(word));
    return sum;
  }

 private:
  size_t words_;
  std::vector<uint64_t> bits_;
};

}  // namespace

// One run of a plan, one letter for each part: prologue, a step (B) with its turns, epilogue, host, evaluation (V). See
// runsOf.
class Unfolding {
 public:
  Unfolding(Oracle& oracle, const Plan& plan, const char* parts) : oracle_(oracle), plan_(plan) {
    int64_t round = 0;
    bool exchanged = false;
    for (const char* part = parts; *part; ++part) {
      if (*part == 'H') {
        nodes_.push_back({nullptr, 0, round, 0, 'H', 0, exchanged});
        continue;
      }
      round += *part == 'B' || *part == 'V';
      int index = 0;
      auto add = [&](const google::protobuf::RepeatedPtrField<Instruction>& list, int64_t microBatch) {
        for (const Instruction& instruction : list) {
          std::string operation = operationOf(instruction) + sharedPlaces(instruction);
          // Between which ranks.
          if (const int at = static_cast<int>(instruction.collective().communicator());
              instruction.has_collective() && at < plan.communicator_axes_size())
            operation += " on axis " + std::to_string(plan.communicator_axes(at));
          // A prologue gets what the step after it gets.
          if (dependsOnStep(instruction))
            operation += " in step " + std::to_string(round + (*part == 'P')) + " of " + std::to_string(microBatch);
          nodes_.push_back(
              {&instruction, instruction.stream(), round, oracle.intern(operation), *part, index++, exchanged});
          exchanged ^= instruction.has_persist();
        }
      };
      if (*part == 'P') add(plan.prologue(), 0);
      if (*part == 'E') add(plan.epilogue(), 0);
      if (*part == 'V') add(plan.evaluation(), 0);
      if (*part != 'B') continue;
      for (const plan::Turn& turn : plan.turns())
        add(plan.parts(static_cast<int>(turn.part())).instructions(), turn.micro_batch());
      add(plan.body(), std::max<int64_t>(plan.micro_batches(), 1) - 1);
    }
  }

  // Every conflict is ordered, and collectives of one communicator are.
  std::string order(size_t& conflicts) const {
    BitMatrix after = reachability(), meets(nodes_.size());
    for (int64_t rank = 0; rank < plan_.ranks(); ++rank) addConflicts(rank, meets);
    for (size_t i = 0; i < nodes_.size(); ++i)
      for (size_t j = i + 1; j < nodes_.size(); ++j) {
        if (meets.get(i, j) && !after.get(i, j)) return "race between " + name(i) + " and " + name(j);
        if (communicator(i) >= 0 && communicator(i) == communicator(j) && !after.get(i, j))
          return "no order of ranks between " + name(i) + " and " + name(j);
      }
    conflicts += meets.count();
    return "";
  }

  // No instruction writes on bytes that it has for something else as well.
  std::string apart(int64_t rank) const {
    for (size_t i = 0; i < nodes_.size(); ++i) {
      if (!nodes_[i].instruction || nodes_[i].instruction->has_collective()) continue;
      const std::vector<Access> list = accesses(i, rank);
      for (const Access& a : list)
        for (const Access& b : list) {
          if (&a == &b || !a.writes || !meet(a.begin, a.end, b.begin, b.end)) continue;
          const bool inPlace = a.buffer == b.buffer && a.begin == b.begin && a.end == b.end && a.reads != b.reads;
          if (nodes_[i].instruction->has_kernel() && inPlace) continue;
          if (a.buffer == b.buffer && nodes_[i].instruction->has_call() && !runsMeet(a, b)) continue;
          return name(i) + " writes on its own operand";
        }
    }
    return "";
  }

  // Runs one rank on symbolic values; collects what is observed.
  std::string run(int64_t rank, Oracle::Observed& observed) {
    std::vector<uint64_t> cuts;
    for (size_t i = 0; i < nodes_.size(); ++i)
      for (const Access& a : accesses(i, rank)) {
        cuts.insert(cuts.end(), {a.begin, a.end});
        for (auto [begin, end] : a.runs) cuts.insert(cuts.end(), {begin, end});
      }
    const std::vector<State> all = states();
    for (const State& state : all) {
      for (bool exchanged : {false, true}) {
        Access a = wholeBuffer(state.buffer, exchanged);
        cuts.insert(cuts.end(), {a.begin, a.end});
      }
    }
    auto settle = [&] {
      std::sort(cuts.begin(), cuts.end());
      cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
      return cuts.size();
    };
    // What is moved is cut at its destination as at its source.
    for (size_t before = 0; before != settle();) {
      before = cuts.size();
      std::vector<uint64_t> mirrored;
      for (size_t i = 0; i < nodes_.size(); ++i) {
        if (!moves(i)) continue;
        const std::vector<Access> list = accesses(i, rank);
        for (const auto& [from, to] : {std::pair(list[0], list[1]), std::pair(list[1], list[0])})
          for (auto c = std::lower_bound(cuts.begin(), cuts.end(), from.begin); c != cuts.end() && *c < from.end; ++c)
            mirrored.push_back(*c - from.begin + to.begin);
      }
      cuts.insert(cuts.end(), mirrored.begin(), mirrored.end());
    }
    std::vector<Cell> cells(cuts.size());
    auto places = [&](uint64_t begin, uint64_t end) {
      auto at = [&](uint64_t address) {
        return static_cast<size_t>(std::lower_bound(cuts.begin(), cuts.end(), address) - cuts.begin());
      };
      return std::pair(at(begin), at(end));
    };
    auto range = [&](const Access& a) { return places(a.begin, a.end); };
    // Appends what the bytes hold, in maximal runs of one value; returns whether all of it was written as this buffer.
    auto contents = [&](const Access& a, Oracle::Term& term) {
      bool complete = true;
      auto [first, last] = range(a);
      const Cell nothing;
      const Cell* previous = nullptr;
      for (size_t c = first; c < last; ++c) {
        bool mine = cells[c].value && cells[c].buffer == a.buffer;
        const Cell* cell = mine ? &cells[c] : &nothing;
        complete &= mine;
        if (previous && previous->value == cell->value && previous->origin == cell->origin) continue;
        previous = cell;
        term.insert(term.end(), {int64_t(cuts[c] - a.begin), cell->value, mine ? int64_t(cuts[c] - cell->origin) : 0});
      }
      return complete;
    };
    auto fill = [&](const Access& a, int64_t value) {
      auto write = [&](uint64_t begin, uint64_t end) {
        auto [first, last] = places(begin, end);
        std::fill(cells.begin() + first, cells.begin() + last, Cell{value, a.begin, a.buffer});
      };
      if (a.runs.empty()) write(a.begin, a.end);
      for (auto [begin, end] : a.runs) write(begin, end);
    };
    for (const State& state : all) fill(wholeBuffer(state.buffer, false), oracle_.intern(state.name));
    for (size_t i = 0; i < nodes_.size(); ++i) {
      const Node& node = nodes_[i];
      std::vector<Access> list = accesses(i, rank);
      if (!node.instruction) {
        std::vector<Cell> kept(cells.size());
        observed.states.emplace_back();
        for (const State& state : all) {
          Access whole = wholeBuffer(state.buffer, node.exchanged);
          Oracle::Term term{oracle_.intern("the host sees " + state.name)};
          contents(whole, term);
          observed.states.back().push_back(oracle_.intern(std::move(term)));
          auto [first, last] = range(whole);
          std::copy(cells.begin() + first, cells.begin() + last, kept.begin() + first);
        }
        cells = std::move(kept);
        continue;
      }
      if (list.empty()) continue;
      if (moves(i)) {
        Oracle::Term ignored;
        if (!contents(list[0], ignored)) return name(i) + " reads what was not written";
        const auto [first, last] = range(list[0]);
        const size_t to = range(list[1]).first;
        for (size_t c = first; c < last; ++c)
          cells[to + c - first] = {cells[c].value, cells[c].origin - list[0].begin + list[1].begin, list[1].buffer};
        continue;
      }
      Oracle::Term term{node.operation};
      for (const Access& a : list) {
        if (a.scratch) continue;
        term.push_back(-1);
        if (a.reads && !contents(a, term)) return name(i) + " reads what was not written";
      }
      int64_t value = oracle_.intern(term);
      if (node.instruction->has_output() || node.instruction->has_persist()) observed.outputs.push_back(value);
      for (size_t k = 0; k < list.size(); ++k)
        if (list[k].writes) fill(list[k], list[k].scratch ? 0 : oracle_.intern(Oracle::Term{-2, value, int64_t(k)}));
      if (node.instruction->has_persist())
        exchange(node.exchanged, [&](const Access& place, uint32_t now, bool kept) {
          const auto [first, last] = range(place);
          for (size_t c = first; c < last; ++c) cells[c] = kept ? Cell{cells[c].value, cells[c].origin, now} : Cell();
        });
    }
    std::sort(observed.outputs.begin(), observed.outputs.end());
    return "";
  }

 private:
  struct Node {
    const Instruction* instruction;  // null: the host
    uint32_t stream;
    int64_t round, operation;
    char part;
    int index;
    bool exchanged;  // the generations of files, before it
  };
  struct Cell {
    int64_t value = 0;
    uint64_t origin = 0;
    uint32_t buffer = 0;
  };

  static bool runsMeet(const Access& a, const Access& b) {
    const std::pair<uint64_t, uint64_t> wholes[] = {{a.begin, a.end}, {b.begin, b.end}};
    std::span<const std::pair<uint64_t, uint64_t>> x(a.runs), y(b.runs);
    if (x.empty()) x = {wholes, 1};
    if (y.empty()) y = {wholes + 1, 1};
    // Runs are in order of their addresses.
    for (size_t i = 0, j = 0; i < x.size() && j < y.size();) {
      if (meet(x[i].first, x[i].second, y[j].first, y[j].second)) return true;
      x[i].second <= y[j].first ? ++i : ++j;
    }
    return false;
  }

  std::string name(size_t i) const {
    const Node& n = nodes_[i];
    std::ostringstream text;
    text << n.part << n.round << "[" << n.index << "]";
    if (n.instruction) text << " '" << n.instruction->label() << "'";
    return text.str();
  }

  int64_t communicator(size_t i) const {
    const Instruction* instruction = nodes_[i].instruction;
    if (instruction && instruction->has_persist() && plan_.ranks() > 1) return instruction->persist().communicator();
    return instruction && instruction->has_collective() ? int64_t{instruction->collective().communicator()} : -1;
  }

  bool moves(size_t node) const { return nodes_[node].instruction && nodes_[node].instruction->has_transfer(); }

  // The spaces lie far apart.
  static uint64_t addressOf(const plan::Buffer& b) {
    return b.offset() + static_cast<uint64_t>(b.space()) * (1ULL << 60);
  }

  // Where a buffer lies: two generations take turns.
  uint32_t placeOf(uint32_t index, bool exchanged) const {
    for (const plan::Generation& g : plan_.generations())
      if (exchanged && (g.current() == index || g.next() == index)) return g.current() + g.next() - index;
    return index;
  }

  // Calls visit(place, whose it is from now on, whether it keeps what it has) for both places of each.
  template <typename Visit>
  void exchange(bool exchanged, Visit visit) const {
    for (const plan::Generation& g : plan_.generations()) {
      visit(wholeBuffer(g.next(), exchanged), g.current(), true);
      visit(wholeBuffer(g.current(), exchanged), g.next(), false);
    }
  }

  Access wholeBuffer(uint32_t index, bool exchanged) const {
    const plan::Buffer& b = plan_.buffers(static_cast<int>(placeOf(index, exchanged)));
    return {addressOf(b), addressOf(b) + b.bytes(), index, false, true, false, {}};
  }

  struct State {
    uint32_t buffer;
    std::string name;
  };
  std::vector<State> states() const {
    std::vector<State> list;
    for (const plan::Bucket& bucket : plan_.buckets()) {
      const std::string name = "bucket " + bucket.name();
      list.push_back({bucket.parameter_buffer(), name});
      for (const plan::State& state : bucket.states()) list.push_back({state.buffer(), name + ", " + state.name()});
    }
    if (plan_.has_loss_scale_buffer()) list.push_back({plan_.loss_scale_buffer(), "the loss scale"});
    for (int i = 0; i < plan_.constants_size(); ++i)
      list.push_back({plan_.constants(i).buffer(), "constant " + std::to_string(i)});
    return list;
  }

  std::vector<Access> accesses(size_t node, int64_t rank) const {
    std::vector<Access> list;
    const Instruction* instruction = nodes_[node].instruction;
    if (!instruction) {
      for (int b = 0; b < plan_.buffers_size(); ++b)
        if (plan_.buffers(b).persistent())
          list.push_back(wholeBuffer(static_cast<uint32_t>(b), nodes_[node].exchanged));
      return list;
    }
    std::vector<const Operand*> operands = operandsOf(*instruction);
    for (const Operand* o : operands) {
      const uint32_t place = placeOf(o->buffer(), nodes_[node].exchanged);
      uint64_t begin = addressOf(plan_.buffers(static_cast<int>(place))) + o->offset() +
                       o->shard_stride() * static_cast<uint64_t>(indexOf(*o, rank));
      const plan::LibraryCall& call = instruction->call();
      bool scratch = (call.scratch_per_thread() > 0 || call.device_scratch() > 0) && o == operands.back();
      list.push_back(
          {begin, begin + o->bytes(), o->buffer(), o->access() != plan::WRITE, o->access() != plan::READ, scratch, {}});
      if (instruction->has_call() && o->access() == plan::WRITE)
        for (auto [first, last] : runsOf(*instruction, list.size() - 1))
          list.back().runs.emplace_back(begin + first, std::min(begin + last, list.back().end));
    }
    return list;
  }

  // What a rank's strides are multiplied by.
  int64_t indexOf(const Operand& o, int64_t rank) const {
    const int64_t each = plan_.ranks_per_node();
    if (each == 0) return rank;
    const int64_t node = rank / each, local = rank - node * each;
    if (o.axis() == plan::NODE) return local;
    return o.axis() == plan::NETWORK ? node : local * (plan_.ranks() / each) + node;
  }

  // after.get(i, j): i is complete when j starts.
  BitMatrix reachability() const {
    std::vector<std::vector<size_t>> next(nodes_.size());
    std::map<uint32_t, size_t> last;
    std::map<uint32_t, size_t> recorded;
    std::vector<size_t> drained;  // what the host has waited for
    for (size_t i = 0; i < nodes_.size(); ++i) {
      const Node& node = nodes_[i];
      if (auto before = last.find(node.stream); before != last.end())
        next[before->second].push_back(i);
      else
        for (size_t d : drained) next[d].push_back(i);
      last[node.stream] = i;
      if (!node.instruction) {
        drained.clear();
        for (auto [stream, at] : last) drained.push_back(at);
        last.clear();
      } else if (node.instruction->has_record()) {
        recorded[node.instruction->record().event()] = i;
      } else if (node.instruction->has_wait()) {
        auto record = recorded.find(node.instruction->wait().event());
        if (record != recorded.end()) next[record->second].push_back(i);
      }
    }
    BitMatrix after(nodes_.size());
    for (size_t i = nodes_.size(); i-- > 0;)
      for (size_t j : next[i]) {
        after.set(i, j);
        after.join(i, j);
      }
    return after;
  }

  // All pairs that meet in some byte on this rank, found byte range by byte range.
  void addConflicts(int64_t rank, BitMatrix& meets) const {
    std::vector<uint64_t> cuts;
    std::vector<std::pair<size_t, Access>> all;
    for (size_t i = 0; i < nodes_.size(); ++i)
      for (const Access& a : accesses(i, rank)) {
        cuts.insert(cuts.end(), {a.begin, a.end});
        all.push_back({i, a});
      }
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    std::vector<std::vector<std::pair<size_t, bool>>> users(cuts.size());
    for (const auto& [i, a] : all)
      for (auto c = std::lower_bound(cuts.begin(), cuts.end(), a.begin); c != cuts.end() && *c < a.end; ++c)
        users[static_cast<size_t>(c - cuts.begin())].push_back({i, a.writes});
    for (const auto& list : users)
      for (size_t x = 0; x < list.size(); ++x)
        for (size_t y = x + 1; y < list.size(); ++y)
          if (list[x].first != list[y].first && (list[x].second || list[y].second))
            meets.set(list[x].first, list[y].first);
  }

  Oracle& oracle_;
  const Plan& plan_;
  std::vector<Node> nodes_;
};

namespace {
std::vector<const char*> runsOf(const Plan& plan) {
  std::vector<const char*> runs{"PBBBBEH", "PBEHPBBEH"};
  if (plan.evaluation_size() > 0) runs.insert(runs.end(), {"VVVH", "VHPBEHVVHPBEH"});
  return runs;
}
}  // namespace

Oracle::Oracle(const Plan& original) : original_(original) {
  for (const char* parts : runsOf(original))
    for (int64_t rank = 0; rank < original.ranks(); ++rank) {
      observed_.emplace_back();
      Unfolding(*this, original, parts).run(rank, observed_.back());
    }
}

int64_t Oracle::intern(Term term) {
  auto [entry, isNew] = terms_.try_emplace(std::move(term), int64_t(terms_.size()) + 1);
  if (isNew) fresh_.push_back(entry);
  return entry->second;
}

int64_t Oracle::intern(const std::string& text) {
  return intern(Term{-3, texts_.try_emplace(text, int64_t(texts_.size())).first->second});
}

Verdict Oracle::judge(const Plan& mutant) {
  fresh_.clear();
  Verdict verdict;
  auto tables = tablesOf(mutant);
  for (const auto& [name, bytes] : tablesOf(original_))
    if (bytes != tables[name]) verdict.fault = "the table " + name + " says something else";
  auto all = observed_.begin();
  for (const char* parts : runsOf(original_)) {
    Unfolding unfolding(*this, mutant, parts);
    if (verdict.fault.empty()) verdict.fault = unfolding.order(verdict.conflicts);
    for (int64_t rank = 0; rank < original_.ranks() && verdict.fault.empty(); ++rank) {
      Observed observed;
      verdict.fault = unfolding.apart(rank);
      if (verdict.fault.empty()) verdict.fault = unfolding.run(rank, observed);
      if (verdict.fault.empty() && observed != *all) verdict.fault = "outputs or states have other values";
      verdict.values += observed.outputs.size();
      for (const auto& states : observed.states) verdict.values += states.size();
      ++all;
    }
  }
  for (auto term : fresh_) terms_.erase(term);
  return verdict;
}

std::string faultOfManySteps(const Plan& plan, int steps) {
  std::string together = "P", apart;
  for (int i = 0; i < steps; ++i) together += "B", apart += "PBEH";
  Oracle oracle(plan);
  Unfolding one(oracle, plan, (together += "EH").c_str()), several(oracle, plan, apart.c_str());
  size_t conflicts = 0;
  std::string fault = one.order(conflicts);
  if (fault.empty()) fault = several.order(conflicts);
  for (int64_t rank = 0; rank < plan.ranks() && fault.empty(); ++rank) {
    Oracle::Observed first, second;
    fault = one.apart(rank);
    if (fault.empty()) fault = one.run(rank, first);
    if (fault.empty()) fault = several.run(rank, second);
    if (fault.empty() && (first.outputs != second.outputs || first.states.back() != second.states.back()))
      fault = "a run of many steps leaves other values than as many runs of one";
  }
  return fault;
}

}  // namespace sheaf::mutants
