// What a kernel computes, in terms of one leaf of the batch: the lines of Kernel.ops.
//
// A kernel that has the rows of several leaves treats each leaf's rows as a kernel of that leaf alone would. So its
// program is that of one leaf, and of each operand and result it is known where the leaves' rows lie: the elements are
// [outer, leaves, elements of a leaf / outer]. In order:
//   operand TYPE SHAPE [leaves N outer O] [pitch P]        of each operand that it reads
//   map NAME TYPE SHAPE [with HASH] of I J ...             element i of the value depends on elements i of the operands
//   spread NAME TYPE SHAPE [with HASH] of I                a broadcast
//   same NAME TYPE SHAPE [with HASH] of I                  the elements of the operand, in their order
//   splat NAME TYPE SHAPE with HASH                        a constant, all of whose elements are one
//   whole NAME TYPE SHAPE [with HASH] of I ...             any function of whole operands
//   result TYPE SHAPE [leaves N outer O] [pitch P] of I    of each operand that it writes
// SHAPE is that of one leaf, "4x256"; a value without `leaves` is the same for every leaf. P: elements from one row, of
// the last dimension, to the next. HASH: of attributes. I: the line of an operand or op, from 0.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::plan {

struct ProgramLine {
  enum Kind { kOperand, kMap, kSpread, kSame, kSplat, kWhole, kResult };
  Kind kind = kOperand;
  std::string name;  // of an op: "add"
  ElementType type = F32;
  std::vector<int64_t> shape = {};
  int64_t leaves = 0, outer = 1, pitch = 0;  // 0 leaves: the same for all; 0: no pitch
  uint64_t attributes = 0;                   // 0: none
  std::vector<uint32_t> of = {};

  int64_t elements() const;
  int64_t columns() const { return shape.empty() ? 1 : shape.back(); }
  std::string text() const;
};

struct KernelProgram {
  std::vector<ProgramLine> lines;
  int64_t leaves = 1;
};

// Reads and checks the lines of a kernel: an error names the line. An empty program for a kernel that states none.
Expected<KernelProgram> programOf(const Kernel& kernel);

}  // namespace sheaf::plan
