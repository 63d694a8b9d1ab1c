// Which elements each rank writes to a saved state (runtime/io/Checkpoint.h). Of N ranks each writes an N-th part of
// every bucket, also at a ZeRO stage at which it holds all of it: so every element is written once, and all ranks write
// equally much.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/plan/plan.pb.h"

namespace sheaf::plan {

// A *slot* is one of the arrays of a bucket: kParameters, the parameters as the step reads them, or i >= 0,
// Bucket.states number i.
inline constexpr int kParameters = -1;

// The slot with the parameters' exact values: the master weights, which are state 0, if there are any; else the
// parameters themselves.
inline int exactSlot(const Bucket& bucket) {
  return bucket.master() ? 0 : kParameters;
}
// The type of a slot's elements: the bucket's for parameters, f32 for states.
inline ElementType slotType(const Bucket& bucket, int slot) {
  return slot == kParameters ? bucket.type() : F32;
}

// A range of elements of one parameter in one slot.
struct SavedPart {
  int parameter = 0;  // index in Plan.parameters
  int slot = kParameters;
  uint64_t begin = 0, end = 0;  // 0: the parameter's first element, in the plan's layout
};
// What a rank writes, in the order of its file: parameter after parameter as in the plan, and of each the exact values
// first, then the states. Parameters of which the rank writes nothing are left out.
std::vector<SavedPart> savedParts(const Plan& plan, int64_t rank);

// Bytes of a part.
uint64_t bytesOf(const Plan& plan, const SavedPart& part);

// Host memory, in bytes, that holds all parts of a rank, each from a multiple of kStagingAlignment on: with so much a
// save while the run goes on (`sheaf-run --save-staging`) need not wait for the file. At most `limit`, which is the
// SIZE of that option, and at least kStagingAlignment.
inline constexpr uint64_t kStagingAlignment = 64;
uint64_t stagingBytes(const Plan& plan, int64_t rank, uint64_t limit = UINT64_MAX);
// The largest of all ranks' stagingBytes.
uint64_t mostStagingBytes(const Plan& plan, uint64_t limit = UINT64_MAX);

}  // namespace sheaf::plan
