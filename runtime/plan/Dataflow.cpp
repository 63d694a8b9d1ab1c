#include "runtime/plan/Dataflow.h"

#include <algorithm>
#include <string_view>

#include "runtime/base/Text.h"
#include "runtime/plan/Library.h"
#include "runtime/plan/LossScale.h"
#include "runtime/plan/Term.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/Words.h"

namespace sheaf::plan {
namespace {

// Entries of the digests: first the settings, then outputs of the step by their kind, then states in the order of the
// buckets, then the loss scale if there is one (its state and its output), then all constants together. Where there is
// an evaluation its scalars by their kind and the table `outputs` follow.
constexpr size_t kSettings = 0, kFirstState = 3, kEvaluated = 4;
constexpr OutputKind kEvaluatedScalars[kEvaluated] = {LOSS, LOSS_WEIGHT, CORRECT, LABELS};
static_assert(LOSS == 1 && GRADIENT_NORM == 2);

size_t stateEntries(const Plan& plan) {
  size_t states = 1 + static_cast<size_t>(plan.has_loss_scale_buffer());  // the constants, the loss scale
  for (const Bucket& bucket : plan.buckets()) states += 1 + static_cast<size_t>(bucket.states_size());
  return states;
}

// The entry of an output, relative to those of the section that writes it.
size_t evaluatedEntry(const WriteOutput& output) {
  if (output.output() == TENSOR) return kEvaluated + output.tensor();
  return static_cast<size_t>(std::find(std::begin(kEvaluatedScalars), std::end(kEvaluatedScalars), output.output()) -
                             kEvaluatedScalars);
}

// Settings that the host acts on, without learning rates.
Term settings(const Plan& plan) {
  const Training& training = plan.training();
  Term term = Term("settings")
                  .add(static_cast<uint64_t>(plan.ranks()))
                  .add(static_cast<uint64_t>(plan.batch()))
                  .add(withoutLearningRate(training.optimizer()))
                  .addReal(training.clip_norm())
                  .add(training.on_nan())
                  .add(static_cast<uint64_t>(training.seed()))
                  .add(training.reduce_order());
  if (plan.ranks_per_node() > 0)
    term.add("nodes")
        .add(static_cast<uint64_t>(plan.ranks_per_node()))
        .add(static_cast<uint64_t>(plan.network_stage()));
  if (microBatches(plan) > 1)
    term.add("micro-batches").add(static_cast<uint64_t>(microBatches(plan))).add(plan.dealing());
  for (const ParameterGroup& group : training.groups()) term.add(group.name()).add(group.settings());
  if (training.has_loss_scale()) term.add("loss scale").add(lossScaleText(training.loss_scale()));
  return term;
}

// Executes all ranks at once. A value is a function of the rank; equal terms are equal functions. What a rank finds in
// its own part of a buffer and what it finds in those of others are followed in a space each (Places.h).
class Interpreter {
 public:
  // What is observed is added to `observed`, by its entry.
  Interpreter(const Places& places, std::vector<Term>& observed)
      : places_(places),
        plan_(places.plan()),
        values_(places.spaces()),
        observed_(observed),
        written_(places.spaces()),
        live_(places.spaces()) {
    for (const Bucket& bucket : plan_.buckets()) {
      state(bucket.parameter_buffer(), Term("parameters").add(bucket.name()));
      for (const State& s : bucket.states()) state(s.buffer(), Term("state").add(bucket.name()).add(s.name()));
    }
    if (plan_.has_loss_scale_buffer()) state(plan_.loss_scale_buffer(), Term("loss scale"));
    for (const Constant& constant : plan_.constants()) state(constant.buffer(), Term("constant"));
  }

  // Says whether the induction holds.
  Status run() {
    evaluate();
    section(plan_.prologue(), step_);
    findLive_ = true;
    for (const StepTurn& part : stepOf(plan_)) section(*part.list, step_, part.microBatch);
    const Values left = values_;
    section(plan_.epilogue(), step_);
    host();
    findLive_ = false;
    section(plan_.prologue(), step_ + 1);
    return compare(left);
  }

