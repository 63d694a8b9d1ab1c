// Gives state in files a second place, so that a step leaves the state before it as it was until the next one is
// durable.
#include "runtime/plan/Generations.h"
#include "ir/Plan/PlanProto.h"
#include "passes/plan/Passes.h"
#include "passes/plan/Sequence.h"
#include "runtime/base/Decisions.h"
#include "runtime/base/Text.h"
#include "runtime/plan/Types.h"

namespace sheaf::plan_ir {
#define GEN_PASS_DEF_GENERATIONS
#include "passes/plan/Passes.h.inc"
}  // namespace sheaf::plan_ir

using namespace mlir;
using namespace sheaf;
using namespace sheaf::plan_ir;

namespace {

struct Generations : plan_ir::impl::GenerationsBase<Generations> {
  using Base::Base;

  void runOnOperation() override {
    for (auto program : getOperation().getOps<ProgramOp>())
      if (failed(divide(program))) return signalPassFailure();
  }

  LogicalResult divide(ProgramOp program) const {
    if (llvm::none_of(program.getBody().front().getOps<BufferOp>(), [](BufferOp buffer) { return isState(buffer); }))
      return success();
    FailureOr<plan::Plan> plan = toProto(program, Kernels::kAny);
    if (failed(plan)) return failure();
    const Sequence sequence(program);
    const SmallVector<BufferOp> stored = storedBy(sequence.stepOp);
    if (stored.empty()) return success();  // an evaluation alone
    std::string why;
    if (const std::vector<std::string> outside = plan::stateOutsideFiles(*plan); !outside.empty())
      why = cat("they lack ", listText(outside, 3));
    for (PartOp part : sequence.partOps)
      if (const SmallVector<BufferOp> early = storedBy(part); !early.empty() && why.empty())
        why = cat("every micro-batch writes '", BufferOp(early.front()).getName().str(), "'");
    if (why.empty() && generations == 1) why = "--file-generations 1";
    if (!why.empty()) {
      decide(program, cat("a run cannot go on from them after a crash: ", why));
      return success();
    }
    uint64_t bytes = 0;
    llvm::MapVector<Value, BufferOp> next;
    for (BufferOp current : stored) {
      next[current.getResult()] = nextOf(current);
      bytes += current.getBytes();
    }
    relabel(sequence.stepOp, next);
    persist(program, sequence.stepOp, next);
    decide(program, cat("every step can be resumed; two generations of ", bytesText(bytes), " a rank"));
    return success();
  }

  static bool isState(BufferOp buffer) { return buffer.getPersistent() && spaceOf(buffer) == plan::Buffer::FILE; }

  // What lives from step to step in files and is written there.
  static SmallVector<BufferOp> storedBy(Operation* section) {
    llvm::SetVector<Operation*> stored;
    section->walk([&](TransferOp transfer) {
      auto to = transfer.getBuffers()[1].getDefiningOp<BufferOp>();
      if (isState(to)) stored.insert(to);
    });
    return llvm::map_to_vector(stored, [](Operation* op) { return cast<BufferOp>(op); });
  }

  static BufferOp nextOf(BufferOp current) {
    OpBuilder builder(current);
    builder.setInsertionPointAfter(current);
    return BufferOp::create(builder, current.getLoc(), current.getType(), (current.getName() + ".next").str(),
                            current.getKind(), int64_t(0), current.getBytes(), true, current.getSpaceAttr());
  }

  // From its first write on a step has the next generation. What the schedule has carried here from the step after this
  // one reads after that write, too.
  static void relabel(StepOp step, const llvm::MapVector<Value, BufferOp>& next) {
    llvm::DenseSet<Value> written;
    step->walk([&](TransferOp transfer) {
      MutableOperandRange buffers = transfer.getBuffersMutable();
      for (unsigned i : {0, 1}) {
        const Value buffer = buffers[i].get();
        auto known = next.find(buffer);
        if (known == next.end()) continue;
        if (i == 1) written.insert(buffer);
        if (written.contains(buffer)) buffers[i].set(BufferOp(known->second).getResult());
      }
    });
  }

  // At the end of the step, after its writes on their stream.
  static void persist(ProgramOp program, StepOp step, const llvm::MapVector<Value, BufferOp>& next) {
    OpBuilder builder(program.getContext());
    SmallVector<Value> buffers;
    SmallVector<int64_t> bytes, access;
    auto add = [&](Value buffer, int64_t size, int64_t how) {
      buffers.push_back(buffer), bytes.push_back(size), access.push_back(how);
    };
    int64_t communicator = 0;
    Operation* last = nullptr;  // of the declarations that refer to buffers
    for (Operation& op : program.getBody().front())
      if (isa<BucketOp, LossScaleOp>(op)) last = &op;
    builder.setInsertionPointAfter(last);
    if (program->getAttrOfType<IntegerAttr>("ranks").getInt() > 1) {
      BufferOp first = *program.getBody().front().getOps<BufferOp>().begin();
      auto votes = BufferOp::create(builder, step.getLoc(), first.getType(), "votes", plan::WORKSPACE, int64_t(0),
                                    int64_t(sizeof(float)), true, SpaceAttr());
      add(votes, sizeof(float), kWrite);
      communicator = program->getAttrOfType<IntegerAttr>("communicators").getInt();
      program->setAttr("communicators", builder.getI64IntegerAttr(communicator + 1));
      if (auto axes = program->getAttrOfType<ArrayAttr>("communicator_axes")) {
        SmallVector<Attribute> more(axes.begin(), axes.end());
        more.push_back(builder.getStringAttr("world"));
        program->setAttr("communicator_axes", builder.getArrayAttr(more));
      }
    }
    for (auto scale : program.getBody().front().getOps<LossScaleOp>())
      add(scale.getBuffer(), scale.getBuffer().getDefiningOp<BufferOp>().getBytes(), kRead);
    for (auto [current, following] : next) {
      GenerationOp::create(builder, step.getLoc(), current, following.getResult());
      const int64_t size = BufferOp(following).getBytes();
      add(current, size, kRead), add(following.getResult(), size, kRead);
    }
    const SmallVector<int64_t> none(buffers.size(), 0);
    int64_t stream = 0;
    step->walk([&](TransferOp transfer) {
      if (transfer.getKind() == plan::Transfer::WRITE_FILE) stream = transfer.getStream();
    });
    builder.setInsertionPointToEnd(&step.getBody().front());
    PersistOp::create(builder, step.getLoc(), stream, "persist", buffers, none, bytes, none, none, access,
                      communicator);
  }

  static void decide(ProgramOp program, const std::string& text) {
    Builder builder(program.getContext());
    SmallVector<Attribute> all;
    if (auto decisions = program->getAttrOfType<ArrayAttr>("decisions")) llvm::append_range(all, decisions);
    all.push_back(builder.getStringAttr(cat(kFilesDecision, text)));
    program->setAttr("decisions", builder.getArrayAttr(all));
  }
};

}  // namespace
