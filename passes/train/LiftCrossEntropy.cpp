#include "passes/train/Passes.h"

namespace sheaf::train {
#define GEN_PASS_DEF_LIFTCROSSENTROPY
#include "passes/train/Passes.h.inc"
}  // namespace sheaf::train

using namespace mlir;
using namespace sheaf::train;

namespace {
struct LiftCrossEntropy : sheaf::train::impl::LiftCrossEntropyBase<LiftCrossEntropy> {
  using Base::Base;
  void runOnOperation() override {}
};
}  // namespace
