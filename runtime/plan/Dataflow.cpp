#include "runtime/plan/Dataflow.h"

#include <algorithm>
#include <bit>
#include <string_view>

#include "runtime/base/Hash.h"
#include "runtime/base/Text.h"
#include "runtime/plan/ByteMap.h"
#include "runtime/plan/Library.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/Unrolled.h"

namespace sheaf::plan {
namespace {

using List = google::protobuf::RepeatedPtrField<Instruction>;

// A term under construction: an ordered list of numbers.
class Term {
 public:
  explicit Term(std::string_view name) { add(name); }
  Term& add(uint64_t number) {
    hash_ = mixBits(hash_ ^ number) + number;
    return *this;
  }
  Term& add(std::string_view text) { return add(xxh64(text)).add(static_cast<uint64_t>(text.size())); }
  Term& addReal(double number) { return add(std::bit_cast<uint64_t>(number)); }
  uint64_t hash() const { return mixBits(hash_); }

 private:
  uint64_t hash_ = 0;
};

// Entries of the digests: first the settings, then outputs by their kind, then states in the order of the buckets, then
// all constants together.
constexpr size_t kSettings = 0, kFirstState = 3;
static_assert(LOSS == 1 && GRADIENT_NORM == 2);

// Settings that the host acts on, without the learning rate.
Term settings(const Plan& plan) {
  const Training& training = plan.training();
  return Term("settings")
      .add(static_cast<uint64_t>(plan.ranks()))
      .add(static_cast<uint64_t>(plan.batch()))
      .add(withoutLearningRate(training.optimizer()))
      .addReal(training.clip_norm())
      .add(training.on_nan())
      .add(static_cast<uint64_t>(training.seed()))
      .add(training.reduce_order());
}

// Executes one rank. Addresses are linear in the rank, so the first and the last rank stand for all.
class Interpreter {
 public:
  // What is observed is added to `observed`, by its entry.
  Interpreter(const Plan& plan, uint64_t rank, std::vector<Term>& observed)
      : plan_(plan), rank_(rank), observed_(observed) {
    uint64_t top = 0;
    for (const Buffer& buffer : plan_.buffers()) {
      bases_.push_back(top);
      top += buffer.bytes();
    }
    for (const Bucket& bucket : plan_.buckets()) {
      state(bucket.parameter_buffer(), Term("parameters").add(bucket.name()));
      for (const State& s : bucket.states()) state(s.buffer(), Term("state").add(bucket.name()).add(s.name()));
    }
    for (const Constant& constant : plan_.constants()) state(constant.buffer(), Term("constant"));
  }

  // Says whether the induction holds.
  Status run() {
    section(plan_.prologue(), step_);
    findLive_ = true;
    ++round_;
    section(plan_.body(), step_);
    ByteMap<Value> left = values_;
    section(plan_.epilogue(), step_);
    host();
    findLive_ = false;
    section(plan_.prologue(), step_ + 1);
    return compare(left);
  }

 private:
  // Bytes of a value: the byte at `origin` is its first.
  struct Value {
    uint64_t hash = 0;  // 0: nothing has been written
    uint64_t origin = 0;
    int round = 0;                        // in which it was written
    const Instruction* writer = nullptr;  // null: there before the run
    bool operator==(const Value& other) const { return hash == other.hash && origin == other.origin; }
  };

  // Bytes that body, epilogue or host read before any of them has written them.
  struct Live {
    bool live = false;
    const Instruction* reader = nullptr;  // the first; null: the host
  };

  void state(uint32_t buffer, Term term) {
    term.add(static_cast<uint64_t>(states_.size()));
    states_.push_back(buffer);
    fill(bases_[buffer], plan_.buffers(static_cast<int>(buffer)).bytes(), term.hash(), nullptr);
  }

  void fill(uint64_t begin, uint64_t bytes, uint64_t hash, const Instruction* writer) {
    values_.visit(begin, begin + bytes, [&](uint64_t, uint64_t, Value& value) {
      value = {hash, begin, round_, writer};
    });
  }

  uint64_t begin(const Operand& operand) const {
    return bases_[operand.buffer()] + operand.offset() + rank_ * operand.shard_stride();
  }