 private:
  // Bytes of a value. The byte at `origin` of the space is its first, or, of a value of the rank's own part, the byte
  // at column `origin` of each row. One of a rank's piece begins with the piece, whose rows are alike: which byte of
  // the value is in a column of a row depends on the row's place in its piece alone.
  struct Value {
    uint64_t hash = 0;  // 0: nothing has been written
    uint64_t origin = 0;
    Share part = Share::kNone;
    const Instruction* writer = nullptr;  // null: there before the run
    bool operator==(const Value& other) const {
      return hash == other.hash && origin == other.origin && part == other.part;
    }
  };
  using Values = std::vector<BlockMap<Value>>;  // by space

  // Bytes that body, epilogue or host read before any of them has written them.
  struct Live {
    bool live = false;
    const Instruction* reader = nullptr;  // the first; null: the host
  };

  // Columns of some rows that hold one value.
  struct Run {
    Value value;
    uint64_t column, width;
    bool operator==(const Run& other) const = default;
  };

  // A list of what bytes hold, in the order of their addresses, as a term that does not depend on how they were cut.
  class ContentsTerm {
   public:
    explicit ContentsTerm(uint64_t period) : period_(period) {}
    // Rows that all hold the same runs.
    void add(uint64_t row, uint64_t rows, const std::vector<Run>& runs) {
      if (rows == 0) return;
      if (runs.size() == 1 && runs[0].width == period_ && runs[0].value.part == Share::kNone)
        return addDense(runs[0].value, row * period_, rows * period_);
      if (rows > 1) {
        finish();
        term_.add("rows").add(rows).add(period_).add(static_cast<uint64_t>(runs.size()));
      }
      for (const Run& run : runs) {
        addDense(run.value, (run.value.part != Share::kNone ? 0 : row * period_) + run.column, run.width);
        if (rows > 1) finish();
      }
    }
    uint64_t hash() {
      finish();
      return term_.hash();
    }

   private:
    void addDense(const Value& value, uint64_t begin, uint64_t width) {
      if (width_ > 0 && value == value_ && begin == begin_ + width_) {
        width_ += width;
        return;
      }
      finish();
      value_ = value;
      begin_ = begin;
      width_ = width;
    }
    void finish() {
      if (width_ == 0) return;
      term_.add(value_.hash).add(value_.hash ? begin_ - value_.origin : 0).add(width_).add(partTag(value_.part));
      width_ = 0;
    }

    const uint64_t period_;
    Term term_{"contents"};
    Value value_;  // of a run that may go on
    uint64_t begin_ = 0, width_ = 0;
  };

  // As it stands in terms.
  static uint64_t partTag(Share part) { return part == Share::kOwn ? 1 : part == Share::kPiece ? 2 : 0; }

  uint64_t bytesOf(uint32_t buffer) const { return plan_.buffers(static_cast<int>(buffer)).bytes(); }

  void state(uint32_t buffer, Term term) {
    term.add(static_cast<uint64_t>(states_.size()));
    states_.push_back(buffer);
    fill(places_.spacesOf(buffer), places_.blocks(buffer, 0, bytesOf(buffer)), {term.hash(), 0, Share::kNone, nullptr});
  }

  void fill(Places::Spaces spaces, const std::vector<Block>& blocks, const Value& value) {
    for (size_t space = spaces.begin; space < spaces.end; ++space)
      for (const Block& block : blocks) values_[space].visit(block, [&](const Block&, Value& bytes) { bytes = value; });
  }

  // What blocks of a buffer hold in a space.
  uint64_t contentsOf(uint32_t buffer, size_t space, const std::vector<Block>& blocks) {
    ContentsTerm term(places_.period(buffer));
    for (const Block& block : blocks) {
      uint64_t first = block.row, current = block.row;  // of the rows that hold `held`; the one that `next` is of
      std::vector<Run> held, next;
      auto endRow = [&] {
        if (next != held) {
          term.add(first, current - first, held);
          first = current;
          held = next;
        }
        next.clear();
      };
      values_[space].visit(block, [&](const Block& piece, const Value& value) {
        if (piece.row != current) {
          endRow();
          current = piece.row;
        }
        if (!next.empty() && next.back().value == value)
          next.back().width += piece.width;
        else
          next.push_back({value, piece.column, piece.width});
      });
      endRow();
      term.add(first, block.row + block.rows - first, held);
    }
    return term.hash();
  }

