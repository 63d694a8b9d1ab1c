// What an instruction does and which bytes it accesses, for the oracle: without the verifier's code.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "runtime/plan/plan.pb.h"

namespace sheaf::mutants {

using ByteRuns = std::vector<std::pair<uint64_t, uint64_t>>;  // [begin, end)

struct Access {
  uint64_t begin, end;
  uint32_t buffer;
  bool reads, writes, scratch;
  ByteRuns runs;  // what is written of it; empty: all
};

// The operands of an instruction, in order.
std::vector<const plan::Operand*> operandsOf(const plan::Instruction& instruction);

// What the instruction does, whatever it does it to: its message without its place in the plan.
std::string operationOf(plan::Instruction instruction);

// The step's number enters what it reads from outside, and dropout's masks.
bool dependsOnStep(const plan::Instruction& instruction);

// What a call writes of its operand `index` where it leaves gaps, each run by itself, from the operand's begin.
const ByteRuns& runsOf(const plan::Instruction& instruction, size_t index);

// Whether [begin, end) and [from, to) have a byte in common.
bool meet(uint64_t begin, uint64_t end, uint64_t from, uint64_t to);

// Which operands of a kernel are at one place, one of them written.
std::string sharedPlaces(const plan::Instruction& instruction);

}  // namespace sheaf::mutants
