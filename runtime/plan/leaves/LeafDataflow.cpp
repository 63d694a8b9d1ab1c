#include "runtime/plan/leaves/LeafDataflow.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "runtime/base/Text.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/Words.h"

namespace sheaf::plan {
namespace {

// Collects what ranks have of a value.
class Collector {
 public:
  Collector(const Plan& plan, Machine& machine, std::vector<LeafValue>& values)
      : plan_(plan), machine_(machine), values_(values) {}

  Status step() {
    SHEAF_RETURN_IF_ERROR(outputs());
    for (const Bucket& bucket : plan_.buckets()) {
      const std::string of = cat(" of bucket '", shortName(bucket.name()), "'");
      SHEAF_RETURN_IF_ERROR(state(cat("the parameters", of), &bucket, bucket.parameter_buffer(),
                                  parameterParts(plan_, bucket), elementBytes(bucket.type())));
      for (const State& s : bucket.states())
        SHEAF_RETURN_IF_ERROR(
            state(cat("the state '", shortName(s.name()), "'", of), &bucket, s.buffer(), stateParts(plan_, bucket), 4));
    }
    if (plan_.has_loss_scale_buffer())
      SHEAF_RETURN_IF_ERROR(state("the loss scale", nullptr, plan_.loss_scale_buffer(), 1, sizeof(double)));
    return {};
  }

  // By kind and tensor: the order of instructions is the schedule's.
  Status outputs() {
    std::vector<size_t> order(machine_.written(0).size());
    std::iota(order.begin(), order.end(), size_t{0});
    auto key = [&](size_t i) {
      const WriteOutput& output = machine_.written(0)[i].output->output();
      return std::pair(output.output(), output.tensor());
    };
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return key(a) < key(b); });
    for (size_t i : order) {
      const Instruction& instruction = *machine_.written(0)[i].output;
      const WriteOutput& output = instruction.output();
      LeafValue value{cat("the ", word(output.output())), {}, nullptr, 4};
      const bool tensor = output.output() == TENSOR;
      const Output* rows = tensor ? &plan_.outputs(static_cast<int>(output.tensor())) : nullptr;
      if (rows) value.name = cat("output '", shortName(rows->name()), "'");
      if (rows && rows->blocks() > 0) {
        const uint64_t piece = sourceOf(instruction).bytes() / rows->blocks();
        for (uint64_t block = 0; block < rows->blocks(); ++block)
          for (int64_t rank = 0; rank < plan_.ranks(); ++rank)
            addPart(machine_.written(rank)[i].contents, block * piece, piece, value.contents);
      } else {
        value.contents = machine_.written(0)[i].contents;
        for (int64_t rank = 1; rank < plan_.ranks(); ++rank)
          if (hashOf(machine_.written(rank)[i].contents) != hashOf(value.contents))
            return disagree(value.name, 0, rank);
      }
      values_.push_back(std::move(value));
    }
    return {};
  }

 private:
  static void addPart(const Contents& from, uint64_t begin, uint64_t length, Contents& to) {
    uint64_t at = 0;
    for (const Run& run : from.runs) {
      const uint64_t low = std::max(at, begin), high = std::min(at + run.length, begin + length);
      if (low < high) to.add(run.part(low - at, high - low));
      at += run.length;
    }
  }

  static Status disagree(const std::string& name, int64_t first, int64_t second) {
    return Status::error(cat("ranks ", first, " and ", second, " compute different values of ", name));
  }

  // One after the other the parts that ranks have of a state; who has the same part has the same of it.
  Status state(std::string name, const Bucket* bucket, uint32_t buffer, int64_t parts, uint64_t width) {
    LeafValue value{std::move(name), {}, bucket, width};
    std::vector<int64_t> owner(static_cast<size_t>(parts), -1);
    std::vector<Contents> held(static_cast<size_t>(parts));
    const uint64_t bytes = plan_.buffers(static_cast<int>(buffer)).bytes();
    for (int64_t rank = 0; rank < plan_.ranks(); ++rank) {
      const size_t part = partOf(plan_, rank, static_cast<uint64_t>(parts));
      Contents own = machine_.contents(rank, buffer, 0, bytes);
      if (owner[part] >= 0 && hashOf(own) != hashOf(held[part])) return disagree(value.name, owner[part], rank);
      if (owner[part] >= 0) continue;
      owner[part] = rank;
      held[part] = std::move(own);
    }
    for (const Contents& part : held)
      for (const Run& run : part.runs) value.contents.add(run);
    values_.push_back(std::move(value));
    return {};
  }

  const Plan& plan_;
  Machine& machine_;
  std::vector<LeafValue>& values_;
};

// The parameter that an element of a bucket belongs to.
std::string elementText(const Plan& plan, const LeafValue& value, uint64_t element) {
  if (!value.bucket) return cat(value.name, ", at element ", element);
  for (const Parameter& parameter : plan.parameters()) {
    const uint64_t size = elementCount(shapeOf(parameter)).value_or(0);
    if (&plan.buckets(static_cast<int>(parameter.bucket())) == value.bucket && element >= parameter.offset() &&
        element - parameter.offset() < size)
      return cat(value.name, ", at element ", element - parameter.offset(), " of parameter '",
                 shortName(parameter.name()), "'");
  }
  return cat(value.name, ", in its padding");
}