  // Adds what blocks of a buffer hold in its spaces: once, if a rank finds in its own parts what it finds in others'.
  void addContents(uint32_t buffer, Places::Spaces spaces, const std::vector<Block>& blocks, Term& term) {
    const uint64_t others = contentsOf(buffer, spaces.begin, blocks);
    term.add(others);
    if (spaces.end - spaces.begin > 2)
      if (const uint64_t piece = contentsOf(buffer, spaces.begin + 1, blocks); piece != others)
        term.add("own piece").add(piece);
    if (spaces.end - spaces.begin < 2) return;
    if (const uint64_t own = contentsOf(buffer, spaces.end - 1, blocks); own != others) term.add("own part").add(own);
  }

  void reads(Places::Spaces spaces, const std::vector<Block>& blocks, const Instruction* reader) {
    if (!findLive_) return;
    for (size_t space = spaces.begin; space < spaces.end; ++space)
      for (const Block& block : blocks)
        written_[space].visit(block, [&](const Block& piece, bool written) {
          if (written) return;
          live_[space].visit(piece, [&](const Block&, Live& bytes) {
            if (!bytes.live) bytes = {true, reader};
          });
        });
  }

  void writes(const Place& place) {
    if (!findLive_) return;
    const Places::Spaces spaces = places_.spacesOf(place);
    for (size_t space = spaces.begin; space < spaces.end; ++space)
      for (const Block& block : place.written)
        written_[space].visit(block, [](const Block&, bool& written) { written = true; });
  }

  // Which rows of the run's data. A step of one micro-batch adds nothing more, so that its plans keep their digests.
  Term& addRows(Term& term, uint64_t step) const {
    term.add(step);
    if (microBatches(plan_) > 1) term.add("micro-batch").add(static_cast<uint64_t>(microBatch_));
    return term;
  }

  // What an instruction does, apart from where; `step`: whose inputs and scalars it gets.
  Term operation(const Instruction& instruction, uint64_t step) const {
    Term term(instructionKind(instruction));
    switch (instruction.kind_case()) {
      case Instruction::kKernel:
        addKernel(instruction, term.add(instruction.updates_bucket()));
        break;
      case Instruction::kCall:
        for (const Attribute& attribute : canonicalAttributes(instruction.call())) {
          term.add(attribute.name()).add(static_cast<uint64_t>(attribute.value_case()));
          attribute.has_real() ? term.addReal(attribute.real()) : term.add(static_cast<uint64_t>(attribute.integer()));
        }
        if (isRandom(instruction.call())) addRows(term, step).add(static_cast<uint64_t>(plan_.training().seed()));
        break;
      case Instruction::kCollective:
        term.add(instruction.collective().type()).add(instruction.collective().count());
        if (const Axis axis = axisOf(plan_, instruction.collective()); axis != WORLD) term.add("axis").add(axis);
        break;
      case Instruction::kInput:
        addRows(term.add(plan_.inputs(static_cast<int>(instruction.input().input())).name()), step);
        break;
      case Instruction::kScalars:
        // The group of all parameters adds nothing, so that plans without groups keep their digests.
        for (const StepScalar& scalar : plan_.scalars()) {
          term.add(scalar.kind()).addReal(scalar.value());
          if (scalar.group() > 0) term.add("group").add(scalar.group());
        }
        term.add(step);
        break;
      case Instruction::kOutput:
        term.add(step);
        break;
      default:
        break;
    }
    return term;
  }

  // A kernel is known by what it was compiled from, if that is stated, so that it may be at another index; and by which
  // results it writes in place of which operands, for not every kernel may.
  void addKernel(const Instruction& launch, Term& term) const {
    const uint32_t index = launch.kernel().kernel();
    const bool listed = index < static_cast<uint32_t>(plan_.kernels_size());
    const Kernel& kernel = listed ? plan_.kernels(static_cast<int>(index)) : Kernel::default_instance();
    term.add(kernel.program() ? kernel.program() : index);
    term.add(static_cast<uint64_t>(kernel.rows())).add(static_cast<uint64_t>(kernel.block()));
    for (const Operand& result : launch.operands()) {
      if (result.access() != WRITE) continue;
      for (int i = 0; i < launch.operands_size(); ++i)
        if (const Operand& o = launch.operands(i);
            o.access() == READ && o.buffer() == result.buffer() && o.offset() == result.offset() &&
            o.shard_stride() == result.shard_stride() && o.axis() == result.axis())
          term.add("in place of").add(static_cast<uint64_t>(i));
      term.add("result");
    }
  }

  void section(const InstructionList& list, uint64_t step, int64_t microBatch = 0) {
    microBatch_ = microBatch;
    for (const Instruction& instruction : list)
      if (!instruction.has_record() && !instruction.has_wait()) execute(instruction, step);
  }

