#include "passes/train/Passes.h"

namespace sheaf::train {
#define GEN_PASS_DEF_FOLDCONSTANTS
#include "passes/train/Passes.h.inc"
}  // namespace sheaf::train

using namespace mlir;
using namespace sheaf::train;

namespace {
struct FoldConstants : sheaf::train::impl::FoldConstantsBase<FoldConstants> {
  using Base::Base;
  void runOnOperation() override {}
};
}  // namespace
