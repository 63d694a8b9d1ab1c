// What a rank writes of a saved state: its N-th part of every bucket's parameters and states, even where it holds more,
// so that all ranks write equally much.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/plan/plan.pb.h"

namespace sheaf::plan {

// Selects an array of a bucket: its parameters as the step reads them, or one of its states.
inline constexpr int kParameters = -1;

// The array that has the parameters' exact values: the master weights if there are any, else the parameters.
inline int exactSlot(const Bucket& bucket) {
  return bucket.master() ? 0 : kParameters;
}
// Elements of the parameters have the bucket's type, those of states are f32.
inline ElementType slotType(const Bucket& bucket, int slot) {
  return slot == kParameters ? bucket.type() : F32;
}

// A range of a parameter's elements, counted within the parameter.
struct SavedPart {
  int parameter = 0;  // of Plan.parameters
  int slot = kParameters;
  uint64_t begin = 0, end = 0;
};
// In the order of the rank's file: the parameters', and of each the exact values first, then the states.
std::vector<SavedPart> savedParts(const Plan& plan, int64_t rank);

// Bytes of a part.
uint64_t bytesOf(const Plan& plan, const SavedPart& part);

// Host memory that a snapshot of a rank's state takes if it is to wait for no file: its parts, each from a multiple of
// the alignment on. And what `sheaf-run --save-staging SIZE` takes of that.
inline constexpr uint64_t kStagingAlignment = 64;
uint64_t stagingBytes(const Plan& plan, int64_t rank, uint64_t limit = UINT64_MAX);
// Of the rank that has most.
uint64_t mostStagingBytes(const Plan& plan, uint64_t limit = UINT64_MAX);

}  // namespace sheaf::plan