  // The destination holds what the source holds: a plan computes the same with its values in any space.
  void move(const Instruction& instruction) {
    const std::vector<Place>& places = places_.of(instruction);
    if (places.size() != 2) return;  // in a plan that has not been verified
    const Place &from = places[0], &to = places[1];
    const Places::Spaces sources = places_.spacesOf(from), destinations = places_.spacesOf(to);
    reads(sources, from.accessed, &instruction);
    writes(to);
    std::vector<std::pair<Block, Value>> moved;
    // As many as the destination's, in a verified plan.
    const size_t count = std::min(sources.end - sources.begin, destinations.end - destinations.begin);
    for (size_t k = 0; k < count; ++k) {
      moved.clear();
      for (const Block& block : from.accessed)
        values_[sources.begin + k].visit(
            block, [&](const Block& piece, const Value& value) { moved.emplace_back(piece, value); });
      for (const auto& [piece, value] : moved)
        values_[destinations.begin + k].visit(piece,
                                              [&, &value = value](const Block&, Value& bytes) { bytes = value; });
    }
  }

  // It computes nothing: the next generations become the current ones, and of what these held nothing is left.
  void persist(const Instruction& instruction) {
    for (const Place& place : places_.of(instruction)) {
      if (place.reads) reads(places_.spacesOf(place), place.accessed, &instruction);
      if (!place.writes) continue;
      writes(place);
      fill(places_.spacesOf(place), place.written, {Term("votes").hash(), 0, place.part, &instruction});
    }
    for (const Generation& generation : plan_.generations()) {
      // Images of each other have as many spaces.
      const Places::Spaces current = places_.spacesOf(generation.current()), next = places_.spacesOf(generation.next());
      for (size_t k = 0; k < current.end - current.begin; ++k) {
        std::swap(values_[current.begin + k], values_[next.begin + k]);
        values_[next.begin + k] = {};
        if (!findLive_) continue;
        std::swap(written_[current.begin + k], written_[next.begin + k]);
        written_[next.begin + k] = {};
      }
    }
  }

  void execute(const Instruction& instruction, uint64_t step) {
    if (instruction.has_transfer()) return move(instruction);
    if (instruction.has_persist()) return persist(instruction);
    Term term = operation(instruction, step);
    const std::vector<Place>& places = places_.of(instruction);
    for (const Place& place : places) {
      if (place.scratch) continue;
      term.add(place.operand->access()).add(place.operand->bytes());
      if (!place.reads) continue;
      if (place.part != Share::kNone) {
        term.add("part of a rank").add(place.operand->shard_stride());
        if (place.operand->axis() != WORLD) term.add("axis").add(place.operand->axis());
      }
      reads(places_.spacesOf(place), place.accessed, &instruction);
      addContents(place.buffer, places_.spacesOf(place), place.accessed, term);
    }
    if (instruction.has_output()) {
      const WriteOutput& output = instruction.output();
      const size_t entry = evaluating_                     ? kFirstState + stateEntries(plan_) + evaluatedEntry(output)
                           : output.output() == LOSS_SCALE ? kFirstState + stateEntries(plan_) - 2
                                                           : static_cast<size_t>(output.output());
      observed_[entry].add(term.hash());
    }
    uint64_t result = 0;
    for (const Place& place : places) {
      ++result;
      if (!place.writes) continue;
      writes(place);
      // Contents of scratch must not be used afterwards.
      const uint64_t hash = place.scratch ? 0 : Term("result").add(term.hash()).add(result).hash();
      fill(places_.spacesOf(place), place.written, {hash, place.operand->offset(), place.part, &instruction});
    }
  }

  // From the state at the start, which it leaves as it was. What it computes is a function of the state, and so the
  // same wherever it runs.
  void evaluate() {
    const Values state = values_;
    evaluating_ = true;
    section(plan_.evaluation(), 0);
    evaluating_ = false;
    values_ = state;
  }

  // The host sees all state, and leaves nothing else.
  void host() {
    Values kept(values_.size());
    std::swap(kept, values_);
    for (size_t i = 0; i < states_.size(); ++i) {
      const uint32_t buffer = states_[i];
      const Places::Spaces spaces = places_.spacesOf(buffer);
      const std::vector<Block> whole = places_.blocks(buffer, 0, bytesOf(buffer));
      for (size_t space = spaces.begin; space < spaces.end; ++space) values_[space] = kept[space];
      reads(spaces, whole, nullptr);
      addContents(buffer, spaces, whole, observed_[std::min(kFirstState + i, kFirstState + stateEntries(plan_) - 1)]);
    }
  }

