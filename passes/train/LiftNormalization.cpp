#include "passes/train/Passes.h"

namespace sheaf::train {
#define GEN_PASS_DEF_LIFTNORMALIZATION
#include "passes/train/Passes.h.inc"
}  // namespace sheaf::train

using namespace mlir;
using namespace sheaf::train;

namespace {
struct LiftNormalization : sheaf::train::impl::LiftNormalizationBase<LiftNormalization> {
  using Base::Base;
  void runOnOperation() override {}
};
}  // namespace
