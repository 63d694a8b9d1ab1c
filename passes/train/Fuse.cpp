#include "passes/train/Passes.h"

namespace sheaf::train {
#define GEN_PASS_DEF_FUSE
#include "passes/train/Passes.h.inc"
}  // namespace sheaf::train

using namespace mlir;
using namespace sheaf::train;

namespace {
struct Fuse : sheaf::train::impl::FuseBase<Fuse> {
  using Base::Base;
  void runOnOperation() override {}
};
}  // namespace
