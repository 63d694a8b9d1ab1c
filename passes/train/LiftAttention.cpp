#include "passes/train/Passes.h"

namespace sheaf::train {
#define GEN_PASS_DEF_LIFTATTENTION
#include "passes/train/Passes.h.inc"
}  // namespace sheaf::train

using namespace mlir;
using namespace sheaf::train;

namespace {
struct LiftAttention : sheaf::train::impl::LiftAttentionBase<LiftAttention> {
  using Base::Base;
  void runOnOperation() override {}
};
}  // namespace
