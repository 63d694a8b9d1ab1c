// The library calls that a plan may make, each a struct with a table of its attributes and operands (CallSchema.h,
// calls/). The compiler writes them, the loader checks them, the cost model and the devices take the structs.
// `sheaf calls` lists them all.
//
// Operands are dense row-major unless strides are given; strides and counts are in elements of the operand's type.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/plan/calls/Attention.h"
#include "runtime/plan/calls/Gemm.h"
#include "runtime/plan/calls/LossScale.h"
#include "runtime/plan/calls/Moves.h"
#include "runtime/plan/calls/Selection.h"
#include "runtime/plan/calls/Sums.h"
#include "runtime/plan/calls/Windows.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::plan {

// Any call: every consumer handles all of them (std::visit).
using AnyCall = std::variant<GemmCall, AttentionCall, AttentionGradCall, GatherCall, ScatterAddCall, ScatterCall,
                             TopKCall, CopyCall, SumPartialsCall, CumSumCall, DropoutCall, RandomUniformCall, ConvCall,
                             ConvGradInputCall, ConvGradFilterCall, MaxPoolCall, MaxPoolIndicesCall, MaxPoolGradCall,
                             SquareSumCall, GradientNormCall, UpdateScalarCall, AdvanceLossScaleCall, ZeroCall>;

std::string_view nameOf(const AnyCall& call);

// True if results of the call are random numbers: functions of the seed (Plan.training), the step and the place in the
// batch, besides its operands. Its Schema says so (`kRandom`).
bool isRandom(const LibraryCall& wire);

// Reads function and attributes of a call in a plan. An error names function and attribute: one that is unknown, given
// twice, missing, of the wrong kind or out of its range, or attributes that do not go together.
Expected<AnyCall> parseCall(const LibraryCall& wire);

// A call with its function and its attributes, in the order of its table; those at their default are left out. Operands
// belong to the instruction.
LibraryCall toWire(const AnyCall& call);

// The attributes as toWire would write them, so that equal calls have equal ones, whether defaults were given or not.
// Those of a call that parseCall refuses are returned as they are.
std::vector<Attribute> canonicalAttributes(const LibraryCall& wire);

// An operand that a call has, scratch not counted.
struct OperandNeed {
  std::string_view name;
  Access access;
  uint64_t bytes;  // that are accessed; INT64_MAX if it is more
  int64_t width;   // bytes of an element, at whose multiples the operand starts
};
std::vector<OperandNeed> operandsOf(const AnyCall& call);

// For each operand, the bytes that the call always writes if the operand is a result. Counts are in bytes; runs that
// reach beyond the operand end there.
std::vector<Runs> writtenRuns(const AnyCall& call);

// Scratch bytes one thread needs to run the call; 0 for most.
uint64_t scratchPerThread(const AnyCall& call);

// Scratch bytes a GPU needs to run the call; 0 for many.
uint64_t deviceScratch(const AnyCall& call);

// Which devices a call must have scratch for.
struct Devices {
  bool cpu = true, gpu = false;
};

// Checks that parseCall takes the instruction's call and that everything it accesses lies within its operands' bytes,
// with the right access. The message names function, operand and both sizes.
Status checkLibraryCall(const Instruction& instruction, uint32_t maxThreads, Devices devices = {});

// Bytes that the library itself may allocate while running calls of this plan (oneDNN packs GEMM operands), for one
// rank with max_threads threads.
uint64_t libraryBytes(const Plan& plan);

// The reference page of all calls, in Markdown.
std::string libraryReference();

}  // namespace sheaf::plan
