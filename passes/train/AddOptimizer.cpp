#include "passes/train/Passes.h"

namespace sheaf::train {
#define GEN_PASS_DEF_ADDOPTIMIZER
#include "passes/train/Passes.h.inc"
}  // namespace sheaf::train

using namespace mlir;
using namespace sheaf::train;

namespace {
struct AddOptimizer : sheaf::train::impl::AddOptimizerBase<AddOptimizer> {
  using Base::Base;
  void runOnOperation() override {}
};
}  // namespace