  // Whether the live bytes hold the same after a body as after the prologue of a run that starts from what it left.
  Status compare(Values left) {
    Status status;
    for (uint32_t buffer = 0; buffer < static_cast<uint32_t>(plan_.buffers_size()); ++buffer) {
      const Places::Spaces spaces = places_.spacesOf(buffer);
      for (size_t space = spaces.begin; space < spaces.end; ++space)
        live_[space].forEach([&](const Block& block, const Live& live) {
          if (!live.live) return;
          left[space].visit(block, [&](const Block& piece, const Value& body) {
            values_[space].visit(piece, [&](const Block& at, const Value& prologue) {
              if (status.ok() && !(body == prologue)) status = differs(live, buffer, at, body, prologue);
            });
          });
        });
    }
    return status;
  }

  Status differs(const Live& live, uint32_t buffer, const Block& at, const Value& body, const Value& prologue) const {
    auto from = [&](const Value& value) {
      return value.writer ? cat("from ", describe(plan_, *value.writer))
                          : std::string(value.hash ? "from the initial state" : "not written");
    };
    const uint64_t begin = places_.firstByte(buffer, at);
    return Status::error(cat("a later step computes something else than the first: ",
                             live.reader ? describe(plan_, *live.reader) : "the host after the epilogue",
                             " reads bytes [", begin, ", ", begin + at.width, ") of buffer '",
                             shortName(plan_.buffers(static_cast<int>(buffer)).name()), "': in later steps ",
                             from(body), ", in the first step of a run ", from(prologue)));
  }

  const Places& places_;
  const Plan& plan_;
  const uint64_t step_ = 1;
  std::vector<uint32_t> states_;
  Values values_;
  std::vector<Term>& observed_;
  bool findLive_ = false, evaluating_ = false;
  int64_t microBatch_ = 0;  // of the instructions that are executed
  std::vector<BlockMap<bool>> written_;
  std::vector<BlockMap<Live>> live_;
};

}  // namespace

Dataflow followDataflow(const Places& places) {
  const Plan& plan = places.plan();
  const size_t evaluated = plan.evaluation_size() > 0 ? kEvaluated + static_cast<size_t>(plan.outputs_size()) : 0;
  std::vector<Term> observed(kFirstState + stateEntries(plan) + evaluated, Term("observed"));
  observed[kSettings] = settings(plan);
  Dataflow result;
  result.induction = Interpreter(places, observed).run();
  for (const Term& term : observed) result.digests.push_back(term.hash());
  return result;
}

std::string withoutLearningRate(std::string optimizer) {
  for (const char* start : {":lr=", ",lr="})
    if (size_t at = optimizer.find(start); at != std::string::npos)
      optimizer.erase(at + 1, optimizer.find(',', at + 1) - at - 1);
  return optimizer;
}

std::string dataflowEntry(const Plan& plan, int i) {
  if (i == kSettings) return "the configuration of the training (ranks, batch, optimizer, clipping, seed)";
  if (i == LOSS) return "the loss";
  if (i == GRADIENT_NORM) return "the gradient norm";
  int state = static_cast<int>(kFirstState);
  for (const Bucket& bucket : plan.buckets()) {
    std::string of = cat(" of bucket '", shortName(bucket.name()), "'");
    if (i == state) return cat("the update of the parameters", of);
    if (i <= state + bucket.states_size())
      return cat("the updated state '", shortName(bucket.states(i - state - 1).name()), "'", of);
    state += 1 + bucket.states_size();
  }
  if (plan.has_loss_scale_buffer() && i == state) return "the loss scale";
  const int evaluated = i - static_cast<int>(kFirstState + stateEntries(plan)), scalars = static_cast<int>(kEvaluated);
  if (evaluated >= scalars && evaluated - scalars < plan.outputs_size())
    return cat("the evaluation's output '", shortName(plan.outputs(evaluated - scalars).name()), "'");
  if (evaluated >= 0 && evaluated < scalars)
    return cat("the evaluation's ", word(kEvaluatedScalars[static_cast<size_t>(evaluated)]));
  return "the content of the constants after a step";
}

}  // namespace sheaf::plan
