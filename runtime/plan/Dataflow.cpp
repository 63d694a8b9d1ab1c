#include "runtime/plan/Dataflow.h"

#include <algorithm>
#include <bit>
#include <string_view>
#include <vector>

#include "runtime/base/Hash.h"
#include "runtime/plan/ByteMap.h"
#include "runtime/plan/Types.h"

namespace sheaf::plan {
namespace {

// A term under construction: an ordered list of numbers.
class Term {
 public:
  explicit Term(std::string_view name) { add(name); }
  Term& add(uint64_t number) {
    hash_ = mixBits(hash_ ^ number) + number;
    return *this;
  }
  Term& add(std::string_view text) {
    return add(fnv1a(std::as_bytes(std::span(text)))).add(static_cast<uint64_t>(text.size()));
  }
  uint64_t hash() const { return mixBits(hash_); }

 private:
  uint64_t hash_ = 0;
};

// Follows one rank. The ranks' addresses are linear in the rank, so the first and the last tell them all.
class Interpreter {
 public:
  Interpreter(const Unrolled& steps, uint64_t rank) : steps_(steps), plan_(steps.plan()), rank_(rank) {
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

  uint64_t run() {
    for (size_t i = 0; i < steps_.size(); ++i)
      if (steps_.isHost(i))
        host();
      else
        step(steps_[i]);
    return observed_;
  }

 private:
  // Bytes of a value: the byte at `origin` is its first.
  struct Value {
    uint64_t hash = 0;  // 0: nothing has been written
    uint64_t origin = 0;
    int round = 0;  // in which it was written
    bool operator==(const Value& other) const { return hash == other.hash && origin == other.origin; }
  };

  void state(uint32_t buffer, Term term) {
    term.add(static_cast<uint64_t>(states_.size()));
    states_.push_back(buffer);
    fill(bases_[buffer], plan_.buffers(static_cast<int>(buffer)).bytes(), term.hash(), 0);
  }

  void fill(uint64_t begin, uint64_t bytes, uint64_t hash, int round) {
    values_.visit(begin, begin + bytes, [&](uint64_t, uint64_t, Value& value) { value = {hash, begin, round}; });
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

  // What an instruction does, apart from where.
  static Term operation(const Instruction& instruction, int round) {
    Term term(instructionKind(instruction));
    switch (instruction.kind_case()) {
      case Instruction::kKernel:
        term.add(instruction.kernel().kernel()).add(instruction.updates_bucket());
        break;
      case Instruction::kCall:
        for (const Attribute& attribute : instruction.call().attributes()) {
          term.add(attribute.name()).add(static_cast<uint64_t>(attribute.value_case()));
          term.add(attribute.has_integer() ? static_cast<uint64_t>(attribute.integer())
                                           : std::bit_cast<uint64_t>(attribute.real()));
        }
        if (instruction.call().function() == "dropout") term.add(static_cast<uint64_t>(round));
        break;
      case Instruction::kCollective:
        term.add(instruction.collective().type()).add(instruction.collective().count());
        break;
      case Instruction::kInput:
        term.add(instruction.input().input()).add(static_cast<uint64_t>(round));
        break;
      case Instruction::kScalars:
        term.add(static_cast<uint64_t>(round));
        break;
      case Instruction::kOutput:
        term.add(instruction.output().output()).add(static_cast<uint64_t>(round));
        break;
      default:
        break;
    }
    return term;
  }

  void step(const Unrolled::Step& step) {
    const Instruction& instruction = *step.instruction;
    if (instruction.has_record() || instruction.has_wait()) return;
    Term term = operation(instruction, step.round);
    forEachOperand(instruction, [&](const Operand& operand) {
      if (isScratch(instruction, operand)) return;
      term.add(operand.access()).add(operand.bytes());
      bool kept = plan_.buffers(static_cast<int>(operand.buffer())).persistent();
      if (operand.access() != WRITE) addContents(begin(operand), operand.bytes(), 0, term);
      // A call may leave bytes of what it writes as they were: rows of a concatenation, say.
      else if (instruction.has_call())
        addContents(begin(operand), operand.bytes(), kept ? 0 : step.round, term);
    });
    // What is observed is a set: the order of outputs does not matter.
    if (instruction.has_output()) observed_ += term.hash();
    uint64_t result = 0;
    forEachOperand(instruction, [&](const Operand& operand) {
      ++result;
      if (operand.access() == READ || isScratch(instruction, operand)) return;
      fill(begin(operand), operand.bytes(), Term("result").add(term.hash()).add(result).hash(), step.round);
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
      Term term("left for the host");
      addContents(begin, bytes, 0, term.add(static_cast<uint64_t>(i)));
      observed_ += term.hash();
    }
  }

  const Unrolled& steps_;
  const Plan& plan_;
  const uint64_t rank_;
  std::vector<uint64_t> bases_;  // of each buffer in a space where none shares bytes
  std::vector<uint32_t> states_;
  ByteMap<Value> values_;
  uint64_t observed_ = 0;
};

}  // namespace

uint64_t dataflowDigest(const Unrolled& steps) {
  uint64_t ranks = static_cast<uint64_t>(steps.plan().ranks());
  Term term("ranks");
  term.add(ranks).add(Interpreter(steps, 0).run());
  if (ranks > 1) term.add(Interpreter(steps, ranks - 1).run());
  return std::max<uint64_t>(term.hash(), 1);
}

uint64_t dataflowDigest(const Plan& plan) {
  return dataflowDigest(Unrolled(plan));
}

}  // namespace sheaf::plan
