#include "passes/train/Passes.h"

namespace sheaf::train {
#define GEN_PASS_DEF_DECOMPOSE
#include "passes/train/Passes.h.inc"
}  // namespace sheaf::train

using namespace mlir;
using namespace sheaf::train;

namespace {
struct Decompose : sheaf::train::impl::DecomposeBase<Decompose> {
  using Base::Base;
  void runOnOperation() override {}
};
}  // namespace