  // Adds what [begin, begin + bytes) holds, run by run of one value, however it was cut. Values of rounds before
  // `since` count as not written.
  void addContents(uint64_t begin, uint64_t bytes, int since, Term& term) {
    Value run;
    uint64_t from = begin;
    auto finish = [&](uint64_t until) {
      if (until > from) term.add(run.hash).add(run.hash ? from - run.origin : 0).add(until - from);
    };
    values_.visit(begin, begin + bytes, [&](uint64_t at, uint64_t, const Value& value) {
      Value seen = value.round < since ? Value() : value;
      if (at != begin && seen == run) return;
      finish(at);
      run = seen;
      from = at;
    });
    finish(begin + bytes);
  }

  void reads(uint64_t begin, uint64_t bytes, const Instruction* reader) {
    if (!findLive_) return;
    written_.visit(begin, begin + bytes, [&](uint64_t from, uint64_t to, bool written) {
      if (written) return;
      live_.visit(from, to, [&](uint64_t, uint64_t, Live& bytes) {
        if (!bytes.live) bytes = {true, reader};
      });
    });
  }

  void writes(uint64_t begin, uint64_t bytes) {
    if (findLive_) written_.visit(begin, begin + bytes, [](uint64_t, uint64_t, bool& written) { written = true; });
  }

