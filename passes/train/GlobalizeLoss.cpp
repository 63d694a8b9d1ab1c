#include "passes/train/Passes.h"

namespace sheaf::train {
#define GEN_PASS_DEF_GLOBALIZELOSS
#include "passes/train/Passes.h.inc"
}  // namespace sheaf::train

using namespace mlir;
using namespace sheaf::train;

namespace {
struct GlobalizeLoss : sheaf::train::impl::GlobalizeLossBase<GlobalizeLoss> {
  using Base::Base;
  void runOnOperation() override {}
};
}  // namespace
