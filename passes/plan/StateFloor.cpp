// States what any plan of this model at this stage must do in a step, before recomputation and sharding decide on
// instructions. A plan that does more cannot hide it.
#include "ir/Plan/StepWorkAttribute.h"
#include "llvm/ADT/TypeSwitch.h"
#include "passes/StepModule.h"
#include "passes/plan/CallShapes.h"
#include "passes/plan/Passes.h"
#include "runtime/plan/StepWork.h"

namespace sheaf::plan_ir {
#define GEN_PASS_DEF_STATEFLOOR
#include "passes/plan/Passes.h.inc"
}  // namespace sheaf::plan_ir

using namespace mlir;

namespace sheaf::plan_ir {

namespace {

// The products that an op cannot do without.
std::optional<plan::ProductFlops> neededProducts(Operation* op) {
  return llvm::TypeSwitch<Operation*, std::optional<plan::ProductFlops>>(op)
      .Case<train::MatMulOp, train::MatMulEpilogueOp>([](auto m) { return plan::productFlops(gemmShape(m)); })
      .Case([](train::AttentionOp a) {
        plan::AttentionCall call;
        setAttentionShape(call, a);
        return plan::productFlops(call);
      })
      .Case([](train::AttentionGradOp a) {
        // Two products for each of the forward pass. The library's gradient computes the scores again besides, which
        // is recomputation.
        plan::AttentionCall forward;
        setAttentionShape(forward, a);
        std::optional<plan::ProductFlops> products = plan::productFlops(forward);
        products->set_flops(2 * products->flops());
        return products;
      })
      .Case<train::ConvOp, train::ConvGradInputOp, train::ConvGradFilterOp>(
          [](auto c) { return plan::productFlops(convolutionCall(c)); })
      .Default([](Operation*) { return std::nullopt; });
}

struct StateFloor : impl::StateFloorBase<StateFloor> {
  using Base::Base;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    func::FuncOp step = zero::stepOf(module);
    if (!step || step.isExternal()) return;
    plan::StepWork floor;
    const int64_t microBatches = zero::moduleInteger(module, "train.micro_batches", 1);
    for (Operation& op : step.getBody().front())
      if (std::optional<plan::ProductFlops> products = neededProducts(&op); products && !op.use_empty())
        for (int64_t micro = 0; micro < microBatches; ++micro) plan::addProducts(floor, *products);
    addState(module, step, floor);
    Builder builder(&getContext());
    module->setAttr("train.floor", stepWorkAttribute(builder, floor));
  }

  // What the updates of a rank read and write, and what must pass between ranks: without padding, each byte once.
  void addState(ModuleOp module, func::FuncOp step, plan::StepWork& floor) {
    SymbolTable symbols(module);
    // Bytes of all parameters that the step reads, of those that are trained, and of their gradients.
    int64_t all = 0, trained = 0, gradients = 0, updates = 0;
    llvm::DenseSet<Operation*> counted;
    for (auto read : step.getOps<train::ReadOp>())
      if (counted.insert(symbols.lookup(read.getParameter())).second) all += bytesOf(read.getResult());
    for (auto update : step.getOps<train::UpdateOp>()) {
      auto parameter = symbols.lookup<train::ParameterOp>(update.getParameter());
      auto optimizer = symbols.lookup<train::OptimizerOp>(update.getOptimizer());
      if (!parameter || !optimizer) continue;  // zero-form-buckets reports it
      auto type = cast<RankedTensorType>(parameter.getType());
      const int64_t elements = type.getNumElements(), own = elements * widthOf(type.getElementType());
      const int64_t gradient = bytesOf(update.getGradient());
      // Optimizer state is f32; so are the master weights of parameters of another type, which are written besides.
      const int64_t states = optimizer.getStates().size(), f32 = sizeof(float);
      const bool master = !type.getElementType().isF32();
      updates += gradient + 2 * (1 + states) * elements * f32 + (master ? own : 0);
      gradients += gradient;
      trained += own;
    }
    zero::Sharding sharding{.ranks = zero::ranksOf(module), .perNode = zero::ranksOf(module), .stage = stage};
    if (ranksPerNode > 0) sharding.perNode = ranksPerNode;
    sharding.networkStage = networkStage < 0 ? stage : networkStage;
    const int64_t ranks = sharding.ranks, nodes = sharding.nodes();
    floor.set_state_bytes(ranks > 1 ? updates / sharding.parts(1) : updates);
    if (ranks == 1) return;
    floor.set_reduced_bytes(gradients);
    // Every rank needs all parameters: updated by itself from the summed gradients, or received from their owners.
    auto gathered = [&](int64_t stage) { return stage == 0 ? gradients : stage < 3 ? trained : all; };
    // Of the ranks - 1 parts that a rank receives, nodes - 1 come over the network.
    const int64_t parts = (ranks - nodes) * (gathered(sharding.stage) / (ranks - 1)) +
                          (nodes - 1) * (gathered(sharding.networkStage) / (ranks - 1));
    floor.set_gathered_bytes(sharding.stage == sharding.networkStage ? gathered(stage) : parts);
  }
};

}  // namespace
}  // namespace sheaf::plan_ir
