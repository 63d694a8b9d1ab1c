#include "passes/train/Passes.h"

namespace sheaf::train {
#define GEN_PASS_DEF_ASSIGNFUSIONS
#include "passes/train/Passes.h.inc"
}  // namespace sheaf::train

using namespace mlir;
using namespace sheaf::train;

namespace {
struct AssignFusions : sheaf::train::impl::AssignFusionsBase<AssignFusions> {
  using Base::Base;
  void runOnOperation() override {}
};
}  // namespace