  // What an instruction does, apart from where; `step`: whose inputs and scalars it gets.
  Term operation(const Instruction& instruction, uint64_t step) const {
    Term term(instructionKind(instruction));
    switch (instruction.kind_case()) {
      case Instruction::kKernel:
        addKernel(instruction.kernel().kernel(), term.add(instruction.updates_bucket()));
        break;
      case Instruction::kCall:
        for (const Attribute& attribute : canonicalAttributes(instruction.call())) {
          term.add(attribute.name()).add(static_cast<uint64_t>(attribute.value_case()));
          attribute.has_real() ? term.addReal(attribute.real()) : term.add(static_cast<uint64_t>(attribute.integer()));
        }
        if (instruction.call().function() == "dropout")
          term.add(step).add(static_cast<uint64_t>(plan_.training().seed()));
        break;
      case Instruction::kCollective:
        term.add(instruction.collective().type()).add(instruction.collective().count());
        break;
      case Instruction::kInput:
        term.add(plan_.inputs(static_cast<int>(instruction.input().input())).name()).add(step);
        break;
      case Instruction::kScalars:
        for (const StepScalar& scalar : plan_.scalars()) term.add(scalar.kind()).addReal(scalar.value());
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

  // A kernel is known by what it was compiled from, if that is stated, so that it may be at another index.
  void addKernel(uint32_t index, Term& term) const {
    const bool listed = index < static_cast<uint32_t>(plan_.kernels_size());
    const Kernel& kernel = listed ? plan_.kernels(static_cast<int>(index)) : Kernel::default_instance();
    term.add(kernel.program() ? kernel.program() : index);
    term.add(static_cast<uint64_t>(kernel.rows())).add(static_cast<uint64_t>(kernel.block()));
  }

  void section(const List& list, uint64_t step) {
    for (const Instruction& instruction : list)
      if (!instruction.has_record() && !instruction.has_wait()) execute(instruction, step);
  }

  void execute(const Instruction& instruction, uint64_t step) {
    Term term = operation(instruction, step);
    forEachOperand(instruction, [&](const Operand& operand) {
      if (isScratch(instruction, operand)) return;
      term.add(operand.access()).add(operand.bytes());
      // A call may leave bytes of what it writes as they were: rows of a concatenation, say. What an earlier round has
      // left in a buffer that does not persist is not used.
      const bool persistent = plan_.buffers(static_cast<int>(operand.buffer())).persistent();
      const bool read = operand.access() != WRITE || (instruction.has_call() && persistent);
      if (read) reads(begin(operand), operand.bytes(), &instruction);
      if (read || instruction.has_call()) addContents(begin(operand), operand.bytes(), read ? 0 : round_, term);
    });
    if (instruction.has_output()) observed_[static_cast<size_t>(instruction.output().output())].add(term.hash());
    uint64_t result = 0;
    forEachOperand(instruction, [&](const Operand& operand) {
      ++result;
      if (operand.access() == READ) return;
      writes(begin(operand), operand.bytes());
      // Contents of scratch must not be used afterwards.
      const bool scratch = isScratch(instruction, operand);
      fill(begin(operand), operand.bytes(), scratch ? 0 : Term("result").add(term.hash()).add(result).hash(),
           &instruction);
    });
  }

  // The host sees all state, and leaves nothing else.
  void host() {
    ByteMap<Value> kept;
    std::swap(kept, values_);
    for (size_t i = 0; i < states_.size(); ++i) {
      const uint32_t buffer = states_[i];
      uint64_t begin = bases_[buffer], bytes = plan_.buffers(static_cast<int>(buffer)).bytes();
      kept.visit(begin, begin + bytes, [&](uint64_t from, uint64_t to, const Value& value) {
        values_.visit(from, to, [&](uint64_t, uint64_t, Value& copy) { copy = value; });
      });
      reads(begin, bytes, nullptr);
      addContents(begin, bytes, 0, observed_[std::min(kFirstState + i, observed_.size() - 1)]);
    }
  }

  // Whether the live bytes hold the same after a body as after the prologue of a run that starts from what it left.
  Status compare(ByteMap<Value>& left) {
    Status status;
    live_.forEach([&](uint64_t begin, uint64_t end, const Live& live) {
      if (!live.live) return;
      left.visit(begin, end, [&](uint64_t from, uint64_t to, const Value& body) {
        values_.visit(from, to, [&](uint64_t at, uint64_t until, const Value& prologue) {
          if (status.ok() && !(body == prologue)) status = differs(live, at, until, body, prologue);
        });
      });
    });
    return status;
  }

  Status differs(const Live& live, uint64_t begin, uint64_t end, const Value& body, const Value& prologue) const {
    auto buffer = std::upper_bound(bases_.begin(), bases_.end(), begin) - bases_.begin() - 1;
    const uint64_t base = bases_[static_cast<size_t>(buffer)];
    auto from = [&](const Value& value) {
      return value.writer ? cat("from ", describe(plan_, *value.writer))
                          : std::string(value.hash ? "as the run begins with them" : "not written");
    };
    return Status::error(cat("later steps do not compute what the first one does: ",
                             live.reader ? describe(plan_, *live.reader) : "the host after the epilogue",
                             " reads bytes [", begin - base, ", ", end - base, ") of buffer '",
                             plan_.buffers(static_cast<int>(buffer)).name().substr(0, 120),
                             "', and in a later step they are ", from(body), ", in the first step of a run ",
                             from(prologue), ", with another value"));
  }

  const Plan& plan_;
  const uint64_t rank_;
  const uint64_t step_ = 1;
  std::vector<uint64_t> bases_;  // of each buffer in a space where none shares bytes
  std::vector<uint32_t> states_;
  int round_ = 0;  // bodies begun
  ByteMap<Value> values_;
  std::vector<Term>& observed_;
  bool findLive_ = false;
  ByteMap<bool> written_;
  ByteMap<Live> live_;
};

}  // namespace

Dataflow followDataflow(const Plan& plan) {
  const uint64_t ranks = static_cast<uint64_t>(plan.ranks());
  size_t states = 0;
  for (const Bucket& bucket : plan.buckets()) states += 1 + static_cast<size_t>(bucket.states_size());
  std::vector<Term> observed(kFirstState + states + 1, Term("observed"));
  observed[kSettings] = settings(plan);
  Dataflow result;
  for (uint64_t rank = 0; rank < ranks; rank += std::max<uint64_t>(ranks - 1, 1)) {
    Status induction = Interpreter(plan, rank, observed).run();
    if (result.induction.ok()) result.induction = induction;
  }
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
  if (i == kSettings) return "the training's settings";
  if (i == LOSS) return "the loss";
  if (i == GRADIENT_NORM) return "the gradient norm";
  int state = static_cast<int>(kFirstState);
  for (const Bucket& bucket : plan.buckets()) {
    std::string of = cat(" of bucket '", bucket.name().substr(0, 120), "'");
    if (i == state) return cat("what a step makes of the parameters", of);
    if (i <= state + bucket.states_size())
      return cat("what a step makes of the state '", bucket.states(i - state - 1).name().substr(0, 120), "'", of);
    state += 1 + bucket.states_size();
  }
  return "what a step leaves in the constants";
}

}  // namespace sheaf::plan