// Finds what makes two values different.
class Explanation {
 public:
  Explanation(const LeafPlan& first, const LeafPlan& second) : a_(first), b_(second) {}

  // From the values back to the first that are made otherwise, with who reads them.
  std::pair<std::string, std::string> of(const Run& mine, const Run& theirs) {
    uint64_t x = mine.value, y = theirs.value;
    const Made *reader = nullptr, *other = nullptr;
    for (std::set<std::pair<uint64_t, uint64_t>> seen; x != y && seen.emplace(x, y).second;) {
      const Made *p = find(a_, x), *q = find(b_, y);
      if (!p || !q || p->operation != q->operation || p->of.size() != q->of.size()) break;
      reader = p, other = q;
      const auto [left, right] = std::mismatch(p->of.begin(), p->of.end(), q->of.begin());
      if (left == p->of.end())
        return {cat(text(a_, x), ", of some elements"), cat(text(b_, y), ", of other elements of the same values")};
      x = *left, y = *right;
    }
    if (x == y) return {cat(text(a_, x), ", byte ", mine.index), cat(text(b_, y), ", byte ", theirs.index)};
    return {text(a_, x) + readBy(a_, reader), text(b_, y) + readBy(b_, other)};
  }

 private:
  static const Made* find(const LeafPlan& plan, uint64_t value) {
    const auto made = plan.dataflow.makers.find(value);
    return made == plan.dataflow.makers.end() ? nullptr : &made->second;
  }
  static std::string text(const LeafPlan& plan, uint64_t value) {
    if (value == 0) return "nothing that was written";
    if (value == zeroValue()) return "zeros";
    const Made* made = find(plan, value);
    return !made ? cat("a value ", hexText(value)) : made->by ? describe(plan.plan, *made->by) : made->name;
  }
  static std::string readBy(const LeafPlan& plan, const Made* reader) {
    return reader && reader->by ? cat(", read by ", describe(plan.plan, *reader->by)) : "";
  }

  const LeafPlan &a_, &b_;
};

std::optional<LeafDifference> compare(const LeafPlan& a, const LeafPlan& b, const std::vector<LeafValue>& first,
                                      const std::vector<LeafValue>& second) {
  for (size_t i = 0; i < std::max(first.size(), second.size()); ++i) {
    if (i >= first.size() || i >= second.size() || first[i].name != second[i].name)
      return LeafDifference{cat("result ", i), i < first.size() ? first[i].name : "missing",
                            i < second.size() ? second[i].name : "missing"};
    const std::vector<Run>&x = first[i].contents.runs, &y = second[i].contents.runs;
    uint64_t at = 0;
    for (size_t run = 0; run < std::max(x.size(), y.size()); ++run) {
      Run mine = run < x.size() ? x[run] : Run{}, theirs = run < y.size() ? y[run] : Run{};
      const bool starts = mine.value == theirs.value && mine.index == theirs.index && mine.splat == theirs.splat;
      if (starts && mine.length == theirs.length) {
        at += mine.length;
        continue;
      }
      // One goes on where the other ends.
      if (starts) {
        const uint64_t common = std::min(mine.length, theirs.length);
        at += common;
        auto next = [&](const std::vector<Run>& runs, const Run& own) {
          if (own.length > common) return own.part(common, own.length - common);
          return run + 1 < runs.size() ? runs[run + 1] : Run{};
        };
        mine = next(x, mine), theirs = next(y, theirs);
      }
      auto [left, right] = Explanation(a, b).of(mine, theirs);
      return LeafDifference{elementText(a.plan, first[i], at / first[i].width), std::move(left), std::move(right)};
    }
  }
  return std::nullopt;
}

}  // namespace

Expected<LeafDataflow> followLeaves(const Plan& plan, bool withMakers, std::optional<uint64_t> most) {
  LeafDataflow result;
  Makers* const makers = withMakers ? &result.makers : nullptr;
  const uint64_t pieces = most.value_or(Machine::kMostPieces);
  auto givenUp = [&](const Machine& machine) { return !(result.complete = !(most && machine.exhausted())); };
  Machine step(plan, makers, pieces);
  step.execute(plan.prologue(), 0);
  for (const StepTurn& turn : stepOf(plan)) step.execute(*turn.list, turn.microBatch);
  step.execute(plan.epilogue(), 0);
  if (givenUp(step)) return result;
  if (!step.status().ok()) return step.status();
  SHEAF_RETURN_IF_ERROR(Collector(plan, step, result.step).step());
  if (plan.evaluation_size() == 0) return result;
  Machine evaluation(plan, makers, pieces);
  evaluation.execute(plan.evaluation(), 0);
  if (givenUp(evaluation)) return result;
  if (!evaluation.status().ok()) return evaluation.status();
  SHEAF_RETURN_IF_ERROR(Collector(plan, evaluation, result.evaluation).outputs());
  return result;
}

std::optional<LeafDifference> firstDifference(const LeafPlan& first, const LeafPlan& second, bool evaluations) {
  std::optional<LeafDifference> found = compare(first, second, first.dataflow.step, second.dataflow.step);
  if (!found && evaluations) found = compare(first, second, first.dataflow.evaluation, second.dataflow.evaluation);
  return found;
}

}  // namespace sheaf::plan
