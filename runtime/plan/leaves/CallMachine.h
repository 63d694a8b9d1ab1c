// What library calls compute, on symbolic values.
#pragma once

#include <initializer_list>
#include <string_view>

#include "runtime/plan/leaves/Machine.h"

namespace sheaf::plan {

// One call on one rank. What a call computes of independent units (sequences, images, entries before the indexed
// dimension) is a term of each unit, so that it does not matter how many units one call has.
class CallMachine {
 public:
  CallMachine(Machine& machine, const Instruction& instruction, int64_t rank)
      : machine_(machine), instruction_(instruction), rank_(rank) {}

  void run(const AnyCall& call);

 private:
  // A part of an operand.
  struct Part {
    int operand;
    Strided place;
  };

  void operator()(const GemmCall& call);
  void operator()(const AttentionCall& call);
  void operator()(const AttentionGradCall& call);
  void operator()(const GatherCall& call);
  void operator()(const ScatterAddCall& call);
  void operator()(const ScatterCall& call);
  void operator()(const TopKCall& call);
  void operator()(const CumSumCall& call);
  void operator()(const CopyCall& call);
  void operator()(const SumPartialsCall& call);
  void operator()(const DropoutCall& call);
  void operator()(const RandomUniformCall& call);
  void operator()(const MaxPoolCall& call);
  void operator()(const MaxPoolIndicesCall& call);
  void operator()(const MaxPoolGradCall& call);
  void operator()(const ZeroCall& call);
  // Of whole operands.
  template <typename Call>
  void operator()(const Call& call) {
    units(call, 1, {}, {});
  }

  Contents random(const RandomShape& shape, uint64_t width) const;
  Contents gatherRows(const GatherCall& call, uint64_t begin, const Contents& indices);
  Contents gatherElements(const GatherCall& call, uint64_t begin, const Contents& indices);
  Contents columnsOf(int operand, uint64_t begin, int64_t count, int64_t inner, uint64_t width);

  // A function of dense operands that each are `count` equal parts, but for those that all units share. Attributes that
  // count units are left out.
  void units(const AnyCall& call, int64_t count, std::initializer_list<int> shared,
             std::initializer_list<std::string_view> counts);
  // What some parts hold, as arguments of an operation.
  struct Inputs {
    uint64_t operation, hash;
    std::vector<uint64_t> of;  // values
  };
  Inputs inputs(uint64_t operation, std::span<const Part> reads);
  // The value of a result.
  uint64_t result(const Inputs& inputs, uint64_t which);
  // A function of what the parts hold.
  void apply(std::span<const Part> reads, std::span<const Part> writes,
             std::initializer_list<std::string_view> without);
  uint64_t operation(std::initializer_list<std::string_view> without) const;
  const Operand& operand(int i) const { return instruction_.operands(i); }

  Machine& machine_;
  const Instruction& instruction_;
  const int64_t rank_;
};

}  // namespace sheaf::plan
